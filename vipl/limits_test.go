package vipl_test

import (
	"errors"
	"slices"
	"testing"

	"viaxdp/vipl"
)

func TestQuery(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{})
	a := n.a.Query()
	if a.MaxTransferSize < 32768 || a.MaxSegmentsPerDesc < 252 || a.MaxDescriptorsPerQueue < 1024 || a.MaxDiscriminatorLen < 16 {
		t.Errorf("below what every provider offers: %+v", a)
	}
	if a.Address != n.a.agent.Addr() || a.Name != "a" || !a.ThreadSafe || a.NativeMTU != 1424 {
		t.Errorf("%+v", a)
	}
}

// A queue takes MaxDescriptorsPerQueue and not one more, complete or not.
func TestQueueLimit(t *testing.T) {
	const most = vipl.MaxDescriptorsPerQueue
	n := newMemoryNet(t, memoryConfig{})
	v := newVI(t, n.a.Nic, vipl.ReliableDelivery)
	x := newBox(t, n.a.Nic, most+1, 64)
	for name, q := range map[string]struct {
		post func(*vipl.Descriptor, vipl.MemHandle) error
		done func() (*vipl.Descriptor, error)
	}{"send": {v.PostSend, v.SendDone}, "receive": {v.PostRecv, v.RecvDone}} {
		for i := range most {
			x.prepare(i, 64)
			if err := q.post(x.desc[i], x.region.Handle()); err != nil {
				t.Fatalf("%s %d: %v", name, i, err)
			}
		}
		x.prepare(most, 64)
		if err := q.post(x.desc[most], x.region.Handle()); !errors.Is(err, vipl.ErrResource) {
			t.Errorf("%s %d: %v", name, most, err)
		}
		if name == "send" { // flushed in Idle, and on the queue until dequeued
			for i := range most {
				if d, err := q.done(); d != x.desc[i] || err != vipl.ErrDescriptor {
					t.Fatalf("%s %d: %v", name, i, err)
				}
			}
			if err := q.post(x.desc[most], x.region.Handle()); err != nil {
				t.Error(err)
			}
		}
	}
	// All receives posted in Idle serve.
	v.SendDone()
	vb := newVI(t, n.b.Nic, vipl.ReliableDelivery)
	join(t, n.a.Nic, v, n.b.Nic, vb)
	xb := newBox(t, n.b.Nic, 1, 64)
	for k := range most {
		fillPattern(xb.buf[0][:16], k)
		postSend(t, vb, xb, 0, 16)
		sent(t, vb, 0)
		if d := received(t, v, 0); d != x.desc[k] {
			t.Fatalf("receive %d: another descriptor", k)
		}
		checkPattern(t, x.buf[k][:16], k)
	}
}

// More than fits window, rings and chunks waits on the send queue and goes in
// order.
func TestLongSendQueue(t *testing.T) {
	eachLevel(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
		c := memoryConfig{}
		c.queue.RxChunks, c.queue.TxChunks = 32, 32
		n, va, vb := connected(t, c, level)
		const count = 1000
		xa, xb := newBox(t, n.a.Nic, count, 1500), newBox(t, n.b.Nic, count, 1500)
		for i := range count {
			postRecv(t, vb, xb, i, 1500)
		}
		for i := range count {
			fillPattern(xa.buf[i][:1500], i)
			postSend(t, va, xa, i, 1500)
		}
		for i := range count {
			received(t, vb, 0)
			checkPattern(t, xb.buf[i][:1500], i)
		}
		for range count {
			sent(t, va, 0)
		}
	})
}

// Memory that a posted descriptor uses, or lies in, cannot be deregistered.
func TestDeregister(t *testing.T) {
	n, va, vb := connected(t, memoryConfig{}, vipl.ReliableReception)
	xa, xb := newBox(t, n.a.Nic, 1, 64), newBox(t, n.b.Nic, 1, 64)
	tag := mustTag(t, n.b.Nic)
	data, err := n.b.AllocMem(100, vipl.MemAttributes{Ptag: tag})
	if err != nil {
		t.Fatal(err)
	}
	xb.desc[0].SetSegments(data.Segment(0, 100))
	if err := vb.PostRecv(xb.desc[0], xb.region.Handle()); err != nil {
		t.Fatal(err)
	}
	wantError(t, "data of a posted receive", data.Deregister(), vipl.ErrResource)
	wantError(t, "home of a posted receive", xb.region.Deregister(), vipl.ErrResource)
	wantError(t, "tag of registered memory", tag.Destroy(), vipl.ErrResource)
	postSend(t, va, xa, 0, 64)
	received(t, vb, 0)
	sent(t, va, 0)
	for _, r := range []*vipl.Region{data, xb.region, xa.region} {
		if err := r.Deregister(); err != nil {
			t.Errorf("when done: %v", err)
		}
		wantError(t, "twice", r.Deregister(), vipl.ErrInvalidParameter)
	}
	if err := tag.Destroy(); err != nil {
		t.Error(err)
	}
}

func TestMemoryRefusals(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{})
	tag, foreign := mustTag(t, n.a.Nic), mustTag(t, n.b.Nic)
	_, err := n.a.AllocMem(64, vipl.MemAttributes{})
	wantError(t, "no tag", err, vipl.ErrInvalidPtag)
	_, err = n.a.RegisterMem(make([]byte, 64), vipl.MemAttributes{Ptag: foreign})
	wantError(t, "tag of another NIC", err, vipl.ErrInvalidPtag)
	_, err = n.a.RegisterMem(nil, vipl.MemAttributes{Ptag: tag})
	wantError(t, "no bytes", err, vipl.ErrInvalidParameter)
	_, err = n.a.AllocMem(1<<40, vipl.MemAttributes{Ptag: tag})
	wantError(t, "more than there is", err, vipl.ErrResource)
	r, err := n.a.RegisterMem(make([]byte, 64), vipl.MemAttributes{Ptag: tag})
	if err != nil {
		t.Fatal(err)
	}
	if r.Handle() == 0 {
		t.Error("handle 0")
	}
}

// A Nic, a VI and a descriptor are polled, posted and completed without an
// allocation.
func TestNoAllocation(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		noAllocation(t, memoryConfig{}, level, 64, 3000)
		noAllocation(t, longFrames, level, 64, 9000, 200_000)
	})
}

func noAllocation(t *testing.T, c memoryConfig, level vipl.ReliabilityLevel, sizes ...int) {
	n, va, vb := connected(t, c, level)
	most := slices.Max(sizes)
	xa, xb := newBox(t, n.a.Nic, 2, most), newBox(t, n.b.Nic, 2, most)
	// Both ends are polled: one that is not acknowledges late.
	wait := func(done, other func() (*vipl.Descriptor, error)) {
		for {
			if _, err := done(); err == nil {
				return
			} else if err != vipl.ErrNotDone {
				t.Fatal(err)
			}
			other()
		}
	}
	for _, size := range sizes {
		if allocs := testing.AllocsPerRun(200, func() {
			postRecv(t, va, xa, 0, size)
			postRecv(t, vb, xb, 0, size)
			postSend(t, va, xa, 1, size)
			wait(vb.RecvDone, va.RecvDone)
			postSend(t, vb, xb, 1, size)
			wait(va.RecvDone, vb.RecvDone)
			wait(va.SendDone, vb.RecvDone)
			wait(vb.SendDone, va.RecvDone)
		}); allocs != 0 {
			t.Errorf("%d bytes: %v allocations", size, allocs)
		}
	}
}
