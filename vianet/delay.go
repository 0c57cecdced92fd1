package vianet

import (
	"net"
	"time"
)

// delayMost is how long bytes wait for more of them after SetNoDelay(false).
const delayMost = time.Millisecond

// SetNoDelay(true), the default, has each Write send what it can. With false, bytes that do not fill a message wait
// for more, like Nagle's algorithm of TCP: it is for programs that write little at a time and do not gather it
// themselves. The bytes go when they fill a message, when a Read of this connection begins to wait (it may be for the
// answer), when the stream ends, or after a millisecond. A Read that was waiting before they were written does not
// send them.
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

// waitsForMore says whether the buffer that is being filled is not to be sent yet; there is something in it. Under
// mu.
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
