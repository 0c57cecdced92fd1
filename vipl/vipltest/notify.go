package vipltest

import (
	"time"

	"viaxdp/vipl"
)

var notifyRules = []Rule{
	rule("notify/handler-gets-the-next-completion", "The handler of VipSendNotify or VipRecvNotify is called when the head of the queue completes, with VI and descriptor.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		a, b := t.ends(level, 1, 1, 64)
		b.recv(0, 64)
		sent, received := t.onSend(a.v), t.onRecv(b.v)
		t.silent(received)
		a.sendMessage(0, 64, 1)
		t.called(received, b.v, b.desc[0])
		t.holds("message", b.buf(0), 1)
		t.called(sent, a.v, a.desc[0])
		equal(t, "status", b.desc[0].Status(), vipl.StatusDone|vipl.StatusOpReceive)
	})),
	rule("notify/handler-is-called-at-once-if-complete", "If the head has completed before, the handler is called at once.", func(t *T) {
		a, b := t.ends(vipl.ReliableReception, 1, 1, 64)
		b.recv(0, 64)
		a.send(0, 64)
		t.untilDone(a.desc[0], b.desc[0])
		t.called(t.onSend(a.v), a.v, a.desc[0])
		t.called(t.onRecv(b.v), b.v, b.desc[0])
	}),
	rule("notify/descriptor-is-off-the-queue", "The descriptor that a handler gets is dequeued: neither Done nor Wait gives it again.", func(t *T) {
		a := t.block(t.A, 1, 64).on(t.vi(t.A, at(vipl.ReliableDelivery)))
		a.send(0, 64) // completes at once, in error
		t.called(t.onSend(a.v), a.v, a.desc[0])
		t.errorIf(!t.state(a.v, vipl.Idle).SendEmpty, "the queue is not empty")
		t.nothingDone(a.v.SendDone, vipl.ErrDescriptor)
	}),
	rule("notify/is-one-shot", "A handler is called for one completion; the next one stays on the queue.", func(t *T) {
		a, b := t.ends(vipl.ReliableReception, 2, 2, 64)
		calls := t.onRecv(b.v)
		for i := range 2 {
			b.recv(i, 64)
			a.send(i, 64)
			a.sent()
		}
		t.called(calls, b.v, b.desc[0])
		t.same(b.received(), b.desc[1])
		t.silent(calls)
	}),
	rule("notify/several-are-queued-in-order", "Several handlers may be queued on one work queue; they take the completions in order.", func(t *T) {
		const count = 20
		a, b := t.ends(vipl.ReliableDelivery, count, count, 64)
		type call struct {
			handler int
			desc    *vipl.Descriptor
		}
		calls := make(chan call, count)
		for i := range count {
			t.must(b.v.RecvNotify(func(_ *vipl.VI, d *vipl.Descriptor) { calls <- call{i, d} }))
			b.recv(i, 64)
		}
		a.sends(count, 64)
		for i := range count {
			equal(t, "call", within(t, "a handler's call", calls), call{i, b.desc[i]})
		}
	}),
	rule("notify/handler-may-set-the-next", "A handler may set itself again, and so gets every completion, in order.", func(t *T) {
		const count = 50
		a, b := t.ends(vipl.ReliableDelivery, count, count, 64)
		calls := make(chan *vipl.Descriptor, count)
		var again func(*vipl.VI, *vipl.Descriptor)
		again = func(v *vipl.VI, d *vipl.Descriptor) {
			t.wantErr("RecvNotify in the handler", v.RecvNotify(again), nil)
			calls <- d
		}
		t.must(b.v.RecvNotify(again))
		b.recvs(count, 64)
		a.sends(count, 64)
		for i := range count {
			t.same(within(t, "a handler's call", calls), b.desc[i])
		}
	}),
	// Only handlers exchange messages; the rule sleeps.
	rule("notify/needs-no-polling", "Handlers are called while the program neither posts nor polls nor waits.", func(t *T) {
		const rounds = 20
		a, b := t.ends(vipl.ReliableDelivery, 2, 2, 64)
		none := func(*vipl.VI, *vipl.Descriptor) {}
		answer := func(e *end, rounds int) <-chan vipl.Status { // which returns that of the completion that is not answered
			last := make(chan vipl.Status, 1)
			var f func(*vipl.VI, *vipl.Descriptor)
			f = func(v *vipl.VI, d *vipl.Descriptor) {
				if s := d.Status(); s.Failed() || rounds == 0 {
					last <- s
					return
				}
				rounds--
				t.wantErr("RecvNotify", v.RecvNotify(f), nil)
				t.wantErr("PostRecv", v.PostRecv(e.prepare(0, 64), e.Handle()), nil)
				t.wantErr("SendNotify", v.SendNotify(none), nil)
				t.wantErr("PostSend", v.PostSend(e.prepare(1, 64), e.Handle()), nil)
			}
			t.must(e.v.RecvNotify(f))
			return last
		}
		a.recv(0, 64)
		b.recv(0, 64)
		lastB, lastA := answer(b, rounds+1), answer(a, rounds)
		a.send(1, 64)
		t.must(a.v.SendNotify(none))
		equal(t, "errors of A's last receive", within(t, "the end of the game", lastA)&vipl.StatusErrorMask, 0)
		t.must(b.v.Disconnect())
		equal(t, "errors of B's last receive", within(t, "B's last handler", lastB)&vipl.StatusErrorMask, vipl.StatusFlushed)
	}),
	rule("notify/errors-are-completions", "A descriptor that completes in error goes to the handler, too.", func(t *T) {
		a, _ := t.ends(vipl.ReliableDelivery, 2, 1, 64)
		received := t.onRecv(a.v)
		a.recv(0, 64)
		t.must(a.v.Disconnect())
		t.called(received, a.v, a.desc[0])
		sent := t.onSend(a.v)
		a.send(1, 64)
		t.called(sent, a.v, a.desc[1])
		for _, d := range a.desc {
			equal(t, "errors", d.Status()&vipl.StatusErrorMask, vipl.StatusFlushed)
		}
	}),
	rule("notify/queues-are-independent", "Handlers of the send queue get sends only, those of the receive queue receives only.", func(t *T) {
		a, b := t.ends(vipl.ReliableDelivery, 2, 2, 64)
		received := t.onRecv(a.v)
		a.recv(0, 64)
		b.recv(0, 64)
		a.send(1, 64)
		a.sent()
		t.silent(received)
		sent := t.onSend(a.v)
		b.received()
		b.send(1, 64)
		t.called(received, a.v, a.desc[0])
		t.silent(sent)
	}),
	choice("notify/empty-queue-waits", "A handler may be set while the queue is empty.", "it gets the next descriptor that is posted and completes", func(t *T) {
		va, vb := t.idle(vipl.ReliableDelivery)
		calls := t.onRecv(vb) // not even connected
		t.silent(calls)
		t.join(va, vb)
		a, b := t.block(t.A, 1, 64).on(va), t.block(t.B, 1, 64).on(vb)
		b.recv(0, 64)
		a.send(0, 64)
		t.called(calls, vb, b.desc[0])
	}),
	rule("notify/wrong-parameters-are-refused", "No handler, a queue that is bound to a CQ, or a destroyed VI is INVALID_PARAMETER.", func(t *T) {
		f := func(*vipl.VI, *vipl.Descriptor) {}
		cq := t.cq(t.A, 1)
		free, send, recv := t.vi(t.A, at(vipl.ReliableDelivery)), t.boundTo(cq, false), t.boundTo(cq, true)
		t.wantErr("send, no handler", free.SendNotify(nil), vipl.ErrInvalidParameter)
		t.wantErr("receive, no handler", free.RecvNotify(nil), vipl.ErrInvalidParameter)
		t.wantErr("send, bound to a CQ", send.SendNotify(f), vipl.ErrInvalidParameter)
		t.wantErr("receive, the other bound to a CQ", send.RecvNotify(f), nil)
		t.wantErr("receive, bound to a CQ", recv.RecvNotify(f), vipl.ErrInvalidParameter)
		t.wantErr("send, the other bound to a CQ", recv.SendNotify(f), nil)
		t.must(free.Destroy())
		t.wantErr("send, destroyed", free.SendNotify(f), vipl.ErrInvalidParameter)
		t.wantErr("receive, destroyed", free.RecvNotify(f), vipl.ErrInvalidParameter)
	}),
	choice("notify/too-many-handlers", "VipSendNotify and VipRecvNotify return ERROR_RESOURCE when too many handlers wait on a queue.", "4096 handlers a queue", func(t *T) {
		a := t.block(t.A, 1, 64).on(t.vi(t.A, at(vipl.ReliableDelivery)))
		f, calls := handler()
		for range vipl.MaxNotifies {
			t.must(a.v.SendNotify(f))
			t.must(a.v.RecvNotify(f))
		}
		t.wantErr("send", a.v.SendNotify(f), vipl.ErrResource)
		t.wantErr("receive", a.v.RecvNotify(f), vipl.ErrResource)
		a.send(0, 64)
		t.called(calls, a.v, a.desc[0])
		t.wantErr("send, after one was called", a.v.SendNotify(f), nil)
	}),
	rule("notify/destroy-cancels", "VipDestroyVi cancels the handlers that wait.", func(t *T) {
		f, calls := handler()
		for range 3 {
			v := t.vi(t.A, at(vipl.ReliableDelivery))
			for range 3 {
				t.must(v.SendNotify(f))
				t.must(v.RecvNotify(f))
			}
			t.wantErr("destroy", v.Destroy(), nil)
		}
		t.silent(calls)
	}),
	rule("notify/close-cancels", "VipCloseNic cancels the handlers that wait, those of CQs as well.", func(t *T) {
		t.openPair()
		va, _ := t.pair(vipl.ReliableDelivery)
		onCQ := t.cq(t.A, 1)
		f, calls := handler()
		for range 3 {
			t.must(va.SendNotify(f))
			t.must(va.RecvNotify(f))
			t.must(onCQ.Notify(func(v *vipl.VI, _ bool) { f(v, nil) }))
		}
		t.must(t.A.Close())
		t.silent(calls)
	}),
	rule("notify/handler-may-call-anything", "A handler may call any operation, those that end its VI included.", func(t *T) {
		a, b := t.ends(vipl.ReliableDelivery, 1, 1, 64)
		over := make(chan error, 1)
		t.must(b.v.RecvNotify(func(v *vipl.VI, _ *vipl.Descriptor) {
			t.isIn(v, vipl.Connected)
			t.wantErr("SendWait", errOf(v.SendWait(time.Millisecond)), vipl.ErrTimeout)
			t.wantErr("disconnect", v.Disconnect(), nil)
			t.wantErr("destroy", v.Destroy(), nil)
			over <- b.Deregister()
		}))
		b.recv(0, 64)
		a.send(0, 64)
		t.wantErr("deregister", t.handled(over), nil)
		t.state(a.v, vipl.Error)
	}),
	rule("notify/handler-may-close-the-nic", "A handler may close the NIC that calls it.", func(t *T) {
		t.openPair()
		a, b := t.ends(vipl.ReliableDelivery, 1, 1, 64)
		errs := make(chan error, 1)
		t.must(a.v.SendNotify(func(v *vipl.VI, _ *vipl.Descriptor) { errs <- v.NIC().Close() }))
		a.send(0, 64)
		t.wantErr("close", t.handled(errs), nil)
		t.state(b.v, vipl.Error)
	}),
	rule("notify/cq-handler-gets-the-entry", "VipCQNotify removes one entry, at once if one is present, and hands VI and queue to the handler.", func(t *T) {
		calls := make(chan entry, 4)
		f := func(v *vipl.VI, recv bool) { calls <- entry{v, recv} }
		called := func(want entry) {
			equal(t, "the handler got", within(t, "the handler's call", calls), want)
		}

		cq, vis := t.queued(2)
		t.must(cq.Notify(f)) // at once
		called(entry{vis[0], false})
		t.next(cq, vis[1], false) // the second one stays
		t.noEntry(cq)

		cq = t.cq(t.A, 2)
		a, b := t.endsOn(vipl.ReliableDelivery, cq, cq, 1, 1, 64)
		a.recv(0, 64)
		t.must(cq.Notify(f)) // when it comes
		b.send(0, 64)
		called(entry{a.v, true})
		t.noEntry(cq)
		t.recvDone(a.v, 0)
	}),
	rule("notify/cq-handlers-are-queued-in-order", "Several CQ handlers may be queued; they take the entries in order, each for one.", func(t *T) {
		const count = 20
		cq := t.cq(t.A, 1)
		a, b := t.endsOn(vipl.ReliableDelivery, cq, cq, count, count, 64)
		order := make(chan int, count+1)
		for i := range count {
			t.must(cq.Notify(func(*vipl.VI, bool) { order <- i }))
		}
		a.recvs(count, 64)
		b.sends(count, 64)
		for i := range count {
			equal(t, "handler", within(t, "a handler's call", order), i)
		}
		t.noEntry(cq)
	}),
	rule("notify/cq-handler-takes-the-descriptor", "A CQ handler takes the descriptor by SendDone or RecvDone, and may set itself again.", func(t *T) {
		const each = 20
		cq := t.cq(t.A, 1)
		done := make(chan *vipl.Descriptor, 2*each)
		var again func(*vipl.VI, bool)
		again = func(v *vipl.VI, recv bool) {
			d, err := v.RecvDone()
			t.errorIf(!recv || err != nil, "entry of receive %v: %v", recv, err)
			t.wantErr("CQNotify in the handler", cq.Notify(again), nil)
			done <- d
		}
		t.must(cq.Notify(again))
		a, b := t.endsOn(vipl.ReliableDelivery, cq, cq, each, each, 64)
		c, d := t.endsOn(vipl.ReliableReception, cq, cq, each, each, 64)
		a.recvs(each, 64)
		c.recvs(each, 64)
		for i := range each {
			b.send(i, 64)
			d.send(i, 64)
		}
		seen := make(map[*vipl.Descriptor]bool)
		for range 2 * each {
			seen[within(t, "a handler's call", done)] = true
		}
		equal(t, "descriptors", len(seen), 2*each)
	}),
	rule("notify/cq-wrong-parameters-are-refused", "VipCQNotify without a handler or on a destroyed CQ is INVALID_PARAMETER, with too many ERROR_RESOURCE.", func(t *T) {
		cq := t.cq(t.A, 1)
		f := func(*vipl.VI, bool) {}
		t.wantErr("no handler", cq.Notify(nil), vipl.ErrInvalidParameter)
		for range vipl.MaxNotifies {
			t.must(cq.Notify(f))
		}
		t.wantErr("too many", cq.Notify(f), vipl.ErrResource)
		t.must(cq.Destroy())
		t.wantErr("destroyed", cq.Notify(f), vipl.ErrInvalidParameter)
	}),
	rule("notify/cq-destroy-cancels", "VipDestroyCQ cancels the handlers that wait.", func(t *T) {
		cq, vis := t.queued(1)
		t.next(cq, vis[0], false)
		f, calls := handler()
		for range 3 {
			t.must(cq.Notify(func(v *vipl.VI, _ bool) { f(v, nil) }))
		}
		drain(vis[0])
		t.must(vis[0].Destroy())
		t.wantErr("destroy", cq.Destroy(), nil)
		t.silent(calls)
	}),
}

