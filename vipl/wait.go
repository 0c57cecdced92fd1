package vipl

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"viaxdp/internal/base/ordered"
)

// Waiting. A goroutine that waits first spins, making progress itself, and then sleeps. One goroutine at a time,
// the sleeper, sleeps in nic.Wait, where the kernel wakes it for an arriving frame. The others sleep on
// their queue's signal, which the goroutine that completes a descriptor raises. A background goroutine is the
// sleeper while no program polls or waits, so that acknowledgements, retransmissions and keepalives continue.

var errWaitTimeout = errors.New("timed out")

// signal wakes the goroutines that wait for one queue.
type signal struct {
	waiters int // under the port's lock, so that a completion sees whether there is a waiter
	ch      chan struct{}
	budget  atomic.Int64 // ns that a spin may last
	waits   atomic.Uint32
}

// poller knows which goroutines drive the port: those that poll, the one that sleeps in nic.Wait, and background.
// Its counters show that the program is active; concurrent polls may lose each other's counts.
type poller struct {
	idle  ordered.Uint32 // empty polls
	turns ordered.Uint32 // polls that found frames
	taken ordered.Uint32 // completed descriptors that were dequeued
	armed atomic.Int64   // handlers that wait for a completion

	due      atomic.Int64  // when time alone requires work, or never
	sleepBy  atomic.Int64  // time until which a goroutine sleeps in nic.Wait; 0: none sleeps, or it has been woken
	sleeping chan struct{} // holds a token while a goroutine is in nic.Wait

	tick    atomic.Int64         // ns until background runs again
	roused  chan struct{}        // wakes background: handlers are new, messages wait, or no goroutine sleeps
	relies  atomic.Bool          // background relies on another goroutine that sleeps in nic.Wait
	cpuTime func() time.Duration // CPU time of the process
	yields  atomic.Bool          // polls in vain yield the CPU, see yield.go
	closed  chan struct{}
	stopped sync.WaitGroup // of background and the links' goroutines
	pause   pollPause
}

func (w *poller) init(cpuTime func() time.Duration) {
	w.roused, w.sleeping, w.closed = make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{})
	w.cpuTime = cpuTime
	w.due.Store(never)
}

// shareCPU makes polls in vain yield the CPU if yes is true.
func (w *poller) shareCPU(yes bool) { w.yields.Store(yes) }

// close ends background.
func (w *poller) close() { close(w.closed) }

// tookOne and foundWork show that the program is active. Any goroutine.
func (w *poller) tookOne()   { w.taken.Store(w.taken.Load() + 1) }
func (w *poller) foundWork() { w.turns.Store(w.turns.Load() + 1) }

// arm counts handlers that wait for a completion. Any goroutine.
func (w *poller) arm(n int) { w.armed.Add(int64(n)) }

// workAt records when time alone will require work; idle: a goroutine is about to sleep until then. A later
// time is not stored while an earlier one stands, which does no harm and saves the store. It reports whether a goroutine that sleeps would be late.
func (w *poller) workAt(due, now int64, idle bool) (late bool) {
	if old := w.due.Load(); due < old || old <= now || idle {
		w.due.Store(due)
	}
	by := w.sleepBy.Load()
	return by != 0 && due < by
}

// Spinning pays while the answer arrives within a few times the cost of sleeping and being woken. Each spin without
// success halves the next one, and every spinRetry waits a full spin finds out whether the situation has changed.
const (
	spinMost   = 50_000 // ns
	spinLeast  = 1_000
	spinRetry  = 64     // waits between two full spins
	followFor  = 20_000 // ns without a frame, more than pauseMost, after which a waiter stops polling for the rest of a message
	tickSoon   = 50 * time.Microsecond
	tickLeast  = time.Millisecond
	tickMost   = 32 * time.Millisecond
	sleepLimit = time.Second      // the longest sleep
	spinRate   = time.Microsecond // a program that polls more often than once in this time spins
)

// spinPolls is more polls than fit into spinMost, for a clock that stands still (testing/synctest).
var spinPolls = 1 << 14

func (s *signal) init() {
	s.ch = make(chan struct{}, 1)
	s.budget.Store(spinMost)
}

// raise wakes a waiter of s, and the sleeper, which may be that waiter. Under the lock.
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

// wakeSleeper wakes the goroutine in nic.Wait, if there is one. It does so once a sleep, since the sleeper checks
// everything before its next sleep. Until it gets a CPU, each frame that others receive would otherwise cost one
// more system call. Under the lock.
func (p *port) wakeSleeper() {
	if p.poller.sleepBy.Load() != 0 && p.poller.sleepBy.Swap(0) != 0 {
		p.nic.Wake()
	}
}

