package agentd

import (
	"context"
	"fmt"

	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/wire"
)

// handle is an object that a program names by number: a listener, or an exchange that waits for its answer.
type handle struct {
	number   uint64
	listener kagent.Listener
	in       kagent.Incoming
	answer   *kagent.Answer
	ours     kagent.Offer  // of an answer: the offer in the program's request
	gone     chan struct{} // closed when the program no longer has it
}

// drop ends a handle's object without the program. The other side gets the reason.
func (h *handle) drop(reason wire.CMReason) {
	switch {
	case h.listener != nil:
		_ = h.listener.Close()
	case h.in != nil:
		_ = h.in.Reject(reason)
	case h.answer != nil:
		h.answer.Decline(reason)
	}
}

// release drops all remaining handles when the connection ends.
func (c *conn) release() {
	c.mu.Lock()
	all := c.handles
	c.handles = nil
	c.mu.Unlock()
	for _, h := range all {
		close(h.gone)
		h.drop(wire.CMReasonClosed)
	}
}

var errHandles = fmt.Errorf("%w: %d listeners and requests for connections that are not answered",
	agentproto.ErrQuota, maxHandles)

// hold assigns a number to an object. If there are too many, or the connection has ended, it drops the
// object.
func (c *conn) hold(h *handle) error {
	h.gone = make(chan struct{})
	reason := wire.CMReasonResources
	c.mu.Lock()
	switch {
	case c.handles == nil:
		reason = wire.CMReasonClosed
	case len(c.handles) < maxHandles:
		c.next++
		h.number = c.next
		c.handles[h.number] = h
		c.mu.Unlock()
		return nil
	}
	c.mu.Unlock()
	h.drop(reason)
	return errHandles
}

// find returns a handle; take also removes it.
func (c *conn) find(number uint64, take bool) *handle {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.handles[number]
	if h == nil {
		return &handle{}
	}
	if take {
		delete(c.handles, number)
		close(h.gone)
	}
	return h
}

// do executes a request of a program that has a session. Requests that do not block are executed at once, and
// so in order.
func (c *conn) do(q agentproto.Request) error {
	l := c.n.local
	r := &agentproto.Reply{}
	var err error
	if c.resumed && q.Op != agentproto.OpListen {
		c.resumed = false
		l.EndKept()
	}
	switch q.Op {
	case agentproto.OpClose:
		_ = c.n.end(false)
		_ = c.answer(&q, r, nil)
		return errGoodbye
	case agentproto.OpCancel:
		c.mu.Lock()
		if cancel := c.calls[q.Target]; cancel != nil {
			cancel()
		}
		c.mu.Unlock()
		return nil
	case agentproto.OpStatus:
		st := c.server.statusFor(&c.cred)
		r.Status = &st
	case agentproto.OpLink:
		link := l.Link()
		r.Link = &link
	case agentproto.OpCounters:
		n, cerr := l.Counters()
		r.Counters, err = &n, cerr
	case agentproto.OpWatch:
		c.watchLink()
		return nil
	case agentproto.OpNewVI:
		r.VI, err = c.n.newVI()
	case agentproto.OpFreeVI:
		c.n.freeVI(q.VI)
	case agentproto.OpEnter:
		err = l.Enter(q.VI, q.Key, q.Peer)
	case agentproto.OpRemove:
		err = l.Remove(q.VI)
	case agentproto.OpShmLink:
		end, err := c.n.shmLink(q.VI)
		if err != nil {
			return c.answer(&q, r, err)
		}
		defer end.Close()
		r.ShmLink = &agentproto.ShmLink{ID: end.ID, Side: end.Side}
		return c.answer(&q, r, nil, end.Memory, end.Wake, end.Bell)
	case agentproto.OpListen:
		var ln kagent.Listener
		if ln, err = l.Listen(*q.Local); err == nil {
			h := &handle{listener: ln}
			err = c.hold(h)
			r.Handle = h.number
		}
	case agentproto.OpUnlisten:
		if h := c.find(q.Handle, false); h.listener != nil {
			c.find(q.Handle, true)
			err = h.listener.Close()
		}
	case agentproto.OpEstablished:
		if h := c.find(q.Handle, false); h.in != nil {
			h.in.Established()
		}
		return nil
	case agentproto.OpDecline:
		if h := c.find(q.Handle, false); h.answer != nil {
			c.find(q.Handle, true)
			h.answer.Decline(q.Reason)
		}
		return nil
	case agentproto.OpReject:
		h := c.find(q.Handle, false)
		if h.in == nil {
			err = kagent.ErrCancelled
		} else if err = h.in.Reject(q.Reason); err == nil {
			c.find(q.Handle, true)
		}
	case agentproto.OpConfirm:
		h := c.find(q.Handle, false)
		if h.answer == nil {
			err = kagent.ErrState
		} else {
			c.find(q.Handle, true)
			if err = h.answer.ConfirmWith(q.Proof); err == nil {
				c.n.connected(h.ours, h.answer.Local.Host, h.answer.Offer, h.answer.Remote.Host)
			}
		}
	default:
		return c.later(q)
	}
	return c.answer(&q, r, err)
}

