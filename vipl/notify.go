package vipl

import (
	"errors"
	"fmt"
)

// Handlers for completions. A handler gets one completion, which it takes off its queue. It is called on a
// goroutine of the library: handlers of one queue one after the other, those of different queues concurrently.

// MaxNotifies is the number of handlers that may wait on one queue.
const MaxNotifies = 4096

var errNoHandler = errors.New("nil handler")

// SendNotify is VipSendNotify: fn gets the next descriptor that completes on the send queue, at once if one is
// already complete. fn is called for one descriptor. Several handlers may be set; they get the completions in
// order, before SendDone and SendWait see them. SendNotify may be called concurrently, also by fn.
//
// Errors: ErrInvalidParameter for a nil handler, for a queue that is bound to a CQ and for a destroyed VI;
// ErrResource if MaxNotifies handlers wait. Destroying the VI and closing the NIC cancel waiting handlers. One that
// already has a descriptor is called also after Destroy, so the descriptor's memory has to stay registered until then.
func (v *VI) SendNotify(fn func(*VI, *Descriptor)) error { return v.arm("SendNotify", &v.send, fn) }

// RecvNotify is VipRecvNotify: fn gets the next descriptor that completes on the receive queue. Otherwise it is
// like SendNotify.
func (v *VI) RecvNotify(fn func(*VI, *Descriptor)) error { return v.arm("RecvNotify", &v.recv, fn) }

func (v *VI) arm(op string, q *workQueue, fn func(*VI, *Descriptor)) error {
	p := v.port
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case fn == nil:
		return opError(op, v, ErrInvalidParameter, errNoHandler)
	case v.gone.Load():
		return opError(op, v, ErrInvalidParameter, errDestroyed)
	case v.nic.closing():
		return closedError(op)
	case q.cq != nil:
		return opError(op, v, ErrInvalidParameter, errCQBound)
	case len(q.handlers) >= MaxNotifies:
		return opError(op, v, ErrResource, fmt.Errorf("%d handlers wait on the queue", MaxNotifies))
	}
	q.handlers = append(q.handlers, fn)
	p.poller.arm(1)
	if d, _ := q.pop(); d != nil {
		p.give(v, q, d)
	}
	p.rouse()
	return nil
}

// give calls the first handler for d, which is off the queue. While handlers wait, no complete descriptor stays on
// the queue: each one that completes belongs to a handler. Under the lock.
func (p *port) give(v *VI, q *workQueue, d *Descriptor) {
	fn := q.handlers[0]
	q.handlers = q.handlers[1:]
	p.poller.arm(-1)
	q.calls.call(func() { fn(v, d) })
}

func (p *port) cancelHandlers(q *workQueue) {
	p.poller.arm(-len(q.handlers))
	q.handlers = nil
}

// Notify is VipCQNotify: fn gets the next entry of the completion queue, at once if there is one. The entry
// names a VI with a completed descriptor, and which of its queues; SendDone or RecvDone of that VI then returns
// the descriptor. fn is called for one entry. Several handlers may be set; they get the entries in order,
// before Done and Wait see them. If an entry's VI is destroyed before fn is called, fn gets the next entry
// instead. Notify may be called concurrently, also by fn.
//
// Errors: ErrInvalidParameter for a nil handler and for a destroyed CQ; ErrResource if MaxNotifies handlers wait.
// Destroy and closing the NIC cancel waiting handlers.
func (c *CQ) Notify(fn func(vi *VI, recv bool)) error {
	const op = "CQNotify"
	p := c.port
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := c.ended(op); err != nil {
		return err
	}
	switch {
	case fn == nil:
		return opError(op, nil, ErrInvalidParameter, errNoHandler)
	case len(c.handlers)-c.given >= MaxNotifies:
		return opError(op, nil, ErrResource, fmt.Errorf("%d handlers wait on the queue", MaxNotifies))
	}
	c.handlers = append(c.handlers, fn)
	p.poller.arm(1)
	c.serveHandlers()
	p.rouse()
	return nil
}

// serveHandlers takes entries for the handlers that wait. Under the port's lock.
func (c *CQ) serveHandlers() {
	for c.given < len(c.handlers) && c.head != c.tail {
		e := c.take()
		c.given++
		c.port.poller.arm(-1)
		c.calls.call(func() { c.hand(e) })
	}
}

// hand calls the first handler for e, which was taken for one of the handlers. If the VI has been destroyed, it
// drops e and takes the next entry for that handler.
func (c *CQ) hand(e cqEntry) {
	c.port.mu.Lock()
	if len(c.handlers) == 0 { // cancelled
		c.port.mu.Unlock()
		return
	}
	c.given--
	if e.vi.gone.Load() {
		c.port.poller.arm(1)
		c.serveHandlers()
		c.port.rouse()
		c.port.mu.Unlock()
		return
	}
	fn := c.handlers[0]
	c.handlers = c.handlers[1:]
	c.port.mu.Unlock()
	fn(e.vi, e.recv)
}

func (c *CQ) cancelHandlers() {
	c.port.poller.arm(c.given - len(c.handlers))
	c.handlers, c.given = nil, 0
}
