package vipl

import (
	"errors"
	"runtime"
	"sync/atomic"
	"time"
)

// Waiting. Whoever waits first spins, making progress itself, then sleeps: one
// goroutine at a time, the sleeper, in the port's Wait, where the kernel wakes
// it for an arriving frame; the others on their queue's signal, which the
// goroutine that completes a descriptor raises. A background goroutine is the
// sleeper while no program polls or waits, so that acknowledgements,
// retransmissions and keepalives go on.

var errWaitTimeout = errors.New("timed out")

// signal wakes those who wait for one queue.
type signal struct {
	waiters int // under the port's lock, so that who completes something sees who waits for it
	ch      chan struct{}
	budget  atomic.Int64 // ns that spinning is worth
	waits   atomic.Uint32
}

// Spinning pays while the answer comes within a few times the cost of sleeping
// and being woken; each fruitless spin halves the next one, and now and then a
// full one finds out whether things have changed.
const (
	spinMost   = 50_000 // ns
	spinLeast  = 1_000
	spinRetry  = 64      // waits between two full tries
	spinPolls  = 1 << 14 // more than fit into spinMost: for a clock that stands still (testing/synctest)
	followFor  = 20_000  // ns without a frame, more than restMost, after which the rest of a message is slept for
	tickSoon   = 50 * time.Microsecond
	tickLeast  = time.Millisecond
	tickMost   = 32 * time.Millisecond
	sleepLimit = time.Second      // no sleep of the background is longer
	spinRate   = time.Microsecond // who polls more often than once in it spins
)

func (s *signal) init() {
	s.ch = make(chan struct{}, 1)
	s.budget.Store(spinMost)
}

// raise wakes a waiter of s, and the sleeper, which may be that waiter. Under the
// lock.
func (p *port) raise(s *signal) {
	if s.waiters == 0 {
		return
	}
	select {
	case s.ch <- struct{}{}:
	default:
	}
	p.wakeSleeper()
}

// wakeSleeper wakes who is in nic.Wait, if anybody is: once a sleep, since he looks
// at everything before the next one. He may take a while to get a CPU, and each frame
// that others take meanwhile would be a system call more. Under the lock.
func (p *port) wakeSleeper() {
	if p.sleepBy.Load() != 0 && p.sleepBy.Swap(0) != 0 {
		p.nic.Wake()
	}
}

// countWaiter counts who waits for s. After it the waiter looks again: what was
// completed before, he sees; what is completed later wakes him.
func (p *port) countWaiter(s *signal) {
	p.mu.Lock()
	s.waiters++
	p.mu.Unlock()
}

// leaveWaiters is the end of that. Of several who were about to go to sleep when
// several descriptors completed only one was woken, since a signal is no count: he
// wakes the next.
func (p *port) leaveWaiters(s *signal) {
	p.mu.Lock()
	s.waiters--
	p.raise(s)
	p.mu.Unlock()
}

// waitable is a queue that can be waited for.
type waitable interface {
	ready() bool
	notify() *signal
	handle() *Nic
	destroyed() error // why nothing will come any more, or nil
}

// deadline turns a time-out into a point of the engine's clock.
func (p *port) deadline(timeout time.Duration) int64 {
	now := p.now()
	if timeout < 0 || int64(timeout) > never-now {
		return never
	}
	return now + int64(timeout)
}

func waitError(op string, vi *VI, err error) error {
	if errors.Is(err, errWaitTimeout) {
		return ErrTimeout
	}
	return opError(op, vi, ErrInvalidParameter, err)
}

// wait returns nil when w is ready, errWaitTimeout at end, or errClosed.
func (p *port) wait(w waitable, end int64) error {
	if w.ready() {
		return nil
	}
	s := w.notify()
	if p.spin(w, s, end) {
		return nil
	}
	p.countWaiter(s)
	defer p.leaveWaiters(s)
	var timer *time.Timer // one for all turns: others may wake us in vain for as long as we wait
	var over <-chan time.Time
	for {
		if w.ready() {
			return nil
		}
		if w.handle().closing() {
			return errClosed
		}
		if err := w.destroyed(); err != nil {
			return err
		}
		left := end - p.now()
		if left <= 0 {
			return errWaitTimeout
		}
		select {
		case p.sleeping <- struct{}{}:
			p.sleepAndFollow(w, end)
			<-p.sleeping
			continue
		default:
		}
		// Somebody else sleeps for the port, and raises our signal or leaves
		// the place to us.
		switch {
		case timer != nil:
			timer.Reset(time.Duration(left))
		case end != never:
			timer = time.NewTimer(time.Duration(left))
			defer timer.Stop()
			over = timer.C
		}
		select {
		case p.sleeping <- struct{}{}:
			p.sleepAndFollow(w, end)
			<-p.sleeping
		case <-s.ch:
		case <-over:
		case <-w.handle().closed:
		}
	}
}

