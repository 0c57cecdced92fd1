package vianet

import (
	"errors"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/base/thread"
	"viaxdp/vipl"
)

// How a Read or Write waits (await):
//
//  1. It polls for all connections of the stack (spin), as long as that has paid lately (spinner). One goroutine
//     polls at a time. It also rings the doorbell for what others write meanwhile, and yields to other goroutines and,
//     where the CPU is shared, to other processes (yieldCPU).
//  2. Then it sleeps until its signal is raised. Before, it hands the completion queues to their drivers (takeOver).
//  3. A driver is a goroutine of the stack that sleeps in a completion queue while no call polls.

// driver is one of the two completion queues of a Stack, arrivals or sends, and the goroutine that waits in it
// (drive).
//
// Every completion wakes a goroutine in Wait, which costs as much as the message itself. So the driver stays out of
// Wait while a call polls, and checks only once a millisecond. The driver of sends also stays out while no connection
// needs their completions.
type driver struct {
	stack *Stack
	cq    *vipl.CQ

	waiting atomic.Bool   // drive is in Wait
	wanted  atomic.Int32  // connections that need these completions; arrivals are always needed
	poke    chan struct{} // raised when drive should look at the queue again, and wait unless a call polls
	stopped chan struct{}
}

// cqEntries is room for the completions of some connections; the queue grows.
const cqEntries = 1024

func newDriver(s *Stack) (*driver, error) {
	cq, err := s.nic.CreateCQ(cqEntries)
	if err != nil {
		return nil, err
	}
	return &driver{stack: s, cq: cq, poke: make(chan struct{}, 1), stopped: make(chan struct{})}, nil
}

// entries is room for what is taken off a queue at once.
type entries [pollBatch]vipl.Completion

// poll takes completions off the queue, up to a bound, and lets their connections progress. It returns how many there
// were.
func (d *driver) poll(batch *entries) int {
	n, _ := d.cq.Dones(batch[:])
	for i, e := range batch[:n] {
		if i == 0 || e.VI != batch[i-1].VI { // else it has been seen to
			dispatch(e.VI)
		}
	}
	return n
}

// pollBatch is how many entries are taken at once.
const pollBatch = 16

// drain polls until nothing is left.
func (d *driver) drain() {
	var batch entries
	for d.poll(&batch) == pollBatch {
	}
}

func dispatch(vi *vipl.VI) { vi.Value().(*Conn).progress() }

// wait waits for one completion, or until it is evicted. False: the NIC is closed.
func (d *driver) wait() bool {
	vi, _, err := d.cq.Wait(-1)
	d.waiting.Store(false)
	if errors.Is(err, vipl.ErrNotDone) {
		return true
	}
	if err != nil {
		d.stack.fail(err)
		return false
	}
	dispatch(vi)
	d.drain()
	d.stack.tidy()
	runtime.Gosched() // the goroutines that were woken run first: Wait polls before it sleeps
	return true
}

// evict gets drive out of Wait, if it is there. From now on it does not count as waiting, even before it has woken.
func (d *driver) evict() {
	if d.waiting.CompareAndSwap(true, false) {
		d.cq.Wake()
	}
}

// begin pokes drive if it does not wait and its completions are needed.
func (d *driver) begin() {
	if !d.waiting.Load() && d.wanted.Load() > 0 {
		raise(d.poke)
	}
}

// stop ends drive.
func (d *driver) stop() {
	close(d.stopped)
	d.evict()
}

// want counts the connections that need these completions. A polling call checks for them itself, and the driver of
// arrivals takes over after it. So want pokes drive only if no call polls, and takes no processor from a poller.
func (d *driver) want(n int32) {
	if d.wanted.Add(n) == 1 && n > 0 && !d.stack.spinning.Load() {
		raise(d.poke)
	}
}

// mayWait reports whether no call polls and none has begun to since the counter stood at last. A call that begins
// later evicts drive, which is about to wait.
func (d *driver) mayWait(last uint32) bool {
	s := d.stack
	idle := func() bool { return s.polls.Load() == last && !s.spinning.Load() && !isClosed(d.stopped) }
	if !idle() {
		return false
	}
	d.waiting.Store(true) // before the second check: a poller checks in the other order
	if !idle() {
		d.waiting.Store(false)
		return false
	}
	if d == s.arrivals {
		s.sends.begin() // for connections that left their sends to a poller which has just ended
	}
	return true
}

// tick is how often drive looks while it leaves the work to pollers.
const tick = time.Millisecond

// drive waits for completions, unless a call polls for them, until it is stopped.
func (d *driver) drive() {
	s := d.stack
	timer := time.NewTimer(tick)
	defer timer.Stop()
	last := s.polls.Load()
	for {
		if d == s.arrivals {
			s.sends.begin()
		}
		var look <-chan time.Time
		if d.wanted.Load() > 0 {
			if d.mayWait(last) {
				if !d.wait() {
					return
				}
				continue
			}
			timer.Reset(tick)
			look = timer.C
		}
		last = s.polls.Load()
		select {
		case <-look:
		case <-d.poke:
			last = s.polls.Load()
		case <-d.stopped:
			return
		}
		d.drain()
		s.tidy()
		runtime.Gosched() // as in wait
	}
}

