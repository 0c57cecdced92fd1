package vipltest

import (
	"errors"
	"slices"
	"sync"
	"time"

	"viaxdp/vipl"
)

// patience bounds what must happen. It is long, since nothing is tested about
// how fast a provider is.
const ackDelay = 20 * time.Second

// moment is how long a rule looks that something does not happen.
const moment = 20 * time.Millisecond

// until waits for a condition that the provider brings about by itself.
func (t *T) until(what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(ackDelay); !ok(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatalf("never came: %s", what)
		}
	}
}

// state waits until the VI is in a state.
func (t *T) state(v *vipl.VI, want vipl.State) vipl.VIInfo {
	t.Helper()
	var s vipl.VIInfo
	for end := time.Now().Add(ackDelay); ; time.Sleep(100 * time.Microsecond) {
		var err error
		if s, err = v.Query(); err != nil {
			t.Fatal(err)
		}
		if s.State == want {
			return s
		}
		if time.Now().After(end) {
			t.Fatalf("the VI is %v, want %v", s.State, want)
		}
	}
}

// states waits until VIs are in a state.
func (t *T) states(want vipl.State, vis ...*vipl.VI) {
	t.Helper()
	for _, v := range vis {
		t.state(v, want)
	}
}

// isIn checks that a VI is in a state now.
func (t *T) isIn(v *vipl.VI, want vipl.State) {
	t.Helper()
	s, err := v.Query()
	t.errorIf(err != nil || s.State != want, "the VI is %v (%v), want %v", s.State, err, want)
}

// stays checks that a VI is in a state and still is a moment later.
func (t *T) stays(v *vipl.VI, want vipl.State) {
	t.Helper()
	t.state(v, want)
	time.Sleep(moment)
	t.isIn(v, want)
}

// sent waits for the next completion of the send queue. Its status must have
// exactly the operation, the errors and the bits of want, beside DONE.
func (t *T) sent(v *vipl.VI, want vipl.Status) *vipl.Descriptor {
	t.Helper()
	d, err := v.SendWait(ackDelay)
	return t.completed("send", d, err, want)
}

// received waits for the next completion of the receive queue, as sent. Without
// an operation in want it is a receive.
func (t *T) received(v *vipl.VI, want vipl.Status) *vipl.Descriptor {
	t.Helper()
	if want&vipl.StatusOpMask == 0 {
		want |= vipl.StatusOpReceive
	}
	d, err := v.RecvWait(ackDelay)
	return t.completed("receive", d, err, want)
}

// receivedMessage waits for the next receive, which is all of message k into buf.
func (t *T) receivedMessage(v *vipl.VI, buf []byte, k int) *vipl.Descriptor {
	t.Helper()
	d := t.received(v, 0)
	if int(d.Length) != len(buf) {
		t.Errorf("a message of %d bytes, want %d", d.Length, len(buf))
	}
	t.coalesces("message", buf, k)
	return d
}

func (t *T) completed(what string, d *vipl.Descriptor, err error, want vipl.Status) *vipl.Descriptor {
	t.Helper()
	if d == nil {
		t.Fatalf("%s: no descriptor: %v", what, err)
	}
	want |= vipl.StatusDone
	if s := d.Status(); s != want {
		t.Errorf("%s: status %#x (%v), want %#x (%v)", what, uint32(s), s, uint32(want), want)
	}
	if want.Failed() != errors.Is(err, vipl.ErrDescriptor) || !want.Failed() && err != nil {
		t.Errorf("%s: error %v with status %v", what, err, want)
	}
	return d
}

// sendDone and recvDone are sent and received of what has completed already.
func (t *T) sendDone(v *vipl.VI, want vipl.Status) *vipl.Descriptor {
	t.Helper()
	d, err := v.SendDone()
	return t.completed("send", d, err, want)
}

func (t *T) recvDone(v *vipl.VI, want vipl.Status) *vipl.Descriptor {
	t.Helper()
	d, err := v.RecvDone()
	return t.completed("receive", d, err, want|vipl.StatusOpReceive)
}

// nothingDone checks that SendDone or RecvDone gives this error and no descriptor.
func (t *T) nothingDone(done func() (*vipl.Descriptor, error), want error) {
	t.Helper()
	if d, err := done(); d != nil || err != want {
		t.Errorf("%v, %v; want %v", d, err, want)
	}
}

// nothingReceived checks that the head of the receive queue is not complete,
// and still is not a moment later.
func (t *T) nothingReceived(v *vipl.VI) {
	t.Helper()
	if d, err := v.RecvWait(moment); err != vipl.ErrTimeout {
		t.Errorf("a receive completed: %v %v", d, err)
	}
}

// errorLog gathers asynchronous errors.
type errorLog struct {
	mu   sync.Mutex
	list []vipl.ErrorDescriptor
}

func (l *errorLog) add(e vipl.ErrorDescriptor) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, e)
}

// of are the errors of a VI so far, in order.
func (l *errorLog) of(v *vipl.VI) []vipl.ErrorDescriptor {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.list), func(e vipl.ErrorDescriptor) bool { return e.VI != v })
}

// asyncError waits for an asynchronous error of a VI.
func (t *T) asyncError(v *vipl.VI, code vipl.ErrorCode) (e vipl.ErrorDescriptor) {
	t.Helper()
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

// tells checks what an asynchronous error is about, and if want has one, its operation.
// The code was looked for, and what it says is the provider's.
func (t *T) tells(e, want vipl.ErrorDescriptor) {
	t.Helper()
	want.Code, e.Err = e.Code, nil
	if want.Op == 0 {
		want.Op = e.Op
	}
	t.errorIf(e != want, "the asynchronous error is %+v, want %+v", e, want)
}

// asyncErrors waits until a VI has had as many asynchronous errors, and checks
// that they are these, in this order. Errors come one after the other: what it
// finds is all that there was before.
func (t *T) asyncErrors(v *vipl.VI, want ...vipl.ErrorCode) []vipl.ErrorDescriptor {
	t.Helper()
	for end := time.Now().Add(ackDelay); len(t.errors.of(v)) < len(want) && time.Now().Before(end); {
		time.Sleep(100 * time.Microsecond)
	}
	list := t.errors.of(v)
	var got []vipl.ErrorCode
	for _, e := range list {
		got = append(got, e.Code)
	}
	if !slices.Equal(got, want) {
		t.Errorf("asynchronous errors %v, want %v", got, want)
	}
	return list
}
