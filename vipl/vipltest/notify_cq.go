package vipltest

import (
	"sync/atomic"
	"time"

	"viaxdp/vipl"
)

// Rules of group notify about completion queues.

// entry is what a CQ handler got.
type entry struct {
	vi   *vipl.VI
	recv bool
}

// entryCalled waits for a CQ handler's call.
func (t *T) entryCalled(c <-chan entry, want entry) {
	t.Helper()
	select {
	case got := <-c:
		if got != want {
			t.Errorf("the handler got %+v, want %+v", got, want)
		}
	case <-time.After(patience):
		t.Fatal("the handler was not called")
	}
}

func notifyCQ(t *T) {
	calls := make(chan entry, 4)
	f := func(v *vipl.VI, recv bool) { calls <- entry{v, recv} }

	cq, vis := t.queued(2)
	t.must(cq.Notify(f)) // at once
	t.entryCalled(calls, entry{vis[0], false})
	t.next(cq, vis[1], false) // the second one stays
	t.noEntry(cq)

	cq = t.cq(t.A, 2)
	va, vb := t.pairOn(vipl.ReliableDelivery, cq, cq)
	x, y := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
	x.recv(va, 0, 64)
	t.must(cq.Notify(f)) // when it comes
	y.send(vb, 0, 64)
	t.entryCalled(calls, entry{va, true})
	t.noEntry(cq)
	d, err := va.RecvDone()
	t.completed("receive", d, err, vipl.StatusOpReceive)
}

func notifyCQQueued(t *T) {
	const count = 20
	cq := t.cq(t.A, 1)
	va, vb := t.pairOn(vipl.ReliableDelivery, cq, cq)
	x, y := t.block(t.A, count, 64), t.block(t.B, count, 64)
	order := make(chan int, count+1)
	for i := range count {
		t.must(cq.Notify(func(*vipl.VI, bool) { order <- i }))
		x.recv(va, i, 64)
	}
	for i := range count {
		y.send(vb, i, 64)
	}
	for i := range count {
		select {
		case k := <-order:
			if k != i {
				t.Errorf("call %d is of handler %d", i, k)
			}
		case <-time.After(patience):
			t.Fatalf("%d calls of %d", i, count)
		}
	}
	t.noEntry(cq)
}

func notifyCQAgain(t *T) {
	const count = 40
	cq := t.cq(t.A, 1)
	v1, w1 := t.pairOn(vipl.ReliableDelivery, cq, cq)
	v2, w2 := t.pairOn(vipl.ReliableReception, cq, cq)
	x, y := t.block(t.A, count, 64), t.block(t.B, count, 64)
	done := make(chan *vipl.Descriptor, count)
	var again func(*vipl.VI, bool)
	again = func(v *vipl.VI, recv bool) {
		d, err := v.RecvDone()
		if !recv || err != nil {
			t.Errorf("entry of receive %v: %v", recv, err)
		}
		if err := cq.Notify(again); err != nil {
			t.Error(err)
		}
		done <- d
	}
	t.must(cq.Notify(again))
	for i := range count {
		v, w := v1, w1
		if i%3 == 0 {
			v, w = v2, w2
		}
		x.recv(v, i, 64)
		y.send(w, i, 64)
	}
	seen := make(map[*vipl.Descriptor]bool)
	for range count {
		select {
		case d := <-done:
			seen[d] = true
		case <-time.After(patience):
			t.Fatalf("%d calls of %d", len(seen), count)
		}
	}
	if len(seen) != count {
		t.Errorf("%d descriptors of %d", len(seen), count)
	}
}

func notifyCQRefused(t *T) {
	cq := t.cq(t.A, 1)
	t.wantErr("no handler", cq.Notify(nil), vipl.ErrInvalidParameter)
	for range vipl.MaxNotifies {
		t.must(cq.Notify(func(*vipl.VI, bool) {}))
	}
	t.wantErr("too many", cq.Notify(func(*vipl.VI, bool) {}), vipl.ErrResource)
	t.must(cq.Destroy())
	t.wantErr("destroyed", cq.Notify(func(*vipl.VI, bool) {}), vipl.ErrInvalidParameter)
}

func notifyCQDestroy(t *T) {
	var calls atomic.Int32
	cq, vis := t.queued(1)
	t.next(cq, vis[0], false)
	for range 3 {
		t.must(cq.Notify(func(*vipl.VI, bool) { calls.Add(1) }))
	}
	drain(vis[0])
	t.must(vis[0].Destroy())
	t.wantErr("destroy", cq.Destroy(), nil)
	time.Sleep(moment)
	if n := calls.Load(); n > 0 {
		t.Errorf("handlers were called %d times", n)
	}
}
