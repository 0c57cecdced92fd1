package vipl_test

import (
	"errors"
	"io/fs"
	"math"
	"sync"
	"testing"
	"time"

	"viaxdp/vipl"
)

func TestDone(t *testing.T) {
	n, va, vb := connected(t, memoryConfig{}, vipl.ReliableDelivery)
	for name, done := range map[string]func() (*vipl.Descriptor, error){"send": va.SendDone, "receive": va.RecvDone} {
		if d, err := done(); d != nil || err != vipl.ErrDescriptor {
			t.Errorf("%s, empty queue: %v %v", name, d, err)
		}
	}
	xa, xb := newBox(t, n.a.Nic, 2, 64), newBox(t, n.b.Nic, 2, 64)
	postRecv(t, vb, xb, 0, 64)
	if d, err := vb.RecvDone(); d != nil || err != vipl.ErrNotDone {
		t.Errorf("posted: %v %v", d, err)
	}
	if xb.desc[0].Status() != 0 {
		t.Errorf("status while posted: %v", xb.desc[0].Status())
	}
	if d, err := vb.RecvWait(5 * time.Millisecond); d != nil || err != vipl.ErrTimeout {
		t.Errorf("wait: %v %v", d, err)
	}
	time.AfterFunc(5*time.Millisecond, func() { postSend(t, va, xa, 1, 64) })
	if d, err := vb.RecvWait(math.MaxInt64); d != xb.desc[0] || err != nil {
		t.Errorf("wait for all of time: %v %v", d, err)
	}
	postRecv(t, vb, xb, 0, 64)
	if d, err := vb.RecvWait(0); d != nil || err != vipl.ErrTimeout {
		t.Errorf("wait without time: %v %v", d, err)
	}
	postSend(t, va, xa, 0, 64)
	for {
		d, err := vb.RecvDone()
		if err == vipl.ErrNotDone {
			continue
		}
		checkDone(t, "receive", d, err, vipl.StatusOpReceive)
		break
	}
	// The status of the last use does not hinder the next.
	postRecv(t, vb, xb, 0, 64)
	postSend(t, va, xa, 1, 64)
	received(t, vb, 0)
}

// Everybody who waits learns that the NIC was closed.
func TestCloseWakesWaiters(t *testing.T) {
	n, va, vb := connected(t, memoryConfig{}, vipl.ReliableDelivery)
	cq, err := n.b.CreateCQ(1)
	if err != nil {
		t.Fatal(err)
	}
	idle := newVI(t, n.b.Nic, vipl.UnreliableDelivery)
	x := newBox(t, n.b.Nic, 1, 64)
	postRecv(t, idle, x, 0, 64) // of an Idle VI: not completed, but flushed by Close
	waits := map[string]func() error{
		"SendWait":    func() error { _, err := vb.SendWait(-1); return err },
		"RecvWait":    func() error { _, err := vb.RecvWait(-1); return err },
		"long":        func() error { _, err := vb.RecvWait(time.Hour); return err },
		"CQWait":      func() error { _, _, err := cq.Wait(-1); return err },
		"ConnectWait": func() error { _, err := n.b.ConnectWait(vipl.NetAddress{}, -1); return err },
	}
	var group sync.WaitGroup
	for name, wait := range waits {
		group.Go(func() {
			if err := wait(); !errors.Is(err, vipl.ErrInvalidParameter) {
				t.Errorf("%s: %v", name, err)
			} else if name != "ConnectWait" && !errors.Is(err, fs.ErrClosed) {
				t.Errorf("%s: %v does not say why", name, err)
			}
		})
	}
	time.Sleep(20 * time.Millisecond) // they sleep
	if err := n.b.Close(); err != nil {
		t.Fatal(err)
	}
	group.Wait()
	stateIs(t, va, vipl.Error)
	if err := n.b.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
	if _, err := n.b.CreateVi(vipl.ViAttributes{Level: 1}, nil, nil); !errors.Is(err, vipl.ErrInvalidParameter) {
		t.Errorf("CreateVi on a closed NIC: %v", err)
	}
	if _, err := n.b.CreateCQ(1); !errors.Is(err, vipl.ErrInvalidParameter) {
		t.Errorf("CreateCQ on a closed NIC: %v", err)
	}
	if _, err := n.b.AllocMem(64, vipl.MemAttributes{}); err == nil {
		t.Error("AllocMem on a closed NIC")
	}
}

// Many wait at a time, each on another queue, and each is woken by its own
// message, whoever sleeps for the port.
func TestManyWaiters(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{})
	const vis, rounds = 6, 30
	var group sync.WaitGroup
	for i := range vis {
		va, vb := connect(t, n.a.Nic, n.b.Nic, levels[i%3])
		xa, xb := newBox(t, n.a.Nic, 2, 64), newBox(t, n.b.Nic, 2, 64)
		postRecv(t, vb, xb, 0, 64)
		postRecv(t, va, xa, 0, 64)
		send := func(v *vipl.VI, x *box) bool {
			x.prepare(1, 64)
			err := v.PostSend(x.desc[1], x.region.Handle())
			if err == nil {
				_, err = v.SendWait(patience)
			}
			if err != nil {
				t.Errorf("send: %v", err)
			}
			return err == nil
		}
		receive := func(v *vipl.VI, x *box) bool {
			_, err := v.RecvWait(patience)
			if err == nil {
				err = v.PostRecv(x.desc[0], x.region.Handle())
			}
			if err != nil {
				t.Errorf("receive: %v", err)
			}
			return err == nil
		}
		group.Go(func() {
			for k := 0; k < rounds && send(va, xa) && receive(va, xa); k++ {
				time.Sleep(time.Duration(k%3) * 100 * time.Microsecond)
			}
		})
		group.Go(func() {
			for k := 0; k < rounds && receive(vb, xb) && send(vb, xb); k++ {
			}
		})
	}
	group.Wait()
}

// One queue with several waiters: each descriptor goes to one of them.
func TestSeveralWaitersOfOneQueue(t *testing.T) {
	n, va, vb := connected(t, memoryConfig{}, vipl.ReliableDelivery)
	const waiters, each = 4, 25
	xa, xb := newBox(t, n.a.Nic, waiters*each, 64), newBox(t, n.b.Nic, waiters*each, 64)
	for i := range waiters * each {
		postRecv(t, vb, xb, i, 64)
	}
	var group sync.WaitGroup
	var mu sync.Mutex
	seen := make(map[*vipl.Descriptor]bool)
	for range waiters {
		group.Go(func() {
			for range each {
				d, err := vb.RecvWait(patience)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if seen[d] {
					t.Error("one descriptor twice")
				}
				seen[d] = true
				mu.Unlock()
			}
		})
	}
	for i := range waiters * each {
		postSend(t, va, xa, i, 64)
		if i%10 == 0 {
			time.Sleep(200 * time.Microsecond)
		}
	}
	group.Wait()
	if len(seen) != waiters*each {
		t.Errorf("%d descriptors", len(seen))
	}
}
