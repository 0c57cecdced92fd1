package vianet

import (
	"net"
	"os"

	"viaxdp/vipl"
)

// The send path:
//
//  1. Write takes the bytes, up to all of them, by one of three ways: writeRing, if the peer has named a ring and
//     they suit it; writeSmall, up to Options.Threshold; else writeLarge.
//  2. writeSmall fills a send buffer (add); pushData sends it as a data message if the peer has room, else it stays,
//     and later bytes join it.
//  3. writeLarge registers the bytes and announces them (offer), to be read by the peer, or asks where to write
//     them. The peer's room is written (pushWrites), its taken ends the transfer (takeTaken).
//  4. writeRing writes to the ring (putInRing). Immediate data of the RDMA write tells the peer (write, in session.go).
//     In a stream the end of the bytes may wait for the next Write (tail).
//
// A Write that has to wait does so in until; session.go sends what is due and takes what comes.

// maxTransfer is the length of the longest transfer in bytes.
const maxTransfer = 1 << 30

// Write writes b and returns when all of it has been taken over: by the NIC, by memory of the connection or, in a
// transfer, by the peer.
//
// Errors are [*net.OpError]: a deadline, Close or CloseWrite, a connection that broke (ECONNRESET), a peer that reads no
// more or has closed (ECONNRESET and [ErrReadClosed]). n is then how many bytes the peer gets, if it gets anything. If the connection
// broke during a transfer, the peer may have read more.
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