// countWaiter counts a waiter of s. The waiter checks again afterwards: it sees earlier completions itself, and
// later ones wake it.
func (p *port) countWaiter(s *signal) {
	p.mu.Lock()
	s.waiters++
	p.mu.Unlock()
}

// leaveWaiters ends that. A signal is not a count: if several descriptors completed while several goroutines were
// about to sleep, only one was woken. That one wakes the next. The last one that slept wakes background.
func (p *port) leaveWaiters(s *signal) {
	p.mu.Lock()
	s.waiters--
	p.raise(s)
	p.mu.Unlock()
	if p.poller.relies.Load() && len(p.poller.sleeping) == 0 && p.poller.relies.Swap(false) {
		p.rouse()
	}
}

// waitable is a queue that can be waited for.
type waitable interface {
	ready() bool
	notify() *signal
	handle() *NIC
	destroyed() error // why nothing will complete any more, or nil
}

// deadline converts a timeout to a time of the engine's clock.
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

// wait returns nil when w is ready, errWaitTimeout at end, errClosed if the handle closes, or w's error.
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
	var timer *time.Timer // one for all turns, since others may wake us without result while we wait
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
		case p.poller.sleeping <- struct{}{}:
			p.sleepAndFollow(w, end)
			<-p.poller.sleeping
			continue
		default:
		}
		// Another goroutine sleeps for the port. It raises our signal or leaves the place to us.
		switch {
		case timer != nil:
			timer.Reset(time.Duration(left))
		case end != never:
			timer = time.NewTimer(time.Duration(left))
			defer timer.Stop()
			over = timer.C
		}
		select {
		case p.poller.sleeping <- struct{}{}:
			p.sleepAndFollow(w, end)
			<-p.poller.sleeping
		case <-s.ch:
		case <-over:
		case <-w.handle().closed:
		}
	}
}

// spin polls for as long as that has paid off recently.
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

// sleepAndFollow sleeps. If the beginning of a message woke it, it polls for the rest: a goroutine that slept
// between two frames would be woken for each, which costs CPU time of the sender. It stops polling after followFor
// without a frame.
func (p *port) sleepAndFollow(w waitable, end int64) {
	if _, more := p.sleep(w, end); !more {
		return
	}
	last, turns := p.now(), p.poller.turns.Load()
	for i := 1; !w.ready(); i++ {
		p.poll()
		if t := p.poller.turns.Load(); t != turns {
			last, turns, i = p.now(), t, 0
		} else if now := p.now(); now-last >= followFor || now >= end || i >= spinPolls {
			return
		}
	}
}

// sleep makes progress, sleeps until something happens or a timer is due, and makes progress again. The caller
// holds the token of poller.sleeping; w may be nil. came reports whether frames arrived, and more whether the last one
// is in the middle of a message.
func (p *port) sleep(w waitable, end int64) (came, more bool) {
	p.mu.Lock()
	now := p.now()
	p.progress(now, true)
	p.refill()
	by := min(end, p.poller.due.Load(), now+int64(sleepLimit))
	if w == nil && p.zeroCopy {
		by = min(by, now+int64(tickMost)) // no other goroutine checks whether the driver sleeps
	}
	p.poller.sleepBy.Store(by)
	p.mu.Unlock()
	if (w == nil || !w.ready() && !w.handle().closing() && w.destroyed() == nil) && !p.isClosed() && by > now {
		p.pauseLinks(true)
		if !p.linkReady() {
			runtime.Gosched() // let woken goroutines run first: while this one is in the kernel, other processors may find them late
			if left := by - p.now(); left > 0 {
				p.nic.Wait(time.Duration(left))
			}
		}
		p.pauseLinks(false)
	}
	p.poller.sleepBy.Store(0)
	p.mu.Lock()
	came = p.progress(p.now(), w == nil)
	more = came && p.rx.pkt.GoesOn()
	p.mu.Unlock()
	return came, more
}

// rouse makes background check for new handlers and waiting messages, and whether a goroutine sleeps for the port.
func (p *port) rouse() {
	select {
	case p.poller.roused <- struct{}{}:
	default:
	}
}

// life changes with each sign that the program is active: with its polls, but not with its posts, after which a
// program may look at nothing but its memory. It does not take the lock: the lock's holder would then have to wake
// us.
func (p *port) life() uint32 {
	return p.poller.idle.Load() + p.poller.turns.Load() + p.poller.taken.Load()
}

