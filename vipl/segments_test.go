package vipl_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
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
func descRegion(t testing.TB, n *vipl.Nic, size int) (*vipl.Region, *vipl.Descriptor) {
	t.Helper()
	tag, err := n.CreatePtag()
	if err != nil {
		t.Fatal(err)
	}
	r, err := n.AllocMem(size+descSpace, vipl.MemAttributes{Ptag: tag})
	if err != nil {
		t.Fatal(err)
	}
	d, err := r.Descriptor(0, vipl.MaxSegments)
	if err != nil {
		t.Fatal(err)
	}
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
		ra, da := descRegion(t, n.a.Nic, room)
		rb, db := descRegion(t, n.b.Nic, room)
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
			if err := vb.PostRecv(db, rb.Handle()); err != nil {
				t.Fatal(err)
			}
			if err := va.PostSend(da, ra.Handle()); err != nil {
				t.Fatal(err)
			}
			d := received(t, vb, 0)
			if d != db || int(d.Length) != c.bytes {
				t.Fatalf("%+v: length %d", c, d.Length)
			}
			if got := bytesOf(rb, to)[:c.bytes]; !bytes.Equal(got, bytesOf(ra, from)) {
				t.Fatalf("%+v: other bytes", c)
			}
			if rest := bytesOf(rb, to)[c.bytes:]; !bytes.Equal(rest, make([]byte, 17)) {
				t.Errorf("%+v: bytes behind the message were written", c)
			}
			sent(t, va, 0)
		}
	})
}

// Every size, with and without immediate data; also none of either.
func TestSizesAndImmediate(t *testing.T) {
	sizes := []int{0, 1, 63, 64, 1423, 1424, 1425, 2848, 2849, 4096, 65_536, vipl.MaxTransferSize - 1, vipl.MaxTransferSize}
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		c := memoryConfig{arena: 8 << 20}
		c.queue = xdpnictest.Config{RxChunks: 1024, TxChunks: 1024} // an unreliable megabyte comes at once
		n, va, vb := connected(t, c, level)
		xa, xb := newBox(t, n.a.Nic, 1, vipl.MaxTransferSize), newBox(t, n.b.Nic, 1, vipl.MaxTransferSize)
		for k, size := range sizes {
			fillPattern(xa.buf[0][:size], k)
			for _, imm := range []bool{false, true} {
				xb.prepare(0, size)
				xb.desc[0].ImmediateData = 0xdead // what was there from the last use
				if err := vb.PostRecv(xb.desc[0], xb.region.Handle()); err != nil {
					t.Fatal(err)
				}
				xa.prepare(0, size)
				want := vipl.Status(0)
				if imm {
					xa.desc[0].SetImmediate(0xabcd0000 + uint32(k))
					want = vipl.StatusImmediate
				}
				if err := va.PostSend(xa.desc[0], xa.region.Handle()); err != nil {
					t.Fatal(err)
				}
				d := received(t, vb, want)
				if int(d.Length) != size {
					t.Fatalf("length %d, want %d", d.Length, size)
				}
				checkPattern(t, xb.buf[0][:size], k)
				clear(xb.buf[0][:size])
				v, ok := d.Immediate()
				if ok != imm || imm && v != 0xabcd0000+uint32(k) || !imm && v != 0 {
					t.Errorf("%d bytes: immediate data %#x, %v", size, v, ok)
				}
				sent(t, va, 0)
			}
		}
	})
}

// A descriptor without segments: nothing, or immediate data alone.
func TestNoSegments(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n, va, vb := connected(t, memoryConfig{}, level)
		xa, xb := newBox(t, n.a.Nic, 1, 64), newBox(t, n.b.Nic, 1, 64)
		for _, imm := range []bool{false, true} {
			want := vipl.Status(0)
			xa.desc[0].Control = 0
			xa.desc[0].SetSegments()
			xb.desc[0].SetSegments()
			if imm {
				xa.desc[0].SetImmediate(7)
				want = vipl.StatusImmediate
			}
			if err := vb.PostRecv(xb.desc[0], xb.region.Handle()); err != nil {
				t.Fatal(err)
			}
			if err := va.PostSend(xa.desc[0], xa.region.Handle()); err != nil {
				t.Fatal(err)
			}
			if d := received(t, vb, want); d.Length != 0 {
				t.Errorf("length %d", d.Length)
			}
			sent(t, va, 0)
		}
	})
}

// Memory of Go, registered by address, serves as well.
func TestRegisteredMemory(t *testing.T) {
	n, va, vb := connected(t, memoryConfig{}, vipl.ReliableReception)
	xa, xb := newBox(t, n.a.Nic, 1, 64), newBox(t, n.b.Nic, 1, 64)
	from, to := make([]byte, 10_001), make([]byte, 10_003)
	fillPattern(from, 1)
	for _, s := range []struct {
		n *vipl.Nic
		x *box
		b []byte
	}{{n.a.Nic, xa, from}, {n.b.Nic, xb, to[1:10_002]}} {
		tag, _ := s.n.CreatePtag()
		r, err := s.n.RegisterMem(s.b, vipl.MemAttributes{Ptag: tag})
		if err != nil {
			t.Fatal(err)
		}
		s.x.desc[0].SetSegments(r.Segment(0, len(s.b)))
	}
	if err := vb.PostRecv(xb.desc[0], xb.region.Handle()); err != nil {
		t.Fatal(err)
	}
	if err := va.PostSend(xa.desc[0], xa.region.Handle()); err != nil {
		t.Fatal(err)
	}
	received(t, vb, 0)
	checkPattern(t, to[1:10_002], 1)
	if to[0] != 0 || to[10_002] != 0 {
		t.Error("bytes beside the region were written")
	}
	sent(t, va, 0)
}
