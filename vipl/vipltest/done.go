package vipltest

import (
	"errors"
	"time"

	"viaxdp/vipl"
)

// doneRules are about taking completed descriptors off a work queue.
var doneRules = []Rule{
	{
		ID: "send-receive/done-not-done", Text: "SendDone and RecvDone of a head that is not complete return NOT_DONE at once and take nothing.",
		run: doneNotDone,
	},
	{
		ID: "send-receive/done-empty-queue", Text: "SendDone and RecvDone of an empty queue return DESCRIPTOR_ERROR and no descriptor.",
		run: doneEmpty,
	},
	{
		ID: "send-receive/done-in-error", Text: "SendDone and RecvDone give a descriptor that completed in error together with DESCRIPTOR_ERROR.",
		run: doneInError,
	},
	{
		ID: "send-receive/done-by-polling", Text: "A program that only calls SendDone and RecvDone gets everything.",
		run: eachLevel(doneByPolling),
	},
	{
		ID: "send-receive/wait-timeout", Text: "SendWait and RecvWait return TIMEOUT when the time is over, and the descriptor stays posted.",
		run: waitTimeout,
	},
	{
		ID: "send-receive/wait-zero", Text: "A wait with time-out 0 polls.",
		run: waitZero,
	},
	{
		ID: "send-receive/wait-for-ever", Text: "A wait with a negative time-out ends with the completion.",
		run: waitForEver,
	},
	{
		ID: "send-receive/done-beside-wait", Text: "SendDone and RecvDone do not block behind a thread in the Wait form.",
		run: doneBesideWait,
	},
	{
		ID: "send-receive/wait-on-cq-queue", Text: "SendWait and RecvWait of a queue that is bound to a completion queue return INVALID_PARAMETER.",
		run: waitOnCQQueue,
	},
}

func doneNotDone(t *T) {
	va, vb := t.pair(vipl.ReliableReception)
	a, b := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
	d := b.recv(vb, 0, 64)
	for range 100 {
		if got, err := vb.RecvDone(); got != nil || err != vipl.ErrNotDone {
			t.Fatalf("RecvDone: %v %v", got, err)
		}
	}
	a.send(va, 0, 64)
	if got := t.received(vb, 0); got != d {
		t.Error("another descriptor")
	}
	t.sent(va, 0)
}

func doneEmpty(t *T) {
	v, _ := t.pair(vipl.ReliableDelivery)
	idle := t.vi(t.A, vipl.ViAttributes{Level: vipl.UnreliableDelivery})
	for _, v := range []*vipl.VI{v, idle} {
		for _, done := range []func() (*vipl.Descriptor, error){v.SendDone, v.RecvDone} {
			if d, err := done(); d != nil || !errors.Is(err, vipl.ErrDescriptor) {
				t.Errorf("empty queue: %v %v", d, err)
			}
		}
	}
}

func doneInError(t *T) {
	v := t.vi(t.A, vipl.ViAttributes{Level: vipl.ReliableDelivery})
	a := t.block(t.A, 2, 64)
	a.send(v, 0, 64) // in Idle: completes in error at once
	d, err := v.SendDone()
	t.completed("send", d, err, vipl.StatusFlushed)
	a.prepare(1, 64).Reserved = 1
	a.postRecv(v, a.desc[1])
	d, err = v.RecvDone()
	t.completed("receive", d, err, vipl.StatusFormatError|vipl.StatusOpReceive)
}

func doneByPolling(t *T, level vipl.ReliabilityLevel) {
	const count, size = 20, 20_000
	va, vb := t.pair(level)
	a, b := t.block(t.A, count, size), t.block(t.B, count, size)
	for i := range count {
		b.recv(vb, i, size)
	}
	poll := func(done func() (*vipl.Descriptor, error)) {
		t.Helper()
		for end := time.Now().Add(patience); ; {
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
}

func waitTimeout(t *T) {
	va, vb := t.pair(vipl.ReliableDelivery)
	a, b := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
	d := b.recv(vb, 0, 64)
	start := time.Now()
	if got, err := vb.RecvWait(moment); got != nil || !errors.Is(err, vipl.ErrTimeout) {
		t.Errorf("RecvWait: %v %v", got, err)
	}
	if got, err := va.SendWait(moment); got != nil || !errors.Is(err, vipl.ErrTimeout) {
		t.Errorf("SendWait of an empty queue: %v %v", got, err)
	}
	if took := time.Since(start); took < 2*moment {
		t.Errorf("two waits of %v were over after %v", moment, took)
	}
	a.send(va, 0, 64)
	if got := t.received(vb, 0); got != d {
		t.Error("another descriptor")
	}
	t.sent(va, 0)
}

func waitZero(t *T) {
	va, vb := t.pair(vipl.ReliableDelivery)
	a, b := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
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
}

func waitForEver(t *T) {
	va, vb := t.pair(vipl.ReliableDelivery)
	a, b := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
	b.recv(vb, 0, 64)
	got := make(chan error, 1)
	go func() {
		_, err := vb.RecvWait(-1)
		got <- err
	}()
	time.Sleep(moment) // the goroutine sleeps now
	a.send(va, 0, 64)
	t.must(<-got)
	if _, err := va.SendWait(-1); err != nil {
		t.Error(err)
	}
}

func doneBesideWait(t *T) {
	va, vb := t.pair(vipl.ReliableReception)
	a, b := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
	b.recv(vb, 0, 64)
	got := make(chan error, 2)
	go func() { _, err := vb.RecvWait(patience); got <- err }()
	go func() { _, err := vb.SendWait(patience); got <- err }()
	time.Sleep(moment) // both sleep now
	done := make(chan error, 2)
	go func() {
		_, err := vb.RecvDone()
		done <- err
		_, err = vb.SendDone()
		done <- err
	}()
	for _, want := range []error{vipl.ErrNotDone, vipl.ErrDescriptor} {
		select {
		case err := <-done:
			t.wantErr("Done beside a Wait", err, want)
		case <-time.After(patience / 2):
			t.Fatal("Done blocks behind a Wait")
		}
	}
	a.send(va, 0, 64)
	t.must(<-got)
	t.sent(va, 0)
	a.recv(va, 0, 64)
	b.send(vb, 0, 64)
	t.must(<-got)
	t.received(va, 0)
}

func waitOnCQQueue(t *T) {
	cq := t.cq(t.A, 4)
	v := t.viOn(t.A, vipl.ViAttributes{Level: vipl.ReliableDelivery}, cq, cq)
	_, err := v.SendWait(0)
	t.wantErr("SendWait", err, vipl.ErrInvalidParameter)
	_, err = v.RecvWait(0)
	t.wantErr("RecvWait", err, vipl.ErrInvalidParameter)
}
