package vipltest

import (
	"time"

	"viaxdp/vipl"
)

var notifyRules = []Rule{
	{
		ID:   "notify/handler-gets-the-next-completion",
		Text: "The handler of VipSendNotify or VipRecvNotify is called when the head of the queue completes, with VI and descriptor.",
		run:  notifyNext,
	},
	{
		ID:   "notify/handler-is-called-at-once-if-complete",
		Text: "If the head has completed before, the handler is called at once.",
		run:  notifyAtOnce,
	},
	{
		ID:   "notify/descriptor-is-off-the-queue",
		Text: "The descriptor that a handler gets is dequeued: neither Done nor Wait gives it again.",
		run:  notifyDequeues,
	},
	{
		ID:   "notify/is-one-shot",
		Text: "A handler is called for one completion; the next one stays on the queue.",
		run:  notifyOnce,
	},
	{
		ID:   "notify/several-are-queued-in-order",
		Text: "Several handlers may be queued on one work queue; they take the completions in order.",
		run:  notifyQueued,
	},
	{
		ID:   "notify/handler-may-set-the-next",
		Text: "A handler may set itself again, and so gets every completion, in order.",
		run:  notifyAgain,
	},
	{
		ID:   "notify/needs-no-polling",
		Text: "Handlers are called while the program neither posts nor polls nor waits.",
		run:  notifyAlone,
	},
	{
		ID:   "notify/errors-are-completions",
		Text: "A descriptor that completes in error goes to the handler, too.",
		run:  notifyErrors,
	},
	{
		ID:   "notify/queues-are-independent",
		Text: "Handlers of the send queue get sends only, those of the receive queue receives only.",
		run:  notifyQueues,
	},
	{
		ID:     "notify/empty-queue-waits",
		Text:   "A handler may be set while the queue is empty.",
		Choice: "it gets the next descriptor that is posted and completes",
		run:    notifyEmpty,
	},
	{
		ID:   "notify/wrong-parameters-are-refused",
		Text: "No handler, a queue that is bound to a CQ, or a destroyed VI is INVALID_PARAMETER.",
		run:  notifyRefused,
	},
	{
		ID:     "notify/too-many-handlers",
		Text:   "VipSendNotify and VipRecvNotify return ERROR_RESOURCE when too many handlers wait on a queue.",
		Choice: "4096 handlers a queue",
		run:    notifyLimit,
	},
	{
		ID:   "notify/destroy-cancels",
		Text: "VipDestroyVi cancels the handlers that wait.",
		run:  notifyDestroy,
	},
	{
		ID:   "notify/close-cancels",
		Text: "VipCloseNic cancels the handlers that wait, those of CQs as well.",
		run:  notifyClose,
	},
	{
		ID:   "notify/handler-may-call-anything",
		Text: "A handler may call any operation, those that end its VI included.",
		run:  notifyCalls,
	},
	{
		ID:   "notify/handler-may-close-the-nic",
		Text: "A handler may close the NIC that calls it.",
		run:  notifyCloses,
	},
	{
		ID:   "notify/cq-handler-gets-the-entry",
		Text: "VipCQNotify removes one entry, at once if one is present, and hands VI and queue to the handler.",
		run:  notifyCQ,
	},
	{
		ID:   "notify/cq-handlers-are-queued-in-order",
		Text: "Several CQ handlers may be queued; they take the entries in order, each for one.",
		run:  notifyCQQueued,
	},
	{
		ID:   "notify/cq-handler-takes-the-descriptor",
		Text: "A CQ handler takes the descriptor by SendDone or RecvDone, and may set itself again.",
		run:  notifyCQAgain,
	},
	{
		ID:   "notify/cq-wrong-parameters-are-refused",
		Text: "VipCQNotify without a handler or on a destroyed CQ is INVALID_PARAMETER, with too many ERROR_RESOURCE.",
		run:  notifyCQRefused,
	},
	{
		ID:   "notify/cq-destroy-cancels",
		Text: "VipDestroyCQ cancels the handlers that wait.",
		run:  notifyCQDestroy,
	},
}

// completion is what a handler got.
type completion struct {
	vi   *vipl.VI
	desc *vipl.Descriptor
}

