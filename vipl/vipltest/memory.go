package vipltest

import "viaxdp/vipl"

var memoryRules = []Rule{
	rule("ptag-memory/ptag-in-use-stays", "VipDestroyPtag returns ERROR_RESOURCE while a VI or a memory region carries the tag.", func(t *T) {
		tag := t.tag(t.A)
		v := t.vi(t.A, vipl.VIAttributes{Level: vipl.ReliableDelivery, Ptag: tag})
		t.wantErr("tag of a VI", tag.Destroy(), vipl.ErrResource)
		r := t.register(t.A, make([]byte, 64), vipl.MemAttributes{Ptag: tag})
		t.must(v.Destroy())
		t.wantErr("tag of a region", tag.Destroy(), vipl.ErrResource)
		t.must(r.Deregister())
		t.wantErr("tag of nothing", tag.Destroy(), nil)
	}),
	rule("ptag-memory/destroyed-ptag-is-invalid", "A destroyed tag is INVALID_PTAG for VIs and memory, and INVALID_PARAMETER for VipDestroyPtag.", func(t *T) {
		tag := t.tag(t.A)
		t.must(tag.Destroy())
		t.wantErr("CreateVI", errOf(t.A.CreateVI(vipl.VIAttributes{Level: vipl.ReliableDelivery, Ptag: tag}, nil, nil)), vipl.ErrInvalidPtag)
		t.wantErr("RegisterMem", errOf(t.A.RegisterMem(make([]byte, 64), vipl.MemAttributes{Ptag: tag})), vipl.ErrInvalidPtag)
		t.wantErr("AllocMem", errOf(t.A.AllocMem(64, vipl.MemAttributes{Ptag: tag})), vipl.ErrInvalidPtag)
		t.wantErr("DestroyPtag", tag.Destroy(), vipl.ErrInvalidParameter)
	}),
	rule("ptag-memory/vi-uses-memory-of-its-ptag-only", "Descriptors and data of a VI lie in memory that carries the VI's tag; other data is a PROTECTION_ERROR.", func(t *T) {
		a, _ := t.endsOf(vipl.VIAttributes{Level: vipl.UnreliableDelivery, Ptag: t.tag(t.A)}, at(vipl.UnreliableDelivery), 1, 1, 64)
		bad := t.block(t.A, 1, 64)
		a.send(0, 64)
		a.sent()
		a.sendSegments(0, bad.seg(0, 64))
		a.sent(vipl.StatusProtectionError)
		a.postRecv(a.desc[0])
		a.received(vipl.StatusProtectionError)
		bad.prepare(0, 64)
		t.wantErr("send in memory of another tag", a.v.PostSend(bad.desc[0], bad.Handle()), vipl.ErrInvalidParameter)
		t.wantErr("receive in memory of another tag", a.v.PostRecv(bad.desc[0], bad.Handle()), vipl.ErrInvalidParameter)
		t.state(a.v, vipl.Connected)
	}),
	rule("ptag-memory/vi-without-ptag-uses-all-memory", "A VI whose tag is NULL uses memory of any tag of its NIC handle.", anyMemory),
	rule("ptag-memory/handle-is-not-zero", "A memory handle is never 0, and no two regions have the same.", func(t *T) {
		seen := make(map[vipl.MemHandle]bool)
		buf := make([]byte, 64)
		for range 1000 {
			h := t.register(t.A, buf, vipl.MemAttributes{}).Handle()
			if h == 0 || seen[h] {
				t.Fatalf("handle %#x after %d others", uint32(h), len(seen))
			}
			seen[h] = true
		}
	}),
	rule("ptag-memory/memory-without-ptag-is-refused", "VipRegisterMem without a protection tag returns INVALID_PTAG.", func(t *T) {
		t.wantErr("RegisterMem", errOf(t.A.RegisterMem(make([]byte, 64), vipl.MemAttributes{})), vipl.ErrInvalidPtag)
		t.wantErr("AllocMem", errOf(t.A.AllocMem(64, vipl.MemAttributes{})), vipl.ErrInvalidPtag)
	}),
	rule("ptag-memory/no-bytes-are-refused", "VipRegisterMem of no bytes returns INVALID_PARAMETER.", func(t *T) {
		tag := t.tag(t.A)
		for _, b := range [][]byte{nil, {}} {
			t.wantErr("RegisterMem", errOf(t.A.RegisterMem(b, vipl.MemAttributes{Ptag: tag})), vipl.ErrInvalidParameter)
		}
		for _, n := range []int{0, -1} {
			t.errorIf(errOf(t.A.AllocMem(n, vipl.MemAttributes{Ptag: tag})) == nil, "AllocMem of %d bytes succeeded", n)
		}
	}),
	// One buffer is registered with two tags, with a VI for each.
	rule("ptag-memory/same-memory-many-times", "The same memory may be registered many times with different attributes; each handle stands for itself.", func(t *T) {
		buf := make([]byte, 64)
		attrs := [2]vipl.MemAttributes{{Ptag: t.tag(t.B)}, {Ptag: t.tag(t.B), EnableRDMARead: true}}
		regions := [2]*vipl.Region{t.register(t.B, buf, attrs[0]), t.register(t.B, buf, attrs[1])}
		t.errorIf(regions[0].Handle() == regions[1].Handle(), "both have the same handle")
		for i, r := range regions {
			equal(t, "attributes", t.attributes(r), attrs[i])
			a, b := t.endsOf(at(vipl.ReliableReception), vipl.VIAttributes{Level: vipl.ReliableReception, Ptag: attrs[i].Ptag}, 1, 1, 64)
			fill(a.buf(0), i)
			carryMessage(a, b, one(a.Region, a.at(0), 64), one(r, 0, 64))
			t.holds("buffer", buf, i)
			t.must(r.Deregister()) // the other region stays
		}
	}),
	rule("ptag-memory/any-memory-at-any-address", "Any memory of the program may be registered; neither its start nor its length is aligned to anything.", func(t *T) {
		a, b := t.ends(vipl.ReliableReception, 1, 1, 64)
		out, in := make([]byte, 20000), make([]byte, 20000)
		for i, cut := range []struct{ from, n int }{{1, 1}, {3, 61}, {63, 4097}, {4095, 12345}, {0, 20000}} {
			clear(in)
			fill(out, i)
			from := t.register(t.A, out[cut.from:][:cut.n], vipl.MemAttributes{})
			to := t.register(t.B, in[cut.from:][:cut.n], vipl.MemAttributes{})
			carryMessage(a, b, one(from, 0, cut.n), one(to, 0, cut.n))
			t.untouched("before it", in[:cut.from])
			t.holdsFrom("the region", in[cut.from:][:cut.n], cut.from, i)
			t.untouched("behind it", in[cut.from+cut.n:])
		}
	}),
	rule("ptag-memory/handle-is-good-for-its-range-only", "A send whose segment begins before its region or reaches past its end is a PROTECTION_ERROR; the last byte is good.", func(t *T) {
		a, _ := t.ends(vipl.UnreliableDelivery, 1, 1, 64)
		r := t.register(t.A, make([]byte, 300)[100:200], vipl.MemAttributes{})
		wraps := r.Segment(0, 100) // an address near the end of the address space does not
		wraps.Data = ^uint64(0) - 10
		for want, list := range map[vipl.Status][]vipl.DataSegment{
			0: {r.Segment(0, 100), r.Segment(99, 1)},
			vipl.StatusProtectionError: {
				r.Segment(-1, 10), r.Segment(0, 101), r.Segment(99, 2), r.Segment(100, 1), r.Segment(-100, 300), r.Segment(50, 1<<20), wraps,
			},
		} {
			for _, s := range list {
				a.sendSegments(0, s)
				a.sent(want)
			}
		}
	}),
	rule("ptag-memory/wrong-handle-is-a-protection-error", "A segment with a handle that was never given, or 0, is a PROTECTION_ERROR.", func(t *T) {
		a, _ := t.ends(vipl.UnreliableDelivery, 1, 1, 64)
		for _, h := range []vipl.MemHandle{0, a.Handle() ^ 1, a.Handle() + 1<<16, ^vipl.MemHandle(0)} {
			s := a.seg(0, 64)
			s.Handle = h
			a.sendSegments(0, s)
			a.sent(vipl.StatusProtectionError)
			t.wantErr("descriptor with another handle", a.v.PostSend(a.prepare(0, 64), h), vipl.ErrInvalidParameter)
		}
	}),
	choice("ptag-memory/empty-segment-needs-no-memory", "A segment of length 0 names no memory.", "its handle and address are not looked at", func(t *T) {
		a, b := t.ends(vipl.ReliableReception, 1, 1, 64)
		nowhere := vipl.DataSegment{Data: 0xdead, Handle: 0xdead}
		fill(a.buf(0), 5)
		carryMessage(a, b, []vipl.DataSegment{nowhere, a.seg(0, 64)}, []vipl.DataSegment{nowhere, b.seg(0, 64)})
		t.holds("message", b.buf(0), 5)
	}),
	rule("ptag-memory/descriptor-crosses-pages-never-regions", "A descriptor may cross a page; one that reaches past the end of its region is refused with INVALID_PARAMETER.", descriptorsAtEnds),
	rule("ptag-memory/deregister-is-refused-while-posted", "VipDeregisterMem returns ERROR_RESOURCE while a posted descriptor uses the region or lies in it.", func(t *T) {
		a, b := t.ends(vipl.ReliableReception, 1, 1, 64)
		data := t.alloc(t.B, 64, vipl.MemAttributes{})
		b.recvSegments(0, data.Segment(0, 64))
		t.wantErr("data of a posted receive", data.Deregister(), vipl.ErrResource)
		t.wantErr("home of a posted receive", b.Deregister(), vipl.ErrResource)
		a.sendMessage(0, 64, 1)
		b.received()
		a.sent()
		t.holds("the data", data.Bytes(), 1)
		for _, r := range []*vipl.Region{data, a.Region, b.Region} {
			t.wantErr("when all is done", r.Deregister(), nil)
		}
	}),
	rule("ptag-memory/deregister-ends-the-handle", "After VipDeregisterMem the handle is good for nothing: descriptors in it are refused, data is a PROTECTION_ERROR.", func(t *T) {
		a, _ := t.ends(vipl.UnreliableDelivery, 1, 1, 64)
		buf := make([]byte, 64)
		r := t.register(t.A, buf, vipl.MemAttributes{})
		s, h := r.Segment(0, 64), r.Handle()
		t.must(r.Deregister())
		t.wantErr("twice", r.Deregister(), vipl.ErrInvalidParameter)
		t.wantErr("query", errOf(r.Query()), vipl.ErrInvalidParameter)
		t.wantErr("set attributes", r.SetAttributes(vipl.MemAttributes{Ptag: t.tag(t.A)}), vipl.ErrInvalidParameter)
		a.sendSegments(0, s)
		a.sent(vipl.StatusProtectionError)
		t.wantErr("descriptor", a.v.PostSend(a.prepare(0, 64), h), vipl.ErrInvalidParameter)

		// Each registration of the same memory has a handle of its own.
		again := t.register(t.A, buf, vipl.MemAttributes{})
		t.errorIf(again.Handle() == h, "the old handle names the new region")
	}),
	rule("ptag-memory/query-tells-the-attributes", "VipQueryMem tells the tag and the RDMA enables of a region.", func(t *T) {
		for i := range 4 {
			want := vipl.MemAttributes{Ptag: t.tag(t.A), EnableRDMAWrite: i&1 != 0, EnableRDMARead: i&2 != 0}
			for _, r := range []*vipl.Region{t.alloc(t.A, 64, want), t.register(t.A, make([]byte, 64), want)} {
				equal(t, "attributes", t.attributes(r), want)
			}
		}
	}),
	rule("ptag-memory/set-attributes-changes-them", "VipSetMemAttributes changes tag and RDMA enables; the region lets go of the old tag and holds the new one.", func(t *T) {
		one, two := t.tag(t.A), t.tag(t.A)
		r := t.register(t.A, make([]byte, 64), vipl.MemAttributes{Ptag: one})
		want := vipl.MemAttributes{Ptag: two, EnableRDMAWrite: true, EnableRDMARead: true}
		t.must(r.SetAttributes(want))
		equal(t, "attributes", t.attributes(r), want)
		t.wantErr("the old tag", one.Destroy(), nil)
		t.wantErr("the new tag", two.Destroy(), vipl.ErrResource)
	}),
	rule("ptag-memory/set-attributes-refuses-wrong-tags", "VipSetMemAttributes with a wrong tag returns INVALID_PTAG and changes nothing.", func(t *T) {
		want := vipl.MemAttributes{Ptag: t.tag(t.A), EnableRDMAWrite: true}
		r := t.register(t.A, make([]byte, 64), want)
		gone := t.tag(t.A)
		t.must(gone.Destroy())
		for _, tag := range []*vipl.Ptag{nil, gone, t.tag(t.B)} {
			t.wantErr("wrong tag", r.SetAttributes(vipl.MemAttributes{Ptag: tag, EnableRDMARead: true}), vipl.ErrInvalidPtag)
		}
		equal(t, "attributes", t.attributes(r), want)
	}),
	rule("ptag-memory/tag-counts-at-post", "Which memory a VI may use is decided by the tag that the region has when the descriptor is posted.", func(t *T) {
		mine, other := t.tag(t.A), t.tag(t.A)
		a, _ := t.endsOf(vipl.VIAttributes{Level: vipl.UnreliableDelivery, Ptag: mine}, at(vipl.UnreliableDelivery), 1, 1, 64)
		data := t.alloc(t.A, 64, vipl.MemAttributes{Ptag: other})
		for i, want := range []vipl.Status{vipl.StatusProtectionError, 0, vipl.StatusProtectionError} {
			t.must(data.SetAttributes(vipl.MemAttributes{Ptag: []*vipl.Ptag{other, mine, other}[i]}))
			a.sendSegments(0, data.Segment(0, 64))
			a.sent(want)
		}
	}),
	choice("ptag-memory/read-enable-is-accepted", "VipRegisterMem with EnableRDMARead returns INVALID_RDMAREAD only where no level has RDMA read.", "accepted", func(t *T) {
		t.register(t.A, make([]byte, 64), vipl.MemAttributes{EnableRDMAWrite: true, EnableRDMARead: true})
	}),
	choice("ptag-memory/arena-memory-is-aligned-and-returns", "Memory that the provider allocates is aligned for descriptors, and free again after VipDeregisterMem.", "memory of the provider's arena beside any memory of the program", func(t *T) {
		const size = 1 << 20
		tag := t.tag(t.A)
		for range 200 { // more than the limit
			r, err := t.A.AllocMem(size, vipl.MemAttributes{Ptag: tag})
			t.must(err)
			t.errorIf(len(r.Bytes()) != size || r.Addr()%vipl.DescriptorAlignment != 0, "%d bytes at %#x", len(r.Bytes()), r.Addr())
			t.must(r.Deregister())
		}
		t.wantErr("more than there is", errOf(t.A.AllocMem(1<<40, vipl.MemAttributes{Ptag: tag})), vipl.ErrResource)
	}),
}

