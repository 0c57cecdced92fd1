package vipl

import (
	"errors"
	"fmt"
)

// Handlers for completions. A handler gets one completion, which it takes off
// its queue, and is called on a goroutine of the library: one after the other
// for one queue, side by side for several.

// MaxNotifies is the number of handlers that may wait on one queue.
const MaxNotifies = 4096

var errNoHandler = errors.New("nil handler")

// SendNotify is VipSendNotify: fn gets the next descriptor that completes on the
// send queue, now if one waits there. It is for one descriptor; several may be
// set, which take the completions in order, before SendDone and SendWait see
// them.
//
// ErrInvalidParameter for a nil handler, for a queue that is bound to a CQ and
// for a destroyed VI; ErrResource when MaxNotifies wait. Destroying the VI and
// closing the NIC cancel what waits. It may be called concurrently, by fn too.
func (v *VI) SendNotify(fn func(*VI, *Descriptor)) error { return v.arm("SendNotify", &v.send, fn) }

// RecvNotify is VipRecvNotify: fn gets the next descriptor that completes on
// the receive queue. All else as SendNotify.
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
	p.armed.Add(1)
	if d, _ := q.pop(); d != nil {
		p.give(v, q, d)
	}
	p.rouse()
	return nil
}

// give has the first handler called for d, which is off the queue. As long as
// handlers wait nothing complete stays on it: whatever completes is theirs. Under
// the lock.
func (p *port) give(v *VI, q *workQueue, d *Descriptor) {
	fn := q.handlers[0]
	q.handlers = q.handlers[1:]
	p.armed.Add(-1)
	q.calls.call(func() { fn(v, d) })
}

func (p *port) cancelHandlers(q *workQueue) {
	p.armed.Add(-int64(len(q.handlers)))
	q.handlers = nil
}

// Notify is VipCQNotify: fn gets the next entry of the completion queue, now if
// one waits there: which VI has a completed descriptor, and whether on its
// receive queue. SendDone or RecvDone of that VI then gives it. It is for one
// entry; several handlers may be set, which take the entries in order, before
// Done and Wait see them. An entry whose VI is destroyed before fn's turn is void,
// and fn gets the next one.
//
// ErrInvalidParameter for a nil handler and for a destroyed CQ; ErrResource
// when MaxNotifies wait. Destroy and closing the NIC cancel what waits. It may
// be called concurrently, by fn too.
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
	p.armed.Add(1)
	c.serveHandlers()
	p.rouse()
	return nil
}

// serveHandlers takes entries for the handlers that wait. Under the port's lock.
func (c *CQ) serveHandlers() {
	for c.given < len(c.handlers) && c.head != c.tail {
		e := c.take()
		c.given++
		c.port.armed.Add(-1)
		c.calls.call(func() { c.hand(e) })
	}
}

// hand calls the first handler for e, which was taken for one of them. If the VI was
// destroyed meanwhile, e is void, and there is a handler more for the next entry.
func (c *CQ) hand(e cqEntry) {
	c.port.mu.Lock()
	if len(c.handlers) == 0 { // cancelled
		c.port.mu.Unlock()
		return
	}
	c.given--
	if e.vi.gone.Load() {
		c.port.armed.Add(1)
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
	c.port.armed.Add(-int64(len(c.handlers) - c.given))
	c.handlers, c.given = nil, 0
}
