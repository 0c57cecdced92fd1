package vipl_test

import (
	"bytes"
	"fmt"
	"testing"

	"viaxdp/vipl"
)

const (
	guard      = 4096 // bytes on each side of the region, which must not be written
	overhangAt = 4096 // where a receive begins that reaches past the end of it
	regionSize = 8192
)

// overhang is a region of regionSize bytes in the middle of memory that is not registered, and
// descriptors elsewhere.
type overhang struct {
	*box
	around []byte
	region *vipl.Region
}

func newOverhang(t testing.TB, n *vipl.NIC) *overhang {
	t.Helper()
	x := &overhang{box: newBoxOf(t, n, mustTag(t, n), 6, 4, 16384), around: bytes.Repeat([]byte{0x11}, guard+regionSize+guard)}
	var err error
	x.region, err = n.RegisterMem(x.around[guard:guard+regionSize], vipl.MemAttributes{Ptag: mustTag(t, n)})
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			return // descriptors may be posted
		}
		noError(t, x.region.Deregister())
	})
	return x
}

// post posts receive i, of these segments.
func (x *overhang) post(t testing.TB, v *vipl.VI, i int, segs ...vipl.DataSegment) {
	t.Helper()
	x.desc[i].Control = 0
	x.desc[i].SetSegments(segs...)
	must(t, v.PostRecv(x.desc[i], x.box.region.Handle()))
}

// guarded checks that nothing beside the region was written.
func (x *overhang) guarded(t testing.TB) {
	t.Helper()
	nothing := bytes.Repeat([]byte{0x11}, guard)
	fatalIf(t, !bytes.Equal(x.around[:guard], nothing) || !bytes.Equal(x.around[guard+regionSize:], nothing), "bytes beside the region were written")
}

// overhangNets are the ways that a message may take to its receive.
var overhangNets = []struct {
	name string
	c    memoryConfig
	loop bool // both VIs on one NIC
}{
	{name: "frames"},
	{name: "frames without packs", c: memoryConfig{noPacking: true}},
	{name: "long frames", c: memoryConfig{mtu: 9000, arena: 8 << 20}},
	{name: "sealed", c: memoryConfig{}},
	{name: "one interface", loop: true},
}

func overhangPair(t *testing.T, k int, level vipl.ReliabilityLevel) (n *memoryNet, va, vb *vipl.VI, xa *box, xb *overhang) {
	t.Helper()
	way := overhangNets[k]
	way.c.queue.MultiBuffer = way.c.mtu > 0
	if way.name == "sealed" {
		way.c.psk = testPSK(t, 1)
	}
	n = newMemoryNet(t, way.c)
	b := n.b.NIC
	if way.loop {
		b = n.a.NIC
	}
	va, vb = connect(t, n.a.NIC, b, level)
	return n, va, vb, newBox(t, n.a.NIC, 6, 65536), newOverhang(t, b)
}

func eachOverhang(t *testing.T, f func(t *testing.T, k int, level vipl.ReliabilityLevel)) {
	for k := range overhangNets {
		t.Run(overhangNets[k].name, func(t *testing.T) {
			eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) { f(t, k, level) })
		})
	}
}