// anyMemory has a VI without a tag use memory with several tags.
func anyMemory(t *T) {
	a, b := t.endsOf(at(vipl.ReliableDelivery), at(vipl.ReliableDelivery), 1, 1, 64)
	more, room := t.alloc(t.A, 64, vipl.MemAttributes{}), t.alloc(t.B, 64, vipl.MemAttributes{})
	fill(a.buf(0), 1)
	fill(more.Bytes(), 2)
	carryMessage(a, b, []vipl.DataSegment{a.seg(0, 64), more.Segment(0, 64)}, []vipl.DataSegment{b.seg(0, 64), room.Segment(0, 64)})
	t.holds("first segment", b.buf(0), 1)
	t.holds("second segment", room.Bytes(), 2)
}

// descriptorsAtEnds posts a descriptor over the end of a page, and one over the end of its region.
func descriptorsAtEnds(t *T) {
	const page, segs = 4096, 60 // 992 bytes
	a, b := t.ends(vipl.ReliableReception, 1, 1, segs*8)
	r := t.alloc(t.A, 3*page, vipl.MemAttributes{})
	first := int(-r.Addr() % page) // offset of the next page
	d, err := r.Descriptor(first+page-64, segs)
	t.must(err)
	fill(a.buf(0), 3)
	list := a.pieces(segs, 8)
	d.SetSegments(list...)
	b.recv(0, segs*8)
	t.must(a.v.PostSend(d, r.Handle()))
	b.arrived(0, segs*8, 3)
	a.sent()

	// The last 64 bytes of a region hold two segments, not three.
	last := len(r.Bytes()) - 64
	d, err = r.Descriptor(last, 2)
	t.must(err)
	t.errorIf(errOf(r.Descriptor(last, 3)) == nil, "a descriptor reaches past its region")
	d.SetSegments(list[:2]...)
	d.SegCount = 3
	t.wantErr("descriptor past its region", a.v.PostSend(d, r.Handle()), vipl.ErrInvalidParameter)
	t.state(a.v, vipl.Connected)
}
