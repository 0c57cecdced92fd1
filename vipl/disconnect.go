package vipl

import (
	"context"
	"time"

	"viaxdp/internal/base/wire"
)

// The end of a connection by the program.

// Disconnect is VipDisconnect: it ends the connection. Descriptors that are not complete are flushed and v becomes
// Idle; the peer's VI goes to Error.
//
// On a reliable VI the data of completed sends is delivered first, unless the peer does not answer for 200 ms (four
// round trips, if they take longer) or has not acknowledged all of it within five seconds. A send whose memory the NIC still reads is flushed when it
// has been read; Disconnect waits for that, at most five seconds.
//
// On an Idle VI Disconnect flushes the receives that were posted for a future connection. It ends a peer-to-peer
// connect that is under way. If a connect or accept in another goroutine has succeeded but has not returned yet,
// Disconnect waits for its return, at most five seconds.
//
// With a daemon as the agent, Disconnect then waits for the daemon to remove the VI from the VI table, for five seconds at most.
//
// Errors: ErrInvalidState while another connect or disconnect is under way; ErrInvalidParameter if the VI is
// destroyed.
func (v *VI) Disconnect() error { return v.disconnect(context.Background()) }

// disconnect is Disconnect. It waits for a connect to return until ctx ends.
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
		c.stopCoalescing() // small messages that wait are sent now
		p.pump(c, p.now())
		p.flush()
		c.beginClose()
		if !c.byRef { // else the peer may still need the memory
			p.flushQueue(v, &v.send, broken{})
		}
		p.flushQueue(v, &v.recv, broken{})
		v.state = Idle // so that nothing that is posted from now on is sent
		p.pump(c, p.now())
		p.finish(p.now(), true)
	}
	closing := c.ending.begun
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
	if w := (flushWait{v}); !w.ready() {
		p.finish(p.now(), true) // a sleeper must check again soon
		p.mu.Unlock()
		_ = p.wait(w, p.deadline(lingerMost))
		p.mu.Lock()
	}
	// Receives that were posted meanwhile stay posted for the next connection.
	v.state, v.busy, v.cause = Idle, false, nil
	return nil
}

// end is disconnect for Close. If a Disconnect in another goroutine is under way, end waits for the peer, too.
func (v *VI) end(ctx context.Context) {
	v.disconnect(ctx)
	p := v.port
	p.mu.Lock()
	c := v.conn
	leaves := v.busy && c != nil && c.open && c.ending.begun
	p.mu.Unlock()
	if leaves {
		c.linger()
	}
}

// settle waits for the return of a connect that has succeeded. The program may have received messages of the
// connection, or its end, before that. Under the lock, which it releases while it waits.
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

// ending is the progress of Disconnect on a connection.
type ending struct {
	begun  bool
	sent   bool   // the close has been sent
	seq    uint32 // with this number
	done   bool   // the peer has acknowledged it, or the connection is broken
	signal signal // raised when done becomes true
}

// beginClose begins the orderly end: nothing that is posted from now on is sent.
func (c *conn) beginClose() {
	c.ending.begun = true
	c.rdma.dropAnswers()
}

// disconnectTimeout is how long Disconnect waits for the peer. On an unreliable VI it is the time for the
// acknowledgement of the close. On a reliable VI, where earlier data is delivered first, it is the time for which
// the peer may be silent. The silence is measured in lingerParts parts, each of a round trip at least, so that if this
// machine is descheduled once, the peer loses at most one part.
const (
	disconnectTimeout = 200 * time.Millisecond
	lingerParts       = 4
	lingerMost        = 5 * time.Second // for a peer that answers but does not acknowledge everything
)

// linger waits until the peer has acknowledged the close, or the time is over. On an unreliable VI it repeats the
// close.
func (c *conn) linger() {
	p := c.vi.port
	if c.sender != nil {
		heard, trip := c.heardAt()
		end := p.deadline(lingerMost)
		for part := 0; part < lingerParts && p.now() < end; part++ {
			c.announceClose()
			if p.wait(closeWait{c}, p.deadline(max(disconnectTimeout/lingerParts, trip))) != errWaitTimeout {
				return
			}
			if h, t := c.heardAt(); h != heard {
				heard, trip, part = h, t, -1
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

// announceClose sends the close of a Reliable Reception VI whose window has no room for it. Two sides that disconnect at
// once acknowledge no data of each other, so neither window would open. The frame has a number that the peer has
// acknowledged: a peer that does not disconnect ignores it.
func (c *conn) announceClose() {
	p := c.vi.port
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.open && !c.ending.sent && c.vi.attrs.Level == ReliableReception {
		p.control(c, wire.KindClose, c.sender.Unacked()-1, 0)
		p.finish(p.now(), true)
	}
}

// heardAt returns when a frame of the peer last arrived, and the round trip; 0: not measured.
func (c *conn) heardAt() (at int64, trip time.Duration) {
	p := c.vi.port
	p.mu.Lock()
	defer p.mu.Unlock()
	return c.heard, time.Duration(c.sender.RTT())
}

func (c *conn) finishClose(p *port) {
	if !c.ending.done {
		c.ending.done = true
		p.raise(&c.ending.signal)
	}
}

// closeWait is what Disconnect waits for.
type closeWait struct{ c *conn }

func (w closeWait) ready() bool {
	p := w.c.vi.port
	p.mu.Lock()
	defer p.mu.Unlock()
	return w.c.ending.done
}

func (w closeWait) notify() *signal { return &w.c.ending.signal }

func (w closeWait) handle() *NIC { return w.c.vi.nic }

func (w closeWait) destroyed() error { return nil } // a VI is not destroyed while it disconnects

// flushWait waits until all sends have completed. Its signal is not that of the send queue: it would take wake-ups of
// the program's goroutines, which wait for the first completion.
type flushWait struct{ v *VI }

func (w flushWait) ready() bool {
	q := &w.v.send
	return q.completed.Load() == q.tail.Load()
}

func (w flushWait) notify() *signal { return &w.v.swept }

func (w flushWait) handle() *NIC { return w.v.nic }

func (w flushWait) destroyed() error { return nil }

// sendClose sends the orderly end. On a reliable VI it has a number in the sequence: the peer sees it after
// everything sent before, and it is retransmitted like data. On an unreliable VI Disconnect repeats it.
func (p *port) sendClose(c *conn, now int64) bool {
	if c.sender == nil {
		c.ending.sent = true
		return p.control(c, wire.KindClose, c.seq, 0)
	}
	if c.sender.Room() == 0 {
		return true
	}
	addr, chunk, ok := p.chunk(c)
	if !ok {
		return false
	}
	b := c.template.Put(chunk, wire.HeaderLen)
	h := &c.header
	h.Kind, h.Flags, h.Immediate, h.RemoteAddr, h.RemoteHandle = wire.KindClose, wire.FlagAckNow, 0, 0, 0
	if !p.launch(c, addr, b, now) {
		return false
	}
	c.ending.sent, c.ending.seq = true, h.Seq
	return true
}
