package vipltest

import "viaxdp/vipl"

var memoryRules = []Rule{
	{
		ID:   "ptag-memory/ptag-in-use-stays",
		Text: "VipDestroyPtag returns ERROR_RESOURCE while a VI or a memory region carries the tag.",
		run:  ptagInUse,
	},
	{
		ID:   "ptag-memory/destroyed-ptag-is-invalid",
		Text: "A destroyed tag is INVALID_PTAG for VIs and memory, and INVALID_PARAMETER for VipDestroyPtag.",
		run:  ptagDestroyed,
	},
	{
		ID:   "ptag-memory/vi-uses-memory-of-its-ptag-only",
		Text: "Descriptors and data of a VI lie in memory that carries the VI's tag; other data is a PROTECTION_ERROR.",
		run:  ptagMatch,
	},
	{
		ID:   "ptag-memory/vi-without-ptag-uses-all-memory",
		Text: "A VI whose tag is NULL uses memory of any tag of its NIC handle.",
		run:  ptagAny,
	},
	{
		ID:   "ptag-memory/handle-is-not-zero",
		Text: "A memory handle is never 0, and no two regions have the same.",
		run:  memoryHandles,
	},
	{
		ID:   "ptag-memory/memory-without-ptag-is-refused",
		Text: "VipRegisterMem without a protection tag returns INVALID_PTAG.",
		run:  memoryNoPtag,
	},
	{
		ID:   "ptag-memory/no-bytes-are-refused",
		Text: "VipRegisterMem of no bytes returns INVALID_PARAMETER.",
		run:  memoryEmpty,
	},
	{
		ID:   "ptag-memory/same-memory-many-times",
		Text: "The same memory may be registered many times with different attributes; each handle stands for itself.",
		run:  memoryTwice,
	},
	{
		ID:   "ptag-memory/any-memory-at-any-address",
		Text: "Any memory of the program may be registered; neither its start nor its length is aligned to anything.",
		run:  memoryAnywhere,
	},
	{
		ID:   "ptag-memory/handle-is-good-for-its-range-only",
		Text: "A segment that begins before its region or reaches past its end is a PROTECTION_ERROR; the last byte is good.",
		run:  memoryRange,
	},
	{
		ID:   "ptag-memory/wrong-handle-is-a-protection-error",
		Text: "A segment with a handle that was never given, or 0, is a PROTECTION_ERROR.",
		run:  memoryWrongHandle,
	},
	{
		ID:     "ptag-memory/empty-segment-needs-no-memory",
		Text:   "A segment of length 0 names no memory.",
		Choice: "its handle and address are not looked at",
		run:    memoryEmptySegment,
	},
	{
		ID:   "ptag-memory/descriptor-crosses-pages-never-regions",
		Text: "A descriptor may cross a page; one that reaches past the end of its region is refused with INVALID_PARAMETER.",
		run:  memoryDescriptor,
	},
	{
		ID:   "ptag-memory/deregister-is-refused-while-posted",
		Text: "VipDeregisterMem returns ERROR_RESOURCE while a posted descriptor uses the region or lies in it.",
		run:  memoryInUse,
	},
	{
		ID:   "ptag-memory/deregister-ends-the-handle",
		Text: "After VipDeregisterMem the handle is good for nothing: descriptors in it are refused, data is a PROTECTION_ERROR.",
		run:  memoryDeregistered,
	},
	{
		ID:   "ptag-memory/query-tells-the-attributes",
		Text: "VipQueryMem tells the tag and the RDMA enables of a region.",
		run:  memoryQuery,
	},
	{
		ID:   "ptag-memory/set-attributes-changes-them",
		Text: "VipSetMemAttributes changes tag and RDMA enables; the region lets go of the old tag and holds the new one.",
		run:  memorySet,
	},
	{
		ID:   "ptag-memory/set-attributes-refuses-wrong-tags",
		Text: "VipSetMemAttributes with a wrong tag returns INVALID_PTAG and changes nothing.",
		run:  memorySetWrong,
	},
	{
		ID:   "ptag-memory/tag-counts-at-post",
		Text: "Which memory a VI may use is decided by the tag that the region has when the descriptor is posted.",
		run:  memoryRetagged,
	},
	{
		ID:     "ptag-memory/read-enable-is-accepted",
		Text:   "VipRegisterMem with EnableRdmaRead returns INVALID_RDMAREAD only where no level has RDMA read.",
		Choice: "accepted",
		run: func(t *T) {
			t.register(t.A, make([]byte, 64), vipl.MemAttributes{EnableRdmaWrite: true, EnableRdmaRead: true})
		},
	},
	{
		ID:     "ptag-memory/arena-memory-is-aligned-and-returns",
		Text:   "Memory that the provider allocates is aligned for descriptors, and free again after VipDeregisterMem.",
		Choice: "memory of the provider's arena beside any memory of the program",
		run:    memoryArena,
	},
}

