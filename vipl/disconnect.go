package vipl

import (
	"context"
	"time"

	"viaxdp/wire"
)

// The end of a connection by its program.

// Disconnect is VipDisconnect: ends the connection. Descriptors that are not
// complete are flushed and v becomes Idle; the peer's VI goes to Error.
//
// On a reliable VI the data of completed sends is delivered first, unless the peer
// does not answer for 200 ms, or has not taken all of it within five seconds. On an
// Idle VI Disconnect flushes the receives that were posted for a connection to come.
// It ends a peer-to-peer connect that is under way. Where another goroutine's
// connect or accept has succeeded and is about to return, it waits until that has
// returned, at most five seconds.
//
// ErrInvalidState while another connect or disconnect is under way;
// ErrInvalidParameter when the VI is destroyed.
func (v *VI) Disconnect() error { return v.disconnect(context.Background()) }

// disconnect is Disconnect; for a connect to return it waits for as long as ctx lasts.
func (v *VI) disconnect(ctx context.Context) error {
	const op = "Disconnect"
	v.stopPeering()
	p := v.port
	p.mu.Lock()
	v.settle(ctx)
	switch {
	case v.gone.Load():
		p.mu.Unlock()
		return opError(op, v, ErrInvalidParameter, errDestroyed)
	case v.busy:
		p.mu.Unlock()
		return opError(op, v, ErrInvalidState, errBusyVI)
	case v.state == Idle:
		p.flushQueue(v, &v.recv, broken{})
		p.mu.Unlock()
		return nil
	}
	v.busy = true
	c := v.conn
	if c.open {
		c.hurry = true // what waits for company is on its way
		p.pump(c, p.now())
		p.flush()
		c.closing, c.answers = true, nil
		if !c.lent { // else the peer may still need the memory
			p.flushQueue(v, &v.send, broken{})
		}
		p.flushQueue(v, &v.recv, broken{})
		v.state = Idle // nothing can be posted on it that would be sent
		p.pump(c, p.now())
		p.finish(p.now(), true)
	}
	closing := c.closing
	p.mu.Unlock()
	if closing {
		c.linger()
	}
	v.nic.agent.Remove(v.num)
	p.mu.Lock()
	defer p.mu.Unlock()
	if v.conn == c { // else the NIC was closed meanwhile
		p.uninstall(c)
	}
	p.flushQueue(v, &v.send, broken{})
	// Receives that were posted meanwhile stay posted for the next connection.
	v.state, v.busy, v.cause = Idle, false, nil
	return nil
}

// end is disconnect for Close: where another goroutine's is under way it waits for the peer as that
// does.
func (v *VI) end(ctx context.Context) {
	v.disconnect(ctx)
	p := v.port
	p.mu.Lock()
	c := v.conn
	leaves := v.busy && c != nil && c.open && c.closing
	p.mu.Unlock()
	if leaves {
		c.linger()
	}
}

// settle waits for a connect that has come about and has not returned yet: messages that came
// by it, or its end, may be there before. Under the lock, which it releases meanwhile.
func (v *VI) settle(ctx context.Context) {
	for v.settled != nil && v.state != ConnectPending && ctx.Err() == nil {
		settled := v.settled
		v.port.mu.Unlock()
		select {
		case <-settled:
		case <-ctx.Done():
		}
		v.port.mu.Lock()
	}
}

// disconnectTimeout is how long a peer may take to acknowledge a close on an
// unreliable VI, and be silent on a reliable one, where what was sent before comes
// first. That is waited for in parts, so that a machine which is late once takes
// no more than one of them from the peer.
const (
	disconnectTimeout = 200 * time.Millisecond
	lingerParts       = 4
	lingerMost        = 5 * time.Second // with a peer that answers and acknowledges nothing
)

// linger waits until the peer has taken note of the close, or has not for too
// long. An unreliable VI repeats it meanwhile.
func (c *conn) linger() {
	p := c.vi.port
	if c.sender != nil {
		heard, end := c.heardAt(), p.deadline(lingerMost)
		for part := 0; part < lingerParts && p.now() < end; part++ {
			if p.wait(closeWait{c}, p.deadline(disconnectTimeout/lingerParts)) != errWaitTimeout {
				return
			}
			if h := c.heardAt(); h != heard {
				heard, part = h, -1
			}
		}
		return
	}
	end := p.deadline(disconnectTimeout)
	for gap := time.Millisecond; ; gap *= 2 {
		if err := p.wait(closeWait{c}, min(end, p.deadline(gap))); err != errWaitTimeout || p.now() >= end {
			return
		}
		p.mu.Lock()
		if c.open {
			p.control(c, wire.KindClose, c.seq, 0)
			p.finish(p.now(), true)
		}
		p.mu.Unlock()
	}
}

// heardAt is when the peer was heard last.
func (c *conn) heardAt() int64 {
	p := c.vi.port
	p.mu.Lock()
	defer p.mu.Unlock()
	return c.heard
}

func (c *conn) finishClose(p *port) {
	if !c.closeDone {
		c.closeDone = true
		p.raise(&c.closed)
	}
}

// closeWait is what Disconnect waits for.
type closeWait struct{ c *conn }

func (w closeWait) ready() bool {
	p := w.c.vi.port
	p.mu.Lock()
	defer p.mu.Unlock()
	return w.c.closeDone
}

func (w closeWait) notify() *signal { return &w.c.closed }

func (w closeWait) handle() *Nic { return w.c.vi.nic }

func (w closeWait) destroyed() error { return nil } // not while it disconnects
