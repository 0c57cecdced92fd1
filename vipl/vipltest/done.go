package vipltest

import (
	"errors"
	"math"
	"time"

	"viaxdp/vipl"
)

// doneRules are about taking completed descriptors off a work queue.
var doneRules = []Rule{
	rule("send-receive/done-not-done", "SendDone and RecvDone of a head that is not complete return NOT_DONE at once and take nothing.", func(t *T) {
		va, vb, a, b := t.ends(vipl.ReliableReception, 1, 1, 64)
		d := b.recv(vb, 0, 64)
		for range 100 {
			t.nothingDone(vb.RecvDone, vipl.ErrNotDone)
		}
		a.send(va, 0, 64)
		t.same(t.received(vb, 0), d)
		t.sent(va, 0)
	}),
	rule("send-receive/done-empty-queue", "SendDone and RecvDone of an empty queue return DESCRIPTOR_ERROR and no descriptor.", func(t *T) {
		v, _ := t.pair(vipl.ReliableDelivery)
		idle := t.vi(t.A, at(vipl.UnreliableDelivery))
		for _, v := range []*vipl.VI{v, idle} {
			for _, done := range []func() (*vipl.Descriptor, error){v.SendDone, v.RecvDone} {
				t.nothingDone(done, vipl.ErrDescriptor)
			}
		}
	}),
	rule("send-receive/done-in-error", "SendDone and RecvDone give a descriptor that completed in error together with DESCRIPTOR_ERROR.", func(t *T) {
		v := t.vi(t.A, at(vipl.ReliableDelivery))
		a := t.block(t.A, 2, 64)
		a.send(v, 0, 64) // in Idle: completes in error at once
		t.sendDone(v, vipl.StatusFlushed)
		a.prepare(1, 64).Reserved = 1
		a.postRecv(v, a.desc[1])
		t.recvDone(v, vipl.StatusFormatError|vipl.StatusOpReceive)
	}),
	rule("send-receive/done-by-polling", "A program that only calls SendDone and RecvDone gets everything.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		const count, size = 20, 20_000
		va, vb, a, b := t.ends(level, count, count, size)
		b.recvs(vb, count, size)
		poll := func(done func() (*vipl.Descriptor, error)) {
			t.Helper()
			for end := time.Now().Add(ackDelay); ; {
				d, err := done()
				if d != nil && err == nil {
					return
				}
				if d != nil || err != vipl.ErrNotDone || time.Now().After(end) {
					t.Fatalf("%v %v", d, err)
				}
			}
		}
		under, sent := t.burst(level, count, size), 0
		for i := range count {
			for ; sent < min(i+under, count); sent++ {
				a.send(va, sent, size)
			}
			poll(va.SendDone)
			poll(vb.RecvDone)
		}
	})),
	rule("send-receive/wait-timeout", "SendWait and RecvWait return TIMEOUT when the time is over, and the descriptor stays posted.", func(t *T) {
		va, vb, a, b := t.ends(vipl.ReliableDelivery, 1, 1, 64)
		d := b.recv(vb, 0, 64)
		start := time.Now()
		if got, err := vb.RecvWait(moment); got != nil || !errors.Is(err, vipl.ErrTimeout) {
			t.Errorf("RecvWait: %v %v", got, err)
		}
		if got, err := va.SendWait(moment); got != nil || !errors.Is(err, vipl.ErrTimeout) {
			t.Errorf("SendWait of an empty queue: %v %v", got, err)
		}
		took := time.Since(start)
		t.errorIf(took < 2*moment, "two waits of %v were over after %v", moment, took)
		a.send(va, 0, 64)
		t.same(t.received(vb, 0), d)
		t.sent(va, 0)
	}),
	rule("send-receive/wait-zero", "A wait with time-out 0 polls.", func(t *T) {
		va, vb, a, b := t.ends(vipl.ReliableDelivery, 1, 1, 64)
		b.recv(vb, 0, 64)
		if d, err := vb.RecvWait(0); d != nil || !errors.Is(err, vipl.ErrTimeout) {
			t.Errorf("nothing there: %v %v", d, err)
		}
		a.send(va, 0, 64)
		t.until("RecvWait(0) gives the message", func() bool {
			d, err := vb.RecvWait(0)
			return d == b.desc[0] && err == nil
		})
		t.sent(va, 0)
	}),
	rule("send-receive/wait-for-ever", "A wait with a negative time-out ends with the completion.", func(t *T) {
		va, vb, a, b := t.ends(vipl.ReliableDelivery, 1, 1, 64)
		for _, ever := range []time.Duration{-1, math.MaxInt64} { // and one that no clock bears
			b.recv(vb, 0, 64)
			got := starts(func() error { return errOf(vb.RecvWait(ever)) })
			time.Sleep(moment) // the goroutine sleeps now
			a.send(va, 0, 64)
			t.must(<-got)
			t.must(errOf(va.SendWait(ever)))
		}
	}),
	rule("send-receive/done-beside-wait", "SendDone and RecvDone do not block behind a thread in the Wait form.", doneBesideWait),
	rule("send-receive/wait-on-cq-queue", "SendWait and RecvWait of a queue that is bound to a completion queue return INVALID_PARAMETER.", waitOnCQ),
}