func ptagInUse(t *T) {
	tag := t.tag(t.A)
	v, err := t.A.CreateVi(vipl.ViAttributes{Level: vipl.ReliableDelivery, Ptag: tag}, nil, nil)
	t.must(err)
	t.wantErr("tag of a VI", tag.Destroy(), vipl.ErrResource)
	r, err := t.A.RegisterMem(make([]byte, 64), vipl.MemAttributes{Ptag: tag})
	t.must(err)
	t.must(v.Destroy())
	t.wantErr("tag of a region", tag.Destroy(), vipl.ErrResource)
	t.must(r.Deregister())
	t.wantErr("tag of nothing", tag.Destroy(), nil)
}

func ptagDestroyed(t *T) {
	tag := t.tag(t.A)
	t.must(tag.Destroy())
	_, err := t.A.CreateVi(vipl.ViAttributes{Level: vipl.ReliableDelivery, Ptag: tag}, nil, nil)
	t.wantErr("CreateVi", err, vipl.ErrInvalidPtag)
	_, err = t.A.RegisterMem(make([]byte, 64), vipl.MemAttributes{Ptag: tag})
	t.wantErr("RegisterMem", err, vipl.ErrInvalidPtag)
	_, err = t.A.AllocMem(64, vipl.MemAttributes{Ptag: tag})
	t.wantErr("AllocMem", err, vipl.ErrInvalidPtag)
	t.wantErr("DestroyPtag", tag.Destroy(), vipl.ErrInvalidParameter)
}

func ptagMatch(t *T) {
	mine, other := t.tag(t.A), t.tag(t.A)
	v := t.vi(t.A, vipl.ViAttributes{Level: vipl.UnreliableDelivery, Ptag: mine})
	t.join(v, t.vi(t.B, vipl.ViAttributes{Level: vipl.UnreliableDelivery}))
	good, bad := t.blockOf(t.A, mine, 1, 1, 64), t.blockOf(t.A, other, 1, 1, 64)

	good.send(v, 0, 64)
	t.sent(v, 0)
	good.desc[0].SetSegments(bad.seg(0, 64))
	good.post(v, good.desc[0])
	t.sent(v, vipl.StatusProtectionError)
	good.postRecv(v, good.desc[0])
	t.received(v, vipl.StatusProtectionError)
	bad.prepare(0, 64)
	t.wantErr("send in memory of another tag", v.PostSend(bad.desc[0], bad.Handle()), vipl.ErrInvalidParameter)
	t.wantErr("receive in memory of another tag", v.PostRecv(bad.desc[0], bad.Handle()), vipl.ErrInvalidParameter)
	t.state(v, vipl.Connected)
}

