package vianet

import (
	"errors"
	"runtime"
	"sync/atomic"
	"time"

	"viaxdp/vipl"
)

// driver is one of the two completion queues of a Stack and whoever takes
// entries from it: a goroutine of the stack that waits, its keeper, and
// goroutines of the program that poll.
//
// A keeper that waits is woken by every completion, which costs as much as the
// message itself. So it stays away while others poll, looking in once a
// millisecond, and the keeper of sends also while nobody needs to hear of them.
type driver struct {
	stack *Stack
	cq    *vipl.CQ

	// waker is an Idle VI, with one descriptor: posted on it, a send completes
	// at once, which gets the keeper out of Wait.
	waker  *vipl.VI
	memory *vipl.Region
	desc   *vipl.Descriptor
	woken  atomic.Bool // desc is posted

	waiting atomic.Bool  // the keeper is in Wait
	wanted  atomic.Int32 // who needs to hear of completions; arrivals always are
	poke    chan struct{}
	stopped chan struct{}
}

// cqEntries is room for the completions of some connections; the queue grows.
const cqEntries = 1024

func newDriver(s *Stack) (d *driver, err error) {
	d = &driver{stack: s, poke: make(chan struct{}, 1), stopped: make(chan struct{})}
	defer func() {
		if err != nil {
			d.release()
			d = nil
		}
	}()
	if d.cq, err = s.nic.CreateCQ(cqEntries); err != nil {
		return d, err
	}
	if d.waker, err = s.nic.CreateVi(vipl.ViAttributes{Level: vipl.ReliableDelivery}, d.cq, nil); err != nil {
		return d, err
	}
	off := 0
	if d.memory, off, err = allocate(s.nic, vipl.DescriptorAlignment, vipl.MemAttributes{Ptag: s.regs.home}); err != nil {
		return d, err
	}
	d.desc, err = d.memory.Descriptor(off, 0)
	return d, err
}

// release gives back what newDriver has made, as far as it got. The keeper has
// ended.
func (d *driver) release() error {
	var errs []error
	if d.waker != nil {
		d.waker.SendDone()
		errs = append(errs, d.waker.Destroy())
	}
	if d.memory != nil {
		errs = append(errs, d.memory.Deregister())
	}
	if d.cq != nil {
		errs = append(errs, d.cq.Destroy())
	}
	return errors.Join(errs...)
}

// poll takes what there is off the queue, up to a bound, and has its connections
// see to it. True: there may be more.
func (d *driver) poll() bool {
	for range 64 {
		vi, _, err := d.cq.Done()
		if err != nil {
			return false
		}
		d.dispatch(vi)
	}
	return true
}

// drain polls until nothing is left.
func (d *driver) drain() {
	for d.poll() {
	}
}

func (d *driver) dispatch(vi *vipl.VI) {
	if vi == d.waker {
		vi.SendDone()
		d.woken.Store(false)
		return
	}
	if c, ok := d.stack.conns.Load(vi); ok {
		c.(*Conn).progress()
	}
}

// wait waits for one entry. False: there is an end to it.
func (d *driver) wait() bool {
	vi, _, err := d.cq.Wait(-1)
	d.waiting.Store(false)
	if err != nil {
		d.stack.fail(err)
		return false
	}
	d.dispatch(vi)
	d.drain()
	runtime.Gosched() // first those who were woken: Wait polls before it sleeps
	return true
}

// evict gets the keeper out of Wait, if it is there.
func (d *driver) evict() {
	if d.waiting.Load() && d.woken.CompareAndSwap(false, true) {
		d.waker.PostSend(d.desc, d.memory.Handle())
	}
}

// rouse has the keeper look again, and wait unless somebody polls.
func (d *driver) rouse() {
	select {
	case d.poke <- struct{}{}:
	default:
	}
}

// stop ends the keeper.
func (d *driver) stop() {
	close(d.stopped)
	d.evict()
}

// want counts who needs to hear of completions.
func (d *driver) want(n int32) {
	if d.wanted.Add(n) == 1 && n > 0 {
		d.rouse()
	}
}

// tick is how often a keeper looks in that leaves the work to others.
const tick = time.Millisecond

// keeper waits for completions, unless others poll for them, until it is stopped.
func (d *driver) keeper() {
	s := d.stack
	timer := time.NewTimer(tick)
	defer timer.Stop()
	last := s.polls.Load()
	for {
		var look <-chan time.Time
		if d.wanted.Load() > 0 {
			d.waiting.Store(true) // before the look at polls: who polls looks the other way round
			if s.polls.Load() == last && !s.spinning.Load() && !isClosed(d.stopped) {
				if !d.wait() {
					return
				}
				continue
			}
			d.waiting.Store(false)
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
	}
}

// entriesLeft is how many completions of sends may lie on their queue that the
// connections have seen already.
const entriesLeft = 256

// sent counts sends, and now and then has the entries of their completions taken
// off the queue.
func (s *Stack) sent() {
	if s.posted.Add(1)%entriesLeft == 0 {
		s.sends.rouse()
	}
}
