package bench

import (
	"cmp"
	"sync/atomic"
	"time"
)

// patience is how long a side waits without progress, unless its parameters say.
const patience = 20 * time.Second

// watchdog ends waits that would last for ever. A loop that polls calls idle for
// each poll in vain and progress for each success; both cost next to nothing.
type watchdog struct {
	stop  *atomic.Bool  // set when the control connection has ended; may be nil
	most  time.Duration // without progress; 0: patience
	polls uint32
	since time.Time
}

// watchEvery is the number of polls in vain between looks at the clock.
const watchEvery = 1 << 12

func (w *watchdog) progress() { w.polls = 0 }

func (w *watchdog) idle() error {
	w.polls++
	if w.polls%watchEvery != 0 {
		return nil
	}
	return w.look()
}

// blocked is idle for a wait that has slept.
func (w *watchdog) blocked() error {
	w.polls += watchEvery - w.polls%watchEvery
	return w.look()
}

func (w *watchdog) look() error {
	if w.stop != nil && w.stop.Load() {
		return ErrStopped
	}
	now := time.Now()
	if w.polls == watchEvery {
		w.since = now
	} else if now.Sub(w.since) > cmp.Or(w.most, patience) {
		return ErrStalled
	}
	if w.polls >= 1<<31 { // keep the count away from its end
		w.polls = 2 * watchEvery
	}
	return nil
}
