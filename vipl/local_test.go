package vipl_test

import (
	"errors"
	"testing"
	"time"

	"viaxdp/internal/nstest"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
)

// transfer sends count messages of size bytes from one VI to the other, several
// at a time, and checks each.
func transfer(t *testing.T, va, vb *vipl.VI, xa, xb *box, count, size int) {
	t.Helper()
	const depth = 4
	for i := range depth {
		postRecv(t, vb, xb, i, size)
	}
	for k := range count {
		i := k % depth
		if k >= depth {
			sent(t, va, 0)
		}
		fillPattern(xa.buf[i][:size], k)
		if k >= depth {
			received(t, vb, 0)
			checkPattern(t, xb.buf[i][:size], k-depth)
			postRecv(t, vb, xb, i, size)
		}
		postSend(t, va, xa, i, size)
	}
	for k := max(0, count-depth); k < count; k++ {
		sent(t, va, 0)
		received(t, vb, 0)
		checkPattern(t, xb.buf[k%depth][:size], k)
	}
}

// Two VIs of one NIC are peers like any others.
func TestLocalConnection(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n := newMemoryNet(t, memoryConfig{})
		va, vb := openVI(t, n.a.Nic, level), openVI(t, n.a.Nic, level)
		join(t, n.a.Nic, va, n.a.Nic, vb)
		xa, xb := openBox(t, n.a.Nic), openBox(t, n.a.Nic)
		transfer(t, va, vb, xa, xb, 40, 3)
		transfer(t, vb, va, xb, xa, 40, 200_000)
		fillPattern(xa.buf[0], 9)
		xa.desc[0].SetRDMAWrite(xb.remote(1), segment(xa, 0, boxSize))
		postDesc(t, va, xa, 0)
		sent(t, va, vipl.StatusOpRDMAWrite)
		if level != vipl.UnreliableDelivery {
			xa.desc[1].SetRDMARead(xb.remote(1), segment(xa, 2, boxSize))
			postDesc(t, va, xa, 1)
			sent(t, va, vipl.StatusOpRDMARead)
			checkPattern(t, xa.buf[2], 9)
		}
		checkPattern(t, xb.buf[1], 9)
		if c := n.a.Counters(); c.UnknownVI+c.Malformed+c.Early > 0 {
			t.Errorf("%+v", c)
		}
		postRecv(t, vb, xb, 0, 8)
		if err := va.Disconnect(); err != nil {
			t.Fatal(err)
		}
		received(t, vb, vipl.StatusFlushed)
		stateIs(t, vb, vipl.Error)
		n.a.errs.are(t, vipl.ErrorConnLost)
	})
}

// Several handles of one interface share its only queue, and their VIs can be
// connected with each other; closing one leaves the other alone.
func TestHandlesShareAQueue(t *testing.T) {
	na, nb := nstest.Pair(t, nstest.Options{})
	open := func(ns *nstest.NS) (n *vipl.Nic) {
		t.Helper()
		if err := ns.Do(func() (err error) {
			n, err = vipl.OpenNic(ns.Name, vipl.WithSilence(time.Minute))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	a1, a2, b := open(na), open(na), open(nb)
	v1, v2 := openVI(t, a1, vipl.ReliableDelivery), openVI(t, a2, vipl.ReliableDelivery)
	join(t, a1, v1, a2, v2)
	transfer(t, v1, v2, openBox(t, a1), openBox(t, a2), 20, 100_000)

	far, w1 := openVI(t, b, vipl.ReliableDelivery), openVI(t, a1, vipl.ReliableDelivery)
	join(t, a1, w1, b, far)
	waits := make(chan error, 1)
	go func() {
		_, err := v2.RecvWait(-1)
		waits <- err
	}()
	time.Sleep(20 * time.Millisecond) // so that it sleeps
	if err := a2.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-waits; !errors.Is(err, vipl.ErrInvalidParameter) {
		t.Errorf("a wait on the closed handle: %v", err)
	}
	stateIs(t, v1, vipl.Error)
	transfer(t, w1, far, openBox(t, a1), openBox(t, b), 20, 100_000)
	for _, n := range []*vipl.Nic{a1, b} {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
	again := open(na) // the queue is free
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// sharing opens one more handle on the queue and the arena of h.
func (n *memoryNet) sharing(t *testing.T, h *memoryHost) *vipl.Nic {
	t.Helper()
	nic, err := vipl.Open(vipl.Provider{Port: h.queue, Agent: n.fabric.Agent("shares"), Arena: h.arena, Silence: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nic.Close() })
	return nic
}

// A region that is deregistered just as its handle is closed is freed once: its memory
// may be another handle's by then.
func TestDeregisterBesideClose(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{})
	other := n.sharing(t, n.a)
	alloc := func(nic *vipl.Nic) *vipl.Region {
		t.Helper()
		r, err := nic.AllocMem(4096, vipl.MemAttributes{Ptag: mustTag(t, nic)})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := alloc(n.a.Nic)
	at := r.Addr()
	var theirs *vipl.Region
	if err := r.DeregisterAround(func() {
		if err := n.a.Close(); err != nil {
			t.Error(err)
		}
		theirs = alloc(other)
	}); err != nil {
		t.Error(err)
	}
	if theirs.Addr() != at {
		t.Fatalf("the memory was not given out again: %#x, then %#x", at, theirs.Addr())
	}
	if third := alloc(other); third.Addr() == theirs.Addr() {
		t.Error("two regions have the same memory")
	}
}

// VIs of one interface on different queues are peers like any others: what one
// sends goes by a lane.
func TestOtherQueueOfTheInterface(t *testing.T) {
	na, _ := nstest.Pair(t, nstest.Options{Queues: 2})
	nics := make([]*vipl.Nic, 2)
	for i := range nics {
		if err := na.Do(func() (err error) {
			nics[i], err = vipl.OpenNic(na.Name, vipl.WithQueue(i), vipl.WithMode(xdpnic.ModeNative, true), vipl.WithSilence(time.Minute))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		defer nics[i].Close()
	}
	xa, xb := openBox(t, nics[0]), openBox(t, nics[1])
	for _, level := range []vipl.ReliabilityLevel{vipl.UnreliableDelivery, vipl.ReliableDelivery, vipl.ReliableReception} {
		for range 2 { // the second time on a lane that begins anew
			va, vb := openVI(t, nics[0], level), openVI(t, nics[1], level)
			join(t, nics[0], va, nics[1], vb)
			transfer(t, va, vb, xa, xb, 300, 20_000)
			transfer(t, vb, va, xb, xa, 300, 64)
			fillPattern(xa.buf[0], 9)
			xa.desc[0].SetRDMAWrite(xb.remote(1), segment(xa, 0, boxSize))
			postDesc(t, va, xa, 0)
			sent(t, va, vipl.StatusOpRDMAWrite)
			transfer(t, va, vb, xa, xb, 1, 8) // which comes after it
			checkPattern(t, xb.buf[1], 9)
			if err := va.Disconnect(); err != nil {
				t.Error(err)
			}
			if err := vb.Disconnect(); err != nil {
				t.Error(err)
			}
		}
	}
}
