package vianet

import (
	"os"
	"runtime"
	"time"
)

// spinner decides how long to poll before sleeping: twice as long each time that
// it paid, half as long when it did not, and now and then the full time to find
// out whether things have changed. It belongs to whoever holds the lock of a
// connection's readers or writers.
type spinner struct {
	most   time.Duration // 0: never
	budget time.Duration
	waits  uint
}

const (
	spinLeast = 2 * time.Microsecond // less is not worth beginning
	spinRetry = 64                   // waits between two full tries
	spinLook  = 32                   // polls between two looks at the clock
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

func (p *spinner) paid()   { p.budget = min(2*p.budget, p.most) }
func (p *spinner) wasted() { p.budget /= 2 }

// await waits until sig is raised, by polling and then asleep. It returns
// os.ErrDeadlineExceeded when past is closed first.
func (c *Conn) await(sig <-chan struct{}, past <-chan struct{}, p *spinner) error {
	s := c.stack
	if s.spin(sig, past, p) {
		return nil
	}
	if !s.spinning.Load() {
		s.takeOver()
	}
	select {
	case <-sig:
		return nil
	case <-past:
		return os.ErrDeadlineExceeded
	}
}

// takeOver has the keepers wait, now that the goroutine that polled does not.
func (s *Stack) takeOver() {
	for _, d := range []*driver{s.arrivals, s.sends} {
		if !d.waiting.Load() && d.wanted.Load() > 0 {
			d.rouse()
		}
	}
}

// spin polls for all connections of the stack. False: it was not worth it, or
// another goroutine is at it.
func (s *Stack) spin(sig <-chan struct{}, past <-chan struct{}, p *spinner) bool {
	most := p.next()
	if most == 0 || !s.spinning.CompareAndSwap(false, true) {
		return false
	}
	defer s.spinning.Store(false)
	s.polls.Add(1)
	s.arrivals.evict()
	s.sends.evict()
	for start, i := time.Now(), 1; ; i++ {
		s.arrivals.poll()
		if s.sends.wanted.Load() > 0 {
			s.sends.poll()
		}
		select {
		case <-sig:
			p.paid()
			return true
		default:
		}
		if i%spinLook != 0 {
			continue
		}
		if time.Since(start) > most || isClosed(past) {
			p.wasted()
			return false
		}
		runtime.Gosched() // the peer may be a goroutine of this program
	}
}