// completion is the argument of a handler.
type completion struct {
	vi   *vipl.VI
	desc *vipl.Descriptor
}

// handler returns a handler that sends its arguments to a channel.
func handler() (func(*vipl.VI, *vipl.Descriptor), chan completion) {
	c := make(chan completion, 64)
	return func(v *vipl.VI, d *vipl.Descriptor) { c <- completion{v, d} }, c
}

// onSend and onRecv set a handler on a work queue.
func (t *T) onSend(v *vipl.VI) <-chan completion { return t.on(v.SendNotify) }

func (t *T) onRecv(v *vipl.VI) <-chan completion { return t.on(v.RecvNotify) }

func (t *T) on(notify func(func(*vipl.VI, *vipl.Descriptor)) error) <-chan completion {
	f, calls := handler()
	t.must(notify(f))
	return calls
}

// called waits for a handler's call.
func (t *T) called(c <-chan completion, v *vipl.VI, d *vipl.Descriptor) {
	equal(t, "the handler got", within(t, "the handler's call", c), completion{v, d})
}

// silent checks that a handler was not called, and still is not a moment later.
func (t *T) silent(c <-chan completion) {
	select {
	case got := <-c:
		t.Errorf("a handler was called for %p", got.desc)
	case <-time.After(moment):
	}
}