// entriesLeft is how many completions of sends may remain on their queue after the connections have seen them.
const entriesLeft = 256

// sent counts sends. After every entriesLeft of them it marks the queue of sends as stale. An idle poller or the
// driver of arrivals then takes the completions off.
func (s *Stack) sent() {
	if s.posted.Add(1)%entriesLeft == 0 {
		s.stale.Store(true)
	}
}

// tidy takes stale completions off the queue of sends.
func (s *Stack) tidy() {
	if s.stale.Load() && s.stale.CompareAndSwap(true, false) {
		s.sends.drain()
	}
}

// spinner decides how long to poll before sleeping. The time doubles each time that polling paid, becomes the full
// time after a sleep so short that polling would have paid, and halves after a longer one. So two sides that both
// sleep, and wait for each other's wake-up, return to polling. A wait while another goroutine polls says little:
// connections that take turns each wait long, although something arrives for one of them all the time. The lock of
// the readers or writers of a connection guards it.
type spinner struct {
	most   time.Duration // 0: never
	budget time.Duration
	waits  uint
}

const (
	spinLeast = 2 * time.Microsecond // less is not worth beginning
	spinRetry = 64                   // waits between two full tries
	spinTidy  = 8                    // polls in vain after which there is time for housekeeping
	spinLook  = 4 * spinTidy         // polls between two looks at the clock
	spinYield = 4 * spinLook         // and after which others get the processor
	spinTurns = 16                   // times the longest polling that a wait beside another's may take
	spinMost  = time.Hour            // multiples of it are durations yet
)

func newSpinner(most time.Duration) spinner {
	if runtime.GOMAXPROCS(0) == 1 {
		most = 0 // no other goroutine would run
	}
	most = min(max(most, 0), spinMost)
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

// slept records a wait that ended asleep. took is how long it lasted, most how long it could have polled; beside is
// set if another goroutine polled. A wait much longer than those of other connections halves the budget even then.
func (p *spinner) slept(took, most time.Duration, beside bool) {
	switch {
	case took <= most:
		p.budget = p.most
	case !beside || took > spinTurns*most:
		p.budget /= 2
	}
}

// bulkTime is how long to poll for bytes of a transfer: their time at half a gigabyte a second, up to bulkMost.
func bulkTime(bytes int) time.Duration { return min(2*time.Duration(bytes), bulkMost) }

const bulkMost = 4 * time.Millisecond

// await waits until sig is raised: it polls, then sleeps. It polls longer if bytes of a transfer are under way. It
// returns os.ErrDeadlineExceeded when past has passed, which raises sig, too.
func (c *Conn) await(sig <-chan struct{}, past *limit, p *spinner, bytes int) error {
	s, more := c.stack, bulkTime(bytes)
	came, start := s.spin(sig, past, p, more)
	if came { // the signal is taken, and not raised again
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

// takeOver lets the drivers wait, now that no goroutine polls.
func (s *Stack) takeOver() {
	s.arrivals.begin()
	s.sends.begin()
}

// spin polls for all connections of the stack, for as long as polling has paid lately for this one or still pays for
// others, and past has not passed. It returns false if polling did not pay or another goroutine polls; start is the
// time of the last arrival, if it read the clock.
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
			s.yield() // to the goroutines that were woken
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
			s.yieldCPU()
		}
	}
}

// A doorbell costs several times as much as a post. So a poller rings for all connections, and a Write meanwhile
// leaves the doorbell to it. The poller rings whenever it runs, after the goroutines that it has woken. The fourth
// deferred message rings at once. After the poller was descheduled for long, Writes ring for themselves for a while.
const (
	awayMost  = time.Millisecond
	ringAlone = 256 // Writes
)

// mayRingLater reports whether a poller is about to ring.
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

// yield lets other goroutines run.
func (s *Stack) yield() {
	start := time.Now()
	runtime.Gosched()
	s.wasAway(time.Since(start))
}

// wasAway records for how long a poller let others run.
func (s *Stack) wasAway(took time.Duration) {
	if took > awayMost {
		s.alone.Store(ringAlone)
	}
}

// yieldCPU lets other processes run on this CPU. What the poller waits for may depend on them: on the peer, or on the
// program whose bytes a proxy forwards. The caller is the goroutine that polls.
func (s *Stack) yieldCPU() {
	if !s.yielder.Due() {
		return
	}
	start, own := time.Now(), cpuTime()
	thread.Yield()
	took := time.Since(start)
	s.yielder.Yielded(took - (cpuTime() - own))
	s.wasAway(took)
}

// cpuTime returns the CPU time that all threads of this process have used.
func cpuTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t) // it does not fail
	return time.Duration(t.Nano())
}
