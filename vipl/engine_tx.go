package vipl

// Step 2 of the way of a message: segment. A message becomes frames of at most
// the path's MTU; each is built in a TX chunk, the payload copied in behind
// the headers. On a reliable VI the chunk is retained until the peer has the
// frame, so that the program may reuse its buffer as soon as the send is done.
// Retransmissions, acknowledgements and the other small frames are here, too.

import (
	"viaxdp/reliable"
	"viaxdp/wire"
)

// A frame's tag in the reliable sender: address of its chunk and length.
const (
	tagShift = 16
	tagMask  = 1<<tagShift - 1
)

// pump sends what c can send now: lost frames first, then the send queue in
// order. It returns false when the port itself can take no more.
func (p *port) pump(c *conn, now int64) bool {
	if !c.open {
		return true
	}
	if c.sender != nil && !p.resendLost(c, now) {
		return false
	}
	v := c.vi
	q := &v.send
	for {
		e := q.waiting()
		if e == nil {
			break
		}
		if e.status.Failed() {
			if p.flush(); q.completed.Load() != q.current {
				return true // completes in order: earlier sends first
			}
			if c.sender != nil {
				p.tellBroken(c, wire.ReasonClosed, now)
				p.breakDown(c, errDescriptor, e.status)
				return true
			}
			q.current++
			p.complete(v, q, e, e.status)
			continue
		}
		if c.sender != nil && c.sender.Room() == 0 {
			return true
		}
		if !p.sendFrame(c, e, now) {
			return false
		}
		if e.moved < e.length {
			continue
		}
		e.last = c.header.Seq
		q.current++
		if v.attrs.Level != ReliableReception && !c.inHanded {
			c.inHanded = true
			p.handed = append(p.handed, c)
		}
	}
	if c.closing && !c.closeSent {
		return p.sendClose(c, now)
	}
	return true
}

// sendFrame builds and queues the next frame of e. The connection may send.
// False: no chunk or no ring entry; c comes up again.
func (p *port) sendFrame(c *conn, e *posted, now int64) bool {
	if p.nic.TxFree() <= controlSpare && p.nic.Reap() == 0 && !p.kick() {
		p.enqueue(c)
		return false
	}
	addr, chunk, ok := p.nic.Alloc()
	if !ok {
		p.enqueue(c)
		return false
	}
	moved, seg, off := e.moved, e.seg, e.off
	n := min(c.payload, int(e.length-e.moved))
	b := c.template.Put(chunk, wire.HeaderLen+n)
	h := &c.header
	h.Kind, h.Flags, h.Immediate = wire.KindData, 0, 0
	if moved == 0 {
		h.Flags = wire.FlagFirst
	}
	e.gather(b[wire.HeaderLen:])
	if e.moved == e.length {
		h.Flags |= wire.FlagLast
		if e.control&ControlImmediate != 0 {
			h.Flags |= wire.FlagImmediate
			h.Immediate = e.imm
		}
	}
	if c.sender != nil && c.sender.Room() == 1 {
		h.Flags |= wire.FlagAckNow // the window closes behind this frame
	}
	h.Seq = c.nextSeq()
	h.Length = uint16(n)
	p.stamp(c)
	h.Put(b)
	wire.Seal(b)
	size := c.template.Len() + len(b)
	if !p.nic.Send(addr, size, c.sender != nil) {
		e.moved, e.seg, e.off = moved, seg, off
		p.nic.Release(addr)
		p.enqueue(c)
		return false
	}
	c.sent(p, addr, size, now)
	if p.nic.Pending() >= kickBatch {
		p.flush()
	}
	return true
}

// kick makes the kernel take what is queued, so that chunks come back, and
// says whether data may have one.
func (p *port) kick() bool {
	p.flush()
	return p.nic.TxFree() > controlSpare
}

func (c *conn) nextSeq() uint32 {
	if c.sender != nil {
		return c.sender.Next()
	}
	return c.seq
}

// sent takes note of a frame that joined the TX ring with number header.Seq.
func (c *conn) sent(p *port, addr uint64, size int, now int64) {
	if c.sender == nil {
		c.seq++
		return
	}
	c.sender.Send(now, addr<<tagShift|uint64(size))
	p.timers.schedule(c, c.sender.Deadline())
}

// stamp fills in what every frame tells of our receiving side.
func (p *port) stamp(c *conn) {
	h := &c.header
	h.Window = uint16(p.window)
	if c.receiver == nil {
		h.Ack = 0
		return
	}
	h.Ack = c.receiver.Next()
	if c.receiver.Held() == 0 { // else the peer also needs the ranges
		c.receiver.Acked()
		p.settle(c)
	}
}

