package vipl_test

import (
	"testing"

	"viaxdp/vipl"
)

// Differences that random programs have found, as the least programs that show
// them.

// A wrong receive that waits behind others while the queue grows lets go of its
// memory.
func TestWrongReceiveInAGrowingQueue(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{})
	va, vb := newVI(t, n.a.Nic, vipl.UnreliableDelivery), newVI(t, n.b.Nic, vipl.UnreliableDelivery)
	x := newBox(t, n.a.Nic, 40, 64)
	data, err := n.a.AllocMem(64, vipl.MemAttributes{Ptag: mustTag(t, n.a.Nic)})
	if err != nil {
		t.Fatal(err)
	}
	postRecv(t, va, x, 0, 64)
	long, err := x.region.Descriptor(64, 3) // its third segment lies where descriptor 2 would
	if err != nil {
		t.Fatal(err)
	}
	nothing := vipl.DataSegment{Data: data.Addr(), Handle: data.Handle() ^ 0x5a5a5a5a, Length: 8}
	long.SetSegments(data.Segment(0, 8), nothing, data.Segment(8, 8))
	if err := va.PostRecv(long, x.region.Handle()); err != nil {
		t.Fatal(err)
	}
	for i := 3; i < 40; i++ {
		postRecv(t, va, x, i, 64)
	}
	join(t, n.a.Nic, va, n.b.Nic, vb)
	wantError(t, "disconnect", va.Disconnect(), nil)
	for range 39 {
		if d, err := va.RecvDone(); d == nil {
			t.Fatal(err)
		}
	}
	wantError(t, "deregister what a wrong receive used", data.Deregister(), nil)
}

// The operation in the status is that of the descriptor, also when its format is
// wrong.
func TestOperationOfWrongFormat(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{})
	v := openVI(t, n.a.Nic, vipl.ReliableDelivery)
	x := newBox(t, n.a.Nic, 1, 64)
	for op, set := range map[vipl.Status]func(*vipl.Descriptor){
		vipl.StatusOpSend:      func(d *vipl.Descriptor) { d.SetSegments() },
		vipl.StatusOpRDMAWrite: func(d *vipl.Descriptor) { d.SetRDMAWrite(vipl.AddressSegment{}) },
		vipl.StatusOpRDMARead:  func(d *vipl.Descriptor) { d.SetRDMARead(vipl.AddressSegment{}) },
	} {
		d := x.desc[0]
		set(d)
		d.Reserved = 1
		if err := v.PostSend(d, x.region.Handle()); err != nil {
			t.Fatal(err)
		}
		v.SendDone()
		if s := d.Status(); s&vipl.StatusFormatError == 0 || s&vipl.StatusOpMask != op {
			t.Errorf("status %#x, want operation %#x", uint32(s), uint32(op))
		}
	}
}
