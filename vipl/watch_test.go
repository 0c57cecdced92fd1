package vipl_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/nstest"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
	"viaxdp/xdpnic/xdpnictest"
)

// The words say what Done would, before, while and after a message waits.
func TestWatch(t *testing.T) {
	a, b := nstest.Pair(t, nstest.Options{})
	x, y := openIn(t, a), openIn(t, b)
	if _, ok := x.Watch(); !ok {
		t.Fatal("a NIC over AF_XDP has no indices to look at")
	}
	va, vb := watched(t, x, y, b)
	send, _ := va.Watch()
	_, recv := vb.Watch()
	port, _ := y.Watch()
	look := func(q vipl.QueueWatch) (posted, completed uint64) {
		d := atomic.LoadUint64(q.Dequeued)
		return atomic.LoadUint64(q.Posted) - d, atomic.LoadUint64(q.Completed) - d
	}
	ma, mb := memoryOf(t, x), memoryOf(t, y)
	da, _ := ma.Descriptor(0, 1)
	db, _ := mb.Descriptor(0, 1)
	da.SetSegments(ma.Segment(1024, 64))
	db.SetSegments(mb.Segment(1024, 64))
	if err := vb.PostRecv(db, mb.Handle()); err != nil {
		t.Fatal(err)
	}
	if p, c := look(recv); p != 1 || c != 0 {
		t.Errorf("with a receive posted: %d posted, %d complete", p, c)
	}
	if err := va.PostSend(da, ma.Handle()); err != nil {
		t.Fatal(err)
	}
	if p, c := look(send); p != 1 || c != 1 {
		t.Errorf("a send that is on its way: %d posted, %d complete", p, c)
	}
	// Either the frame is still on the ring, or the background goroutine has taken it.
	for start := time.Now(); ; {
		arrived := atomic.LoadUint32(port.Produced) != atomic.LoadUint32(port.Consumed)
		if _, c := look(recv); c == 1 {
			break
		} else if !arrived && time.Since(start) > patience {
			t.Fatal("the message is neither on the ring nor complete")
		}
		y.Poll()
	}
	if d, err := vb.RecvDone(); d != db || err != nil {
		t.Fatal(d, err)
	}
	if p, c := look(recv); p != 0 || c != 0 {
		t.Errorf("after it was taken: %d posted, %d complete", p, c)
	}
	x.Close()
	y.Close()
	if atomic.LoadUint32(port.Produced) != atomic.LoadUint32(port.Consumed) {
		t.Error("after Close there is something on the ring")
	}
}

