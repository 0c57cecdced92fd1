package vianet

import (
	"sync"
	"time"
)

// deadline is a point in time that may be moved while others wait for it. The
// zero value is none. All methods may be called concurrently.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer
	past  chan struct{} // closed when it has passed; a new one follows when it is moved on
}

// set moves the deadline; the zero time is none.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.past // the timer's function is on its way
	}
	d.timer = nil
	if d.past == nil || isClosed(d.past) {
		d.past = make(chan struct{})
	}
	if t.IsZero() {
		return
	}
	past := d.past
	if left := time.Until(t); left > 0 {
		d.timer = time.AfterFunc(left, func() { close(past) })
		return
	}
	close(past)
}

// passed gives a channel that is closed when the deadline has passed.
func (d *deadline) passed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.past == nil {
		d.past = make(chan struct{})
	}
	return d.past
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
