// Package schedlat measures scheduling latency. A time limit is fair only if the processes
// that it binds get a CPU: on a shared machine the limit must grow by the time for which they
// were kept waiting.
package schedlat

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	nap   = 5 * time.Millisecond
	slack = time.Millisecond // lateness that any sleep may have
)

// window is how long a spell is.
const window = time.Second

// Spell is a second in which the machine ran late.
type Spell struct {
	At   time.Time     // its end
	Late time.Duration // by how much in all of it, in whole milliseconds
}

// Worst returns how late the machine ran in the worst second of those that ended after since.
// Unlike Late it does not grow with the time. It shows whether a process had to wait so long
// at once that its peers may have taken it for dead.
func Worst(spells []Spell, since time.Time) (most time.Duration) {
	for _, s := range spells {
		if s.At.After(since) {
			most = max(most, s.Late)
		}
	}
	return most
}

// Meter adds up how late a goroutine wakes that sleeps repeatedly. On an idle machine that is
// close to nothing. All methods may be called concurrently.
type Meter struct {
	sum atomic.Int64

	mu     sync.Mutex
	recent []Spell // single ones, of the last window
	worst  []Spell // later ones are milder

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
				m.note(now, late)
			}
			slept = now
			timer.Reset(nap)
		}
	})
	return m
}

// note adds one lateness to the seconds that it is part of. It drops spells that a later and
// worse one hides, so that few are kept.
func (m *Meter) note(now time.Time, late time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.recent = append(m.recent, Spell{now, late})
	m.recent = slices.DeleteFunc(m.recent, func(s Spell) bool { return now.Sub(s.At) > window })
	sum := time.Duration(0)
	for _, s := range m.recent {
		sum += s.Late
	}
	sum = (sum + time.Millisecond - 1).Truncate(time.Millisecond)
	for n := len(m.worst); n > 0 && m.worst[n-1].Late <= sum; n-- {
		m.worst = m.worst[:n-1]
	}
	m.worst = append(m.worst, Spell{now, sum})
}

// Spells are the seconds in which the machine ran late, except those followed by a worse one.
func (m *Meter) Spells() []Spell {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.worst)
}

// Late is how late the machine has run in all since Start.
func (m *Meter) Late() time.Duration { return time.Duration(m.sum.Load()) }

// Mark is a moment from which a bounded time runs.
type Mark struct {
	At    time.Time
	late  time.Duration
	meter *Meter
}

// Mark is this moment.
func (m *Meter) Mark() Mark { return Mark{At: time.Now(), late: m.Late(), meter: m} }

// Allow is the limit for an event within d of the mark, as far as is known now: d plus the
// lateness since the mark.
func (k Mark) Allow(d time.Duration) time.Duration { return d + k.meter.Late() - k.late }

// Over reports whether an event due within d of the mark is late by now.
func (k Mark) Over(d time.Duration) bool { return time.Since(k.At) > k.Allow(d) }

// Close ends the measurement; what was measured stays.
func (m *Meter) Close() {
	close(m.stop)
	m.done.Wait()
}
