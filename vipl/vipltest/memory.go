package vipltest

import "viaxdp/vipl"

var memoryRules = []Rule{
	rule("ptag-memory/ptag-in-use-stays", "VipDestroyPtag returns ERROR_RESOURCE while a VI or a memory region carries the tag.", func(t *T) {
		tag := t.tag(t.A)
		v, err := t.A.CreateVI(vipl.VIAttributes{Level: vipl.ReliableDelivery, Ptag: tag}, nil, nil)
		t.must(err)
		t.wantErr("tag of a VI", tag.Destroy(), vipl.ErrResource)
		r, err := t.A.RegisterMem(make([]byte, 64), vipl.MemAttributes{Ptag: tag})
		t.must(err)
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
		mine, other := t.tag(t.A), t.tag(t.A)
		v := t.vi(t.A, vipl.VIAttributes{Level: vipl.UnreliableDelivery, Ptag: mine})
		t.join(v, t.vi(t.B, at(vipl.UnreliableDelivery)))
		good, bad := t.blockOf(t.A, mine, 1, 1, 64), t.blockOf(t.A, other, 1, 1, 64)

		good.sendDone(v, 0, 64)
		good.sendSegments(v, 0, bad.seg(0, 64))
		t.sent(v, vipl.StatusProtectionError)
		good.postRecv(v, good.desc[0])
		t.received(v, vipl.StatusProtectionError)
		bad.prepare(0, 64)
		t.wantErr("send in memory of another tag", v.PostSend(bad.desc[0], bad.Handle()), vipl.ErrInvalidParameter)
		t.wantErr("receive in memory of another tag", v.PostRecv(bad.desc[0], bad.Handle()), vipl.ErrInvalidParameter)
		t.state(v, vipl.Connected)
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
	// One buffer is under two tags, with a VI of each.
	rule("ptag-memory/same-memory-many-times", "The same memory may be registered many times with different attributes; each handle stands for itself.", func(t *T) {
		buf := make([]byte, 64)
		one, two := t.tag(t.B), t.tag(t.B)
		r1 := t.register(t.B, buf, vipl.MemAttributes{Ptag: one})
		r2 := t.register(t.B, buf, vipl.MemAttributes{Ptag: two, EnableRDMARead: true})
		if r1.Handle() == r2.Handle() {
			t.Fatal("both have the same handle")
		}
		if a, err := r1.Query(); err != nil || a.Ptag != one || a.EnableRDMARead {
			t.Errorf("the first is %+v, %v", a, err)
		}
		if a, err := r2.Query(); err != nil || a.Ptag != two || !a.EnableRDMARead {
			t.Errorf("the second is %+v, %v", a, err)
		}
		from := t.block(t.A, 1, 64)
		level := vipl.ReliableReception
		for i, r := range []*vipl.Region{r1, r2} {
			tag := []*vipl.Ptag{one, two}[i]
			va, vb := t.pairOf(at(level), vipl.VIAttributes{Level: level, Ptag: tag})
			x := t.blockOf(t.B, tag, 1, 1, 64)
			x.recvSegments(vb, 0, r.Segment(0, 64))
			from.sendMessage(va, 0, 64, i)
			t.received(vb, 0)
			t.coalesces("buffer", buf, i)
			t.sent(va, 0)
			t.must(r.Deregister()) // the other one stays
		}
	}),
	rule("ptag-memory/any-memory-at-any-address", "Any memory of the program may be registered; neither its start nor its length is aligned to anything.", func(t *T) {
		va, vb, x, y := t.ends(vipl.ReliableReception, 1, 1, 64)
		out, in := make([]byte, 20000), make([]byte, 20000)
		for i, cut := range []struct{ from, n int }{{1, 1}, {3, 61}, {63, 4097}, {4095, 12345}, {0, 20000}} {
			clear(in)
			fill(out, i)
			from := t.register(t.A, out[cut.from:][:cut.n], vipl.MemAttributes{})
			to := t.register(t.B, in[cut.from:][:cut.n], vipl.MemAttributes{})
			y.recvSegments(vb, 0, to.Segment(0, cut.n))
			x.sendSegments(va, 0, from.Segment(0, cut.n))
			t.received(vb, 0)
			t.sent(va, 0)
			t.untouched("before it", in[:cut.from])
			t.holdsFrom("the region", in[cut.from:][:cut.n], cut.from, i)
			t.untouched("behind it", in[cut.from+cut.n:])
		}
	}),
	rule("ptag-memory/handle-is-good-for-its-range-only", "A send whose segment begins before its region or reaches past its end is a PROTECTION_ERROR; the last byte is good.", func(t *T) {
		va, _ := t.pair(vipl.UnreliableDelivery)
		x := t.block(t.A, 1, 64)
		buf := make([]byte, 300)
		r := t.register(t.A, buf[100:200], vipl.MemAttributes{})
		for _, c := range []struct {
			off, n int
			want   vipl.Status
		}{
			{0, 100, 0},
			{99, 1, 0},
			{-1, 10, vipl.StatusProtectionError},
			{0, 101, vipl.StatusProtectionError},
			{99, 2, vipl.StatusProtectionError},
			{100, 1, vipl.StatusProtectionError},
			{-100, 300, vipl.StatusProtectionError},
			{50, 1 << 20, vipl.StatusProtectionError},
		} {
			x.sendSegments(va, 0, r.Segment(c.off, c.n))
			t.sent(va, c.want)
		}
		// An address near the end of all addresses does not wrap around.
		s := r.Segment(0, 100)
		s.Data = ^uint64(0) - 10
		x.sendSegments(va, 0, s)
		t.sent(va, vipl.StatusProtectionError)
	}),
	rule("ptag-memory/wrong-handle-is-a-protection-error", "A segment with a handle that was never given, or 0, is a PROTECTION_ERROR.", func(t *T) {
		va, _ := t.pair(vipl.UnreliableDelivery)
		x := t.block(t.A, 1, 64)
		for _, h := range []vipl.MemHandle{0, x.Handle() ^ 1, x.Handle() + 1<<16, ^vipl.MemHandle(0)} {
			s := x.seg(0, 64)
			s.Handle = h
			x.sendSegments(va, 0, s)
			t.sent(va, vipl.StatusProtectionError)
			x.prepare(0, 64)
			t.wantErr("descriptor with another handle", va.PostSend(x.desc[0], h), vipl.ErrInvalidParameter)
		}
	}),
	choice("ptag-memory/empty-segment-needs-no-memory", "A segment of length 0 names no memory.", "its handle and address are not looked at", func(t *T) {
		va, vb, x, y := t.ends(vipl.ReliableReception, 1, 1, 64)
		nowhere := vipl.DataSegment{Data: 0xdead, Handle: 0xdead}
		fill(x.buf(0), 5)
		y.recvSegments(vb, 0, nowhere, y.seg(0, 64))
		x.sendSegments(va, 0, nowhere, x.seg(0, 64))
		t.receivedMessage(vb, y.buf(0), 5)
		t.sent(va, 0)
	}),
	rule("ptag-memory/descriptor-crosses-pages-never-regions", "A descriptor may cross a page; one that reaches past the end of its region is refused with INVALID_PARAMETER.", descriptorsAtEnds),
	rule("ptag-memory/deregister-is-refused-while-posted", "VipDeregisterMem returns ERROR_RESOURCE while a posted descriptor uses the region or lies in it.", func(t *T) {
		va, vb, x, y := t.ends(vipl.ReliableReception, 1, 1, 64)
		data := t.alloc(t.B, 64, vipl.MemAttributes{})
		y.recvSegments(vb, 0, data.Segment(0, 64))
		t.wantErr("data of a posted receive", data.Deregister(), vipl.ErrResource)
		t.wantErr("home of a posted receive", y.Deregister(), vipl.ErrResource)

		x.sendMessage(va, 0, 64, 1)
		t.received(vb, 0)
		t.sent(va, 0)
		t.coalesces("the data", data.Bytes(), 1)
		for _, r := range []*vipl.Region{data, y.Region, x.Region} {
			t.wantErr("when all is done", r.Deregister(), nil)
		}
	}),
	rule("ptag-memory/deregister-ends-the-handle", "After VipDeregisterMem the handle is good for nothing: descriptors in it are refused, data is a PROTECTION_ERROR.", func(t *T) {
		va, _ := t.pair(vipl.UnreliableDelivery)
		x := t.block(t.A, 1, 64)
		buf := make([]byte, 64)
		r := t.register(t.A, buf, vipl.MemAttributes{})
		s, h := r.Segment(0, 64), r.Handle()
		t.must(r.Deregister())
		t.wantErr("twice", r.Deregister(), vipl.ErrInvalidParameter)
		t.wantErr("query", errOf(r.Query()), vipl.ErrInvalidParameter)
		t.wantErr("set attributes", r.SetAttributes(vipl.MemAttributes{Ptag: t.tag(t.A)}), vipl.ErrInvalidParameter)

		x.sendSegments(va, 0, s)
		t.sent(va, vipl.StatusProtectionError)
		x.prepare(0, 64)
		t.wantErr("descriptor", va.PostSend(x.desc[0], h), vipl.ErrInvalidParameter)

		// The same memory, registered again, gets another handle.
		again := t.register(t.A, buf, vipl.MemAttributes{})
		t.errorIf(again.Handle() == h, "the old handle names the new region")
	}),
	rule("ptag-memory/query-tells-the-attributes", "VipQueryMem tells the tag and the RDMA enables of a region.", func(t *T) {
		for i := range 4 {
			want := vipl.MemAttributes{Ptag: t.tag(t.A), EnableRDMAWrite: i&1 != 0, EnableRDMARead: i&2 != 0}
			for _, r := range []*vipl.Region{t.alloc(t.A, 64, want), t.register(t.A, make([]byte, 64), want)} {
				got, err := r.Query()
				t.errorIf(err != nil || got != want, "%+v, %v; want %+v", got, err, want)
			}
		}
	}),
	rule("ptag-memory/set-attributes-changes-them", "VipSetMemAttributes changes tag and RDMA enables; the region lets go of the old tag and holds the new one.", func(t *T) {
		one, two := t.tag(t.A), t.tag(t.A)
		r := t.register(t.A, make([]byte, 64), vipl.MemAttributes{Ptag: one})
		want := vipl.MemAttributes{Ptag: two, EnableRDMAWrite: true, EnableRDMARead: true}
		t.must(r.SetAttributes(want))
		got, err := r.Query()
		t.errorIf(err != nil || got != want, "%+v, %v; want %+v", got, err, want)
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
		got, err := r.Query()
		t.errorIf(err != nil || got != want, "%+v, %v; want %+v", got, err, want)
	}),
	rule("ptag-memory/tag-counts-at-post", "Which memory a VI may use is decided by the tag that the region has when the descriptor is posted.", func(t *T) {
		mine, other := t.tag(t.A), t.tag(t.A)
		v := t.vi(t.A, vipl.VIAttributes{Level: vipl.UnreliableDelivery, Ptag: mine})
		t.join(v, t.vi(t.B, at(vipl.UnreliableDelivery)))
		x, data := t.blockOf(t.A, mine, 1, 1, 64), t.alloc(t.A, 64, vipl.MemAttributes{Ptag: other})
		x.desc[0].SetSegments(data.Segment(0, 64))
		for _, c := range []struct {
			tag  *vipl.Ptag
			want vipl.Status
		}{{other, vipl.StatusProtectionError}, {mine, 0}, {other, vipl.StatusProtectionError}} {
			t.must(data.SetAttributes(vipl.MemAttributes{Ptag: c.tag}))
			x.post(v, x.desc[0])
			t.sent(v, c.want)
		}
	}),
	choice("ptag-memory/read-enable-is-accepted", "VipRegisterMem with EnableRDMARead returns INVALID_RDMAREAD only where no level has RDMA read.", "accepted", func(t *T) {
		t.register(t.A, make([]byte, 64), vipl.MemAttributes{EnableRDMAWrite: true, EnableRDMARead: true})
	}),
	choice("ptag-memory/arena-memory-is-aligned-and-returns", "Memory that the provider allocates is aligned for descriptors, and free again after VipDeregisterMem.", "memory of the provider's arena beside any memory of the program", func(t *T) {
		const size = 1 << 20
		tag := t.tag(t.A)
		for range 200 { // more than there can be at once
			r, err := t.A.AllocMem(size, vipl.MemAttributes{Ptag: tag})
			t.must(err)
			t.errorIf(len(r.Bytes()) != size || r.Addr()%vipl.DescriptorAlignment != 0, "%d bytes at %#x", len(r.Bytes()), r.Addr())
			t.must(r.Deregister())
		}
		t.wantErr("more than there is", errOf(t.A.AllocMem(1<<40, vipl.MemAttributes{Ptag: tag})), vipl.ErrResource)
	}),
}

// anyMemory has a VI without a tag use memory of several.
func anyMemory(t *T) {
	va, vb := t.pairOf(at(vipl.ReliableDelivery), at(vipl.ReliableDelivery))
	from, to := t.block(t.A, 2, 64), t.block(t.B, 2, 64)
	more, room := t.alloc(t.A, 64, vipl.MemAttributes{}), t.alloc(t.B, 64, vipl.MemAttributes{})
	fill(from.buf(0), 1)
	fill(more.Bytes(), 2)

	to.recvSegments(vb, 0, to.seg(0, 64), room.Segment(0, 64))
	from.sendSegments(va, 0, from.seg(0, 64), more.Segment(0, 64))
	t.received(vb, 0)
	t.coalesces("first segment", to.buf(0), 1)
	t.coalesces("second segment", room.Bytes(), 2)
	t.sent(va, 0)
}

// descriptorsAtEnds posts a descriptor over the end of a page, and one over the end of its region.
func descriptorsAtEnds(t *T) {
	const page, segs = 4096, 60 // 992 bytes
	va, vb := t.pair(vipl.ReliableReception)
	x, y := t.block(t.A, 1, segs*8), t.block(t.B, 1, segs*8)
	r := t.alloc(t.A, 3*page, vipl.MemAttributes{})
	first := int(-r.Addr() % page) // offset of the next page
	d, err := r.Descriptor(first+page-64, segs)
	t.must(err)
	fill(x.buf(0), 3)
	var list []vipl.DataSegment
	for i := range segs {
		list = append(list, x.Segment(x.at(0)+i*8, 8))
	}
	d.SetSegments(list...)
	y.recv(vb, 0, segs*8)
	t.must(va.PostSend(d, r.Handle()))
	t.receivedMessage(vb, y.buf(0), 3)
	t.sent(va, 0)

	// The last 64 bytes of a region hold two segments, not three.
	last := len(r.Bytes()) - 64
	d, err = r.Descriptor(last, 2)
	t.must(err)
	t.errorIf(errOf(r.Descriptor(last, 3)) == nil, "a descriptor reaches past its region")
	d.SetSegments(list[:2]...)
	d.SegCount = 3
	t.wantErr("descriptor past its region", va.PostSend(d, r.Handle()), vipl.ErrInvalidParameter)
	t.state(va, vipl.Connected)
}