// later executes a request that may block.
func (c *conn) later(q agentproto.Request) error {
	l := c.n.local
	if q.Offer != nil && !l.HasVI(q.Offer.VI) {
		return c.answer(&q, &agentproto.Reply{}, fmt.Errorf("VI %#x is not of this NIC", q.Offer.VI))
	}
	switch q.Op {
	case agentproto.OpWait:
		return c.wait(q, func(ctx context.Context) (*agentproto.Reply, error) { return c.waitFor(ctx, &q) })
	case agentproto.OpRequest:
		return c.wait(q, func(ctx context.Context) (*agentproto.Reply, error) {
			a, err := l.Request(ctx, *q.Local, *q.Remote, *q.Offer)
			if err != nil {
				return nil, err
			}
			return c.answered(a, *q.Offer)
		})
	case agentproto.OpRequestPeer:
		return c.wait(q, func(ctx context.Context) (*agentproto.Reply, error) {
			a, in, err := l.RequestPeer(ctx, *q.Local, *q.Remote, *q.Offer)
			switch {
			case err != nil:
				return nil, err
			case a != nil:
				return c.answered(a, *q.Offer)
			}
			return c.arrived(in)
		})
	case agentproto.OpDiscover:
		return c.wait(q, func(ctx context.Context) (*agentproto.Reply, error) {
			list, err := l.Discover(ctx)
			return &agentproto.Reply{Neighbors: list}, err
		})
	case agentproto.OpPath:
		return c.wait(q, func(ctx context.Context) (*agentproto.Reply, error) {
			p, err := l.Path(ctx, q.Local.Host, q.Peer)
			return &agentproto.Reply{Path: &p}, err
		})
	case agentproto.OpAccept:
		return c.accept(q)
	}
	return fmt.Errorf("%w: %s in a session", agentproto.ErrProtocol, q.Op)
}

// waitFor is a listener's Wait, or the agent's.
func (c *conn) waitFor(ctx context.Context, q *agentproto.Request) (*agentproto.Reply, error) {
	var in kagent.Incoming
	var err error
	if q.Local != nil {
		in, err = c.n.local.Wait(ctx, *q.Local)
	} else if h := c.find(q.Handle, false); h.listener != nil {
		in, err = h.listener.Wait(ctx)
	} else {
		err = kagent.ErrClosed
	}
	if err != nil {
		return nil, err
	}
	return c.arrived(in)
}

// arrived passes an Incoming to the program. When the program has the reply, notifyEnd follows.
func (c *conn) arrived(in kagent.Incoming) (*agentproto.Reply, error) {
	h := &handle{in: in}
	if err := c.hold(h); err != nil {
		return nil, err
	}
	return &agentproto.Reply{Incoming: &agentproto.Exchange{
		Handle: h.number, Local: in.Local(), Remote: in.Remote(), Offer: in.Offer(),
	}}, nil
}

// notifyEnd waits until the program no longer has an Incoming, and notifies the program if it ends by itself.
func (c *conn) notifyEnd(number uint64) {
	h := c.find(number, false)
	if h.in == nil {
		return
	}
	select {
	case <-h.in.Done():
	case <-h.gone:
		return
	}
	if c.find(number, true).in != nil {
		_ = c.write(&agentproto.Reply{Ended: number, Error: agentproto.NewError(h.in.Err())})
	}
}

// answered passes an Answer to the program.
func (c *conn) answered(a *kagent.Answer, ours kagent.Offer) (*agentproto.Reply, error) {
	h := &handle{answer: a, ours: ours}
	if err := c.hold(h); err != nil {
		return nil, err
	}
	return &agentproto.Reply{Answer: &agentproto.Exchange{
		Handle: h.number, Local: a.Local, Remote: a.Remote, Offer: a.Offer,
	}}, nil
}

// accept is Incoming's Accept. The handle remains during the wait, for Established.
func (c *conn) accept(q agentproto.Request) error {
	h := c.find(q.Handle, false)
	if h.in == nil { // it has ended, and the message about that is under way
		return c.answer(&q, &agentproto.Reply{}, kagent.ErrCancelled)
	}
	return c.wait(q, func(ctx context.Context) (*agentproto.Reply, error) {
		if err := h.in.Accept(ctx, *q.Offer); err != nil {
			return nil, err
		}
		c.find(h.number, true)
		c.n.connected(*q.Offer, h.in.Local().Host, h.in.Offer(), h.in.Remote().Host)
		return nil, nil
	})
}

// watchLink answers one request for the interface's state: the first at once, a later one at
// the next change. So a slow or stopped program has at most a message or two in its socket, and
// gets the latest state when it asks again.
func (c *conn) watchLink() {
	if c.asked == nil {
		c.asked = make(chan struct{}, 1)
		c.beginWatch()
	}
	select {
	case c.asked <- struct{}{}:
	default:
	}
}

// beginWatch delays each message until the program has asked for it.
func (c *conn) beginWatch() {
	latest := make(chan kagent.Link, 1)
	c.n.local.Watch(func(l kagent.Link) {
		select {
		case <-latest:
		default:
		}
		latest <- l // never blocks: only this callback sends
	})
	c.work.Go(func() {
		defer c.n.local.Watch(nil)
		for {
			select {
			case <-c.asked:
			case <-c.over:
				return
			}
			select {
			case l := <-latest:
				_ = c.write(&agentproto.Reply{Link: &l}) // an error ends the connection
			case <-c.over:
				return
			}
		}
	})
}
