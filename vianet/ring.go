package vianet

import (
	"viaxdp/vipl"
)

// A transfer takes two round trips, or one where it is written, in which nothing else moves, and buffers hold 80 KiB
// of a round trip. So the receiver of Writes of medium length names memory ahead, a ring, and those that follow are
// written there at once: each is as good as a data message, only longer.
//
//	receiver                                 sender
//	room(0): so many bytes from there on  -->
//	                                     <--  RDMA writes, filled(0): so many
//	room(0): half of the ring is read     -->
//
// Bytes lie in the ring in the order of the stream. The sender does not write across its end, and what was read is
// given back when it is half of the ring. A filled takes one of the data buffers, and there are two rooms under way
// at most. A data message of such a Write says that it would rather go there.
const (
	ringSize  = 256 << 10
	ringMost  = ringSize / 2 // bytes of a Write that goes there
	ringLeast = 16 << 10     // likewise: of less a doorbell a message is no more than one a Write
	ringAfter = ringSize / 2 // bytes of such Writes after which there is one; a transfer is half of them
	ringID    = 0            // in the place of a transfer's
	ringWish  = 1            // likewise, of a data message
	maxRings  = 64           // of a stack
)

// ring is memory of this side that the peer writes to. The lock of the connection guards it.
type ring struct {
	lease *lease // nil: none
	past  int    // bytes that would have gone through it
	at    int    // where the next bytes come
	open  int    // how many the peer may write
	freed int    // how many were read since it has been told
	last  int    // how many came last: as many may be on their way
}

// peerRing is that of the peer.
type peerRing struct {
	room vipl.AddressSegment // its first byte
	size int                 // 0: none
	at   int                 // where the next bytes go
	free int                 // how many there is room for
}

// wantRing notes n bytes of a Write that would go through a ring. After some it is to be named. Under mu.
func (c *Conn) wantRing(n int) {
	r := &c.ring
	if r.lease != nil {
		return
	}
	if r.past += n; r.past < ringAfter {
		return
	}
	r.past = 0 // if there is none now, then after as many
	if c.stack.rings.Add(1) > maxRings {
		c.stack.rings.Add(-1)
		return
	}
	lease, err := c.stack.regs.ring(c.tag)
	if err != nil {
		c.stack.rings.Add(-1)
		return // it goes on without
	}
	r.lease, r.freed, c.due.ring = lease, ringSize, true
}

// endRing gives the ring back.
func (c *Conn) endRing() {
	if c.ring.lease != nil {
		c.ring.lease.region.Deregister()
		c.ring.lease = nil
		c.stack.rings.Add(-1)
	}
}

// pushRing names the ring, or says how much of it was read.
func (c *Conn) pushRing() bool {
	if !c.due.ring {
		return true
	}
	r := &c.ring
	at := r.lease.remote()
	if !c.control(&c.due.ring, header{kind: kindRoom, id: ringID, length: uint32(r.freed), handle: at.Handle, addr: at.Data}) {
		return false
	}
	r.open += r.freed
	r.freed = 0
	return true
}

// takeRing takes note of the peer's ring, or of room in it.
func (c *Conn) takeRing(h *header) error {
	r, at, n := &c.peerRing, vipl.AddressSegment{Data: h.addr, Handle: h.handle}, int64(h.length)
	if r.size == 0 {
		r.room, r.size = at, int(n)
	}
	if at != r.room || n > int64(r.size-r.free) {
		return errTransfer
	}
	r.free += int(n)
	raise(c.writable)
	return nil
}

// takeInRing takes bytes that the peer has written to the ring, of which the message in buffer i tells.
func (c *Conn) takeInRing(h *header, i int) error {
	r, n := &c.ring, int64(h.length)
	switch {
	case c.held+len(c.spent) >= c.dataBuffers():
		return errOverrun
	case c.fin || c.in.open:
		return errOrder
	case n > int64(r.open) || n > int64(ringSize-r.at):
		return errTransfer
	}
	c.spent = append(c.spent, i)
	c.queue.add(segment{data: r.lease.buf[r.at : r.at+int(n)], ring: int(n)})
	r.at = (r.at + int(n)) % ringSize
	r.open -= int(n)
	r.last = int(n)
	raise(c.readable)
	return nil
}

// readFromRing notes that n bytes of the ring were read.
func (c *Conn) readFromRing(n int) {
	c.ring.freed += n
	c.due.ring = c.due.ring || c.ring.freed >= ringSize/2
}

// suitsRing says whether a Write of n bytes would rather go through a ring.
func (s *Stack) suitsRing(n int) bool {
	t := s.o.Threshold
	return t >= 0 && n > min(t, ringLeast-1) && n <= ringMost
}

// ringTakes says whether a Write of n bytes goes through the peer's ring, which may be a short one.
func (c *Conn) ringTakes(n int) bool {
	if !c.stack.suitsRing(n) {
		return false // without the lock: most Writes are short
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return n <= c.peerRing.size/2
}

// writeRing writes b to the peer's ring. It returns when the NIC has all of it, although the peer may not.
func (c *Conn) writeRing(b []byte) (n int, err error) {
	if err := c.flushed(true); err != nil {
		return 0, err
	}
	lease, err := c.stack.regs.lease(b, c.tag, closed)
	if err != nil {
		return c.writeSmall(b)
	}
	defer lease.end()
	byRef := c.stack.byReference(b)
	over := func() bool { return c.out.flight == 0 }
	err = c.until(func() (bool, error) {
		if err := c.writeError(); err != nil {
			return false, err
		}
		for n < len(b) {
			k := c.putInRing(lease, n)
			if n += k; k == 0 {
				break
			}
		}
		c.push()
		return n == len(b) && over(), nil
	})
	if err != nil {
		c.settle(c.writable, &c.writeSpin, len(b), over)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if n == len(b) && c.err == nil {
		err = nil // in time after all
	}
	if byRef {
		c.counts.ByReference.count(n)
	}
	return n, err
}

// putInRing writes what there is room for of a lease, from offset off on. It returns how many bytes that were. Under
// mu.
func (c *Conn) putInRing(l *lease, off int) int {
	r := &c.peerRing
	n := min(len(l.buf)-off, r.free, r.size-r.at, vipl.MaxTransferSize)
	if c.stalled = n == 0 || c.credits == 0; c.stalled || c.down {
		return 0
	}
	if len(c.pool.free) < 2 {
		c.push() // takes the sends that are done
	}
	if c.slotShort = len(c.pool.free) < 2; c.slotShort {
		return 0
	}
	i, _ := c.pool.take()
	to := r.room
	to.Data += uint64(r.at)
	if c.pool.postWrite(i, to, l, off, n) != nil {
		c.pool.free = append(c.pool.free, i)
		c.lost()
		return 0
	}
	c.out.flight++
	c.credits--
	r.at = (r.at + n) % r.size
	r.free -= n
	c.counts.Ring.count(n)
	i, _ = c.pool.take()
	c.send(i, headerLen, header{kind: kindFilled, id: ringID, length: uint32(n)})
	return n
}