// A message that needs more than the region has completes its receive with a protection error. The message
// behind it is whole on an unreliable VI; a reliable connection breaks.
func TestMessageReachesPastItsRegion(t *testing.T) {
	eachOverhang(t, func(t *testing.T, k int, level vipl.ReliabilityLevel) {
		for _, c := range []struct {
			size     int
			segments func(x *overhang) []vipl.DataSegment
			there    int // bytes that there are for the message
		}{
			{4097, func(x *overhang) []vipl.DataSegment { return []vipl.DataSegment{x.region.Segment(overhangAt, 32768)} }, 4096},
			{4097, func(x *overhang) []vipl.DataSegment { return []vipl.DataSegment{x.region.Segment(overhangAt, 4097)} }, 4096},
			{40_000, func(x *overhang) []vipl.DataSegment { return []vipl.DataSegment{x.region.Segment(overhangAt, 32768)} }, 4096},
			{2, func(x *overhang) []vipl.DataSegment { return []vipl.DataSegment{x.region.Segment(regionSize-1, 2)} }, 1},
			{1 + 16, func(x *overhang) []vipl.DataSegment {
				return []vipl.DataSegment{x.region.Segment(regionSize-16, 1<<32-1)}
			}, 16},
			// The segments behind the one that is too long do not take the bytes that it has no room for.
			{100 + 10 + 1, func(x *overhang) []vipl.DataSegment {
				return []vipl.DataSegment{x.region.Segment(0, 100), x.region.Segment(regionSize-10, 20), x.segs[5], x.region.Segment(200, 100)}
			}, 110},
			{16384 + 10 + 1, func(x *overhang) []vipl.DataSegment {
				return []vipl.DataSegment{x.segs[5], x.region.Segment(regionSize-10, 20), x.region.Segment(200, 100)}
			}, 16384 + 10},
		} {
			t.Run(fmt.Sprint(c.size, " to ", c.there), func(t *testing.T) {
				n, va, vb, xa, x := overhangPair(t, k, level)
				for _, b := range x.buf {
					clear(b)
				}
				clear(x.region.Bytes())
				x.post(t, vb, 0, x.segs[0])
				x.post(t, vb, 1, c.segments(x)...)
				x.post(t, vb, 2, x.segs[2])
				for i := range 3 {
					fillPattern(xa.buf[i], i)
					size := c.size
					if i != 1 {
						size = 64
					}
					postSend(t, va, xa, i, size)
				}
				equal(t, "the message before", received(t, vb, 0).Length, 64)
				if d := received(t, vb, vipl.StatusProtectionError); d != x.desc[1] || int(d.Length) > c.there {
					t.Errorf("length %d, and there are %d bytes", d.Length, c.there)
				}
				x.guarded(t)
				errorIf(t, !bytes.Equal(x.region.Bytes()[200:300], make([]byte, 100)), "a segment behind the one that is too long was written")
				b := n.b
				if overhangNets[k].loop {
					b = n.a
				}
				equal(t, "counted", b.Counters().TooLong, 1)
				if level == vipl.UnreliableDelivery {
					for range 3 {
						sent(t, va, 0)
					}
					d := received(t, vb, 0)
					errorIf(t, d != x.desc[2] || d.Length != 64, "the message behind has length %d", d.Length)
					checkPattern(t, x.buf[2][:64], 2)
					statesAre(t, vipl.Connected, va, vb)
					return
				}
				received(t, vb, vipl.StatusFlushed)
				statesAre(t, vipl.Error, va, vb)
				checkBrokenSends(t, va, level, 3, 1, vipl.StatusRemoteDescError)
			})
		}
	})
}

// Of small messages that share a frame, the one that needs more than the region has fails, and those before it arrive.
func TestPackReachesPastItsRegion(t *testing.T) {
	eachLevel(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n, va, vb, xa, x := overhangPair(t, 0, level)
		for i := range 5 {
			xa.prepare(i, 40)
			fillPattern(xa.buf[i], i)
			x.post(t, vb, i, x.region.Segment(regionSize-40+i/3, 400)) // 40 bytes for the first three, then 39
		}
		if k, err := va.PostSends(xa.desc[:5], xa.region.Handle()); k != 5 || err != nil {
			t.Fatal(k, err)
		}
		for range 3 {
			equal(t, "length", received(t, vb, 0).Length, 40)
		}
		received(t, vb, vipl.StatusProtectionError)
		received(t, vb, vipl.StatusFlushed)
		checkBrokenSends(t, va, level, 5, 3, vipl.StatusRemoteDescError)
		x.guarded(t)
		errorIf(t, n.a.Counters().Packed == 0, "nothing shared a frame")
	})
}

