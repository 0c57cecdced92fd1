package vianet

import (
	"errors"
	"net"
	"time"
)

// Close ends the connection: Reads and Writes that are under way return [net.ErrClosed], as later ones do. It returns
// at once; what was written is delivered in the background, for at most Options.Linger, or as SetLinger says. The
// peer's Writes fail from then on, also while its side has not read everything.
//
// The error is [net.ErrClosed] the second time.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed {
		return c.opError("close", net.ErrClosed)
	}
	c.isClosed, c.noWrites = true, true
	c.raiseAll()
	if c.breaks {
		c.fail(resetError(net.ErrClosed))
	}
	c.stack.work.Go(c.finish)
	return nil
}

// CloseWrite ends the stream to the peer, which then reads [io.EOF]. The other direction goes on.
//
// The error is [net.ErrClosed] after Close, or that of a connection that broke. It is nil where the peer has closed
// the connection and all that was written was sent: then nobody is left whom the end of this stream could interest.
func (c *Conn) CloseWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.isClosed:
		return c.opError("close", net.ErrClosed)
	case c.err != nil && !c.dismissed():
		return c.opError("close", c.err)
	case c.noWrites:
		return nil
	}
	c.noWrites = true
	raise(c.writable)
	c.due.fin = true
	c.push()
	return nil
}

// CloseRead ends the stream from the peer: Reads return [io.EOF], what has come and was not read is lost, and the
// peer's Writes fail with ECONNRESET. The other direction goes on, unless the peer does not let go of the memory of a
// Read within two seconds.
//
// The error is [net.ErrClosed] after Close.
func (c *Conn) CloseRead() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed {
		return c.opError("close", net.ErrClosed)
	}
	if !c.noReads {
		c.noReads = true
		raise(c.readable)
		c.stop()
	}
	return nil
}

// stop tells the peer that nobody reads what it sends. Under mu, once.
func (c *Conn) stop() {
	c.due.stop = !c.fin // else it sends nothing
	c.push()
}

// dismissed says whether a connection that is over ended well for what was written: the peer has closed it, and
// nothing was left to be sent.
func (c *Conn) dismissed() bool {
	c.reap()
	return c.departed && c.fin && !c.unsent && !c.out.open && c.emptied()
}

// finish brings a closed connection to its end: what was written and the fin, until the peer has confirmed it.
func (c *Conn) finish() {
	c.writing.Lock() // the last Write has returned
	c.mu.Lock()
	if !c.due.finSent {
		c.due.fin = true
	}
	c.push()
	if !c.due.finSent && !c.noReads {
		c.stop()
	}
	linger := c.linger
	c.mu.Unlock()
	c.writing.Unlock()
	late := time.NewTimer(linger)
	defer late.Stop()
	for !c.isOver() {
		select {
		case <-c.settled:
			continue
		case <-late.C:
		case <-c.stack.closed:
		}
		break
	}
	c.mu.Lock()
	if !c.due.finAcked && !c.breaks && c.counts.Broken == 0 && !c.dismissed() {
		c.counts.Undelivered++
	}
	c.mu.Unlock()
	c.free()
}

// isOver says whether nothing is left to deliver, or nobody to take it.
func (c *Conn) isOver() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.down || c.due.finAcked || c.unheard && !c.due.finSent
}

// release takes the connection down and gives back all that it had.
func (c *Conn) release() {
	c.mu.Lock()
	if !c.down {
		c.down = true
		c.dropRooms()
		close(c.gone)
	}
	c.isClosed, c.noWrites = true, true
	if c.delayed != nil {
		c.delayed.Stop()
	}
	c.readDeadline.set(time.Time{}) // whose timers have the connection
	c.writeDeadline.set(time.Time{})
	c.raiseAll()
	c.mu.Unlock()
	c.cut()
	c.progress() // everything has completed: readers and writers let go of their memory
	c.reading.Lock()
	defer c.reading.Unlock()
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	c.progressLocked()
	for !c.queue.empty() {
		if l := c.queue.first().land; l != nil {
			c.unstage(l)
		}
		c.queue.drop()
	}
	c.endRing()
	c.mu.Unlock()
	c.stack.remove(c, errors.Join(c.vi.Destroy(), c.pool.region.Deregister(), c.tag.Destroy()))
	if c.port != 0 {
		c.stack.ports.release(c.port)
	}
}
