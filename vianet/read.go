package vianet

import (
	"io"
	"net"
	"os"
	"time"

	"viaxdp/vipl"
)

// directMin is the least that a Read must ask for to get a transfer's bytes into its own buffer; less comes through
// staging buffers, ahead of the program. So does what is read in several Reads, unless they are so long that a round
// trip between them does not count.
const directMin = stageSize

// Read reads what has arrived into b, at least one byte, and waits until there is something. A peer that lies about
// what it has written can have it give bytes that lay in b, where that is 64 KiB or more.
//
// Errors: [io.EOF] when the peer has closed its side and everything is read; else [*net.OpError]: a deadline, Close,
// a connection that broke.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.read(b)
	if err != nil && err != io.EOF {
		err = c.opError("read", err)
	}
	return n, err
}

func (c *Conn) read(b []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	for {
		n, direct, bytes, err := c.readNow(b)
		if direct != nil {
			if n = c.finishDirect(direct); n == 0 {
				continue // the peer has withdrawn it, or the connection broke
			}
		}
		if n > 0 || err != nil || len(b) == 0 {
			return n, err
		}
		if err := c.await(c.readable, &c.readDeadline, &c.readSpin, bytes); err != nil {
			return 0, err
		}
	}
}

// readNow reads what there is; or asks for more, perhaps at a landing in b. bytes are, or may be, on their way
// elsewhere.
func (c *Conn) readNow(b []byte) (n int, direct *landing, bytes int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	lower(c.readable)
	if c.isClosed {
		return 0, nil, 0, net.ErrClosed
	}
	if c.readDeadline.passed() {
		return 0, nil, 0, os.ErrDeadlineExceeded
	}
	if len(b) == 0 {
		return 0, nil, 0, nil
	}
	if c.noReads {
		return 0, nil, 0, io.EOF
	}
	if n = c.consume(b); n > 0 && !c.in.open && !c.due.ring && len(c.spent) <= c.dataBuffers()/4 {
		return n, nil, 0, nil // the program has its data; the rest has time
	}
	c.restock()
	c.urge() // what is read next may be the answer
	if c.mayFetch() {
		switch {
		case len(b) < directMin || c.in.read && len(b) < min(c.in.length-c.in.asked, stagesAhead*stageSize):
			err = c.fetchAhead()
		case n == 0 && c.in.flight == 0:
			direct, err = c.fetchDirect(b)
		}
	}
	c.push()
	switch {
	case n > 0:
		return n, nil, 0, nil
	case direct != nil || err != nil:
		return 0, direct, 0, err
	case !c.queue.empty(): // it came just now
		n = c.consume(b)
		if c.due.ring || len(c.spent) > c.dataBuffers()/4 {
			c.restock()
			c.push()
		}
		return n, nil, 0, nil
	case c.fin:
		return 0, nil, 0, io.EOF
	}
	return 0, nil, max(c.in.flight*stageSize, c.ring.last), c.err
}

// consume copies what has arrived. Under mu.
func (c *Conn) consume(b []byte) (n int) {
	for n < len(b) && !c.queue.empty() {
		s := c.queue.first()
		k := copy(b[n:], s.data)
		n += k
		if s.data = s.data[k:]; len(s.data) > 0 {
			break
		}
		switch {
		case s.land != nil:
			c.unstage(s.land)
		case s.ring > 0:
			c.readFromRing(s.ring)
		default:
			c.held--
			c.spent = append(c.spent, s.buffer)
		}
		c.queue.drop()
	}
	c.counts.Received += uint64(n)
	return n
}

// restock posts the buffers again that were read, and owes them to the peer. It happens when nobody waits for it:
// behind a message, before a wait, and when there are so many of them that the peer might come to wait. Under mu.
func (c *Conn) restock() {
	for _, i := range c.spent {
		c.repost(i)
	}
	c.acksDue += len(c.spent)
	c.spent = c.spent[:0]
}

// fetchDirect asks for bytes of the transfer to come into b. Nil without an error: it must wait, or memory of the
// program cannot be registered. Under mu.
func (c *Conn) fetchDirect(b []byte) (*landing, error) {
	n := min(len(b), c.in.length-c.in.asked, vipl.MaxTransferSize)
	lease, err := c.stack.regs.lease(b[:n], c.tag, c.landingAccess())
	if err != nil {
		return nil, c.fetchAhead()
	}
	l := &landing{lease: lease, n: n}
	if !c.fetch(l) {
		lease.end()
		return nil, nil
	}
	return l, nil
}

// settleTime is how long the peer may take to let go of memory of the program whose Read or Write wants to return.
const settleTime = 2 * time.Second

// finishDirect waits for the bytes that are on their way into the program's buffer, however long they take; after the
// deadline and after Close only for as long as the peer has to let go.
func (c *Conn) finishDirect(l *landing) int {
	for leave := false; ; {
		c.mu.Lock()
		done := l.done
		leave = leave || c.isClosed || c.noReads
		c.mu.Unlock()
		if done {
			break
		}
		if leave {
			c.settle(c.readable, &c.readSpin, l.n, func() bool { return l.done })
			break
		}
		leave = c.await(c.readable, &c.readDeadline, &c.readSpin, l.n) != nil
	}
	l.lease.end()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts.Received += uint64(l.came)
	return l.came
}

// settle waits until done, a condition under mu, is fulfilled. Where the peer does not do its part in time it breaks
// the connection, which fulfils it; not where it has, and this side was kept from looking. bytes are on their way.
func (c *Conn) settle(sig chan struct{}, p *spinner, bytes int, done func() bool) {
	past := &limit{signal: sig}
	past.set(time.Now().Add(settleTime))
	defer past.set(time.Time{})
	for {
		c.mu.Lock()
		ok := done()
		c.mu.Unlock()
		if ok {
			return
		}
		if c.await(sig, past, p, bytes) != nil {
			past.set(time.Time{})
			c.mu.Lock()
			if c.progressLocked(); !done() {
				c.fail(resetError(errSlow))
			}
			c.mu.Unlock()
		}
	}
}
