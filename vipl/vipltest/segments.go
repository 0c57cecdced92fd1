package vipltest

import (
	"slices"

	"viaxdp/vipl"
)

// segmentRules are about what is sent from where and received where.
var segmentRules = []Rule{
	{
		ID: "send-receive/sizes", Text: "A message of 0 bytes to MaxTransferSize arrives whole, and Length of the receive is its length.",
		run: eachLevel(sizes),
	},
	{
		ID: "send-receive/segments", Text: "A message is gathered from up to 252 segments and scattered to up to 252, cut differently on both sides.",
		run: eachLevel(manySegments),
	},
	{
		ID: "send-receive/empty-segments", Text: "Segments of length 0 may stand anywhere among others, and need no valid handle or address.",
		Choice: "a segment of length 0 is not checked",
		run:    emptySegments,
	},
	{
		ID: "send-receive/no-segments", Text: "SegCount 0 is legal on both sides, with and without immediate data.",
		run: eachLevel(noSegments),
	},
	{
		ID: "send-receive/odd-alignment", Text: "Data segments have no alignment rule on either side.",
		run: oddAlignment,
	},
	{
		ID: "send-receive/own-memory", Text: "Any memory of the program can be registered, sent from and received into.",
		run: eachLevel(ownMemory),
	},
	{
		ID: "send-receive/overlapping-registrations", Text: "Memory that is registered several times is used under each of its handles.",
		run: registeredTwice,
	},
	{
		ID: "send-receive/region-edges", Text: "A segment may take a region from its first byte to its last.",
		run: regionEdges,
	},
	{
		ID: "send-receive/nothing-beyond", Text: "A receive writes the bytes of the message and no other byte of its segments or around them.",
		run: eachLevel(nothingBeyond),
	},
}

// sizesToTry are around what fits in one frame and in several at the usual
// MTUs, and at the ends.
var sizesToTry = []int{
	0, 1, 2, 3, 4, 7, 8, 63, 64, 65, 1000, 1400, 1424, 1425, 1472, 1473, 1500, 2848, 2849, 3840, 4096, 8192, 8999, 9001,
	32_768, 65_535, 65_536, 65_537, 262_144,
}

// sizes are those that a VI of that level sends, the last of them most where the link
// bears it.
func (t *T) sizes(level vipl.ReliabilityLevel, most int) []int {
	all := append(slices.Clone(sizesToTry), most-1, most)
	if burst := t.config.Burst; burst > 0 && level == vipl.UnreliableDelivery {
		all = slices.DeleteFunc(all, func(n int) bool { return n > burst })
	}
	return all
}

// burst is how many of count messages a VI of that level may have under way.
func (t *T) burst(level vipl.ReliabilityLevel, count, size int) int {
	if burst := t.config.Burst; burst > 0 && level == vipl.UnreliableDelivery {
		return min(count, max(1, burst/size))
	}
	return count
}

func sizes(t *T, level vipl.ReliabilityLevel) {
	va, vb := t.pair(level)
	most := t.A.Query().MaxTransferSize
	a, b := t.block(t.A, 1, most), t.block(t.B, 1, most)
	for k, size := range t.sizes(level, most) {
		b.recv(vb, 0, most)
		fill(a.buf(0)[:size], k)
		a.send(va, 0, size)
		if d := t.received(vb, 0); int(d.Length) != size {
			t.Errorf("%d bytes: length %d", size, d.Length)
		}
		t.holds("message", b.buf(0)[:size], k)
		t.sent(va, 0)
	}
}

// cut makes n segments of size bytes of a region from offset off on, the first
// ones a little shorter and longer in turns, all behind one another.
func cut(r *vipl.Region, off, size, n int) []vipl.DataSegment {
	segs := make([]vipl.DataSegment, 0, n)
	for end := off + size; n > 0; n-- {
		piece := (end - off) / n
		if n > 1 && n%2 == 0 && piece > 1 {
			piece -= n % 5 % piece
		}
		segs = append(segs, r.Segment(off, piece))
		off += piece
	}
	return segs
}

