package vipl_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"viaxdp/internal/nstest"
	"viaxdp/vipl"
)

// An interface that is removed is a catastrophe for every handle on it, also one without a VI.
func TestInterfaceRemoved(t *testing.T) {
	na, nb := nstest.Pair(t, nstest.Options{})
	nics := make([]*vipl.Nic, 2)
	logs := make([]*errorLog, 2)
	for i, ns := range []*nstest.NS{na, nb} {
		if err := ns.Do(func() (err error) {
			nics[i], err = vipl.OpenNic(ns.Name, vipl.WithSilence(time.Minute))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		logs[i] = watchErrors(nics[i])
	}
	var idle *vipl.Nic
	if err := na.Do(func() (err error) {
		idle, err = vipl.OpenNic(na.Name, vipl.WithSilence(time.Minute))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	idleLog := watchErrors(idle)
	va, vb := connect(t, nics[0], nics[1], vipl.ReliableDelivery)
	x := newBox(t, nics[0], 1, 64)
	postRecv(t, va, x, 0, 64)
	link, err := na.Netlink().LinkByName(na.Name)
	if err != nil {
		t.Fatal(err)
	}
	if err := na.Netlink().LinkDel(link.(*netlink.Veth)); err != nil {
		t.Fatal(err)
	}
	received(t, va, vipl.StatusFlushed)
	s := stateIs(t, va, vipl.Error)
	list := logs[0].are(t, vipl.ErrorCatastrophic, vipl.ErrorConnLost)
	if len(list) == 2 && (list[0].Resource != vipl.ResourceNic || list[0].VI != nil || s.Cause == nil) {
		t.Errorf("%+v, cause %v", list[0], s.Cause)
	}
	idleLog.are(t, vipl.ErrorCatastrophic)
	stateIs(t, vb, vipl.Error)
	for _, n := range append(nics, idle) {
		if err := n.Close(); err != nil {
			t.Log(err) // what was attached to the interface went with it
		}
	}
}

// A handler that is too slow for a flood of errors loses some, which is
// counted; the connection lives.
func TestErrorFlood(t *testing.T) {
	n, va, vb := connected(t, memoryConfig{}, vipl.UnreliableDelivery)
	x := newBox(t, n.a.Nic, 1, 64)
	var calls atomic.Int64
	hold := make(chan struct{})
	n.b.ErrorCallback(func(e vipl.ErrorDescriptor) {
		<-hold
		calls.Add(1)
		if e.Code != vipl.ErrorRecvQueueEmpty || e.VI != vb || e.Nic != n.b.Nic {
			t.Errorf("%+v", e)
		}
	})
	const flood = 3000
	for k := range uint64(flood) {
		postSend(t, va, x, 0, 8)
		sent(t, va, 0)
		for n.b.Counters().RecvQueueEmpty <= k { // one at a time: an unreliable VI may lose what its rings have no room for
			n.b.Poll()
		}
	}
	dropped := n.b.Counters().ErrorsDropped
	close(hold)
	comes(func() bool { return calls.Load()+int64(dropped) == flood }) // the handler runs on a goroutine of its own
	if got := calls.Load(); dropped == 0 || got+int64(dropped) != flood {
		t.Errorf("%d errors told, %d dropped, of %d", got, dropped, flood)
	}
	stateIs(t, vb, vipl.Connected)
}

// A flood that one peer makes hides no lost connection from a slow handler, since
// each is told once.
func TestErrorFloodHidesNoLostConnection(t *testing.T) {
	n, va, _ := connected(t, memoryConfig{}, vipl.UnreliableDelivery)
	wa, wb := connect(t, n.a.Nic, n.b.Nic, vipl.ReliableDelivery)
	x := newBox(t, n.a.Nic, 1, 64)
	hold, lost := make(chan struct{}), make(chan *vipl.VI, 1)
	n.b.ErrorCallback(func(e vipl.ErrorDescriptor) {
		<-hold
		if e.Code == vipl.ErrorConnLost {
			lost <- e.VI
		}
	})
	for n.b.Counters().ErrorsDropped == 0 {
		postSend(t, va, x, 0, 8) // nobody has posted a receive
		sent(t, va, 0)
		n.b.Poll()
	}
	if err := wa.Disconnect(); err != nil {
		t.Fatal(err)
	}
	stateIs(t, wb, vipl.Error)
	close(hold)
	if !comes(func() bool { return len(lost) == 1 }) { // the handler runs on a goroutine of its own
		t.Fatal("nobody was told that the connection is lost")
	}
	if v := <-lost; v != wb {
		t.Errorf("the lost connection is of %v, want %v", v, wb)
	}
}

// A handler may call anything, Close included.
func TestCloseInHandler(t *testing.T) {
	n, va, vb := connected(t, memoryConfig{}, vipl.ReliableDelivery)
	closed := make(chan error)
	n.b.ErrorCallback(func(e vipl.ErrorDescriptor) {
		if e.Code == vipl.ErrorConnLost {
			vb.Disconnect()
			closed <- n.b.Close()
		}
	})
	if err := va.Disconnect(); err != nil {
		t.Fatal(err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if err := vb.PostRecv(nil, 0); !errors.Is(err, vipl.ErrInvalidParameter) {
		t.Errorf("post on a closed handle: %v", err)
	}
}

// A handler is called while the program sleeps, again and again as it sets
// itself anew.
func TestNotifyWithoutPolling(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n, va, vb := connected(t, memoryConfig{}, level)
		xa, xb := newBox(t, n.a.Nic, 1, 64), newBox(t, n.b.Nic, 8, 64)
		const rounds = 200
		done := make(chan struct{})
		var count atomic.Int64
		var handler func(*vipl.VI, *vipl.Descriptor)
		handler = func(v *vipl.VI, d *vipl.Descriptor) {
			checkDone(t, "notified", d, nil, vipl.StatusOpReceive)
			if err := v.PostRecv(d, xb.region.Handle()); err != nil {
				t.Error(err)
			}
			if count.Add(1) == rounds {
				close(done)
				return
			}
			if err := v.RecvNotify(handler); err != nil {
				t.Error(err)
			}
		}
		for i := range 8 {
			postRecv(t, vb, xb, i, 64)
		}
		if err := vb.RecvNotify(handler); err != nil {
			t.Fatal(err)
		}
		for k := range rounds {
			postSend(t, va, xa, 0, 64)
			sent(t, va, 0)
			for count.Load() <= int64(k) && !t.Failed() {
				time.Sleep(10 * time.Microsecond) // one at a time, so that there is a receive for each
			}
		}
		<-done
		if err := vb.Disconnect(); err != nil { // ends with what the handler posted
			t.Fatal(err)
		}
	})
}