// While connections between queues are there, the words say that every poll has to
// call.
func TestWatchLanes(t *testing.T) {
	na, _ := nstest.Pair(t, nstest.Options{Queues: 2})
	nics := make([]*vipl.Nic, 2)
	words := make([]vipl.PortWatch, 2)
	for i := range nics {
		if err := na.Do(func() (err error) {
			nics[i], err = vipl.OpenNic(na.Name, vipl.WithQueue(i), vipl.WithMode(xdpnic.ModeNative, true), vipl.WithSilence(time.Minute))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		defer nics[i].Close()
		words[i], _ = nics[i].Watch()
		if l := atomic.LoadUint64(words[i].Lanes); l != 0 {
			t.Errorf("without a connection: %#x", l)
		}
	}
	va, vb := openVI(t, nics[0], vipl.ReliableDelivery), openVI(t, nics[1], vipl.ReliableDelivery)
	join(t, nics[0], va, nics[1], vb)
	for i, w := range words {
		if atomic.LoadUint64(w.Lanes) == 0 {
			t.Errorf("handle %d: the connection goes by no lane", i)
		}
	}
	for _, v := range []*vipl.VI{va, vb} {
		if err := v.Disconnect(); err != nil {
			t.Error(err)
		}
	}
	for i, w := range words {
		if l := atomic.LoadUint64(w.Lanes); l != 0 {
			t.Errorf("handle %d after the connection: %#x", i, l)
		}
	}
}

// Farewell delivers what was sent, tells the peer, and lets nobody here notice.
func TestFarewell(t *testing.T) {
	a, b := nstest.Pair(t, nstest.Options{})
	x, y := openIn(t, a), openIn(t, b)
	va, vb := watched(t, x, y, b)
	ma, mb := memoryOf(t, x), memoryOf(t, y)
	for i := range 2 {
		d, _ := mb.Descriptor(64*i, 1)
		d.SetSegments(mb.Segment(1024, 64))
		if err := vb.PostRecv(d, mb.Handle()); err != nil {
			t.Fatal(err)
		}
	}
	mine, _ := ma.Descriptor(0, 1)
	mine.SetSegments(ma.Segment(1024, 64))
	if err := va.PostRecv(mine, ma.Handle()); err != nil {
		t.Fatal(err)
	}
	out, _ := ma.Descriptor(64, 1)
	out.SetSegments(ma.Segment(2048, 64))
	if err := va.PostSend(out, ma.Handle()); err != nil {
		t.Fatal(err)
	}
	x.Farewell()
	if _, err := vb.RecvWait(patience); err != nil {
		t.Errorf("what was sent before: %v", err)
	}
	if d, err := vb.RecvWait(patience); err != vipl.ErrDescriptor || d.Status()&vipl.StatusFlushed == 0 {
		t.Errorf("the peer's next receive: %v, %v", d.Status(), err)
	}
	if d, err := va.RecvDone(); err != vipl.ErrNotDone {
		t.Errorf("a receive on this side: %v, %v", d, err)
	}
	if s, err := va.Query(); err != nil || s.State != vipl.Connected {
		t.Errorf("this side is %v, %v", s.State, err)
	}
}

// A farewell of which the answers are lost is repeated with what was sent before it:
// that is answered, too, and nothing completes on this side.
func TestFarewellUnheard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, va, vb := connected(t, memoryConfig{bubble: true}, vipl.ReliableDelivery)
		xa, xb := newBox(t, n.a.Nic, 2, 64), newBox(t, n.b.Nic, 1, 64)
		postRecv(t, va, xa, 0, 64)
		postRecv(t, vb, xb, 0, 64)
		n.b.queue.SetFaults(xdpnictest.Faults{Loss: 1})
		postSend(t, va, xa, 1, 64)
		time.AfterFunc(20*time.Millisecond, func() { n.b.queue.SetFaults(xdpnictest.Faults{}) })
		n.a.Farewell()
		received(t, vb, 0)
		stateIs(t, vb, vipl.Error)
		if n.a.Counters().Resent < 2 {
			t.Errorf("nothing was repeated: %+v", n.a.Counters())
		}
		if d, err := va.RecvDone(); err != vipl.ErrNotDone {
			t.Errorf("a receive on this side: %v, %v", d, err)
		}
		stateIs(t, va, vipl.Connected)
	})
}

func openIn(t *testing.T, n *nstest.NS) (nic *vipl.Nic) {
	t.Helper()
	if err := n.Do(func() (err error) {
		nic, err = vipl.OpenNic(n.Name, vipl.WithSilence(time.Minute))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nic.Close() })
	return nic
}

func memoryOf(t *testing.T, nic *vipl.Nic) *vipl.Region {
	t.Helper()
	tag, err := nic.CreatePtag()
	if err != nil {
		t.Fatal(err)
	}
	m, err := nic.AllocMem(4096, vipl.MemAttributes{Ptag: tag})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// watched connects a VI of x with one of y, which is in namespace at.
func watched(t *testing.T, x, y *vipl.Nic, at *nstest.NS) (va, vb *vipl.VI) {
	t.Helper()
	attrs := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	va, err := x.CreateVi(attrs, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if vb, err = y.CreateVi(attrs, nil, nil); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		c, err := y.ConnectWait(vipl.NetAddress{Discriminator: []byte("watch")}, patience)
		if err == nil {
			err = c.Accept(vb)
		}
		done <- err
	}()
	for {
		_, err := va.ConnectRequest(vipl.NetAddress{}, vipl.NetAddress{Host: at.IPv4, Discriminator: []byte("watch")}, patience)
		if err == nil {
			break
		}
		if !errors.Is(err, vipl.ErrNoMatch) { // nobody waits yet
			t.Fatal(err)
		}
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return va, vb
}
