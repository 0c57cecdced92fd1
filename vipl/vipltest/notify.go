package vipltest

import (
	"sync/atomic"
	"time"

	"viaxdp/vipl"
)

var notifyRules = []Rule{
	rule("notify/handler-gets-the-next-completion", "The handler of VipSendNotify or VipRecvNotify is called when the head of the queue completes, with VI and descriptor.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb, x, y := t.ends(level, 1, 1, 64)
		y.recv(vb, 0, 64)
		onSend, sent := handler()
		onRecv, received := handler()
		t.must(va.SendNotify(onSend))
		t.must(vb.RecvNotify(onRecv))
		t.silent(received)
		x.sendMessage(va, 0, 64, 1)
		t.called(received, vb, y.desc[0])
		t.coalesces("message", y.buf(0), 1)
		t.called(sent, va, x.desc[0])
		equal(t, "status", y.desc[0].Status(), vipl.StatusDone|vipl.StatusOpReceive)
	})),
	rule("notify/handler-is-called-at-once-if-complete", "If the head has completed before, the handler is called at once.", func(t *T) {
		va, vb, x, y := t.ends(vipl.ReliableReception, 1, 1, 64)
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
	}),
	rule("notify/descriptor-is-off-the-queue", "The descriptor that a handler gets is dequeued: neither Done nor Wait gives it again.", func(t *T) {
		v := t.vi(t.A, at(vipl.ReliableDelivery))
		x := t.block(t.A, 1, 64)
		x.send(v, 0, 64) // completes at once, in error
		f, calls := handler()
		t.must(v.SendNotify(f))
		t.called(calls, v, x.desc[0])
		s := t.state(v, vipl.Idle)
		t.errorIf(!s.SendEmpty, "the queue is not empty")
		t.nothingDone(v.SendDone, vipl.ErrDescriptor)
	}),
	rule("notify/is-one-shot", "A handler is called for one completion; the next one stays on the queue.", func(t *T) {
		va, vb, x, y := t.ends(vipl.ReliableReception, 2, 2, 64)
		f, calls := handler()
		t.must(vb.RecvNotify(f))
		for i := range 2 {
			y.recv(vb, i, 64)
			x.sendDone(va, i, 64)
		}
		t.called(calls, vb, y.desc[0])
		t.same(t.received(vb, 0), y.desc[1])
		t.silent(calls)
	}),
	rule("notify/several-are-queued-in-order", "Several handlers may be queued on one work queue; they take the completions in order.", func(t *T) {
		const count = 20
		va, vb, x, y := t.ends(vipl.ReliableDelivery, count, count, 64)
		type call struct {
			handler int
			desc    *vipl.Descriptor
		}
		calls := make(chan call, count)
		for i := range count {
			t.must(vb.RecvNotify(func(_ *vipl.VI, d *vipl.Descriptor) { calls <- call{i, d} }))
			y.recv(vb, i, 64)
		}
		x.sends(va, count, 64)
		for i := range count {
			c := within(t, "a handler's call", calls)
			t.errorIf(c.handler != i || c.desc != y.desc[i], "call %d: handler %d, descriptor %p, want %p", i, c.handler, c.desc, y.desc[i])
		}
	}),
	rule("notify/handler-may-set-the-next", "A handler may set itself again, and so gets every completion, in order.", func(t *T) {
		const count = 50
		va, vb, x, y := t.ends(vipl.ReliableDelivery, count, count, 64)
		calls := make(chan *vipl.Descriptor, count)
		var again func(*vipl.VI, *vipl.Descriptor)
		again = func(v *vipl.VI, d *vipl.Descriptor) {
			t.wantErr("RecvNotify in the handler", v.RecvNotify(again), nil)
			calls <- d
		}
		t.must(vb.RecvNotify(again))
		y.recvs(vb, count, 64)
		x.sends(va, count, 64)
		for i := range count {
			t.same(within(t, "a handler's call", calls), y.desc[i])
		}
	}),
	// Handlers alone play ping-pong, while the rule sleeps.
	rule("notify/needs-no-polling", "Handlers are called while the program neither posts nor polls nor waits.", func(t *T) {
		const rounds = 20
		va, vb, x, y := t.ends(vipl.ReliableDelivery, 2, 2, 64)
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
		within(t, "the end of the game", over)
	}),
	rule("notify/errors-are-completions", "A descriptor that completes in error goes to the handler, too.", func(t *T) {
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
			s := d.Status()
			t.errorIf(s&vipl.StatusErrorMask != vipl.StatusFlushed, "status %v", s)
		}
	}),
	rule("notify/queues-are-independent", "Handlers of the send queue get sends only, those of the receive queue receives only.", func(t *T) {
		va, vb, x, y := t.ends(vipl.ReliableDelivery, 2, 2, 64)
		onSend, sent := handler()
		onRecv, received := handler()
		t.must(va.RecvNotify(onRecv))
		x.recv(va, 0, 64)
		y.recv(vb, 0, 64)
		x.sendDone(va, 1, 64)
		t.silent(received)
		t.must(va.SendNotify(onSend))
		t.received(vb, 0)
		y.send(vb, 1, 64)
		t.called(received, va, x.desc[0])
		t.silent(sent)
	}),
	choice("notify/empty-queue-waits", "A handler may be set while the queue is empty.", "it gets the next descriptor that is posted and completes", func(t *T) {
		va, vb := t.idle(vipl.ReliableDelivery)
		f, calls := handler()
		t.must(vb.RecvNotify(f)) // not even connected
		t.silent(calls)
		t.join(va, vb)
		x, y := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
		y.recv(vb, 0, 64)
		x.send(va, 0, 64)
		t.called(calls, vb, y.desc[0])
	}),
	rule("notify/wrong-parameters-are-refused", "No handler, a queue that is bound to a CQ, or a destroyed VI is INVALID_PARAMETER.", func(t *T) {
		f, _ := handler()
		cq := t.cq(t.A, 1)
		a := at(vipl.ReliableDelivery)
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
	}),
	choice("notify/too-many-handlers", "VipSendNotify and VipRecvNotify return ERROR_RESOURCE when too many handlers wait on a queue.", "4096 handlers a queue", func(t *T) {
		f, calls := handler()
		v := t.vi(t.A, at(vipl.ReliableDelivery))
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
		a, b := t.openPair()
		f, calls := handler()
		at := at(vipl.ReliableDelivery)
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
	}),
	rule("notify/handler-may-call-anything", "A handler may call any operation, those that end its VI included.", func(t *T) {
		va, vb, x, y := t.ends(vipl.ReliableDelivery, 1, 1, 64)
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
		t.wantErr("in the handler", t.handled(errs), nil)
		t.state(va, vipl.Error)
	}),
	rule("notify/handler-may-close-the-nic", "A handler may close the NIC that calls it.", func(t *T) {
		a, b := t.openPair()
		at := at(vipl.ReliableDelivery)
		va, vb := t.vi(a, at), t.vi(b, at)
		t.join(va, vb)
		errs := make(chan error, 1)
		t.must(va.SendNotify(func(v *vipl.VI, _ *vipl.Descriptor) { errs <- v.NIC().Close() }))
		t.block(a, 1, 64).send(va, 0, 64)
		t.wantErr("close", t.handled(errs), nil)
		t.state(vb, vipl.Error)
	}),
	rule("notify/cq-handler-gets-the-entry", "VipCQNotify removes one entry, at once if one is present, and hands VI and queue to the handler.", func(t *T) {
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
		t.recvDone(va, vipl.StatusOpReceive)
	}),
	rule("notify/cq-handlers-are-queued-in-order", "Several CQ handlers may be queued; they take the entries in order, each for one.", func(t *T) {
		const count = 20
		cq := t.cq(t.A, 1)
		va, vb := t.pairOn(vipl.ReliableDelivery, cq, cq)
		x, y := t.block(t.A, count, 64), t.block(t.B, count, 64)
		order := make(chan int, count+1)
		for i := range count {
			t.must(cq.Notify(func(*vipl.VI, bool) { order <- i }))
			x.recv(va, i, 64)
		}
		y.sends(vb, count, 64)
		for i := range count {
			equal(t, "handler", within(t, "a handler's call", order), i)
		}
		t.noEntry(cq)
	}),
	rule("notify/cq-handler-takes-the-descriptor", "A CQ handler takes the descriptor by SendDone or RecvDone, and may set itself again.", func(t *T) {
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
			t.wantErr("CQNotify in the handler", cq.Notify(again), nil)
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
			seen[within(t, "a handler's call", done)] = true
		}
		equal(t, "descriptors", len(seen), count)
	}),
	rule("notify/cq-wrong-parameters-are-refused", "VipCQNotify without a handler or on a destroyed CQ is INVALID_PARAMETER, with too many ERROR_RESOURCE.", func(t *T) {
		cq := t.cq(t.A, 1)
		t.wantErr("no handler", cq.Notify(nil), vipl.ErrInvalidParameter)
		for range vipl.MaxNotifies {
			t.must(cq.Notify(func(*vipl.VI, bool) {}))
		}
		t.wantErr("too many", cq.Notify(func(*vipl.VI, bool) {}), vipl.ErrResource)
		t.must(cq.Destroy())
		t.wantErr("destroyed", cq.Notify(func(*vipl.VI, bool) {}), vipl.ErrInvalidParameter)
	}),
	rule("notify/cq-destroy-cancels", "VipDestroyCQ cancels the handlers that wait.", func(t *T) {
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
		n := calls.Load()
		t.errorIf(n > 0, "handlers were called %d times", n)
	}),
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
	got := within(t, "the handler's call", c)
	t.errorIf(got.vi != v || got.desc != d, "the handler got VI %p, descriptor %p; want %p and %p", got.vi, got.desc, v, d)
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

// entry is what a CQ handler got.
type entry struct {
	vi   *vipl.VI
	recv bool
}

// entryCalled waits for a CQ handler's call.
func (t *T) entryCalled(c <-chan entry, want entry) {
	t.Helper()
	equal(t, "the handler got", within(t, "the handler's call", c), want)
}
