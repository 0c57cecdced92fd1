package vipl_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"viaxdp/vipl"
)

// scattered lays n bytes in count segments of odd lengths, some empty, over
// the region from off on, with gaps between, and returns the segments.
func scattered(rng *rand.Rand, r *vipl.Region, off, count, n int) (segs []vipl.DataSegment) {
	for i := range count {
		k := 0
		switch left := count - i - 1; {
		case left == 0:
			k = n
		case rng.IntN(5) > 0:
			k = min(n, rng.IntN(2*n/(left+1)+2))
		}
		off += rng.IntN(3)
		segs = append(segs, r.Segment(off, k))
		if k == 0 && rng.IntN(2) == 0 {
			segs[i] = vipl.DataSegment{} // of nothing at all
		}
		off += k
		n -= k
	}
	return segs
}

func bytesOf(r *vipl.Region, segs []vipl.DataSegment) (b []byte) {
	for _, s := range segs {
		if s.Length > 0 {
			off := s.Data - r.Addr()
			b = append(b, r.Bytes()[off:off+uint64(s.Length)]...)
		}
	}
	return b
}

// region allocates memory for one big descriptor and size bytes behind it.
func descRegion(t testing.TB, n *vipl.NIC, size int) (*vipl.Region, *vipl.Descriptor) {
	t.Helper()
	tag, err := n.CreatePtag()
	must(t, err)
	r, err := n.AllocMem(size+descSpace, vipl.MemAttributes{Ptag: tag})
	must(t, err)
	d, err := r.Descriptor(0, vipl.MaxSegments)
	must(t, err)
	return r, d
}

const descSpace = 4096 // more than a descriptor of 252 segments takes

func TestScatterGather(t *testing.T) {
	t.Run("short frames", func(t *testing.T) { scatterGather(t, memoryConfig{}) })
	t.Run("long frames", func(t *testing.T) { scatterGather(t, longFrames) })
}

func scatterGather(t *testing.T, c memoryConfig) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n, va, vb := connected(t, c, level)
		const room = 200_000
		ra, da := descRegion(t, n.a.NIC, room)
		rb, db := descRegion(t, n.b.NIC, room)
		rng := rand.New(rand.NewPCG(1, uint64(level)))
		for i := range ra.Bytes()[descSpace:] {
			ra.Bytes()[descSpace+i] = byte(rng.Uint32())
		}
		for _, c := range []struct{ send, recv, bytes int }{
			{1, 1, 1}, {2, 2, 3}, {3, 1, 1000}, {1, 3, 1000}, {2, 252, 5001}, {252, 2, 5001}, {252, 252, 100_003},
			{252, 252, 100}, {7, 5, 1424}, {7, 5, 1425}, {100, 200, 65_535}, {252, 1, 0},
			{3, 4, 4007}, {16, 1, 65_411}, {1, 1, 65_411}, {1, 1, 65_412}, {2, 2, 131_000},
		} {
			clear(rb.Bytes()[descSpace:])
			from := scattered(rng, ra, descSpace, c.send, c.bytes)
			to := scattered(rng, rb, descSpace, c.recv, c.bytes+17)
			da.SetSegments(from...)
			db.SetSegments(to...)
			must(t, vb.PostRecv(db, rb.Handle()))
			must(t, va.PostSend(da, ra.Handle()))
			d := received(t, vb, 0)
			fatalIf(t, d != db || int(d.Length) != c.bytes, "%+v: length %d", c, d.Length)
			got := bytesOf(rb, to)[:c.bytes]
			fatalIf(t, !bytes.Equal(got, bytesOf(ra, from)), "%+v: other bytes", c)
			rest := bytesOf(rb, to)[c.bytes:]
			errorIf(t, !bytes.Equal(rest, make([]byte, 17)), "%+v: bytes behind the message were written", c)
			sent(t, va, 0)
		}
	})
}