// handler is a handler that puts what it gets into a channel.
func handler() (func(*vipl.VI, *vipl.Descriptor), chan completion) {
	c := make(chan completion, 64)
	return func(v *vipl.VI, d *vipl.Descriptor) { c <- completion{v, d} }, c
}

// called waits for a handler's call.
func (t *T) called(c <-chan completion, v *vipl.VI, d *vipl.Descriptor) {
	t.Helper()
	select {
	case got := <-c:
		if got.vi != v || got.desc != d {
			t.Errorf("the handler got VI %p, descriptor %p; want %p and %p", got.vi, got.desc, v, d)
		}
	case <-time.After(patience):
		t.Fatal("the handler was not called")
	}
}

// silent checks that a handler was not called, and is not a moment later.
func (t *T) silent(c <-chan completion) {
	t.Helper()
	select {
	case got := <-c:
		t.Errorf("a handler was called for %p", got.desc)
	case <-time.After(moment):
	}
}

func notifyNext(t *T) {
	t.eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.pair(level)
		x, y := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
		y.recv(vb, 0, 64)
		onSend, sent := handler()
		onRecv, received := handler()
		t.must(va.SendNotify(onSend))
		t.must(vb.RecvNotify(onRecv))
		t.silent(received)
		fill(x.buf(0), 1)
		x.send(va, 0, 64)
		t.called(received, vb, y.desc[0])
		t.holds("message", y.buf(0), 1)
		t.called(sent, va, x.desc[0])
		if s := y.desc[0].Status(); s != vipl.StatusDone|vipl.StatusOpReceive {
			t.Errorf("status %v", s)
		}
	})
}

func notifyAtOnce(t *T) {
	va, vb := t.pair(vipl.ReliableReception)
	x, y := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
	y.recv(vb, 0, 64)
	x.send(va, 0, 64)
	t.until("both complete", func() bool {
		t.A.Poll()
		t.B.Poll()
		return x.desc[0].Status()&y.desc[0].Status()&vipl.StatusDone != 0
	})
	onSend, sent := handler()
	onRecv, received := handler()
	t.must(va.SendNotify(onSend))
	t.must(vb.RecvNotify(onRecv))
	t.called(sent, va, x.desc[0])
	t.called(received, vb, y.desc[0])
}

func notifyDequeues(t *T) {
	v := t.vi(t.A, vipl.ViAttributes{Level: vipl.ReliableDelivery})
	x := t.block(t.A, 1, 64)
	x.send(v, 0, 64) // completes at once, in error
	f, calls := handler()
	t.must(v.SendNotify(f))
	t.called(calls, v, x.desc[0])
	if s := t.state(v, vipl.Idle); !s.SendEmpty {
		t.Error("the queue is not empty")
	}
	if d, err := v.SendDone(); d != nil || err != vipl.ErrDescriptor {
		t.Errorf("%v, %v", d, err)
	}
}

func notifyOnce(t *T) {
	va, vb := t.pair(vipl.ReliableReception)
	x, y := t.block(t.A, 2, 64), t.block(t.B, 2, 64)
	f, calls := handler()
	t.must(vb.RecvNotify(f))
	for i := range 2 {
		y.recv(vb, i, 64)
		x.send(va, i, 64)
		t.sent(va, 0)
	}
	t.called(calls, vb, y.desc[0])
	if t.received(vb, 0) != y.desc[1] {
		t.Error("another descriptor")
	}
	t.silent(calls)
}

func notifyQueued(t *T) {
	const count = 20
	va, vb := t.pair(vipl.ReliableDelivery)
	x, y := t.block(t.A, count, 64), t.block(t.B, count, 64)
	type call struct {
		handler int
		desc    *vipl.Descriptor
	}
	calls := make(chan call, count)
	for i := range count {
		t.must(vb.RecvNotify(func(_ *vipl.VI, d *vipl.Descriptor) { calls <- call{i, d} }))
		y.recv(vb, i, 64)
	}
	for i := range count {
		x.send(va, i, 64)
	}
	for i := range count {
		select {
		case c := <-calls:
			if c.handler != i || c.desc != y.desc[i] {
				t.Errorf("call %d: handler %d, descriptor %p, want %p", i, c.handler, c.desc, y.desc[i])
			}
		case <-time.After(patience):
			t.Fatalf("%d calls of %d", i, count)
		}
	}
}