func ptagAny(t *T) {
	va, vb := t.pairOf(vipl.ViAttributes{Level: vipl.ReliableDelivery}, vipl.ViAttributes{Level: vipl.ReliableDelivery})
	from, to := t.block(t.A, 2, 64), t.block(t.B, 2, 64)
	more, room := t.alloc(t.A, 64, vipl.MemAttributes{}), t.alloc(t.B, 64, vipl.MemAttributes{})
	fill(from.buf(0), 1)
	fill(more.Bytes(), 2)

	to.desc[0].SetSegments(to.seg(0, 64), room.Segment(0, 64))
	to.postRecv(vb, to.desc[0])
	from.desc[0].SetSegments(from.seg(0, 64), more.Segment(0, 64))
	from.post(va, from.desc[0])
	t.received(vb, 0)
	t.holds("first segment", to.buf(0), 1)
	t.holds("second segment", room.Bytes(), 2)
	t.sent(va, 0)
}

func memoryHandles(t *T) {
	seen := make(map[vipl.MemHandle]bool)
	buf := make([]byte, 64)
	for range 1000 {
		h := t.register(t.A, buf, vipl.MemAttributes{}).Handle()
		if h == 0 || seen[h] {
			t.Fatalf("handle %#x after %d others", uint32(h), len(seen))
		}
		seen[h] = true
	}
}

func memoryNoPtag(t *T) {
	_, err := t.A.RegisterMem(make([]byte, 64), vipl.MemAttributes{})
	t.wantErr("RegisterMem", err, vipl.ErrInvalidPtag)
	_, err = t.A.AllocMem(64, vipl.MemAttributes{})
	t.wantErr("AllocMem", err, vipl.ErrInvalidPtag)
}

func memoryEmpty(t *T) {
	tag := t.tag(t.A)
	for _, b := range [][]byte{nil, {}} {
		_, err := t.A.RegisterMem(b, vipl.MemAttributes{Ptag: tag})
		t.wantErr("RegisterMem", err, vipl.ErrInvalidParameter)
	}
	for _, n := range []int{0, -1} {
		if _, err := t.A.AllocMem(n, vipl.MemAttributes{Ptag: tag}); err == nil {
			t.Errorf("AllocMem of %d bytes succeeded", n)
		}
	}
}

// memoryTwice has one buffer under two tags, with a VI of each.
func memoryTwice(t *T) {
	buf := make([]byte, 64)
	one, two := t.tag(t.B), t.tag(t.B)
	r1 := t.register(t.B, buf, vipl.MemAttributes{Ptag: one})
	r2 := t.register(t.B, buf, vipl.MemAttributes{Ptag: two, EnableRdmaRead: true})
	if r1.Handle() == r2.Handle() {
		t.Fatal("both have the same handle")
	}
	if a, err := r1.Query(); err != nil || a.Ptag != one || a.EnableRdmaRead {
		t.Errorf("the first is %+v, %v", a, err)
	}
	if a, err := r2.Query(); err != nil || a.Ptag != two || !a.EnableRdmaRead {
		t.Errorf("the second is %+v, %v", a, err)
	}
	from := t.block(t.A, 1, 64)
	level := vipl.ReliableReception
	for i, r := range []*vipl.Region{r1, r2} {
		tag := []*vipl.Ptag{one, two}[i]
		va, vb := t.pairOf(vipl.ViAttributes{Level: level}, vipl.ViAttributes{Level: level, Ptag: tag})
		x := t.blockOf(t.B, tag, 1, 1, 64)
		x.desc[0].SetSegments(r.Segment(0, 64))
		x.postRecv(vb, x.desc[0])
		fill(from.buf(0), i)
		from.send(va, 0, 64)
		t.received(vb, 0)
		t.holds("buffer", buf, i)
		t.sent(va, 0)
		t.must(r.Deregister()) // the other one stays
	}
}

