package vipltest

import (
	"slices"

	"viaxdp/vipl"
)

// carry transfers the bytes of segments of a to segments of b, and returns when they have arrived: by a
// message, by an RDMA write of a, or by an RDMA read of b.
type carry func(a, b *end, from, to []vipl.DataSegment)

func carryMessage(a, b *end, from, to []vipl.DataSegment) {
	b.recvSegments(0, to...)
	a.sendSegments(0, from...)
	equal(a.t, "length of the receive", b.received().Length, a.desc[0].Length)
	a.sent()
}

func carryWrite(a, b *end, from, to []vipl.DataSegment) {
	a.writeSegments(0, remoteSegment(to[0]), from...)
	a.sent(vipl.StatusOpRDMAWrite)
	a.behind(b)
}

func carryRead(a, b *end, from, to []vipl.DataSegment) {
	b.readSegments(0, remoteSegment(from[0]), to...)
	b.sent(vipl.StatusOpRDMARead)
}

// remoteSegment converts a segment to one that a peer can use.
func remoteSegment(s vipl.DataSegment) vipl.AddressSegment {
	return vipl.AddressSegment{Data: s.Data, Handle: s.Handle}
}

// at is a rule's test for one level.
func (c carry) at(level vipl.ReliabilityLevel, f func(c carry, t *T, level vipl.ReliabilityLevel)) func(*T) {
	return func(t *T) { f(c, t, level) }
}

// one is a list of one segment.
func one(r *vipl.Region, off, n int) []vipl.DataSegment {
	return []vipl.DataSegment{r.Segment(off, n)}
}

// sizes carries data of all sizes.
func (c carry) sizes(t *T, level vipl.ReliabilityLevel) {
	most := t.A.Query().MaxTransferSize
	a, b := t.ends(level, 2, 2, most)
	c.sizesBetween(t, level, a, b)
}

func (c carry) sizesBetween(t *T, level vipl.ReliabilityLevel, a, b *end) {
	for k, n := range t.sizes(level, a.size) {
		c.piece(t, a, b, 0, 0, n, k)
	}
}

// piece carries n bytes of message k between the buffers 0, from one offset to the other, and nothing else.
func (c carry) piece(t *T, a, b *end, from, to, n, k int) {
	b.wipe(0)
	fill(a.buf(0)[from:from+n], k)
	c(a, b, one(a.Region, a.at(0)+from, n), one(b.Region, b.at(0)+to, n))
	t.untouched("before it", b.buf(0)[:to])
	t.holds("target", b.buf(0)[to:to+n], k)
	t.untouched("behind it", b.buf(0)[to+n:])
}

// segments carries data that is divided differently on both sides.
func (c carry) segments(t *T, level vipl.ReliabilityLevel) {
	const size = 20_000
	va, vb := t.pair(level)
	a := t.blockOf(t.A, nil, 2, vipl.MaxSegments+1, size).on(va)
	b := t.blockOf(t.B, nil, 2, vipl.MaxSegments+1, size).on(vb)
	for k, n := range [][2]int{
		{1, 2}, {2, 1}, {2, 3}, {3, 17}, {17, 18}, {18, 17}, {100, 7}, {251, 252}, {252, 251}, {252, 252}, {1, 252}, {252, 1},
	} {
		length := size - k*977
		b.wipe(0)
		fill(a.buf(0)[:length], k)
		c(a, b, cut(a.Region, a.at(0), length, n[0]), cut(b.Region, b.at(0), length, n[1]))
		t.holds("target", b.buf(0)[:length], k)
		t.untouched("behind it", b.buf(0)[length:])
	}
}

// alignment carries data from and to odd addresses.
func (c carry) alignment(t *T, level vipl.ReliabilityLevel) {
	const size = 5000
	a, b := t.ends(level, 2, 2, size+64)
	for k := range 16 {
		c.piece(t, a, b, k, (k*5+3)%17, size-k, k)
	}
}

// ownMemory carries data between memory of the arenas and other memory, in all combinations.
func (c carry) ownMemory(t *T, level vipl.ReliabilityLevel) {
	const size = 50_001
	a, b := t.ends(level, 2, 2, 64)
	for i, from := range []*vipl.Region{t.alloc(t.A, size, openMemory), t.register(t.A, make([]byte, size+1)[1:], openMemory)} {
		for j, to := range []*vipl.Region{t.alloc(t.B, size, openMemory), t.register(t.B, make([]byte, size+3)[3:], openMemory)} {
			a.synchronize() // its engine has read the bytes of the round before
			fill(from.Bytes(), 2*i+j)
			c(a, b, one(from, 0, size), one(to, 0, size))
			t.holds("target", to.Bytes(), 2*i+j)
		}
	}
}

// regionEdges carries data from and to the first and the last bytes of regions.
func (c carry) regionEdges(t *T, level vipl.ReliabilityLevel) {
	const size = 3000
	a, b := t.ends(level, 2, 2, 64)
	from, to := t.register(t.A, fill(make([]byte, size), 1), openMemory), t.edgeOf(t.B, size)
	for _, piece := range [][2]int{{0, 1}, {size - 1, 1}, {size, 0}, {0, size}} {
		c(a, b, one(from, piece[0], piece[1]), one(to.Region, piece[0], piece[1]))
		t.holdsFrom("piece", to.Bytes()[piece[0]:piece[0]+piece[1]], piece[0], 1)
	}
	to.untouched(t)
}

// longest carries MaxTransferSize bytes.
func (c carry) longest(t *T, level vipl.ReliabilityLevel) {
	most := t.A.Query().MaxTransferSize
	a, b := t.ends(level, 2, 2, most)
	c.piece(t, a, b, 0, 0, most, 1)
}

// sizesToTry are sizes around the capacity of one and of several frames at the usual MTUs, and the smallest and
// largest.
var sizesToTry = []int{
	0, 1, 2, 3, 4, 7, 8, 63, 64, 65, 1000, 1400, 1424, 1425, 1472, 1473, 1500, 2848, 2849, 3840, 4096, 8192, 8999, 9001,
	32_768, 65_535, 65_536, 65_537, 262_144,
}

// sizes returns the sizes to send on a VI of that level. The last one is most if the link can carry it.
func (t *T) sizes(level vipl.ReliabilityLevel, most int) []int {
	all := append(slices.Clone(sizesToTry), most-1, most)
	if burst := t.config.Burst; burst > 0 && level == vipl.UnreliableDelivery {
		all = slices.DeleteFunc(all, func(n int) bool { return n > burst })
	}
	return all
}

// burst returns how many of count messages a VI of that level may have under way.
func (t *T) burst(level vipl.ReliabilityLevel, count, size int) int {
	if burst := t.config.Burst; burst > 0 && level == vipl.UnreliableDelivery {
		return min(count, max(1, burst/size))
	}
	return count
}

// cut divides size bytes of a region, from offset off on, into n contiguous segments. All but the last few
// alternate in length.
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

// edge is a region in the middle of memory that is not registered.
type edge struct {
	*vipl.Region
	around []byte
}

const edgeSize = 8192

func (t *T) edgeOf(n *vipl.NIC, size int) edge {
	around := make([]byte, 3*size)
	return edge{t.register(n, around[size:2*size], openMemory), around}
}

// untouched checks that nothing outside of the region was written.
func (e edge) untouched(t *T) {
	size := len(e.Bytes())
	t.untouched("before the region", e.around[:size])
	t.untouched("behind the region", e.around[2*size:])
}
