package xdpnictest

import (
	"sync"
	"time"

	"viaxdp/xdpnic"
)

// waiter is where goroutines sleep for a queue.
type waiter struct {
	mu     sync.Mutex
	asleep []*sleeper
	spare  []*sleeper
	woken  bool // a Wake that met nobody
	closed bool
}

type sleeper struct {
	ch    chan struct{}
	timer *time.Timer
}

// Wait sleeps until the RX ring holds an entry, until Wake, or until the time
// is over (timeout < 0: for ever, 0: do not sleep). It returns nil in all of
// these cases, and xdpnic.ErrClosed when the queue is closed. Several may wait
// at a time.
func (q *Queue) Wait(timeout time.Duration) error {
	w := &q.wait
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return xdpnic.ErrClosed
	}
	woken := w.woken
	w.woken = false
	// Arrivals count before they look for sleepers; here it is the other way
	// round, under the same lock.
	if woken || q.Ready() || timeout == 0 {
		w.mu.Unlock()
		return nil
	}
	s := w.sleeper()
	w.asleep = append(w.asleep, s)
	w.mu.Unlock()

	var over <-chan time.Time
	if timeout > 0 {
		if s.timer == nil {
			s.timer = time.NewTimer(timeout)
		} else {
			s.timer.Reset(timeout)
		}
		over = s.timer.C
	}
	select {
	case <-s.ch:
	case <-over:
	}
	if timeout > 0 {
		s.timer.Stop()
	}

	w.mu.Lock()
	defer w.mu.Unlock()
	for i, other := range w.asleep {
		if other == s { // the time was over first
			w.asleep = append(w.asleep[:i], w.asleep[i+1:]...)
			break
		}
	}
	select {
	case <-s.ch: // the time was over, and then the signal came
	default:
	}
	w.spare = append(w.spare, s)
	if w.closed {
		return xdpnic.ErrClosed
	}
	return nil
}

func (w *waiter) sleeper() *sleeper {
	if n := len(w.spare); n > 0 {
		s := w.spare[n-1]
		w.spare = w.spare[:n-1]
		return s
	}
	return &sleeper{ch: make(chan struct{}, 1)}
}

// Wake ends the Waits under way, or makes the next one return at once. Wakes
// do not add up.
func (q *Queue) Wake() {
	w := &q.wait
	w.mu.Lock()
	defer w.mu.Unlock()
	w.woken = len(w.asleep) == 0
	w.rouse()
}

// arrived ends the Waits under way because a frame has come.
func (w *waiter) arrived() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rouse()
}

func (w *waiter) rouse() {
	for i, s := range w.asleep {
		s.ch <- struct{}{} // it has room: each is roused once
		w.asleep[i] = nil
	}
	w.asleep = w.asleep[:0]
}

func (w *waiter) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.rouse()
}
