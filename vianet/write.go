package vianet

import (
	"net"
	"os"
)

// maxTransfer is the length of the longest transfer in bytes.
const maxTransfer = 1 << 30

// Write writes b and returns when all of it has been taken over: by buffers for control messages or, when it is more
// than Options.Threshold, by the peer.
//
// Errors are [*net.OpError]: a deadline, Close or CloseWrite, a connection that broke, a peer that reads no more
// (ECONNRESET both). n is then how many bytes the peer gets, if it gets anything; of a transfer in which the
// connection broke it may have read more.
func (c *Conn) Write(b []byte) (n int, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if len(b) == 0 {
		err = c.flushed(false)
	}
	for n < len(b) && err == nil {
		rest := b[n:]
		k := 0
		switch t := c.stack.o.Threshold; {
		case c.ringTakes(len(rest)):
			k, err = c.writeRing(rest)
		case t < 0 || len(rest) <= t:
			k, err = c.writeSmall(rest)
		default:
			k, err = c.writeLarge(rest[:min(len(rest), maxTransfer)])
		}
		n += k
	}
	if err != nil {
		err = c.opError("write", err)
	}
	return n, err
}

// writeError says why nothing can be written. Under mu.
func (c *Conn) writeError() error {
	switch {
	case c.noWrites:
		return net.ErrClosed
	case c.writeDeadline.passed():
		return os.ErrDeadlineExceeded
	case c.err == nil && c.unheard:
		return resetError(errUnheard)
	}
	return c.err
}

// until calls step, under mu, until it has succeeded or failed, and waits in between.
func (c *Conn) until(step func() (done bool, err error)) error {
	for waits := false; ; {
		c.mu.Lock()
		lower(c.writable)
		c.later, c.stalled = c.stack.mayRingLater(), false
		done, err := step()
		if c.stalled && !waits && !done && err == nil {
			waits = true
			c.counts.Stalls++
		}
		later := c.later
		c.later = false
		bytes := 0
		if c.out.open {
			bytes = c.out.length
		} else if c.out.flight > 0 {
			bytes = ringSize / 2
		}
		c.mu.Unlock()
		if later && !c.stack.spinning.Load() { // who was to ring may have left before
			c.stack.nic.Ring()
		}
		if done || err != nil {
			return err
		}
		if err := c.await(c.writable, &c.writeDeadline, &c.writeSpin, bytes); err != nil {
			return err
		}
	}
}

// writeSmall sends b by control messages. What the peer has no room for yet stays in a buffer, where later bytes may
// join it.
func (c *Conn) writeSmall(b []byte) (n int, err error) {
	suits := c.stack.suitsRing(len(b))
	err = c.until(func() (bool, error) {
		c.wish = suits && c.peerRing.size == 0
		for n < len(b) {
			if err := c.writeError(); err != nil {
				return false, err
			}
			k := c.add(b[n:])
			if n += k; k == 0 {
				return false, nil
			}
		}
		return true, nil
	})
	return n, err
}

// add puts bytes into the buffer that is being filled and sends it, if it may be sent. It returns how many found
// room. Under mu.
func (c *Conn) add(b []byte) (n int) {
	if c.fill < 0 {
		i, ok := c.pool.take()
		if !ok {
			c.push() // takes the sends that are done
			i, ok = c.pool.take()
		}
		if c.slotShort = !ok; !ok {
			c.push() // has progress hear of sends
			return 0
		}
		c.fill, c.filled = i, headerLen
	}
	n = copy(c.pool.message(c.fill)[c.filled:c.longest], b)
	c.filled += n
	c.push()
	return n
}

// flushed waits until what is in a buffer has been sent, if all is set; else it only looks for an error.
func (c *Conn) flushed(all bool) error {
	return c.until(func() (bool, error) {
		if err := c.writeError(); err != nil {
			return false, err
		}
		if all {
			c.urge()
		}
		c.push()
		return !all || c.emptied(), nil
	})
}

// writeLarge has the peer get b by RDMA.
func (c *Conn) writeLarge(b []byte) (int, error) {
	if err := c.flushed(true); err != nil {
		return 0, err
	}
	byRef := c.stack.byReference(b)
	read := c.reads && !byRef
	a := closed
	if read {
		a = readable
	}
	lease, err := c.stack.regs.lease(b, c.tag, a)
	if err != nil {
		return c.writeSmall(b) // memory cannot be registered: the slow way
	}
	defer lease.end()
	if err := c.offer(lease, read); err != nil {
		return 0, err
	}
	over := func() bool { return c.out.over() || c.down && c.out.flight == 0 }
	err = c.until(func() (bool, error) {
		if over() {
			return true, nil
		}
		return false, c.writeError()
	})
	if err != nil {
		c.withdraw()
		c.settle(c.writable, &c.writeSpin, len(b), over)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.open, c.out.lease = false, nil
	way := &c.counts.Written
	if read {
		way = &c.counts.Read
	}
	way.count(c.out.moved)
	if byRef {
		c.counts.ByReference.count(c.out.moved)
	}
	if c.out.moved == len(b) {
		return len(b), nil // in time after all
	}
	if err == nil {
		err = c.err
	}
	return c.out.moved, err
}