func manySegments(t *T, level vipl.ReliabilityLevel) {
	const size = 20_000
	va, vb := t.pair(level)
	a, b := t.blockOf(t.A, nil, 1, vipl.MaxSegments, size), t.blockOf(t.B, nil, 1, vipl.MaxSegments, size)
	for k, n := range [][2]int{{1, 2}, {2, 1}, {2, 3}, {3, 17}, {17, 18}, {18, 17}, {100, 7}, {251, 252}, {252, 251}, {252, 252}, {1, 252}, {252, 1}} {
		clear(b.buf(0))
		b.desc[0].SetSegments(cut(b.Region, b.at(0), size, n[1])...)
		b.postRecv(vb, b.desc[0])
		length := size - k*977
		fill(a.buf(0)[:length], k)
		a.desc[0].SetSegments(cut(a.Region, a.at(0), length, n[0])...)
		a.post(va, a.desc[0])
		if d := t.received(vb, 0); int(d.Length) != length {
			t.Errorf("%d segments to %d: length %d, want %d", n[0], n[1], d.Length, length)
		}
		t.holds("message", b.buf(0)[:length], k)
		t.untouched("behind it", b.buf(0)[length:])
		t.sent(va, 0)
	}
}

func emptySegments(t *T) {
	va, vb := t.pair(vipl.ReliableDelivery)
	a, b := t.blockOf(t.A, nil, 1, 6, 3000), t.blockOf(t.B, nil, 1, 6, 3000)
	wild := vipl.DataSegment{Data: ^uint64(0), Handle: 0x7fffffff}
	null := vipl.DataSegment{}
	b.desc[0].SetSegments(null, b.Segment(b.at(0), 10), wild, b.Segment(b.at(0)+10, 2990), null)
	b.postRecv(vb, b.desc[0])
	fill(a.buf(0), 1)
	a.desc[0].SetSegments(wild, null, a.Segment(a.at(0), 2000), null, a.Segment(a.at(0)+2000, 1000), wild)
	a.post(va, a.desc[0])
	if d := t.received(vb, 0); d.Length != 3000 {
		t.Errorf("length %d", d.Length)
	}
	t.holds("message", b.buf(0), 1)
	t.sent(va, 0)
}

func noSegments(t *T, level vipl.ReliabilityLevel) {
	va, vb := t.pair(level)
	a, b := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
	for _, imm := range []uint32{0, 1, 0xffffffff} {
		for _, with := range []bool{false, true} {
			b.desc[0].SetSegments()
			b.postRecv(vb, b.desc[0])
			a.desc[0].Control = 0
			a.desc[0].SetSegments()
			want := vipl.Status(0)
			if with {
				a.desc[0].SetImmediate(imm)
				want = vipl.StatusImmediate
			}
			a.post(va, a.desc[0])
			d := t.received(vb, want)
			if got, ok := d.Immediate(); ok != with || with && got != imm || d.Length != 0 {
				t.Errorf("immediate data %#x %v, length %d", got, ok, d.Length)
			}
			t.sent(va, 0)
		}
	}
}

func oddAlignment(t *T) {
	const size = 5000
	va, vb := t.pair(vipl.ReliableDelivery)
	a, b := t.block(t.A, 1, size+64), t.block(t.B, 1, size+64)
	for k := range 16 {
		from, to, n := k, (k*5+3)%17, size-k
		clear(b.buf(0))
		b.desc[0].SetSegments(b.Segment(b.at(0)+to, n))
		b.postRecv(vb, b.desc[0])
		fill(a.buf(0)[from:from+n], k)
		a.desc[0].SetSegments(a.Segment(a.at(0)+from, n))
		a.post(va, a.desc[0])
		t.received(vb, 0)
		t.untouched("before it", b.buf(0)[:to])
		t.holds("message", b.buf(0)[to:to+n], k)
		t.untouched("behind it", b.buf(0)[to+n:])
		t.sent(va, 0)
	}
}

