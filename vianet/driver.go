package vianet

import (
	"errors"
	"runtime"
	"sync/atomic"
	"time"

	"viaxdp/vipl"
)

// driver is one of the two completion queues of a Stack and whoever takes entries from it: a goroutine of the stack
// that waits, its keeper, and goroutines of the program that poll.
//
// A keeper that waits is woken by every completion, which costs as much as the message itself. So it stays away while
// others poll, looking in once a millisecond, and the keeper of sends also while nobody needs to hear of them.
type driver struct {
	stack *Stack
	cq    *vipl.CQ

	waiting atomic.Bool  // the keeper is in Wait
	wanted  atomic.Int32 // who needs to hear of completions; arrivals always are
	poke    chan struct{}
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

// poll takes what there is off the queue, up to a bound, and has its connections see to it. It returns how many
// entries there were.
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

// wait waits for one entry, or until it is evicted. False: there is an end to it.
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
	runtime.Gosched() // first those who were woken: Wait polls before it sleeps
	return true
}

// evict gets the keeper out of Wait, if it is there. It waits no longer from now on, for those who go to sleep before
// it has heard of that.
func (d *driver) evict() {
	if d.waiting.CompareAndSwap(true, false) {
		d.cq.Wake()
	}
}

// rouse has the keeper look again, and wait unless somebody polls.
func (d *driver) rouse() {
	select {
	case d.poke <- struct{}{}:
	default:
	}
}

// begin has the keeper look, and wait unless somebody polls, if it does not wait and somebody needs to hear of
// completions.
func (d *driver) begin() {
	if !d.waiting.Load() && d.wanted.Load() > 0 {
		d.rouse()
	}
}

// stop ends the keeper.
func (d *driver) stop() {
	close(d.stopped)
	d.evict()
}

// want counts who needs to hear of completions. Whoever polls looks for them, and the keeper of arrivals looks after
// who polls: nobody is roused beside them, who would take their processor.
func (d *driver) want(n int32) {
	if d.wanted.Add(n) == 1 && n > 0 && !d.stack.spinning.Load() {
		d.rouse()
	}
}

// mayWait says whether nobody polls, nor has begun to since there were last polls. Whoever begins from then on evicts
// the keeper, which is about to wait.
func (d *driver) mayWait(last uint32) bool {
	s := d.stack
	idle := func() bool { return s.polls.Load() == last && !s.spinning.Load() && !isClosed(d.stopped) }
	if !idle() {
		return false
	}
	d.waiting.Store(true) // before another look: who polls looks the other way round
	if !idle() {
		d.waiting.Store(false)
		return false
	}
	if d == s.arrivals {
		s.sends.begin() // for those who left that to who polled until a moment ago
	}
	return true
}

// tick is how often a keeper looks in that leaves the work to others.
const tick = time.Millisecond

// keeper waits for completions, unless others poll for them, until it is stopped.
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

// entriesLeft is how many completions of sends may lie on their queue that the connections have seen already.
const entriesLeft = 256

// sent counts sends, and now and then has the entries of their completions taken off the queue: by who polls when he
// has nothing else to do, or by the keeper of arrivals, who looks in also beside him.
func (s *Stack) sent() {
	if s.posted.Add(1)%entriesLeft == 0 {
		s.stale.Store(true)
	}
}

// tidy takes them off.
func (s *Stack) tidy() {
	if s.stale.Load() && s.stale.CompareAndSwap(true, false) {
		s.sends.drain()
	}
}
