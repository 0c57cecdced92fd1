package vianet

import (
	"sync"
	"sync/atomic"
	"time"
)

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// limit is the deadline of a connection's Reads or Writes, or of a listener. A call waits for the signal, which the limit
// raises when it passes. So a call on a connection waits for one channel only, and a program that moves its deadlines
// with each message makes no garbage. If several calls wait, each raises the signal again for the next one. All methods
// may be called concurrently.
type limit struct {
	over   atomic.Bool
	signal chan struct{}

	mu    sync.Mutex
	at    time.Time   // zero: none
	timer *time.Timer // nil: there never was one in the future
	armed bool
}

// set moves the limit; the zero time is none. If the limit passes and is moved before a waiting call notices, the
// call goes on waiting, as on a socket of the kernel.
func (l *limit) set(t time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at = t
	if t.IsZero() {
		l.disarm()
		return
	}
	l.at = time.Now().Add(time.Until(t)) // which a clock that is set does not move
	l.arm()
}

func (l *limit) disarm() {
	if l.armed {
		l.armed = false
		l.timer.Stop()
	}
	if l.over.Load() {
		l.over.Store(false)
	}
}

// arm sets the timer, or notes that the time has come. Under mu.
func (l *limit) arm() {
	left := time.Until(l.at)
	if left <= 0 {
		l.disarm()
		l.over.Store(true)
		raise(l.signal)
		return
	}
	l.over.Store(false)
	if l.armed = true; l.timer == nil {
		l.timer = time.AfterFunc(left, l.ring)
	} else {
		l.timer.Reset(left)
	}
}

// ring is called by the timer, perhaps one that has been stopped or moved since.
func (l *limit) ring() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.armed {
		l.arm()
	}
}

// passed reports whether the limit has passed. A caller that is about to wait must lower the signal before it calls
// passed, or check its condition after each signal.
func (l *limit) passed() bool { return l.over.Load() }
