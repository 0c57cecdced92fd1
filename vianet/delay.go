package vianet

import (
	"net"
	"time"
)

// delayMost is how long bytes wait for more of them after SetNoDelay(false).
const delayMost = time.Millisecond

// SetNoDelay sets whether each Write sends what it can, as without it, or, with
// false, bytes that do not fill a message wait for more: until they do, a Read of
// this connection begins to wait, which may be for the answer, the stream ends, or a
// millisecond has passed. A Read that waits already does not send what is written
// then. It is for programs that write little at a time and do not gather it
// themselves, as Nagle's algorithm of TCP is.
//
// The error is [net.ErrClosed] after Close.
func (c *Conn) SetNoDelay(noDelay bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed {
		return c.opError("set", net.ErrClosed)
	}
	c.delays = !noDelay
	c.push()
	return nil
}

// waitsForMore says whether the buffer that is being filled is not to be sent yet;
// there is something in it. Under mu.
func (c *Conn) waitsForMore() bool {
	if !c.delays || c.urged || c.due.fin || c.filled == c.longest {
		return false
	}
	if !c.timing {
		c.timing = true
		if c.delayed == nil {
			c.delayed = time.AfterFunc(c.stack.delay, c.late)
		} else {
			c.delayed.Reset(c.stack.delay)
		}
	}
	return true
}

// urge has what is in the buffer sent by the next push. Under mu.
func (c *Conn) urge() {
	if c.delays && !c.emptied() {
		c.urged = true
	}
}

// late is called by the timer.
func (c *Conn) late() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timing = false; c.down {
		return
	}
	c.urge()
	c.push()
}
