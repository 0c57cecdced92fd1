package vipl_test

import (
	"runtime"
	"testing"
	"time"

	"viaxdp/vipl"
)

// twoOnACQ are VIs whose send queues are bound to one CQ.
func twoOnACQ(t *testing.T) (n *memoryNet, c *vipl.CQ, v, w *vipl.VI) {
	t.Helper()
	n = newMemoryNet(t, memoryConfig{})
	c = createCQ(t, n.a.NIC, 1)
	v, w = createVI(t, n.a.NIC, vipl.VIAttributes{Level: vipl.ReliableDelivery}, c, nil), createVI(t, n.a.NIC, vipl.VIAttributes{Level: vipl.ReliableDelivery}, c, nil)
	return n, c, v, w
}

// Handlers get the entries in the order in which they were set, also if an entry is void because its VI is
// destroyed before the handler's turn.
func TestCQHandlerOfAVoidEntry(t *testing.T) {
	n, c, stays, goes := twoOnACQ(t)
	x := newBox(t, n.a.NIC, 4, 64)
	type call struct {
		handler int
		vi      *vipl.VI
	}
	calls, coalesce := make(chan call, 4), make(chan struct{})
	for i := range 3 {
		must(t, c.Notify(func(v *vipl.VI, _ bool) {
			calls <- call{i, v}
			<-coalesce
		}))
	}
	next := func(want call) {
		t.Helper()
		fatalIf(t, !comes(func() bool { return len(calls) > 0 }), "handler %d was not called", want.handler)
		equal(t, "handler", <-calls, want)
	}
	postSend(t, stays, x, 0, 8) // completes at once: it is not connected
	next(call{0, stays})
	postSend(t, goes, x, 1, 8)
	postSend(t, stays, x, 2, 8)
	if d, err := goes.SendDone(); d == nil {
		t.Fatal(err)
	}
	must(t, goes.Destroy())
	close(coalesce)
	next(call{1, stays})
	postSend(t, stays, x, 3, 8)
	next(call{2, stays})
	equal[error](t, "what comes after the last entry", errOf2(c.Done()), vipl.ErrNotDone)
}

// The CQ of a program that dequeues from a queue bound to it, and never calls CQDone, has a bounded size. It keeps
// the entry of each descriptor that is not dequeued.
func TestCQThatIsNotAsked(t *testing.T) {
	const kept, taken = 3, 40 * vipl.MaxDescriptorsPerQueue
	n, c, waits, takes := twoOnACQ(t)
	x := newBox(t, n.a.NIC, kept+1, 64)
	for i := range taken {
		if i%(taken/kept) == 0 && i/(taken/kept) < kept {
			postSend(t, waits, x, i/(taken/kept), 8) // completes at once: it is not connected
		}
		postSend(t, takes, x, kept, 8)
		if d, err := takes.SendDone(); d == nil {
			t.Fatal(err)
		}
	}
	got, most := c.Entries(), 4*2*vipl.MaxDescriptorsPerQueue
	errorIf(t, got > most, "room for %d entries, want at most %d", got, most)
	for i := 0; i < kept; {
		v, recv, err := c.Done()
		fatalIf(t, err != nil, "%d of %d entries, then %v", i, kept, err)
		if v == waits && !recv {
			d, err := v.SendDone()
			fatalIf(t, d != x.desc[i], "entry %d: descriptor %p, %v, want %p", i, d, err, x.desc[i])
			i++
		}
	}
}

// Wake ends one Wait, which is under way, asleep or polling, or comes next, and no
// more than that; entries come first, and Done does not hear of it.
func TestWakeCQ(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{})
	cq := createCQ(t, n.b.NIC, 8)
	for _, asleep := range []time.Duration{0, 20 * time.Millisecond} {
		woken := make(chan error, 2)
		for range 2 {
			go func() { woken <- errOf2(cq.Wait(ackDelay)) }()
		}
		for range 2 {
			time.Sleep(asleep)
			cq.Wake()
			equal[error](t, "Wait", <-woken, vipl.ErrNotDone)
		}
	}

	cq.Wake()
	cq.Wake()
	equal[error](t, "Done", errOf2(cq.Done()), vipl.ErrNotDone)
	vb := createVI(t, n.b.NIC, vipl.VIAttributes{Level: vipl.ReliableDelivery}, nil, cq)
	vb.SetValue("one")
	x := newBox(t, n.b.NIC, 1, 64)
	postRecv(t, vb, x, 0, 64)
	wantError(t, "disconnect", vb.Disconnect(), nil)
	vi, recv, err := cq.Wait(ackDelay)
	fatalIf(t, vi != vb || !recv || err != nil || vi.Value() != "one", "Wait with an entry: %v, %v, %v", vi, recv, err)
	equal[error](t, "Wait behind two wakes", errOf2(cq.Wait(0)), vipl.ErrNotDone)
	wantError(t, "Wait behind the one that has taken them", errOf2(cq.Wait(0)), vipl.ErrTimeout)
}

// A waiter that is woken repeatedly without result, because others take what completes, needs no more memory
// over time.
func TestWokenInVain(t *testing.T) {
	const times = 2000
	n := newMemoryNet(t, memoryConfig{})
	h, leave := n.a.NewHesitant()
	defer leave()
	close(h.Pin)
	woken := starts(func() error { return h.Wait(time.Hour) })
	vain := func(times int) {
		t.Helper()
		for range times {
			looks := h.Looks.Load()
			h.WakeInVain()
			for end := time.Now().Add(ackDelay); h.Looks.Load() == looks; runtime.Gosched() {
				fatalIf(t, time.Now().After(end), "he was not woken")
			}
		}
	}
	fatalIf(t, !comes(func() bool { return h.Looks.Load() > 0 }), "he has not looked")
	vain(10)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	vain(times)
	runtime.ReadMemStats(&after)
	made := after.Mallocs - before.Mallocs
	errorIf(t, made > times, "%d times woken in vain, %d pieces of memory", times, made)
	h.Complete(1)
	noError(t, <-woken)
}

// A sleeper is woken once, however much happens before it gets a CPU.
func TestSleeperIsWokenOnce(t *testing.T) {
	for completions, want := range map[int]int{0: 0, 1: 1, 16: 1} {
		equal(t, "wakes", vipl.WakesOfSleep(completions), want)
	}
}