// spin polls for as long as that has been worth it lately.
func (p *port) spin(w waitable, s *signal, end int64) bool {
	budget := s.budget.Load()
	if s.waits.Add(1)%spinRetry == 0 {
		budget = spinMost
	}
	stop := min(p.now()+budget, end)
	for i := 1; ; i++ {
		p.poll()
		if w.ready() {
			s.budget.Store(min(2*budget, spinMost))
			return true
		}
		if i%16 == 0 && (p.now() >= stop || i >= spinPolls) {
			s.budget.Store(max(budget/2, spinLeast))
			return false
		}
	}
}

// sleepAndFollow sleeps, and when it was woken by the beginning of a message
// polls for the rest: whoever sleeps between two frames is woken for each, at the
// cost of the CPU that sends them. It gives up when none has come for followFor.
func (p *port) sleepAndFollow(w waitable, end int64) {
	if _, more := p.sleep(w, end); !more {
		return
	}
	last, turns := p.now(), p.turns.Load()
	for i := 1; !w.ready(); i++ {
		p.poll()
		if t := p.turns.Load(); t != turns {
			last, turns, i = p.now(), t, 0
		} else if now := p.now(); now-last >= followFor || now >= end || i >= spinPolls {
			return
		}
	}
}

// sleep makes progress, sleeps until something happens or time asks for work,
// and makes progress again. The caller holds the token of p.sleeping; w may be
// nil. It says whether frames came, and whether they end in the middle of a message.
func (p *port) sleep(w waitable, end int64) (came, more bool) {
	p.mu.Lock()
	now := p.now()
	p.progress(now, true)
	p.refill()
	by := min(end, p.due.Load(), now+int64(sleepLimit))
	if w == nil && p.zeroCopy {
		by = min(by, now+int64(tickMost)) // nobody else asks whether the driver sleeps
	}
	p.sleepBy.Store(by)
	p.mu.Unlock()
	if (w == nil || !w.ready() && !w.handle().closing() && w.destroyed() == nil) && !p.isClosed() && by > now {
		p.restLanes(true)
		if !p.laneReady() {
			runtime.Gosched() // to those who were woken: others may find them late, on a processor whose call waits
			if left := by - p.now(); left > 0 {
				p.nic.Wait(time.Duration(left))
			}
		}
		p.restLanes(false)
	}
	p.sleepBy.Store(0)
	p.mu.Lock()
	came = p.progress(p.now(), w == nil)
	more = came && p.pkt.GoesOn()
	p.mu.Unlock()
	return came, more
}

// rouse makes background look after handlers that were just set.
func (p *port) rouse() {
	select {
	case p.roused <- struct{}{}:
	default:
	}
}

// life changes with each sign of life of the program: with its polls, but not with
// its posts, after which a program may look at nothing but its memory. It does not
// take the lock: who has it would have to wake us.
func (p *port) life() uint32 { return p.idle.Load() + p.turns.Load() + p.taken.Load() }

// background keeps the port alive while the program neither polls nor waits. As
// long as it does, background looks in only now and then, and stays out of the
// kernel's wait queue, where it would cost each frame a wake-up: every tickLeast,
// or tickMost where the program spins, but after tickSoon where frames have come
// while it was away. It may be one that looks at its memory for what peers write,
// and polls only in between; so many a tick is too short to tell it from one that
// has lost its CPU but by the time that it has used.
//
// A driver that finds its fill ring empty may fall asleep after the last Refill, and
// after poll(2) has begun, so that who sleeps does not learn of it: background asks at each
// tick, and does not sleep for longer than tickMost. Who spins asks himself, see overdue.
func (p *port) background() {
	defer p.stopped.Done()
	tick := tickLeast
	timer := time.NewTimer(tick)
	defer timer.Stop()
	holds := p.holds.Load()
	var used time.Duration
	for last := p.life(); ; timer.Reset(tick) {
		if tick < tickLeast {
			used = p.cpuTime()
		}
		p.tick.Store(int64(tick))
		select {
		case <-p.closed:
			return
		case <-timer.C:
		case <-p.roused:
		}
		seen := p.life()
		calls := seen - last
		last = seen
		away := calls == 0 && (tick >= tickLeast || p.cpuTime()-used > tick/2)
		if away || p.armed.Load() > 0 {
			tick = tickLeast
			select {
			case p.sleeping <- struct{}{}:
				for (p.life() == last || p.armed.Load() > 0) && !p.isClosed() {
					if came, _ := p.sleep(nil, never); came && p.armed.Load() == 0 {
						tick = tickSoon
					}
				}
				<-p.sleeping
			default: // somebody waits, and sleeps for the port
				if p.zeroCopy && p.mu.TryLock() {
					p.refill()
					p.mu.Unlock()
				}
			}
			continue
		}
		waits := p.holds.Load()
		switch {
		case tick < tickLeast:
			tick = min(2*tick, tickLeast)
		case time.Duration(calls)*spinRate > tick && waits == holds:
			tick = min(2*tick, tickMost)
		default:
			tick = tickLeast
		}
		holds = waits
		if p.mu.TryLock() {
			// Who polls slowly looks at the clock too seldom.
			if now := p.now(); p.due.Load() < now {
				p.progress(now, false)
			}
			p.refill()
			p.mu.Unlock()
		}
	}
}
