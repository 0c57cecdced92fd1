package vipltest

import (
	"slices"

	"viaxdp/vipl"
)

// segmentRules are about what is sent from where and received where.
var segmentRules = []Rule{
	rule("send-receive/sizes", "A message of 0 bytes to MaxTransferSize arrives whole, and Length of the receive is its length.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.pair(level)
		sizes(t, level, va, vb)
	})),
	rule("send-receive/segments", "A message is gathered from up to 252 segments and scattered to up to 252, cut differently on both sides.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		const size = 20_000
		va, vb := t.pair(level)
		a, b := t.blockOf(t.A, nil, 1, vipl.MaxSegments, size), t.blockOf(t.B, nil, 1, vipl.MaxSegments, size)
		for k, n := range [][2]int{{1, 2}, {2, 1}, {2, 3}, {3, 17}, {17, 18}, {18, 17}, {100, 7}, {251, 252}, {252, 251}, {252, 252}, {1, 252}, {252, 1}} {
			clear(b.buf(0))
			b.recvSegments(vb, 0, cut(b.Region, b.at(0), size, n[1])...)
			length := size - k*977
			fill(a.buf(0)[:length], k)
			a.sendSegments(va, 0, cut(a.Region, a.at(0), length, n[0])...)
			t.receivedMessage(vb, b.buf(0)[:length], k)
			t.untouched("behind it", b.buf(0)[length:])
			t.sent(va, 0)
		}
	})),
	choice("send-receive/empty-segments", "Segments of length 0 may stand anywhere among others, and need no valid handle or address.", "a segment of length 0 is not checked", func(t *T) {
		va, vb := t.pair(vipl.ReliableDelivery)
		a, b := t.blockOf(t.A, nil, 1, 6, 3000), t.blockOf(t.B, nil, 1, 6, 3000)
		wild := vipl.DataSegment{Data: ^uint64(0), Handle: 0x7fffffff}
		null := vipl.DataSegment{}
		b.recvSegments(vb, 0, null, b.Segment(b.at(0), 10), wild, b.Segment(b.at(0)+10, 2990), null)
		fill(a.buf(0), 1)
		a.sendSegments(va, 0, wild, null, a.Segment(a.at(0), 2000), null, a.Segment(a.at(0)+2000, 1000), wild)
		equal(t, "length", t.received(vb, 0).Length, 3000)
		t.coalesces("message", b.buf(0), 1)
		t.sent(va, 0)
	}),
	rule("send-receive/no-segments", "SegCount 0 is legal on both sides, with and without immediate data.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb, a, b := t.ends(level, 1, 1, 64)
		for _, imm := range []uint32{0, 1, 0xffffffff} {
			for _, with := range []bool{false, true} {
				b.recvSegments(vb, 0)
				a.desc[0].Control = 0
				a.desc[0].SetSegments()
				want := vipl.Status(0)
				if with {
					a.desc[0].SetImmediate(imm)
					want = vipl.StatusImmediate
				}
				a.post(va, a.desc[0])
				d := t.received(vb, want)
				got, ok := d.Immediate()
				t.errorIf(ok != with || with && got != imm || d.Length != 0, "immediate data %#x %v, length %d", got, ok, d.Length)
				t.sent(va, 0)
			}
		}
	})),
	rule("send-receive/odd-alignment", "Data segments have no alignment rule on either side.", func(t *T) {
		const size = 5000
		va, vb, a, b := t.ends(vipl.ReliableDelivery, 1, 1, size+64)
		for k := range 16 {
			from, to, n := k, (k*5+3)%17, size-k
			clear(b.buf(0))
			b.recvSegments(vb, 0, b.Segment(b.at(0)+to, n))
			fill(a.buf(0)[from:from+n], k)
			a.sendSegments(va, 0, a.Segment(a.at(0)+from, n))
			t.received(vb, 0)
			t.untouched("before it", b.buf(0)[:to])
			t.coalesces("message", b.buf(0)[to:to+n], k)
			t.untouched("behind it", b.buf(0)[to+n:])
			t.sent(va, 0)
		}
	}),
	rule("send-receive/own-memory", "Any memory of the program can be registered, sent from and received into.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		const size = 100_000
		va, vb, a, b := t.ends(level, 1, 1, 64)
		from := t.register(t.A, fill(make([]byte, size+1), 3)[1:], vipl.MemAttributes{})
		to := t.register(t.B, make([]byte, size+3)[3:], vipl.MemAttributes{})
		b.recvSegments(vb, 0, to.Segment(0, size))
		a.sendSegments(va, 0, from.Segment(0, size))
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
		t.same(t.sent(va, 0), d)
	})),
	rule("send-receive/overlapping-registrations", "Memory that is registered several times is used under each of its handles.", func(t *T) {
		va, vb := t.pair(vipl.ReliableDelivery)
		a, b := t.block(t.A, 1, 64), t.block(t.B, 1, 3000)
		memory := fill(make([]byte, 3000), 5)
		whole := t.register(t.A, memory, vipl.MemAttributes{})
		again := t.register(t.A, memory, vipl.MemAttributes{})
		part := t.register(t.A, memory[1000:2500], vipl.MemAttributes{})
		b.recv(vb, 0, 3000)
		a.sendSegments(va, 0, whole.Segment(0, 1000), part.Segment(0, 1500))
		t.receivedMessage(vb, b.buf(0)[:2500], 5)
		t.sent(va, 0)
		t.must(whole.Deregister())
		b.recv(vb, 0, 3000)
		a.sendSegments(va, 0, again.Segment(500, 2500))
		t.received(vb, 0)
		t.holdsFrom("message", b.buf(0)[:2500], 500, 5)
		t.sent(va, 0)
	}),
	rule("send-receive/region-edges", "A segment may take a region from its first byte to its last.", func(t *T) {
		va, vb, a, b := t.ends(vipl.ReliableDelivery, 1, 1, 64)
		around := make([]byte, 2000)
		from := t.register(t.A, fill(make([]byte, 1777), 2), vipl.MemAttributes{})
		to := t.register(t.B, around[100:1877], vipl.MemAttributes{})
		for _, piece := range [][2]int{{0, 1777}, {0, 1}, {1776, 1}, {1777, 0}} {
			b.recvSegments(vb, 0, to.Segment(piece[0], piece[1]))
			a.sendSegments(va, 0, from.Segment(piece[0], piece[1]))
			t.received(vb, 0)
			t.sent(va, 0)
		}
		t.untouched("before the region", around[:100])
		t.coalesces("region", to.Bytes(), 2)
		t.untouched("behind the region", around[1877:])
	}),
	rule("send-receive/nothing-beyond", "A receive writes the bytes of the message and no other byte of its segments or around them.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		const room = 6000
		va, vb, a, b := t.ends(level, 1, 1, room)
		for k, size := range []int{0, 1, 63, 1425, 3000, 5999} {
			clear(b.buf(0))
			b.recvSegments(vb, 0, b.Segment(b.at(0)+5, 1000), b.Segment(b.at(0)+1010, room-1020))
			size = min(size, room-20)
			a.sendMessage(va, 0, size, k)
			t.received(vb, 0)
			x := b.buf(0)
			first := min(size, 1000)
			t.untouched("before", x[:5])
			t.coalesces("first segment", x[5:5+first], k)
			t.untouched("rest of the first segment", x[5+first:1010])
			t.holdsFrom("second segment", x[1010:1010+size-first], first, k)
			t.untouched("behind", x[1010+size-first:])
			t.sent(va, 0)
		}
	})),
	rule("send-receive/receive-past-its-region", "A receive whose segments reach past the end of their region takes every message that fits in what the region has of them.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.pair(level)
		a, b := t.block(t.A, 1, edgeSize), t.blockOf(t.B, nil, 1, 3, 64)
		to := t.edge(t.B)
		const half = edgeSize / 2
		for k, c := range []struct {
			segs []vipl.DataSegment
			room int
		}{
			{[]vipl.DataSegment{to.Segment(half, 32_768)}, half},
			{[]vipl.DataSegment{to.Segment(half, 1<<32-1)}, half},
			{[]vipl.DataSegment{to.Segment(0, 100), to.Segment(half, half+1)}, 100 + half},
			{[]vipl.DataSegment{to.Segment(0, 100), to.Segment(half, half+1), to.Segment(200, 100)}, 100 + half},
		} {
			for _, size := range []int{8, 0, 1, 1425, c.room - 1, c.room} {
				clear(to.Bytes())
				b.recvSegments(vb, 0, c.segs...)
				a.sendMessage(va, 0, size, k)
				equal(t, "length", int(t.received(vb, 0).Length), size)
				t.sent(va, 0)
				first := 0
				if len(c.segs) > 1 {
					first = min(size, 100)
				}
				t.coalesces("first segment", to.Bytes()[:first], k)
				t.untouched("between", to.Bytes()[first:half])
				t.holdsFrom("segment at the end", to.Bytes()[half:half+size-first], first, k)
				t.untouched("behind the message", to.Bytes()[half+size-first:])
				to.untouched(t)
			}
		}
	})),
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

// sizes sends messages of all sizes from va to vb.
func sizes(t *T, level vipl.ReliabilityLevel, va, vb *vipl.VI) {
	most := t.A.Query().MaxTransferSize
	a, b := t.block(va.NIC(), 1, most), t.block(vb.NIC(), 1, most)
	for k, size := range t.sizes(level, most) {
		b.recv(vb, 0, most)
		a.sendMessage(va, 0, size, k)
		t.receivedMessage(vb, b.buf(0)[:size], k)
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

// edge is a region of edgeSize bytes in the middle of memory that is not registered.
type edge struct {
	*vipl.Region
	around []byte
}

const edgeSize = 8192

func (t *T) edge(n *vipl.NIC) edge {
	t.Helper()
	around := make([]byte, 3*edgeSize)
	return edge{t.register(n, around[edgeSize:2*edgeSize], vipl.MemAttributes{}), around}
}

// untouched checks that nothing beside the region was written.
func (e edge) untouched(t *T) {
	t.Helper()
	t.untouched("before the region", e.around[:edgeSize])
	t.untouched("behind the region", e.around[2*edgeSize:])
}