// A receive that reaches past the end of its region stays posted in Idle, holds all its regions, and serves an
// RDMA write with immediate data, which does not touch its segments.
func TestOverhangWaits(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n := newMemoryNet(t, memoryConfig{})
		va, vb := openVI(t, n.a.NIC, level), openVI(t, n.b.NIC, level)
		xa, x := newBox(t, n.a.NIC, 2, 8192), newOverhang(t, n.b.NIC)
		target := openBox(t, n.b.NIC)
		last := x.region.Segment(regionSize-1, 100)
		x.post(t, vb, 0, last, last)
		x.post(t, vb, 1, x.segs[1], last)
		nothingDone(t, vb.RecvDone, vipl.ErrNotDone)
		wantError(t, "deregister", x.region.Deregister(), vipl.ErrResource)
		join(t, n.a.NIC, va, n.b.NIC, vb)
		xa.desc[0].SetRDMAWrite(target.remote(0), segment(xa, 0, 16))
		xa.desc[0].SetImmediate(7)
		must(t, va.PostSend(xa.desc[0], xa.region.Handle()))
		d, err := vb.RecvWait(ackDelay)
		checkDone(t, "write", d, err, vipl.StatusOpRemoteRDMAWrite|vipl.StatusImmediate)
		sent(t, va, vipl.StatusOpRDMAWrite)
		wantError(t, "deregister", x.region.Deregister(), vipl.ErrResource)
		postSend(t, va, xa, 1, 8192)
		received(t, vb, 0)
		sent(t, va, 0)
		x.guarded(t)
	})
}

// A receive whose segment begins outside of its region, or where it ends, completes in error before any message
// arrives. So does a send or an RDMA read whose local segment reaches past the end, since it accesses all
// bytes.
func TestOverhangThatIsWrong(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n := newMemoryNet(t, memoryConfig{})
		va, vb := openVI(t, n.a.NIC, level), openVI(t, n.b.NIC, level)
		x := newOverhang(t, n.b.NIC)
		good, end, before := x.region.Segment(0, 100), x.region.Segment(regionSize, 1), x.region.Segment(-1, 100)
		other, high := good, good
		other.Handle ^= 0x5a5a5a5a
		high.Data = ^uint64(0) - 10
		for i, wrong := range [][]vipl.DataSegment{
			{end}, {before}, {x.region.Segment(regionSize+1, 1)}, {high}, {good, end}, {x.region.Segment(regionSize-1, 2), other},
			{x.region.Segment(regionSize-1, 2), before},
		} {
			x.post(t, vb, 0, wrong...)
			d, err := vb.RecvDone()
			fatalIf(t, d == nil, "receive %d: %v", i, err)
			checkDone(t, fmt.Sprint("receive ", i), d, err, vipl.StatusProtectionError|vipl.StatusOpReceive)
		}
		join(t, n.a.NIC, va, n.b.NIC, vb)
		x.desc[1].SetSegments(x.region.Segment(regionSize-1, 2))
		must(t, vb.PostSend(x.desc[1], x.box.region.Handle()))
		sent(t, vb, vipl.StatusProtectionError)
		if level == vipl.UnreliableDelivery {
			return
		}
		for _, v := range []*vipl.VI{va, vb} {
			stateIs(t, v, vipl.Error)
			must(t, v.Disconnect())
		}
		target := openBox(t, n.a.NIC)
		join(t, n.a.NIC, va, n.b.NIC, vb)
		x.desc[2].SetRDMARead(target.remote(0), x.region.Segment(regionSize-1, 2))
		must(t, vb.PostSend(x.desc[2], x.box.region.Handle()))
		sent(t, vb, vipl.StatusOpRDMARead|vipl.StatusProtectionError)
		x.guarded(t)
	})
}

// Receives that reach past the end of their region allocate nothing.
func TestOverhangAllocatesNothing(t *testing.T) {
	_, va, vb, xa, x := overhangPair(t, 0, vipl.ReliableDelivery)
	segs := []vipl.DataSegment{x.region.Segment(overhangAt, 32768)}
	x.desc[0].Control = 0
	x.desc[0].SetSegments(segs...)
	xa.prepare(0, 64)
	turn := func() {
		fatalIf(t, vb.PostRecv(x.desc[0], x.box.region.Handle()) != nil || va.PostSend(xa.desc[0], xa.region.Handle()) != nil, "post")
		for {
			if d, err := vb.RecvDone(); d != nil {
				must(t, err)
				break
			}
		}
		for {
			if d, _ := va.SendDone(); d != nil {
				break
			}
		}
	}
	turn()
	if n := testing.AllocsPerRun(100, turn); n > 0 {
		t.Errorf("%v allocations a message", n)
	}
}
