package vipl_test

import (
	"errors"
	"testing"

	"viaxdp/vipl"
)

// A descriptor takes as many bytes of its region as it has segments: 32 and 16 for
// each, and it may end with the region.
func TestDescriptorAtTheEndOfItsRegion(t *testing.T) {
	n, va, vb := connected(t, memoryConfig{}, vipl.ReliableDelivery)
	tag := mustTag(t, n.a.Nic)
	whole, err := n.a.AllocMem(4096, vipl.MemAttributes{Ptag: tag})
	if err != nil {
		t.Fatal(err)
	}
	xb := newBox(t, n.b.Nic, 1, 64)
	for _, c := range []struct {
		bytes, segments int
		good            bool
	}{
		{31, 0, false}, {32, 0, true}, {32, 1, false}, {47, 1, false}, {48, 1, true}, {48, 2, false}, {63, 2, false},
		{64, 2, true}, {64, 3, false}, {79, 3, false}, {80, 3, true}, {48, 65535, false},
	} {
		home, err := n.a.RegisterMem(whole.Bytes()[:c.bytes], vipl.MemAttributes{Ptag: tag})
		if err != nil {
			t.Fatal(err)
		}
		d, err := whole.Descriptor(0, 3)
		if err != nil {
			t.Fatal(err)
		}
		d.SetSegments(whole.Segment(1024, 3), whole.Segment(1027, 4), whole.Segment(1031, 5))
		d.SegCount = uint16(c.segments)
		if d.Length = 0; c.segments <= 3 {
			d.Length = []uint32{0, 3, 7, 12}[c.segments]
		}
		if c.good {
			postRecv(t, vb, xb, 0, 64)
		}
		switch err := va.PostSend(d, home.Handle()); {
		case !c.good && !errors.Is(err, vipl.ErrInvalidParameter), c.good && err != nil:
			t.Errorf("%d segments in %d bytes: %v", c.segments, c.bytes, err)
		case c.good:
			sent(t, va, 0)
			if got := received(t, vb, 0); got.Length != d.Length {
				t.Errorf("%d segments in %d bytes: %d bytes came", c.segments, c.bytes, got.Length)
			}
		}
		if err := home.Deregister(); err != nil {
			t.Error(err)
		}
	}
}
