package vipl_test

import (
	"errors"
	"testing"
	"time"

	"viaxdp/vipl"
)

// One completion queue, made for one entry, serves both queues of many VIs and
// loses nothing.
func TestSharedCQ(t *testing.T) {
	const vis, messages = 8, 50
	n := newMemoryNet(t, memoryConfig{})
	ca, err := n.a.CreateCQ(1)
	if err != nil {
		t.Fatal(err)
	}
	cb, err := n.b.CreateCQ(1)
	if err != nil {
		t.Fatal(err)
	}
	type end struct {
		v    *vipl.VI
		x    *box
		sent int
		got  int
	}
	as, bs := make(map[*vipl.VI]*end), make(map[*vipl.VI]*end)
	for i := range vis {
		attrs := vipl.ViAttributes{Level: levels[i%3]}
		va, err := n.a.CreateVi(attrs, ca, ca)
		if err != nil {
			t.Fatal(err)
		}
		vb, err := n.b.CreateVi(attrs, cb, cb)
		if err != nil {
			t.Fatal(err)
		}
		join(t, n.a.Nic, va, n.b.Nic, vb)
		as[va] = &end{v: va, x: newBox(t, n.a.Nic, messages, 64)}
		bs[vb] = &end{v: vb, x: newBox(t, n.b.Nic, messages, 64)}
	}
	for _, e := range bs {
		for k := range messages {
			postRecv(t, e.v, e.x, k, 64)
		}
	}
	for _, e := range as {
		for k := range messages {
			e.x.desc[k].ImmediateData = 0
			postSend(t, e.v, e.x, k, k)
		}
	}
	drain := func(c *vipl.CQ, ends map[*vipl.VI]*end, count int) {
		for range count {
			v, recv, err := c.Wait(patience)
			if err != nil {
				t.Fatal(err)
			}
			e := ends[v]
			if recv {
				d, err := v.RecvDone()
				checkDone(t, "receive", d, err, vipl.StatusOpReceive)
				if d != e.x.desc[e.got] || int(d.Length) != e.got {
					t.Fatalf("receive %d: length %d", e.got, d.Length)
				}
				e.got++
			} else {
				d, err := v.SendDone()
				checkDone(t, "send", d, err, 0)
				if d != e.x.desc[e.sent] {
					t.Fatalf("send %d: another descriptor", e.sent)
				}
				e.sent++
			}
		}
		if _, _, err := c.Done(); err != vipl.ErrNotDone {
			t.Errorf("more entries than completions: %v", err)
		}
	}
	drain(cb, bs, vis*messages)
	drain(ca, as, vis*messages)
	if _, _, err := ca.Wait(time.Millisecond); err != vipl.ErrTimeout {
		t.Errorf("wait on an empty queue: %v", err)
	}
	for v := range as {
		if _, err := v.SendWait(0); !errors.Is(err, vipl.ErrInvalidParameter) {
			t.Errorf("SendWait on a queue with a CQ: %v", err)
		}
		if _, err := v.RecvWait(0); !errors.Is(err, vipl.ErrInvalidParameter) {
			t.Errorf("RecvWait on a queue with a CQ: %v", err)
		}
	}
	wantError(t, "destroy of a CQ in use", ca.Destroy(), vipl.ErrResource)
	for v := range as {
		v.Disconnect()
		if err := v.Destroy(); err != nil {
			t.Error(err)
		}
	}
	if err := ca.Destroy(); err != nil {
		t.Error(err)
	}
	wantError(t, "destroyed twice", ca.Destroy(), vipl.ErrInvalidParameter)
	if _, err := n.a.CreateVi(vipl.ViAttributes{Level: 1}, ca, nil); !errors.Is(err, vipl.ErrInvalidParameter) {
		t.Errorf("VI with a destroyed CQ: %v", err)
	}
}

// Flushed descriptors come by the CQ, too, each once.
func TestCQGetsFlushed(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{})
	c, err := n.b.CreateCQ(1)
	if err != nil {
		t.Fatal(err)
	}
	vb, err := n.b.CreateVi(vipl.ViAttributes{Level: vipl.ReliableDelivery}, nil, c)
	if err != nil {
		t.Fatal(err)
	}
	va := newVI(t, n.a.Nic, vipl.ReliableDelivery)
	join(t, n.a.Nic, va, n.b.Nic, vb)
	x := newBox(t, n.b.Nic, 100, 64)
	for i := range 100 {
		postRecv(t, vb, x, i, 64)
	}
	if err := va.Disconnect(); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		v, recv, err := c.Wait(patience)
		if err != nil || v != vb || !recv {
			t.Fatalf("entry %d: %v %v %v", i, v, recv, err)
		}
		d, err := vb.RecvDone()
		checkDone(t, "receive", d, err, vipl.StatusFlushed|vipl.StatusOpReceive)
	}
}

// Handlers get the entries in the order in which they were set, also where the entry of
// one is void, since its VI is destroyed before the handler's turn.
func TestCQHandlerOfAVoidEntry(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{})
	c, err := n.a.CreateCQ(1)
	if err != nil {
		t.Fatal(err)
	}
	var vis [2]*vipl.VI
	for i := range vis {
		if vis[i], err = n.a.CreateVi(vipl.ViAttributes{Level: vipl.ReliableDelivery}, c, nil); err != nil {
			t.Fatal(err)
		}
	}
	stays, goes := vis[0], vis[1]
	x := newBox(t, n.a.Nic, 4, 64)
	type call struct {
		handler int
		vi      *vipl.VI
	}
	calls, hold := make(chan call, 4), make(chan struct{})
	for i := range 3 {
		if err := c.Notify(func(v *vipl.VI, _ bool) {
			calls <- call{i, v}
			<-hold
		}); err != nil {
			t.Fatal(err)
		}
	}
	next := func(want call) {
		t.Helper()
		if !comes(func() bool { return len(calls) > 0 }) {
			t.Fatalf("handler %d was not called", want.handler)
		}
		if got := <-calls; got != want {
			t.Errorf("handler %d was called for %p, want handler %d for %p", got.handler, got.vi, want.handler, want.vi)
		}
	}
	postSend(t, stays, x, 0, 8) // completes at once: it is not connected
	next(call{0, stays})
	postSend(t, goes, x, 1, 8)
	postSend(t, stays, x, 2, 8)
	if d, err := goes.SendDone(); d == nil {
		t.Fatal(err)
	}
	if err := goes.Destroy(); err != nil {
		t.Fatal(err)
	}
	close(hold)
	next(call{1, stays})
	postSend(t, stays, x, 3, 8)
	next(call{2, stays})
	if _, _, err := c.Done(); err != vipl.ErrNotDone {
		t.Errorf("an entry too many: %v", err)
	}
}

func TestCQSizes(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{})
	for _, size := range []int{-1, 0, vipl.MaxCQEntries + 1} {
		if _, err := n.a.CreateCQ(size); !errors.Is(err, vipl.ErrInvalidParameter) {
			t.Errorf("%d entries: %v", size, err)
		}
	}
	most := n.a.Query().MaxCQ
	for range most {
		if _, err := n.a.CreateCQ(1); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := n.a.CreateCQ(1); !errors.Is(err, vipl.ErrResource) {
		t.Errorf("CQ %d: %v", most+1, err)
	}
}