func notifyAgain(t *T) {
	const count = 50
	va, vb := t.pair(vipl.ReliableDelivery)
	x, y := t.block(t.A, count, 64), t.block(t.B, count, 64)
	calls := make(chan *vipl.Descriptor, count)
	var again func(*vipl.VI, *vipl.Descriptor)
	again = func(v *vipl.VI, d *vipl.Descriptor) {
		if err := v.RecvNotify(again); err != nil {
			t.Error(err)
		}
		calls <- d
	}
	t.must(vb.RecvNotify(again))
	for i := range count {
		y.recv(vb, i, 64)
	}
	for i := range count {
		x.send(va, i, 64)
	}
	for i := range count {
		select {
		case d := <-calls:
			if d != y.desc[i] {
				t.Errorf("call %d: another descriptor", i)
			}
		case <-time.After(patience):
			t.Fatalf("%d calls of %d", i, count)
		}
	}
}

// notifyAlone plays ping-pong between handlers alone, while the rule sleeps.
func notifyAlone(t *T) {
	const rounds = 20
	va, vb := t.pair(vipl.ReliableDelivery)
	x, y := t.block(t.A, 2, 64), t.block(t.B, 2, 64)
	over := make(chan struct{})
	answer := func(b *block, rounds int, end func()) func(*vipl.VI, *vipl.Descriptor) {
		var f func(*vipl.VI, *vipl.Descriptor)
		f = func(v *vipl.VI, d *vipl.Descriptor) {
			if d.Status().Failed() {
				return // the rule is over, or the game comes to a stop
			}
			if rounds--; rounds < 0 {
				end()
				return
			}
			for _, err := range []error{
				v.RecvNotify(f),
				v.PostRecv(b.prepare(0, 64), b.Handle()),
				v.SendNotify(func(*vipl.VI, *vipl.Descriptor) {}),
				v.PostSend(b.prepare(1, 64), b.Handle()),
			} {
				if err != nil {
					t.Error(err)
				}
			}
		}
		return f
	}
	x.recv(va, 0, 64)
	y.recv(vb, 0, 64)
	t.must(vb.RecvNotify(answer(y, rounds+1, nil)))
	t.must(va.RecvNotify(answer(x, rounds, func() { close(over) })))
	x.send(va, 1, 64)
	t.must(va.SendNotify(func(*vipl.VI, *vipl.Descriptor) {}))
	select {
	case <-over:
	case <-time.After(patience):
		t.Fatal("it came to a stop")
	}
}

func notifyErrors(t *T) {
	va, _ := t.pair(vipl.ReliableDelivery)
	x := t.block(t.A, 2, 64)
	onSend, sent := handler()
	onRecv, received := handler()
	t.must(va.RecvNotify(onRecv))
	x.recv(va, 0, 64)
	t.must(va.Disconnect())
	t.called(received, va, x.desc[0])
	t.must(va.SendNotify(onSend))
	x.send(va, 1, 64)
	t.called(sent, va, x.desc[1])
	for _, d := range x.desc {
		if s := d.Status(); s&vipl.StatusErrorMask != vipl.StatusFlushed {
			t.Errorf("status %v", s)
		}
	}
}

func notifyQueues(t *T) {
	va, vb := t.pair(vipl.ReliableDelivery)
	x, y := t.block(t.A, 2, 64), t.block(t.B, 2, 64)
	onSend, sent := handler()
	onRecv, received := handler()
	t.must(va.RecvNotify(onRecv))
	x.recv(va, 0, 64)
	y.recv(vb, 0, 64)
	x.send(va, 1, 64)
	t.sent(va, 0)
	t.silent(received)
	t.must(va.SendNotify(onSend))
	t.received(vb, 0)
	y.send(vb, 1, 64)
	t.called(received, va, x.desc[0])
	t.silent(sent)
}

func notifyEmpty(t *T) {
	va, vb := t.vi(t.A, vipl.ViAttributes{Level: vipl.ReliableDelivery}), t.vi(t.B, vipl.ViAttributes{Level: vipl.ReliableDelivery})
	f, calls := handler()
	t.must(vb.RecvNotify(f)) // not even connected
	t.silent(calls)
	t.join(va, vb)
	x, y := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
	y.recv(vb, 0, 64)
	x.send(va, 0, 64)
	t.called(calls, vb, y.desc[0])
}

