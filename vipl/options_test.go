package vipl_test

import (
	"testing"

	"viaxdp/vipl"
	"viaxdp/wire"
	"viaxdp/xdpnic/xdpnictest"
)

// Checksums cover the data unless neither side wants it; the header's is always
// there.
func TestChecksumOfData(t *testing.T) {
	for _, c := range []struct {
		a, b, long bool
		bare       bool
	}{{false, false, false, false}, {true, false, false, false}, {false, true, true, false}, {true, true, false, true}, {true, true, true, true}} {
		config := memoryConfig{}
		if c.long {
			config = longFrames
		}
		n := newMemoryNet(t, config)
		config.bareData = c.a
		n.a = n.open(t, "c", config)
		config.bareData = c.b
		n.b = n.open(t, "d", config)
		va, vb := connect(t, n.a.Nic, n.b.Nic, vipl.ReliableDelivery)
		covered, bare := 0, 0
		var p wire.Packet
		n.wire.SetFaults(xdpnictest.Faults{Drop: func(frame []byte) bool {
			if p.Decode(frame) == nil && p.Kind == wire.KindData {
				if p.Verify() == nil {
					covered++
				}
				if p.VerifyHeader() == nil {
					bare++
				}
			}
			return false
		}})
		xa, xb := newBox(t, n.a.Nic, 1, 10_000), newBox(t, n.b.Nic, 1, 10_000)
		for k := range 20 {
			fillPattern(xa.buf[0], k)
			postRecv(t, vb, xb, 0, 10_000)
			postSend(t, va, xa, 0, 10_000)
			received(t, vb, 0)
			checkPattern(t, xb.buf[0][:10_000], k)
			sent(t, va, 0)
		}
		n.wire.SetFaults(xdpnictest.Faults{}) // what is sent again is not counted any more
		if c.bare && (covered > 0 || bare < 20) || !c.bare && (bare > 0 || covered < 20) {
			t.Errorf("%+v: %d frames with data in their checksum, %d without", c, covered, bare)
		}
	}
}

// Without packing each message has a frame of its own, also those of a list,
// which are all there when the first is sent.
func TestNoPacking(t *testing.T) {
	for _, off := range []bool{false, true} {
		n, va, vb := connected(t, memoryConfig{noPacking: off}, vipl.ReliableDelivery)
		const count = 300
		xa, xb := newBox(t, n.a.Nic, count, 64), newBox(t, n.b.Nic, count, 64)
		for i := range count {
			postRecv(t, vb, xb, i, 64)
		}
		for i := range count {
			xa.prepare(i, 64)
		}
		if n, err := va.PostSends(xa.desc, xa.region.Handle()); n != count || err != nil {
			t.Fatalf("%d of %d posted: %v", n, count, err)
		}
		for range count {
			received(t, vb, 0)
			sent(t, va, 0)
		}
		if packed := n.a.Counters().Packed; (packed == 0) != off {
			t.Errorf("packing off %v: %d messages shared a frame", off, packed)
		}
	}
}