func memoryAnywhere(t *T) {
	va, vb := t.pair(vipl.ReliableReception)
	x, y := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
	out, in := make([]byte, 20000), make([]byte, 20000)
	for i, cut := range []struct{ from, n int }{{1, 1}, {3, 61}, {63, 4097}, {4095, 12345}, {0, 20000}} {
		clear(in)
		fill(out, i)
		from := t.register(t.A, out[cut.from:][:cut.n], vipl.MemAttributes{})
		to := t.register(t.B, in[cut.from:][:cut.n], vipl.MemAttributes{})
		y.desc[0].SetSegments(to.Segment(0, cut.n))
		y.postRecv(vb, y.desc[0])
		x.desc[0].SetSegments(from.Segment(0, cut.n))
		x.post(va, x.desc[0])
		t.received(vb, 0)
		t.sent(va, 0)
		t.untouched("before it", in[:cut.from])
		t.holdsFrom("the region", in[cut.from:][:cut.n], cut.from, i)
		t.untouched("behind it", in[cut.from+cut.n:])
	}
}

func memoryRange(t *T) {
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
		x.desc[0].SetSegments(r.Segment(c.off, c.n))
		x.post(va, x.desc[0])
		t.sent(va, c.want)
	}
	// An address near the end of all addresses does not wrap around.
	s := r.Segment(0, 100)
	s.Data = ^uint64(0) - 10
	x.desc[0].SetSegments(s)
	x.post(va, x.desc[0])
	t.sent(va, vipl.StatusProtectionError)
}

func memoryWrongHandle(t *T) {
	va, _ := t.pair(vipl.UnreliableDelivery)
	x := t.block(t.A, 1, 64)
	for _, h := range []vipl.MemHandle{0, x.Handle() ^ 1, x.Handle() + 1<<16, ^vipl.MemHandle(0)} {
		s := x.seg(0, 64)
		s.Handle = h
		x.desc[0].SetSegments(s)
		x.post(va, x.desc[0])
		t.sent(va, vipl.StatusProtectionError)
		x.prepare(0, 64)
		t.wantErr("descriptor with another handle", va.PostSend(x.desc[0], h), vipl.ErrInvalidParameter)
	}
}

func memoryEmptySegment(t *T) {
	va, vb := t.pair(vipl.ReliableReception)
	x, y := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
	nowhere := vipl.DataSegment{Data: 0xdead, Handle: 0xdead}
	fill(x.buf(0), 5)
	y.desc[0].SetSegments(nowhere, y.seg(0, 64))
	y.postRecv(vb, y.desc[0])
	x.desc[0].SetSegments(nowhere, x.seg(0, 64))
	x.post(va, x.desc[0])
	t.received(vb, 0)
	t.holds("message", y.buf(0), 5)
	t.sent(va, 0)
}

func memoryDescriptor(t *T) {
	const page, segs = 4096, 8 // 160 bytes
	va, vb := t.pair(vipl.ReliableReception)
	x, y := t.block(t.A, 1, segs*8), t.block(t.B, 1, 64)
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
	y.recv(vb, 0, 64)
	t.must(va.PostSend(d, r.Handle()))
	t.received(vb, 0)
	t.holds("message", y.buf(0), 3)
	t.sent(va, 0)

	// The last 64 bytes of a region hold two segments, not three.
	last := len(r.Bytes()) - 64
	d, err = r.Descriptor(last, 2)
	t.must(err)
	if _, err := r.Descriptor(last, 3); err == nil {
		t.Error("a descriptor reaches past its region")
	}
	d.SetSegments(list[:2]...)
	d.SegCount = 3
	t.wantErr("descriptor past its region", va.PostSend(d, r.Handle()), vipl.ErrInvalidParameter)
	t.state(va, vipl.Connected)
}

func memoryInUse(t *T) {
	va, vb := t.pair(vipl.ReliableReception)
	x, y := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
	data := t.alloc(t.B, 64, vipl.MemAttributes{})
	y.desc[0].SetSegments(data.Segment(0, 64))
	y.postRecv(vb, y.desc[0])
	t.wantErr("data of a posted receive", data.Deregister(), vipl.ErrResource)
	t.wantErr("home of a posted receive", y.Deregister(), vipl.ErrResource)

	fill(x.buf(0), 1)
	x.send(va, 0, 64)
	t.received(vb, 0)
	t.sent(va, 0)
	t.holds("the data", data.Bytes(), 1)
	for _, r := range []*vipl.Region{data, y.Region, x.Region} {
		t.wantErr("when all is done", r.Deregister(), nil)
	}
}