func notifyRefused(t *T) {
	f, _ := handler()
	cq := t.cq(t.A, 1)
	a := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	free, send, recv := t.vi(t.A, a), t.viOn(t.A, a, cq, nil), t.viOn(t.A, a, nil, cq)
	for _, c := range []struct {
		what string
		err  error
		want error
	}{
		{"send, no handler", free.SendNotify(nil), vipl.ErrInvalidParameter},
		{"receive, no handler", free.RecvNotify(nil), vipl.ErrInvalidParameter},
		{"send, bound to a CQ", send.SendNotify(f), vipl.ErrInvalidParameter},
		{"receive, the other bound to a CQ", send.RecvNotify(f), nil},
		{"receive, bound to a CQ", recv.RecvNotify(f), vipl.ErrInvalidParameter},
		{"send, the other bound to a CQ", recv.SendNotify(f), nil},
	} {
		t.wantErr(c.what, c.err, c.want)
	}
	t.must(free.Destroy())
	t.wantErr("send, destroyed", free.SendNotify(f), vipl.ErrInvalidParameter)
	t.wantErr("receive, destroyed", free.RecvNotify(f), vipl.ErrInvalidParameter)
}

func notifyLimit(t *T) {
	f, calls := handler()
	v := t.vi(t.A, vipl.ViAttributes{Level: vipl.ReliableDelivery})
	for range vipl.MaxNotifies {
		t.must(v.SendNotify(f))
		t.must(v.RecvNotify(f))
	}
	t.wantErr("send", v.SendNotify(f), vipl.ErrResource)
	t.wantErr("receive", v.RecvNotify(f), vipl.ErrResource)
	x := t.block(t.A, 1, 64)
	x.send(v, 0, 64)
	t.called(calls, v, x.desc[0])
	t.wantErr("send, after one was called", v.SendNotify(f), nil)
}

func notifyDestroy(t *T) {
	f, calls := handler()
	for range 3 {
		v := t.vi(t.A, vipl.ViAttributes{Level: vipl.ReliableDelivery})
		for range 3 {
			t.must(v.SendNotify(f))
			t.must(v.RecvNotify(f))
		}
		t.wantErr("destroy", v.Destroy(), nil)
	}
	t.silent(calls)
}

func notifyClose(t *T) {
	a, b := t.openPair()
	f, calls := handler()
	at := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	va, vb := t.vi(a, at), t.vi(b, at)
	t.join(va, vb)
	onCQ := t.cq(a, 1)
	for range 3 {
		t.must(va.SendNotify(f))
		t.must(va.RecvNotify(f))
		t.must(onCQ.Notify(func(v *vipl.VI, _ bool) { f(v, nil) }))
	}
	t.must(a.Close())
	t.silent(calls)
}

func notifyCalls(t *T) {
	va, vb := t.pair(vipl.ReliableDelivery)
	x, y := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
	errs := make(chan error, 1)
	t.must(vb.RecvNotify(func(v *vipl.VI, d *vipl.Descriptor) {
		_, err := v.Query()
		if err == nil {
			_, err = v.SendWait(time.Millisecond)
			if err == vipl.ErrTimeout {
				err = v.Disconnect()
			}
		}
		if err == nil {
			err = v.Destroy()
		}
		if err == nil {
			err = y.Deregister()
		}
		errs <- err
	}))
	y.recv(vb, 0, 64)
	x.send(va, 0, 64)
	select {
	case err := <-errs:
		t.wantErr("in the handler", err, nil)
	case <-time.After(patience):
		t.Fatal("the handler does not return")
	}
	t.state(va, vipl.Error)
}

func notifyCloses(t *T) {
	a, b := t.openPair()
	at := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	va, vb := t.vi(a, at), t.vi(b, at)
	t.join(va, vb)
	errs := make(chan error, 1)
	t.must(va.SendNotify(func(v *vipl.VI, _ *vipl.Descriptor) { errs <- v.Nic().Close() }))
	t.block(a, 1, 64).send(va, 0, 64)
	select {
	case err := <-errs:
		t.wantErr("close", err, nil)
	case <-time.After(patience):
		t.Fatal("the handler does not return")
	}
	t.state(vb, vipl.Error)
}