// background keeps the port alive while the program neither polls nor waits. While the program does, background
// only runs every tickLeast, or tickMost if the program spins or a goroutine of it sleeps. It then stays out of the
// kernel's wait queue, where it would cost one wake-up per frame. If frames arrived while the program was away, it runs
// after tickSoon: the program may poll its memory for RDMA writes, and the port only in between. After a short tick,
// zero polls may only mean that the process was descheduled. Treat it as away only if it also used CPU time.
//
// A driver that finds its fill ring empty may go to sleep after the last Refill and after poll(2) has begun, so
// that the sleeper does not learn of it. So background checks at each tick, and does not sleep longer than
// tickMost. A program that spins checks itself, see overdue.
func (p *port) background() {
	tick := tickLeast
	timer := time.NewTimer(tick)
	defer timer.Stop()
	coalesces := p.coalescer.count.Load()
	var used time.Duration
	for last := p.life(); ; timer.Reset(tick) {
		if tick < tickLeast {
			used = p.poller.cpuTime()
		}
		p.poller.tick.Store(int64(tick))
		select {
		case <-p.poller.closed:
			return
		case <-timer.C:
		case <-p.poller.roused:
		}
		seen := p.life()
		calls := seen - last
		last = seen
		away := calls == 0 && (tick >= tickLeast || p.poller.cpuTime()-used > tick/2)
		if away || p.poller.armed.Load() > 0 {
			tick = tickLeast
			p.poller.relies.Store(!p.zeroCopy) // before the attempt: a sleeper that returns after it wakes background
			select {
			case p.poller.sleeping <- struct{}{}:
				p.poller.relies.Store(false)
				for (p.life() == last || p.poller.armed.Load() > 0) && !p.isClosed() {
					if came, _ := p.sleep(nil, never); came && p.poller.armed.Load() == 0 {
						tick = tickSoon
					}
				}
				<-p.poller.sleeping
			default: // another goroutine waits, and sleeps for the port
				if !p.zeroCopy {
					p.rely(timer, last)
				} else if p.mu.TryLock() {
					p.refill()
					p.mu.Unlock()
				}
			}
			continue
		}
		waits := p.coalescer.count.Load()
		switch {
		case tick < tickLeast:
			tick = min(2*tick, tickLeast)
		case time.Duration(calls)*spinRate > tick && waits == coalesces:
			tick = min(2*tick, tickMost)
		default:
			tick = tickLeast
		}
		coalesces = waits
		if p.mu.TryLock() {
			// A program that polls slowly checks the clock too seldom.
			if now := p.now(); p.poller.due.Load() < now {
				p.progress(now, false)
			}
			p.refill()
			p.mu.Unlock()
		}
	}
}

// rely waits while another goroutine sleeps for the port, which does all that is due with time. It returns when that
// one has returned, when the program has been active since life was last, and for new handlers.
func (p *port) rely(timer *time.Timer, last uint32) {
	for p.life() == last {
		timer.Reset(tickMost)
		select {
		case <-timer.C:
			continue
		case <-p.poller.roused:
		case <-p.poller.closed:
		}
		return
	}
}

func (p *port) isClosed() bool {
	select {
	case <-p.poller.closed:
		return true
	default:
		return false
	}
}

// busy reports whether there is work: frames or, checked now and then, something that has become due with time.
// Without the lock.
func (p *port) busy() bool {
	if p.mayPoll() && p.nic.Ready() || p.links.all.Load() != nil && p.linkReady() {
		return true
	}
	n := p.poller.idle.Load() + 1 // concurrent polls may lose each other's counts
	p.poller.idle.Store(n)
	if p.coalescer.waiting.Load() != 0 && n-p.coalescer.idleAtPost.Load() >= coalescePolls {
		return true
	}
	if n%pollsPerTime != 0 {
		return false
	}
	p.yieldCPU()
	return p.overdue()
}

// overdue reports whether something has become due with time. It also wakes a driver that sleeps, see background.
func (p *port) overdue() bool {
	if p.zeroCopy && p.mu.TryLock() {
		p.refill()
		p.mu.Unlock()
	}
	return p.now() >= p.poller.due.Load()
}

// poll makes progress if there is work and no other goroutine is doing it.
func (p *port) poll() {
	if p.busy() && p.mu.TryLock() {
		p.poller.foundWork()
		p.progress(p.now(), false)
		p.mu.Unlock()
	}
}
