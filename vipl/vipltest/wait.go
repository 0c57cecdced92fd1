package vipltest

import (
	"errors"
	"slices"
	"sync"
	"time"

	"viaxdp/vipl"
)

// limit bounds the time of a required event. It is long, since no rule tests how fast a provider is.
const limit = 20 * time.Second

// moment is how long a rule checks that something does not happen.
const moment = 20 * time.Millisecond

// until waits for a condition that the provider establishes by itself.
func (t *T) until(what string, ok func() bool) {
	for end := time.Now().Add(limit); !ok(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatalf("never came: %s", what)
		}
	}
}

// untilDone waits until descriptors are complete, without taking them off their queues.
func (t *T) untilDone(list ...*vipl.Descriptor) {
	for _, d := range list {
		t.until("a completion", func() bool {
			t.A.Poll()
			t.B.Poll()
			return isDone(d)
		})
	}
}

func isDone(d *vipl.Descriptor) bool { return d.Status()&vipl.StatusDone != 0 }

// state waits until the VI is in a state.
func (t *T) state(v *vipl.VI, want vipl.State) (s vipl.VIInfo) {
	t.until("state "+want.String(), func() bool {
		var err error
		s, err = v.Query()
		t.must(err)
		return s.State == want
	})
	return s
}

// states waits until VIs are in a state.
func (t *T) states(want vipl.State, vis ...*vipl.VI) {
	for _, v := range vis {
		t.state(v, want)
	}
}

// isIn checks that a VI is in a state now.
func (t *T) isIn(v *vipl.VI, want vipl.State) {
	s, err := v.Query()
	t.errorIf(err != nil || s.State != want, "the VI is %v (%v), want %v", s.State, err, want)
}

// stays checks that a VI is in a state and still is a moment later.
func (t *T) stays(v *vipl.VI, want vipl.State) {
	t.state(v, want)
	time.Sleep(moment)
	t.isIn(v, want)
}

// drops disconnects a VI and waits until its peer has detected it.
func (t *T) drops(v, peer *vipl.VI) {
	t.must(v.Disconnect())
	t.state(peer, vipl.Error)
}

// sent waits for the next completions of the send queue, for one if want is empty. Their status must have
// exactly the operation, the errors and the bits of want, besides DONE. It returns the last descriptor.
func (t *T) sent(v *vipl.VI, want ...vipl.Status) *vipl.Descriptor {
	return t.completions("send", v.SendWait, want)
}

// received waits for the next completions of the receive queue, as sent does. Without an operation in want, a
// receive is expected.
func (t *T) received(v *vipl.VI, want ...vipl.Status) *vipl.Descriptor {
	return t.completions("receive", v.RecvWait, want)
}

func (t *T) completions(queue string, wait func(time.Duration) (*vipl.Descriptor, error), want []vipl.Status) (d *vipl.Descriptor) {
	if len(want) == 0 {
		want = []vipl.Status{0}
	}
	for _, s := range want {
		var err error
		d, err = wait(limit)
		t.completed(queue, d, err, s)
	}
	return d
}

// completed checks a descriptor that came off a queue: "send" or "receive".
func (t *T) completed(queue string, d *vipl.Descriptor, err error, want vipl.Status) *vipl.Descriptor {
	if d == nil {
		t.Fatalf("%s: no descriptor: %v", queue, err)
	}
	if want |= vipl.StatusDone; queue == "receive" && want&vipl.StatusOpMask == 0 {
		want |= vipl.StatusOpReceive
	}
	s := d.Status()
	t.errorIf(s != want, "%s: status %#x (%v), want %#x (%v)", queue, uint32(s), s, uint32(want), want)
	t.errorIf(want.Failed() != errors.Is(err, vipl.ErrDescriptor) || !want.Failed() && err != nil, "%s: error %v with status %v", queue, err, want)
	return d
}

// sendDone and recvDone are sent and received for descriptors that are already complete.
func (t *T) sendDone(v *vipl.VI, want vipl.Status) *vipl.Descriptor {
	d, err := v.SendDone()
	return t.completed("send", d, err, want)
}

func (t *T) recvDone(v *vipl.VI, want vipl.Status) *vipl.Descriptor {
	d, err := v.RecvDone()
	return t.completed("receive", d, err, want)
}

// nothingDone checks that SendDone or RecvDone returns this error and no descriptor.
func (t *T) nothingDone(done func() (*vipl.Descriptor, error), want error) {
	d, err := done()
	t.errorIf(d != nil || err != want, "%v, %v; want %v", d, err, want)
}

// nothingReceived checks that the head of the receive queue is not complete,
// and still is not a moment later.
func (t *T) nothingReceived(v *vipl.VI) {
	d, err := v.RecvWait(moment)
	t.errorIf(err != vipl.ErrTimeout, "a receive completed: %v %v", d, err)
}

// errorLog collects asynchronous errors.
type errorLog struct {
	mu   sync.Mutex
	list []vipl.ErrorDescriptor
}

func (l *errorLog) add(e vipl.ErrorDescriptor) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, e)
}

// of returns the errors of a VI so far, in order.
func (l *errorLog) of(v *vipl.VI) []vipl.ErrorDescriptor {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.list), func(e vipl.ErrorDescriptor) bool { return e.VI != v })
}

// asyncError waits for an asynchronous error of a VI.
func (t *T) asyncError(v *vipl.VI, code vipl.ErrorCode) (e vipl.ErrorDescriptor) {
	t.until("asynchronous error: "+code.String(), func() bool {
		list := t.errors.of(v)
		i := slices.IndexFunc(list, func(e vipl.ErrorDescriptor) bool { return e.Code == code })
		if i >= 0 {
			e = list[i]
		}
		return i >= 0
	})
	return e
}

// asyncErrors waits until a VI has had as many asynchronous errors, and checks that they are these, in this
// order. Errors arrive in order, so no other error has preceded them.
func (t *T) asyncErrors(v *vipl.VI, want ...vipl.ErrorCode) []vipl.ErrorDescriptor {
	for end := time.Now().Add(limit); len(t.errors.of(v)) < len(want) && time.Now().Before(end); {
		time.Sleep(100 * time.Microsecond)
	}
	list := t.errors.of(v)
	equal := slices.EqualFunc(list, want, func(e vipl.ErrorDescriptor, code vipl.ErrorCode) bool { return e.Code == code })
	t.errorIf(!equal, "asynchronous errors %v, want %v", list, want)
	return list
}

// noErrors checks that VIs have had no asynchronous errors.
func (t *T) noErrors(vis ...*vipl.VI) {
	for _, v := range vis {
		t.asyncErrors(v)
	}
}

// tells checks the object of an asynchronous error, and its operation if want has one. The caller has matched
// the code; the error text is the provider's choice.
func (t *T) tells(e, want vipl.ErrorDescriptor) {
	want.Code, e.Err = e.Code, nil
	if want.Op == 0 {
		want.Op = e.Op
	}
	t.errorIf(e != want, "the asynchronous error is %+v, want %+v", e, want)
}