func memoryDeregistered(t *T) {
	va, _ := t.pair(vipl.UnreliableDelivery)
	x := t.block(t.A, 1, 64)
	buf := make([]byte, 64)
	r := t.register(t.A, buf, vipl.MemAttributes{})
	s, h := r.Segment(0, 64), r.Handle()
	t.must(r.Deregister())
	t.wantErr("twice", r.Deregister(), vipl.ErrInvalidParameter)
	_, err := r.Query()
	t.wantErr("query", err, vipl.ErrInvalidParameter)
	t.wantErr("set attributes", r.SetAttributes(vipl.MemAttributes{Ptag: t.tag(t.A)}), vipl.ErrInvalidParameter)

	x.desc[0].SetSegments(s)
	x.post(va, x.desc[0])
	t.sent(va, vipl.StatusProtectionError)
	x.prepare(0, 64)
	t.wantErr("descriptor", va.PostSend(x.desc[0], h), vipl.ErrInvalidParameter)

	// The same memory registered anew has a handle of its own.
	if again := t.register(t.A, buf, vipl.MemAttributes{}); again.Handle() == h {
		t.Error("the old handle names the new region")
	}
}

func memoryQuery(t *T) {
	for i := range 4 {
		want := vipl.MemAttributes{Ptag: t.tag(t.A), EnableRdmaWrite: i&1 != 0, EnableRdmaRead: i&2 != 0}
		for _, r := range []*vipl.Region{t.alloc(t.A, 64, want), t.register(t.A, make([]byte, 64), want)} {
			if got, err := r.Query(); err != nil || got != want {
				t.Errorf("%+v, %v; want %+v", got, err, want)
			}
		}
	}
}

func memorySet(t *T) {
	one, two := t.tag(t.A), t.tag(t.A)
	r := t.register(t.A, make([]byte, 64), vipl.MemAttributes{Ptag: one})
	want := vipl.MemAttributes{Ptag: two, EnableRdmaWrite: true, EnableRdmaRead: true}
	t.must(r.SetAttributes(want))
	if got, err := r.Query(); err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	t.wantErr("the old tag", one.Destroy(), nil)
	t.wantErr("the new tag", two.Destroy(), vipl.ErrResource)
}

func memorySetWrong(t *T) {
	want := vipl.MemAttributes{Ptag: t.tag(t.A), EnableRdmaWrite: true}
	r := t.register(t.A, make([]byte, 64), want)
	gone := t.tag(t.A)
	t.must(gone.Destroy())
	for _, tag := range []*vipl.Ptag{nil, gone, t.tag(t.B)} {
		t.wantErr("wrong tag", r.SetAttributes(vipl.MemAttributes{Ptag: tag, EnableRdmaRead: true}), vipl.ErrInvalidPtag)
	}
	if got, err := r.Query(); err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
}

func memoryRetagged(t *T) {
	mine, other := t.tag(t.A), t.tag(t.A)
	v := t.vi(t.A, vipl.ViAttributes{Level: vipl.UnreliableDelivery, Ptag: mine})
	t.join(v, t.vi(t.B, vipl.ViAttributes{Level: vipl.UnreliableDelivery}))
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
}

func memoryArena(t *T) {
	const size = 1 << 20
	tag := t.tag(t.A)
	for range 200 { // more than there can be at once
		r, err := t.A.AllocMem(size, vipl.MemAttributes{Ptag: tag})
		t.must(err)
		if len(r.Bytes()) != size || r.Addr()%vipl.DescriptorAlignment != 0 {
			t.Errorf("%d bytes at %#x", len(r.Bytes()), r.Addr())
		}
		t.must(r.Deregister())
	}
	_, err := t.A.AllocMem(1<<40, vipl.MemAttributes{Ptag: tag})
	t.wantErr("more than there is", err, vipl.ErrResource)
}
