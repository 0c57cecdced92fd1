package vipl

import (
	"sync/atomic"
	"time"
)

// Step 9 of the way of a message: complete.

// complete ends e, the first descriptor of q that is not complete: length and
// immediate data, then the status with DONE last, the CQ entry, and whoever
// waits. Under the lock.
func (p *port) complete(v *VI, q *workQueue, e *posted, s Status) {
	d := e.desc
	s |= StatusDone
	if q.isRecv {
		s |= StatusOpReceive
		d.Length = e.arrived
		d.ImmediateData = 0
		if s&StatusImmediate != 0 {
			d.ImmediateData = e.imm
		}
	}
	e.status = s
	e.release()
	d.setStatus(s)
	q.completed.Add(1)
	if q.cq != nil {
		q.cq.push(v, q.isRecv)
		p.raise(&q.cq.signal)
	} else {
		p.raise(&q.signal)
	}
}

// CQ is a completion queue: it tells which work queues of many VIs have a
// completed descriptor. All methods may be called concurrently.
type CQ struct {
	nic     *Nic
	port    *port
	bound   int  // work queues, under the port's lock
	gone    bool // under the port's lock
	ring    []cqEntry
	head    uint64
	tail    uint64
	waiting atomic.Int64
	signal  signal
}

type cqEntry struct {
	vi   *VI
	recv bool
}

// MaxCQEntries is the largest completion queue that CreateCQ takes.
const MaxCQEntries = 1 << 20

// CreateCQ is VipCreateCQ: a completion queue for at least entries entries. It
// grows rather than lose one.
func (n *Nic) CreateCQ(entries int) (*CQ, error) {
	if entries < 1 || entries > MaxCQEntries {
		return nil, opError("CreateCQ", nil, ErrInvalidParameter, nil)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.isClosed:
		return nil, closedError("CreateCQ")
	case len(n.cqs) == maxCQ:
		return nil, opError("CreateCQ", nil, ErrResource, nil)
	}
	size := 1
	for size < entries {
		size *= 2
	}
	c := &CQ{nic: n, port: n.port, ring: make([]cqEntry, size)}
	c.signal.init()
	n.cqs[c] = struct{}{}
	return c, nil
}

// push adds an entry. Under the port's lock.
func (c *CQ) push(v *VI, recv bool) {
	if int(c.tail-c.head) == len(c.ring) {
		ring := make([]cqEntry, 2*len(c.ring))
		for i := c.head; i != c.tail; i++ {
			ring[i&uint64(len(ring)-1)] = c.ring[i&uint64(len(c.ring)-1)]
		}
		c.ring = ring
	}
	c.ring[c.tail&uint64(len(c.ring)-1)] = cqEntry{v, recv}
	c.tail++
	c.waiting.Add(1)
}

func (c *CQ) ready() bool { return c.waiting.Load() != 0 }

func (c *CQ) notify() *signal { return &c.signal }

func (c *CQ) pop() (e cqEntry, ok bool) {
	c.port.mu.Lock()
	defer c.port.mu.Unlock()
	if c.head == c.tail {
		return e, false
	}
	slot := &c.ring[c.head&uint64(len(c.ring)-1)]
	e, *slot = *slot, cqEntry{}
	c.head++
	c.waiting.Add(-1)
	return e, true
}

// Done is VipCQDone: takes one entry off the queue, without waiting. It says
// which VI has a completed descriptor, and on which of its queues; SendDone or
// RecvDone of that VI then gives it. ErrNotDone when there is none.
func (c *CQ) Done() (vi *VI, recv bool, err error) {
	if !c.ready() {
		c.port.poll()
		if !c.ready() {
			return nil, false, ErrNotDone
		}
	}
	if e, ok := c.pop(); ok {
		return e.vi, e.recv, nil
	}
	return nil, false, ErrNotDone
}

// Wait is VipCQWait: like Done, but waits for an entry, at most timeout
// (negative: for ever). ErrTimeout, or ErrInvalidParameter when the NIC is
// closed meanwhile.
func (c *CQ) Wait(timeout time.Duration) (vi *VI, recv bool, err error) {
	end := deadline(timeout)
	for {
		if err := c.port.wait(c, end); err != nil {
			return nil, false, waitError("CQWait", nil, err)
		}
		if e, ok := c.pop(); ok {
			return e.vi, e.recv, nil
		}
	}
}

// Destroy is VipDestroyCQ. ErrResource while a work queue is bound to it.
func (c *CQ) Destroy() error {
	c.port.mu.Lock()
	switch {
	case c.gone:
		c.port.mu.Unlock()
		return opError("DestroyCQ", nil, ErrInvalidParameter, nil)
	case c.bound > 0:
		c.port.mu.Unlock()
		return opError("DestroyCQ", nil, ErrResource, errBound)
	}
	c.gone = true
	c.port.mu.Unlock()
	c.nic.mu.Lock()
	defer c.nic.mu.Unlock()
	delete(c.nic.cqs, c)
	return nil
}
