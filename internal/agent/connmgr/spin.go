package connmgr

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Spinning. A goroutine that waits for the other side's message first takes messages off the transport itself. The answer
// then wakes no CPU that has gone idle, which takes longer than the rest of a connect: tens of microseconds of the side that
// sends, and as long again until the other one runs. It pays while the other side answers at once, so a spin without an
// answer halves the next one, and one in spinRetry waits is a full one.
const (
	spinMost  = 400 * time.Microsecond
	spinLeast = time.Microsecond
	spinRetry = 64
)

// poller is a Transport that also passes on what has arrived when it is asked to.
type poller interface {
	// Poll passes at most one datagram to the Handler of Serve, in this goroutine. It reports whether there was one.
	Poll() bool
}

// isClosed reports whether c is closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// spinner knows how long a kind of wait may spin.
type spinner struct {
	waiting atomic.Int32 // goroutines in such a wait: several do not spin, since each would take the others' CPU time
	waits   atomic.Uint32
	halved  atomic.Int32 // how often spinMost is halved
}

// spin returns when done is, or when it has spun for long enough.
func (s *spinner) spin(t Transport, done func() bool) {
	p, ok := t.(poller)
	if !ok {
		return
	}
	defer s.waiting.Add(-1)
	s.waiting.Add(1)
	budget := max(spinMost>>s.halved.Load(), spinLeast)
	if s.waits.Add(1)%spinRetry == 0 {
		budget = spinMost
	}
	for begin := time.Now(); s.waiting.Load() == 1; {
		got := p.Poll()
		if done() {
			s.halved.Store(0)
			return
		}
		if time.Since(begin) >= budget {
			s.halved.Store(min(s.halved.Load()+1, 10))
			return
		}
		if !got {
			runtime.Gosched()
		}
	}
}
