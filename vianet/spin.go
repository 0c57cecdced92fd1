package vianet

import (
	"os"
	"runtime"
	"time"
)

// spinner decides how long to poll before sleeping: twice as long each time that it paid, all of the time when a
// sleep was so short that polling would have paid, and half as long when it was not. Two sides that both sleep, and
// so wait for each other's waking, thus find back to polling. A wait while another goroutine polls says little: many
// connections that take turns each wait for long, although something comes for one of them all the time. It belongs
// to whoever holds the lock of a connection's readers or writers.
type spinner struct {
	most   time.Duration // 0: never
	budget time.Duration
	waits  uint
}

const (
	spinLeast = 2 * time.Microsecond // less is not worth beginning
	spinRetry = 64                   // waits between two full tries
	spinTidy  = 8                    // polls in vain that say that there is time for what can wait
	spinLook  = 4 * spinTidy         // polls between two looks at the clock
	spinYield = 4 * spinLook         // and after which others get the processor
	spinTurns = 16                   // times the longest polling that a wait beside another's may take
)

func newSpinner(most time.Duration) spinner {
	if runtime.GOMAXPROCS(0) == 1 {
		most = 0 // nobody else would run
	}
	most = max(most, 0)
	return spinner{most: most, budget: most}
}

func (p *spinner) next() time.Duration {
	if p.waits++; p.waits%spinRetry == 0 {
		p.budget = p.most
	}
	if p.budget < spinLeast {
		return 0
	}
	return p.budget
}

func (p *spinner) paid() { p.budget = min(2*p.budget, p.most) }

// slept notes how long a wait took that ended asleep, of which most could have been polled; beside another who
// polled, or not. Whoever waits much longer than all others leaves the polling to them.
func (p *spinner) slept(took, most time.Duration, beside bool) {
	switch {
	case took <= most:
		p.budget = p.most
	case !beside || took > spinTurns*most:
		p.budget /= 2
	}
}

// bulkTime is how long so many bytes of a transfer may be on their way before it is better to sleep: at half a
// gigabyte a second.
func bulkTime(bytes int) time.Duration { return min(2*time.Duration(bytes), bulkMost) }

const bulkMost = 4 * time.Millisecond

// await waits until sig is raised, by polling and then asleep; longer by polling where bytes of a transfer are on
// their way. It returns os.ErrDeadlineExceeded when past has passed, which raises sig, too.
func (c *Conn) await(sig <-chan struct{}, past *limit, p *spinner, bytes int) error {
	s, more := c.stack, bulkTime(bytes)
	came, start := s.spin(sig, past, p, more)
	if came { // the signal is taken: nobody raises it again
		if past.passed() {
			return os.ErrDeadlineExceeded
		}
		return nil
	}
	beside := s.spinning.Load()
	if !beside {
		s.takeOver()
	}
	if start.IsZero() {
		start = time.Now()
	} else {
		beside = false // it has polled in vain itself
	}
	if !past.passed() { // else the signal was taken before
		<-sig
	}
	took := time.Since(start)
	if past.passed() {
		if took > p.most+more { // one that ends early says nothing about polling
			p.slept(took, p.most+more, beside)
		}
		return os.ErrDeadlineExceeded
	}
	p.slept(took, p.most+more, beside)
	return nil
}

// takeOver has the keepers wait, now that the goroutine that polled does not.
func (s *Stack) takeOver() {
	s.arrivals.begin()
	s.sends.begin()
}

// spin polls for all connections of the stack, as long as that has paid lately for this one or goes on paying for
// others, and past has not passed. False: it was not worth it, or another goroutine is at it; start is when something
// came last, if it looked at the clock.
func (s *Stack) spin(sig <-chan struct{}, past *limit, p *spinner, more time.Duration) (came bool, start time.Time) {
	most := p.next()
	if most == 0 || !s.spinning.CompareAndSwap(false, true) {
		return false, start
	}
	defer func() {
		s.spinning.Store(false)
		s.nic.Ring()
	}()
	most += more
	s.polls.Add(1)
	s.arrivals.evict()
	s.sends.evict()
	var batch entries
	for i := 1; ; i++ {
		s.nic.Ring()
		n := s.arrivals.poll(&batch)
		if s.sends.wanted.Load() > 0 {
			n += s.sends.poll(&batch)
		}
		if lower(sig) {
			if !past.passed() {
				p.paid()
			}
			return true, start
		}
		if n > 0 {
			s.yield() // to those who were woken
			i, start = 0, time.Time{}
			if past.passed() {
				return false, start
			}
			continue
		}
		if i%spinTidy != 0 {
			continue
		}
		s.tidy()
		if i%spinLook != 0 {
			continue
		}
		if now := time.Now(); start.IsZero() {
			start = now
		} else if now.Sub(start) > most || past.passed() {
			return false, start
		}
		if i%spinYield == 0 {
			s.yield() // the peer may be a goroutine of this program
		}
	}
}

// A doorbell costs several times as much as what it tells of. So where a goroutine polls for all connections it rings
// for all, too: whoever writes meanwhile leaves that to it. It rings whenever it gets a processor, at once where it
// has one for itself, and else when those have run whom it has woken; the fourth message does not wait for it. When
// others have kept it away for long Writes ring by themselves for a while.

const (
	awayMost  = time.Millisecond
	ringAlone = 256 // Writes
)

// mayRingLater says whether somebody is about to ring.
func (s *Stack) mayRingLater() bool {
	if !s.spinning.Load() {
		return false
	}
	if s.alone.Load() > 0 { // Writes at once may take it below
		s.alone.Add(-1)
		return false
	}
	return true
}

// yield lets others run, and looks how long that took.
func (s *Stack) yield() {
	start := time.Now()
	runtime.Gosched()
	if time.Since(start) > awayMost {
		s.alone.Store(ringAlone)
	}
}
