package vianet

import (
	"viaxdp/vipl"
)

// outgoing is the transfer of a Write. The lock of the connection guards it.
type outgoing struct {
	open   bool
	read   bool   // the peer reads it, and is not written to
	id     uint32 // of this transfer or, when it is over, of the last one
	lease  *lease
	at     vipl.AddressSegment // read mode: where the peer finds it
	length int
	moved  int  // bytes that the peer has read, or has been told that they are written
	ended  bool // the peer has been asked for no more
	flight int  // RDMA writes under way

	room    vipl.AddressSegment // write mode: where the next bytes go
	roomLen int                 // 0: nowhere
	written int                 // bytes of the room that have been written
}

// over says whether the transfer is at its end, and its memory not in use.
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

// withdraw tells the peer that there is no more of the transfer.
func (c *Conn) withdraw() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.out.open && !c.out.ended {
		c.out.ended, c.due.withdraw = true, true
		c.push()
	}
}

// takeRoom takes note of where the peer wants the next bytes. If it does not know yet that there are no more it will
// soon.
func (c *Conn) takeRoom(h *header) error {
	o := &c.out
	if o.read || !o.open || c.due.ask || h.id != o.id || o.roomLen > 0 || int64(h.length) > int64(o.length-o.moved) {
		return errTransfer
	}
	if !o.ended {
		o.room, o.roomLen, o.written = vipl.AddressSegment{Data: h.addr, Handle: h.handle}, int(h.length), 0
	}
	return nil
}

// takeTaken takes note that the transfer is over.
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

// pushWrites writes to the room that the peer has given, and says so.
func (c *Conn) pushWrites() bool {
	o := &c.out
	for o.written < o.roomLen {
		i, ok := c.pool.take()
		if !ok {
			return false
		}
		n := min(o.roomLen-o.written, vipl.MaxTransferSize)
		to := o.room
		to.Data += uint64(o.written)
		if c.pool.postWrite(i, to, o.lease, o.moved+o.written, n) != nil {
			c.pool.free = append(c.pool.free, i)
			c.lost()
			return true
		}
		o.flight++
		o.written += n
	}
	if o.roomLen == 0 {
		return true
	}
	due := true
	if !c.control(&due, header{kind: kindFilled, id: o.id, length: uint32(o.roomLen)}) {
		return false
	}
	o.moved += o.roomLen
	if o.roomLen = 0; o.moved == o.length {
		c.endTransfer()
	}
	return true
}
