package vipl

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"viaxdp/internal/base/ordered"
)

// CQ is a completion queue: it reports which work queues of its VIs have a completed descriptor. All methods may be
// called concurrently.
type CQ struct {
	nic     *NIC
	port    *port
	bound   int // work queues, under the port's lock
	gone    atomic.Bool
	ring    []cqEntry
	head    uint64
	tail    uint64
	waiting ordered.Uint64 // tail - head, for reading without the lock

	// settling is 1 from before a status is written until its entry is queued. A goroutine that has already seen the
	// status checks it.
	settling ordered.Uint64

	woken  atomic.Bool // a Wake that no Wait has consumed
	signal signal

	handlers []func(*VI, bool) // waiting for entries
	given    int               // handlers that have an entry and are queued in calls
	calls    caller
}

var errDestroyedCQ = errors.New("the completion queue is destroyed")

type cqEntry struct {
	vi   *VI
	recv bool
}

func (e cqEntry) queue() *workQueue {
	if e.recv {
		return &e.vi.recv
	}
	return &e.vi.send
}

// MaxCQEntries is the largest completion queue that CreateCQ takes.
const MaxCQEntries = 1 << 20

// CreateCQ is VipCreateCQ: it creates a completion queue for at least entries entries. The queue grows rather than
// lose an entry. If the program calls SendDone or RecvDone without Done, the queue may hold more entries than its
// work queues can hold descriptors; entries of dequeued descriptors are then dropped.
//
// Errors: ErrInvalidParameter for less than 1 or more than MaxCQEntries entries, ErrResource for more than 1024
// completion queues.
func (n *NIC) CreateCQ(entries int) (*CQ, error) {
	if err := checkEntries("CreateCQ", entries); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.isClosed:
		return nil, closedError("CreateCQ")
	case len(n.cqs) == maxCQ:
		return nil, opError("CreateCQ", nil, ErrResource, nil)
	}
	c := &CQ{nic: n, port: n.port, ring: make([]cqEntry, ringSize(entries))}
	c.signal.init()
	c.calls.over = &n.shut
	n.cqs[c] = struct{}{}
	return c, nil
}

func checkEntries(op string, entries int) error {
	if entries < 1 || entries > MaxCQEntries {
		return opError(op, nil, ErrInvalidParameter, fmt.Errorf("%d entries: 1 to %d", entries, MaxCQEntries))
	}
	return nil
}

func ringSize(entries int) int {
	size := 1
	for size < entries {
		size *= 2
	}
	return size
}

// Entries returns the number of entries that the queue holds before it grows.
func (c *CQ) Entries() int {
	c.port.mu.Lock()
	defer c.port.mu.Unlock()
	return len(c.ring)
}

// Resize is VipResizeCQ: it makes room for at least entries entries and keeps those that wait. It may also shrink
// the queue. It may be called concurrently.
//
// Errors: ErrInvalidParameter as with CreateCQ, and for a destroyed CQ; ErrResource if more entries wait than that.
func (c *CQ) Resize(entries int) error {
	const op = "ResizeCQ"
	if err := checkEntries(op, entries); err != nil {
		return err
	}
	c.port.mu.Lock()
	defer c.port.mu.Unlock()
	if err := c.ended(op); err != nil {
		return err
	}
	if waiting := int(c.tail - c.head); waiting > entries {
		return opError(op, nil, ErrResource, fmt.Errorf("%d entries wait", waiting))
	}
	c.move(ringSize(entries))
	return nil
}

// move copies the entries to a ring of the given size. Under the port's lock.
func (c *CQ) move(size int) {
	ring := make([]cqEntry, size)
	for i := c.head; i != c.tail; i++ {
		ring[i&uint64(size-1)] = c.ring[i&uint64(len(c.ring)-1)]
	}
	c.ring = ring
}

// push adds an entry. Under the port's lock.
func (c *CQ) push(v *VI, recv bool) {
	if int(c.tail-c.head) == len(c.ring) {
		c.makeRoom()
	}
	c.ring[c.tail&uint64(len(c.ring)-1)] = cqEntry{v, recv}
	c.tail++
	c.waiting.Store(c.tail - c.head)
	c.settling.Store(0)
}

// makeRoom makes room in a full ring. It grows the ring until it has an entry for each descriptor that the bound
// queues can hold. Beyond that, some entries belong to descriptors that the program has dequeued without Done; they
// are dropped, the oldest of a queue first. If fewer than half were dropped, the ring grows anyway, which keeps the
// cost of the scan amortized. Under the port's lock.
func (c *CQ) makeRoom() {
	if len(c.ring) >= c.bound*MaxDescriptorsPerQueue {
		c.dropTaken()
	}
	if int(c.tail-c.head) > len(c.ring)/2 {
		c.move(2 * len(c.ring))
	}
}

// dropTaken drops entries where a queue has more of them than completed descriptors.
func (c *CQ) dropTaken() {
	mask := uint64(len(c.ring) - 1)
	for i := c.head; i != c.tail; i++ {
		c.ring[i&mask].queue().listed++
	}
	kept := c.head
	for i := c.head; i != c.tail; i++ {
		e := c.ring[i&mask]
		q := e.queue()
		if q.listed > q.completed.Load()-q.dequeued.Load() {
			q.listed--
			continue
		}
		c.ring[kept&mask] = e
		kept++
	}
	c.cut(kept)
	for i := c.head; i != c.tail; i++ {
		c.ring[i&mask].queue().listed = 0
	}
}

