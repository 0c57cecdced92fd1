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
