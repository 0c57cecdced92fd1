// Package lag tells by how much a machine runs late. A bound on the time in which
// something has to happen is fair only as far as those who do it get a CPU: on a
// machine that others share it has to grow by what they were kept waiting.
package lag

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	nap   = 5 * time.Millisecond
	slack = time.Millisecond // by which any sleep may end late
)

// Meter adds up by how much a goroutine that sleeps again and again is woken too
// late. On a machine that has time that is close to nothing. All methods may be
// called concurrently.
type Meter struct {
	sum  atomic.Int64
	stop chan struct{}
	done sync.WaitGroup
}

// Start begins to measure.
func Start() *Meter {
	m := &Meter{stop: make(chan struct{})}
	m.done.Go(func() {
		timer := time.NewTimer(nap)
		defer timer.Stop()
		for slept := time.Now(); ; {
			select {
			case <-timer.C:
			case <-m.stop:
				return
			}
			now := time.Now()
			if late := now.Sub(slept) - nap; late > slack {
				m.sum.Add(int64(late))
			}
			slept = now
			timer.Reset(nap)
		}
	})
	return m
}

// Late is by how much the machine has run late since Start.
func (m *Meter) Late() time.Duration { return time.Duration(m.sum.Load()) }

// Mark is a moment from which a bounded time runs.
type Mark struct {
	At    time.Time
	late  time.Duration
	meter *Meter
}

// Mark is this moment.
func (m *Meter) Mark() Mark { return Mark{At: time.Now(), late: m.Late(), meter: m} }

// Allow is the bound for what has to happen within d of the mark, as far as is known
// now: d, and by how much the machine has run late since.
func (k Mark) Allow(d time.Duration) time.Duration { return d + k.meter.Late() - k.late }

// Over says whether what had to happen within d of the mark would be late by now.
func (k Mark) Over(d time.Duration) bool { return time.Since(k.At) > k.Allow(d) }

// Close ends the measurement; what was measured stays.
func (m *Meter) Close() {
	close(m.stop)
	m.done.Wait()
}