func ownMemory(t *T, level vipl.ReliabilityLevel) {
	const size = 100_000
	va, vb := t.pair(level)
	a, b := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
	from := t.register(t.A, fill(make([]byte, size+1), 3)[1:], vipl.MemAttributes{})
	to := t.register(t.B, make([]byte, size+3)[3:], vipl.MemAttributes{})
	b.desc[0].SetSegments(to.Segment(0, size))
	b.postRecv(vb, b.desc[0])
	a.desc[0].SetSegments(from.Segment(0, size))
	a.post(va, a.desc[0])
	t.received(vb, 0)
	t.holdsFrom("message", to.Bytes(), 1, 3)
	t.sent(va, 0)

	// The descriptors may lie there, too.
	home := t.register(t.A, make([]byte, 4096), vipl.MemAttributes{})
	off := int(-home.Addr() & (vipl.DescriptorAlignment - 1))
	d, err := home.Descriptor(off, 1)
	t.must(err)
	b.recv(vb, 0, 64)
	d.SetSegments(from.Segment(0, 64))
	t.must(va.PostSend(d, home.Handle()))
	t.received(vb, 0)
	t.holdsFrom("message", b.buf(0), 1, 3)
	if got := t.sent(va, 0); got != d {
		t.Error("another descriptor")
	}
}

func registeredTwice(t *T) {
	va, vb := t.pair(vipl.ReliableDelivery)
	a, b := t.block(t.A, 1, 64), t.block(t.B, 1, 3000)
	memory := fill(make([]byte, 3000), 5)
	whole := t.register(t.A, memory, vipl.MemAttributes{})
	again := t.register(t.A, memory, vipl.MemAttributes{})
	part := t.register(t.A, memory[1000:2500], vipl.MemAttributes{})
	b.recv(vb, 0, 3000)
	a.desc[0].SetSegments(whole.Segment(0, 1000), part.Segment(0, 1500))
	a.post(va, a.desc[0])
	t.received(vb, 0)
	t.holds("message", b.buf(0)[:2500], 5)
	t.sent(va, 0)
	t.must(whole.Deregister())
	b.recv(vb, 0, 3000)
	a.desc[0].SetSegments(again.Segment(500, 2500))
	a.post(va, a.desc[0])
	t.received(vb, 0)
	t.holdsFrom("message", b.buf(0)[:2500], 500, 5)
	t.sent(va, 0)
}

func regionEdges(t *T) {
	va, vb := t.pair(vipl.ReliableDelivery)
	a, b := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
	around := make([]byte, 2000)
	from := t.register(t.A, fill(make([]byte, 1777), 2), vipl.MemAttributes{})
	to := t.register(t.B, around[100:1877], vipl.MemAttributes{})
	for _, piece := range [][2]int{{0, 1777}, {0, 1}, {1776, 1}, {1777, 0}} {
		b.desc[0].SetSegments(to.Segment(piece[0], piece[1]))
		b.postRecv(vb, b.desc[0])
		a.desc[0].SetSegments(from.Segment(piece[0], piece[1]))
		a.post(va, a.desc[0])
		t.received(vb, 0)
		t.sent(va, 0)
	}
	t.untouched("before the region", around[:100])
	t.holds("region", to.Bytes(), 2)
	t.untouched("behind the region", around[1877:])
}

func nothingBeyond(t *T, level vipl.ReliabilityLevel) {
	const room = 6000
	va, vb := t.pair(level)
	a, b := t.block(t.A, 1, room), t.block(t.B, 1, room)
	for k, size := range []int{0, 1, 63, 1425, 3000, 5999} {
		clear(b.buf(0))
		b.desc[0].SetSegments(b.Segment(b.at(0)+5, 1000), b.Segment(b.at(0)+1010, room-1020))
		b.postRecv(vb, b.desc[0])
		size = min(size, room-20)
		fill(a.buf(0)[:size], k)
		a.send(va, 0, size)
		t.received(vb, 0)
		x := b.buf(0)
		first := min(size, 1000)
		t.untouched("before", x[:5])
		t.holds("first segment", x[5:5+first], k)
		t.untouched("rest of the first segment", x[5+first:1010])
		t.holdsFrom("second segment", x[1010:1010+size-first], first, k)
		t.untouched("behind", x[1010+size-first:])
		t.sent(va, 0)
	}
}