// cut truncates the ring at index kept.
func (c *CQ) cut(kept uint64) {
	for i := kept; i != c.tail; i++ {
		c.ring[i&uint64(len(c.ring)-1)] = cqEntry{}
	}
	c.tail = kept
	c.waiting.Store(c.tail - c.head)
}

// forget drops the entries of a VI that is being destroyed and whose descriptors the program has dequeued without
// Done. Under the port's lock.
func (c *CQ) forget(v *VI) {
	kept := c.head
	for i := c.head; i != c.tail; i++ {
		if e := c.ring[i&uint64(len(c.ring)-1)]; e.vi != v {
			c.ring[kept&uint64(len(c.ring)-1)] = e
			kept++
		}
	}
	c.cut(kept)
}

// some reports whether there are entries, ready whether Wait has something to return.
func (c *CQ) some() bool { return c.waiting.Load() != 0 }

func (c *CQ) ready() bool { return c.some() || c.woken.Load() }

func (c *CQ) notify() *signal { return &c.signal }

func (c *CQ) handle() *NIC { return c.nic }

func (c *CQ) destroyed() error {
	if c.gone.Load() {
		return errDestroyedCQ
	}
	return nil
}

// ended returns the error of an operation on a destroyed queue or a closed NIC, else nil.
func (c *CQ) ended(op string) error {
	if c.nic.closing() {
		return closedError(op)
	}
	if err := c.destroyed(); err != nil {
		return opError(op, nil, ErrInvalidParameter, err)
	}
	return nil
}

func (c *CQ) pop() (e cqEntry, ok bool) {
	c.port.mu.Lock()
	defer c.port.mu.Unlock()
	if c.head == c.tail {
		return e, false
	}
	return c.take(), true
}

// take removes the oldest entry. The queue is not empty. Under the port's lock.
func (c *CQ) take() (e cqEntry) {
	slot := &c.ring[c.head&uint64(len(c.ring)-1)]
	e, *slot = *slot, cqEntry{}
	c.head++
	c.waiting.Store(c.tail - c.head)
	return e
}

// Done is VipCQDone: it removes one entry. The entry names a VI with a completed descriptor, and which of its
// queues; SendDone or RecvDone of that VI then returns the descriptor. ErrNotDone if there is no entry,
// ErrInvalidParameter if the CQ is destroyed or the NIC closed.
//
// Done does not wait for completions. Only while a descriptor's status is being written does it wait until the
// entry is queued, too.
func (c *CQ) Done() (vi *VI, recv bool, err error) {
	settling := c.settling.Load() != 0 // then pop waits for the entry
	if !c.some() {
		c.port.poll()
		if !c.some() && !settling {
			if err := c.ended("CQDone"); err != nil {
				return nil, false, err
			}
			return nil, false, ErrNotDone
		}
	}
	if e, ok := c.pop(); ok {
		return e.vi, e.recv, nil
	}
	return nil, false, ErrNotDone
}

// Completion is an entry of a completion queue: the VI and which of its queues.
type Completion struct {
	VI   *VI
	Recv bool
}

// Dones removes up to len(into) entries from the queue under one lock, as Done does one by one, and returns how
// many it stored. If n is 0, the errors are those of Done. It does not wait.
func (c *CQ) Dones(into []Completion) (n int, err error) {
	if len(into) == 0 {
		return 0, nil
	}
	settling := c.settling.Load() != 0
	if !c.some() {
		c.port.poll()
	}
	if c.some() || settling {
		c.port.mu.Lock()
		for ; n < len(into) && c.head != c.tail; n++ {
			e := c.take()
			into[n] = Completion{e.vi, e.recv}
		}
		c.port.mu.Unlock()
	}
	if n > 0 {
		return n, nil
	}
	if err := c.ended("CQDones"); err != nil {
		return 0, err
	}
	return 0, ErrNotDone
}

// Wait is VipCQWait: like Done, but it waits for an entry, at most timeout (negative: for ever). ErrTimeout;
// ErrInvalidParameter if the CQ is or gets destroyed or the NIC closed; ErrNotDone, without an entry, after Wake.
func (c *CQ) Wait(timeout time.Duration) (vi *VI, recv bool, err error) {
	end := c.port.deadline(timeout)
	for {
		if err := c.port.wait(c, end); err != nil {
			return nil, false, waitError("CQWait", nil, err)
		}
		if e, ok := c.pop(); ok {
			return e.vi, e.recv, nil
		}
		if c.woken.Swap(false) {
			return nil, false, ErrNotDone
		}
	}
}

// Wake makes one Wait that finds no entry return ErrNotDone: one that is under way, or else the next. Several Wakes
// before that Wait count as one. It serves programs in which one goroutine waits for completions and another one
// must interrupt it. It may be called concurrently.
func (c *CQ) Wake() {
	c.port.mu.Lock()
	defer c.port.mu.Unlock()
	if !c.woken.Load() {
		c.woken.Store(true)
		c.port.raise(&c.signal)
	}
}

// Destroy is VipDestroyCQ. Handlers that wait are cancelled. ErrResource while a work queue is bound to it,
// ErrInvalidParameter the second time and if the NIC is closed.
func (c *CQ) Destroy() error {
	const op = "DestroyCQ"
	c.port.mu.Lock()
	err := c.ended(op)
	if err == nil && c.bound > 0 {
		err = opError(op, nil, ErrResource, errBound)
	}
	if err != nil {
		c.port.mu.Unlock()
		return err
	}
	c.gone.Store(true)
	c.cancelHandlers()
	c.port.raise(&c.signal)
	c.port.mu.Unlock()
	c.nic.mu.Lock()
	defer c.nic.mu.Unlock()
	delete(c.nic.cqs, c)
	return nil
}