// resendLost sends again what was found lost. False: the port is full.
func (p *port) resendLost(c *conn, now int64) bool {
	for {
		seq, ok := c.sender.NextLost()
		if !ok {
			return true
		}
		switch p.resend(c, seq, now, 0) {
		case notYet:
			return true // the sender's timer comes again; others need not wait
		case portFull:
			p.enqueue(c)
			return false
		}
	}
}

// How a retransmission went.
type resendResult int

const (
	resent   resendResult = iota
	notYet                // the last transmission has not left yet
	portFull              // no ring entry
)

func (p *port) resend(c *conn, seq uint32, now int64, more wire.Flags) resendResult {
	tag := c.sender.Tag(seq)
	addr, size := tag>>tagShift, tag&tagMask
	if p.nic.InFlight(addr) {
		if p.flush(); p.nic.InFlight(addr) {
			return notYet
		}
	}
	p.stamp(c)
	b := p.mem[addr+uint64(c.template.Len()) : addr+size]
	wire.Restamp(b, c.header.Ack, c.header.Window, more)
	if !p.nic.Send(addr, int(size), true) {
		return portFull
	}
	c.sender.Resent(now, seq)
	p.timers.schedule(c, c.sender.Deadline())
	p.stats.Resent++
	return resent
}

// acknowledge sends an acknowledgement of its own, with the ranges of what
// came early.
func (p *port) acknowledge(c *conn) bool {
	if !p.control(c, wire.KindAck, 0, 0) {
		return false
	}
	p.stats.Acks++
	if c.receiver != nil {
		c.receiver.Acked()
	}
	p.settle(c)
	return true
}

// control sends a frame outside of the sequence. seq and imm are the kind's.
func (p *port) control(c *conn, kind wire.Kind, seq, imm uint32) bool {
	addr, chunk, ok := p.nic.Alloc()
	if !ok {
		if p.flush(); p.nic.TxFree() == 0 {
			return false
		}
		if addr, chunk, ok = p.nic.Alloc(); !ok {
			return false
		}
	}
	var ranges [wire.MaxAckRanges]reliable.Range
	n := 0
	if kind == wire.KindAck && c.receiver != nil && c.receiver.Held() > 0 {
		n = c.receiver.Ranges(ranges[:min(len(ranges), c.payload/wire.RangeLen)])
	}
	b := c.template.Put(chunk, wire.HeaderLen+n*wire.RangeLen)
	for i, r := range ranges[:n] {
		wire.PutRange(b[wire.HeaderLen+i*wire.RangeLen:], wire.AckRange(r))
	}
	h := &c.header
	h.Kind, h.Flags, h.Seq, h.Immediate, h.Length = kind, 0, seq, imm, uint16(n*wire.RangeLen)
	h.Window = uint16(p.window)
	if h.Ack = 0; c.receiver != nil {
		h.Ack = c.receiver.Next()
		if c.refused != 0 {
			h.Ack-- // the frame that broke the connection did not arrive
		}
	}
	h.Put(b)
	wire.Seal(b)
	if !p.nic.Send(addr, c.template.Len()+len(b), false) {
		p.nic.Release(addr)
		return false
	}
	return true
}

// sendClose sends the orderly end. On a reliable VI it takes its place in the
// sequence, so that the peer sees it after everything sent before, and is
// repeated like data; else it is sent a few times by Disconnect.
func (p *port) sendClose(c *conn, now int64) bool {
	if c.sender == nil {
		c.closeSent = true
		return p.control(c, wire.KindClose, c.seq, 0)
	}
	if c.sender.Room() == 0 {
		return true
	}
	addr, chunk, ok := p.nic.Alloc()
	if !ok {
		p.enqueue(c)
		return false
	}
	b := c.template.Put(chunk, wire.HeaderLen)
	h := &c.header
	h.Kind, h.Flags, h.Immediate, h.Length, h.Seq = wire.KindClose, wire.FlagAckNow, 0, 0, c.nextSeq()
	p.stamp(c)
	h.Put(b)
	wire.Seal(b)
	size := c.template.Len() + len(b)
	if !p.nic.Send(addr, size, true) {
		p.nic.Release(addr)
		p.enqueue(c)
		return false
	}
	c.closeSent, c.closeSeq = true, h.Seq
	c.sent(p, addr, size, now)
	return true
}

// tellBroken tells the peer that this side has broken the connection, at most
// once in a while, since every frame that still comes asks for it.
func (p *port) tellBroken(c *conn, reason wire.Reason, now int64) {
	if c.toldAt != 0 && now-c.toldAt < int64(tellEvery) {
		return
	}
	seq := uint32(0)
	if c.receiver != nil {
		seq = c.receiver.Next() - 1
	}
	if c.refused != 0 {
		reason = c.refused // also when it is told again
	}
	if p.control(c, wire.KindError, seq, uint32(reason)) {
		c.toldAt = now
	}
}
