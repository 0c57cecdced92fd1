package vipl_test

import (
	"testing"

	"viaxdp/vipl"
)

// What is wrong in a receive completes it at once in Idle, when it is at the head.
func TestWrongReceives(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{})
	v, x := newVI(t, n.a.NIC, vipl.ReliableDelivery), newBox(t, n.a.NIC, 1, 64)
	for want, spoil := range map[vipl.Status]func(d *vipl.Descriptor){
		vipl.StatusFormatError:     func(d *vipl.Descriptor) { d.Control |= vipl.ControlQFence },
		vipl.StatusProtectionError: func(d *vipl.Descriptor) { d.Segment(0).Data = 0 },
	} {
		x.prepare(0, 64)
		spoil(x.desc[0])
		must(t, v.PostRecv(x.desc[0], x.region.Handle()))
		recvDone(t, v, want|vipl.StatusOpReceive)
		x.desc[0].Control = 0
	}
	stateIs(t, v, vipl.Idle)
}

// newBoxTagged is newBox with memory of a given tag.
func newBoxTagged(t testing.TB, n *vipl.NIC, tag *vipl.Ptag, count, size int) *box {
	t.Helper()
	b := &box{}
	var err error
	b.region, err = n.AllocMem(count*(64+size), vipl.MemAttributes{Ptag: tag})
	must(t, err)
	for i := range count {
		d, err := b.region.Descriptor(i*64, 1)
		must(t, err)
		off := count*64 + i*size
		b.desc = append(b.desc, d)
		b.buf = append(b.buf, b.region.Bytes()[off:off+size])
		b.segs = append(b.segs, b.region.Segment(off, size))
	}
	return b
}

func mustTag(t testing.TB, n *vipl.NIC) *vipl.Ptag {
	t.Helper()
	tag, err := n.CreatePtag()
	must(t, err)
	return tag
}