// writeError is why nothing can be written. Under mu.
func (c *Conn) writeError() error {
	switch {
	case c.noWrites:
		return net.ErrClosed
	case c.writeDeadline.passed():
		return os.ErrDeadlineExceeded
	case c.err == nil && c.unheard:
		return resetError(ErrReadClosed)
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
		if later && !c.stack.spinning.Load() { // the poller may have ended before
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
		if !c.sendsTail() {
			return false, c.writeError()
		}
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

// add puts bytes into the buffer that is being filled and sends it, if it may be sent. It returns how many fit.
// Under mu.
func (c *Conn) add(b []byte) (n int) {
	if c.fill < 0 {
		i, ok := c.pool.take()
		if !ok {
			c.push() // takes the sends that are done
			i, ok = c.pool.take()
		}
		if c.slotShort = !ok; !ok {
			c.push() // makes progress check completions of sends
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
		if all && !c.emptied() {
			c.urge()
		}
		c.push()
		return !all || c.emptied(), nil
	})
}

// pushData sends the buffer that is being filled, if the peer has room for it.
func (c *Conn) pushData() bool {
	if c.emptied() || c.down {
		return true
	}
	if c.credits == 0 {
		c.stalled = true
		return true
	}
	if c.waitsForMore() {
		return true
	}
	i, n := c.fill, c.filled
	c.fill, c.nagle.urged = -1, false
	c.credits--
	h := header{kind: kindData, length: uint32(n - headerLen)}
	if c.wish {
		h.id = ringWish
	}
	c.counts.Messages.count(n - headerLen)
	c.send(i, n, h)
	raise(c.writable)
	return true
}

// emptied reports whether no bytes wait to be sent by messages.
func (c *Conn) emptied() bool { return c.fill < 0 || c.filled == headerLen }

// writeLarge has the peer get b by RDMA.
func (c *Conn) writeLarge(b []byte) (int, error) {
	if err := c.flushed(true); err != nil {
		return 0, err
	}
	if err := c.until(func() (bool, error) { return c.sendsTail() && c.out.flight == 0, c.writeError() }); err != nil {
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
		c.awaitRelease(c.writable, &c.writeSpin, len(b), over)
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
	if c.out.moved == len(b) && (read || !c.unsent) {
		return len(b), nil // in time after all
	}
	if err == nil {
		err = c.err
	}
	return c.out.moved, err
}

// outgoing is the transfer of a Write. The lock of the connection guards it.
type outgoing struct {
	open   bool
	read   bool   // the peer reads it, and is not written to
	id     uint32 // of this transfer or, when it is over, of the last one
	lease  *lease
	at     vipl.AddressSegment // read mode: where the peer finds it
	length int
	moved  int  // bytes that the peer has read, or that were written to its rooms
	ended  bool // the peer has been asked for no more
	flight int  // RDMA writes under way

	room    vipl.AddressSegment // write mode: where the next bytes go
	roomLen int                 // 0: nowhere
}

// over reports whether the transfer is at its end, and its memory not in use.
func (o *outgoing) over() bool { return !o.open && o.flight == 0 }

// offer begins a transfer of what l names.
func (c *Conn) offer(l *lease, read bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.writeError(); err != nil {
		return err
	}
	c.out = outgoing{open: true, read: read, id: max(c.out.id+1, 1), lease: l, at: l.remote(), length: len(l.buf)}
	c.due.announce, c.due.ask = read, !read
	c.push()
	return nil
}

// withdraw ends the transfer from this side: the peer is not to ask for more of it.
func (c *Conn) withdraw() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.out.open && !c.out.ended {
		c.out.ended, c.due.withdraw = true, true
		c.push()
	}
}

// takeRoom records where the peer wants the next bytes. It ignores a room that crosses the withdraw of its transfer.
func (c *Conn) takeRoom(h *header) error {
	o := &c.out
	if o.read || !o.open || c.due.ask || h.id != o.id || o.roomLen > 0 || int64(h.length) > int64(o.length-o.moved) {
		return errTransfer
	}
	if !o.ended {
		o.room, o.roomLen = vipl.AddressSegment{Data: h.addr, Handle: h.handle}, int(h.length)
	}
	return nil
}

// takeTaken handles a taken message: the transfer is over.
func (c *Conn) takeTaken(h *header) error {
	o := &c.out
	n := int64(h.length)
	if !o.open || c.due.announce || h.id != o.id ||
		o.read && (n > int64(o.length) || n < int64(o.length) && !o.ended) ||
		!o.read && (n != int64(o.moved) || !o.ended) {
		return errTransfer
	}
	o.moved = int(n)
	c.endTransfer()
	return nil
}

// endTransfer ends the transfer of the Write that waits for it.
func (c *Conn) endTransfer() {
	c.out.open, c.out.roomLen, c.due.withdraw = false, 0, false
	raise(c.writable)
}

// pushTransfer sends what is due of the transfer. False: no buffer is free.
func (c *Conn) pushTransfer() bool {
	o, d := &c.out, &c.due
	return c.control(&d.announce, header{
		kind: kindAnnounce, id: o.id, length: uint32(o.length), handle: o.at.Handle, addr: o.at.Data,
	}) &&
		c.control(&d.ask, header{kind: kindAsk, id: o.id, length: uint32(o.length)}) &&
		c.pushWrites() &&
		c.control(&d.withdraw, header{kind: kindWithdraw, id: o.id})
}

// pushWrites fills the room that the peer has given. False: no buffer is free.
func (c *Conn) pushWrites() bool {
	o := &c.out
	if o.roomLen == 0 {
		return true
	}
	i, ok := c.pool.take()
	if !ok {
		return false
	}
	if !c.write(i, o.id, o.room, o.lease.segment(o.moved, o.roomLen)) {
		return true
	}
	o.moved += o.roomLen
	if o.roomLen = 0; o.moved == o.length {
		c.endTransfer()
	}
	c.restock()
	return true
}

// peerRing is the ring of the peer, which this side writes to. read.go has the picture, and the sizes.
type peerRing struct {
	room   vipl.AddressSegment // its first byte
	size   int                 // 0: none
	at     int                 // where the next bytes go
	free   int                 // how many there is room for
	packet int                 // how many leave in one packet; 0: those of each frame
}

// suitsRing reports whether a Write of n bytes suits a ring.
func (s *Stack) suitsRing(n int) bool {
	t := s.o.Threshold
	return t >= 0 && n > min(t, ringLeast-1) && n <= ringMost
}

// ringTakes reports whether a Write of n bytes goes through the peer's ring, which may be shorter than this side's.
func (c *Conn) ringTakes(n int) bool {
	if !c.stack.suitsRing(n) {
		return false // without the lock: most Writes are short
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return n <= c.peerRing.size/2
}

// tail is the end of a Write to the ring that does not fill a GSO packet. In a stream it waits for the next Write, and
// both leave by one RDMA write: a short packet costs nearly as much as a full one. It waits only while the peer has
// ringPart or more to give back, which it does at the latest when a Read finds nothing, and until this side reads. The
// lock of the connection guards it.
type tail struct {
	lease  *lease // where it waits; nil: there is no ring, or no packets leave
	off, n int    // what waits
	urged  bool   // it waits no more
	stream bool   // nothing was read since the last Write to the ring
}

// endTail gives the tail's memory back.
func (c *Conn) endTail() {
	if t := &c.tail; t.lease != nil {
		t.lease.region.Deregister()
		t.lease, t.n = nil, 0
	}
}

// hold adds b, for which there is room. No RDMA write is under way.
func (t *tail) hold(b []byte) {
	copy(t.lease.buf, t.lease.buf[t.off:t.off+t.n])
	t.off = 0
	t.n += copy(t.lease.buf[t.n:], b)
}

// mayHold reports whether what does not fill a packet may wait.
func (c *Conn) mayHold() bool {
	r := &c.peerRing
	return c.tail.lease != nil && r.size-r.free >= ringPart(r.size) && !c.tail.urged && !c.due.fin
}

// pushTail sends what has waited, if it waits no more. False: no buffer is free.
func (c *Conn) pushTail() bool {
	for c.tail.n > 0 && !c.mayHold() {
		if c.putInRing(vipl.DataSegment{}, false) == 0 {
			return !c.slotShort
		}
	}
	return true
}

// sendsTail sends what has waited, and reports whether nothing is left of it. Under mu.
func (c *Conn) sendsTail() bool {
	if c.tail.n > 0 {
		c.tail.urged = true
		c.push()
	}
	return c.tail.n == 0
}

// writeRing writes b to the peer's ring. It returns when the NIC has all of it but a tail that waits, possibly before
// the peer has.
func (c *Conn) writeRing(b []byte) (n int, err error) {
	if err := c.flushed(true); err != nil {
		return 0, err
	}
	lease, err := c.stack.regs.lease(b, c.tag, copied)
	if err != nil {
		return c.writeSmall(b)
	}
	defer lease.end()
	over := func() bool { return c.out.flight == 0 }
	begun, stream := false, false
	err = c.until(func() (bool, error) {
		if err := c.writeError(); err != nil {
			return false, err
		}
		if !begun { // in a stream the peer has much to read before this Write
			begun, stream = true, c.tail.stream && c.mayHold()
			c.tail.stream = true
		}
		for n < len(b) {
			if len(c.pool.free) == 0 {
				c.push() // takes the sends that are done
			}
			waited := c.tail.n
			k := c.putInRing(lease.segment(n, len(b)-n), stream)
			if k == 0 {
				break
			}
			n += k - (waited - c.tail.n)
		}
		c.push()
		if left := len(b) - n; left > 0 && over() && stream && c.mayHold() && c.tail.n+left < c.peerRing.packet {
			c.tail.hold(b[n:])
			n = len(b)
		}
		return n == len(b) && over(), nil
	})
	if err != nil {
		c.awaitRelease(c.writable, &c.writeSpin, len(b), over)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if n == len(b) && c.err == nil {
		err = nil // in time after all
	}
	return n, err
}

// putInRing writes the tail and then what b names, as far as there is room; if whole, only full packets while the rest
// of it may wait. It returns how many bytes that were. Under mu.
func (c *Conn) putInRing(b vipl.DataSegment, whole bool) int {
	r, t := &c.peerRing, &c.tail
	n := t.n + int(b.Length)
	if whole && c.mayHold() {
		n -= n % r.packet
	}
	if n == 0 {
		return 0
	}
	n = min(n, r.free, r.size-r.at, vipl.MaxTransferSize)
	if c.stalled = n == 0 || c.credits == 0; c.stalled || c.down {
		return 0
	}
	i, ok := c.pool.take()
	if c.slotShort = !ok; !ok {
		return 0
	}
	var segs [2]vipl.DataSegment
	waited, k := min(t.n, n), 0
	if waited > 0 {
		segs[0], k = t.lease.segment(t.off, waited), 1
	}
	if waited < n {
		b.Length = uint32(n - waited)
		segs[k], k = b, k+1
	}
	to := r.room
	to.Data += uint64(r.at)
	if !c.write(i, ringID, to, segs[:k]...) {
		return 0
	}
	c.credits--
	r.at = (r.at + n) % r.size
	r.free -= n
	if t.off, t.n = t.off+waited, t.n-waited; t.n == 0 {
		t.off, t.urged = 0, false
	}
	c.counts.Ring.count(n)
	c.restock()
	return n
}

// takeRing records the peer's ring, or room in it.
func (c *Conn) takeRing(h *header) error {
	r, at, n := &c.peerRing, vipl.AddressSegment{Data: h.addr, Handle: h.handle}, int64(h.length)
	if r.size == 0 {
		r.room, r.size = at, int(n)
		c.prepareTail()
	}
	if at != r.room || n > int64(r.size-r.free) {
		return errTransfer
	}
	r.free += int(n)
	raise(c.writable)
	return nil
}

// prepareTail allocates memory for tails, if the path carries packets.
func (c *Conn) prepareTail() {
	n := c.packet()
	if n == 0 {
		return
	}
	if lease, err := c.stack.regs.heap(c.tag, n, closed); err == nil {
		c.tail.lease, c.peerRing.packet = lease, n
	}
}

// packet returns how many bytes leave in one GSO packet; 0: each frame leaves by itself.
func (c *Conn) packet() int {
	s, err := c.vi.Query()
	if err != nil {
		return 0
	}
	return s.MaxPacket
}
