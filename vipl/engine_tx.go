package vipl

// Step 2 of the way of a message: segment. A message becomes frames of at most
// the path's MTU; each is built in a TX chunk, the payload copied in behind
// the headers, but for those that are longer (long.go). On a reliable VI the
// chunk is retained until the peer has the frame, so that the program may reuse
// its buffer as soon as the send is done.
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

// pump sends what c can send now: lost frames first, then in turns the answers
// to the peer's RDMA reads and the send queue, each in order. It returns false
// when the port itself can take no more.
func (p *port) pump(c *conn, now int64) bool {
	if !c.open {
		return true
	}
	if c.sender != nil && !p.resendLost(c, now) {
		return false
	}
	for c.open && (c.sender == nil || c.sender.Room() > 0) {
		answered := false
		if c.answers.waiting() && c.fits(c.answerPiece()) {
			if !p.sendAnswer(c, now) {
				return false
			}
			answered = true
			if c.open && c.sender.Room() == 0 {
				return true
			}
		}
		switch p.sendNext(c, now) {
		case sendFull:
			return false
		case sendNothing:
			if answered {
				continue
			}
			if c.open && c.closing && !c.closeSent {
				return p.sendClose(c, now)
			}
			return true
		}
	}
	return true
}

// What sendNext did.
type sendResult int

const (
	sentFrame   sendResult = iota // one frame, or a descriptor that needs none
	sendNothing                   // nothing can be sent now
	sendFull                      // the port is full; c comes up again
)

// sendNext sends the next frame of the send queue. There is room for it.
func (p *port) sendNext(c *conn, now int64) sendResult {
	v := c.vi
	q := &v.send
	e := q.waiting()
	if e == nil || c.closing {
		return sendNothing
	}
	if e.status.Failed() {
		return p.failSend(c, e, now)
	}
	if !e.begun && c.reads > 0 && (e.control&ControlQFence != 0 || e.op == StatusOpRDMARead && c.reads == maxReads) {
		return sendNothing // comes up again when a read is done
	}
	if c.sender != nil && c.packs && (c.holds() || q.current+1 != q.tail.Load()) && c.small(e) {
		return p.sendSmall(c, e, now)
	}
	ok := false
	if e.op == StatusOpRDMARead {
		ok = p.askRead(c, e, now)
	} else {
		if !e.begun {
			c.cut = c.frameFor()
		}
		n := min(c.cut, int(e.length-e.moved))
		if !c.fits(n) {
			return sendNothing // comes up again with an acknowledgement
		}
		ok = p.sendPiece(c, e, n, now)
	}
	if !ok {
		return sendFull
	}
	if !e.begun {
		e.begun, e.first = true, c.header.Seq
	}
	if e.moved == e.length || e.op == StatusOpRDMARead {
		p.sentLast(c, e)
	}
	return sentFrame
}

// sentLast notes that the descriptor at the head of the send queue is on the
// ring, up to the frame that went last.
func (p *port) sentLast(c *conn, e *posted) {
	e.last = c.header.Seq
	c.lent = c.lent || e.lent
	c.vi.send.current++
	p.handOver(c)
}

// handOver notes that descriptors of c are on the ring, which are done with the
// next doorbell unless they wait for the peer.
func (p *port) handOver(c *conn) {
	if c.vi.attrs.Level != ReliableReception && !c.inHanded {
		c.inHanded = true
		p.handed = append(p.handed, c)
	}
}

// failSend ends a descriptor that was wrong when posted, once those before it
// are complete. On a reliable VI that breaks the connection.
func (p *port) failSend(c *conn, e *posted, now int64) sendResult {
	v, q := c.vi, &c.vi.send
	if p.flush(); q.completed.Load() != q.current {
		return sendNothing
	}
	if c.sender != nil {
		p.tellBroken(c, wire.ReasonClosed, now)
		p.breakDown(c, broken{cause: errDescriptor})
		return sentFrame
	}
	q.current++
	p.complete(v, q, e, e.status)
	return sentFrame
}

// sendPiece builds and queues a frame of the next n bytes of a send or an RDMA
// write. False: the port is full; c comes up again.
func (p *port) sendPiece(c *conn, e *posted, n int, now int64) bool {
	if n > c.inChunk {
		return p.sendLong(c, e, n, now)
	}
	addr, chunk, ok := p.chunk(c)
	if !ok {
		return false
	}
	moved, seg, off := e.moved, e.seg, e.off
	b := c.template.Put(chunk, wire.HeaderLen+n)
	e.gather(b[wire.HeaderLen:])
	c.describe(e, moved)
	if !p.launch(c, addr, b, now) {
		e.moved, e.seg, e.off = moved, seg, off
		return false
	}
	return true
}

// describe makes the header say what the frame has of e: the bytes from offset
// from up to where e is now.
func (c *conn) describe(e *posted, from uint32) {
	h := &c.header
	h.Kind, h.Flags, h.Immediate = wire.KindData, 0, 0
	h.RemoteAddr, h.RemoteHandle = 0, 0
	if e.op == StatusOpRDMAWrite {
		h.Kind = wire.KindWrite
		to := e.asPosted.remote()
		h.RemoteAddr, h.RemoteHandle = to.Data+uint64(from), uint32(to.Handle)
	}
	if from == 0 {
		h.Flags = wire.FlagFirst
	}
	if e.moved == e.length {
		h.Flags |= wire.FlagLast
		if e.lent || c.vi.attrs.Level == ReliableReception {
			// The descriptor waits for it, and in a stream others come for it.
			if c.sender.Outstanding() < streamAfter {
				h.Flags |= wire.FlagAckSoon
			}
		}
		if e.control&ControlImmediate != 0 {
			h.Flags |= wire.FlagImmediate
			h.Immediate = e.imm
		}
	}
}

// chunk takes a chunk for a frame of data. False: there is none, or no ring
// entry; c comes up again.
func (p *port) chunk(c *conn) (addr uint64, chunk []byte, ok bool) {
	if p.nic.TxFree() > p.spare || p.nic.Reap() != 0 && p.nic.TxFree() > p.spare || p.kick() {
		addr, chunk, ok = p.nic.Alloc()
	}
	if !ok {
		p.enqueue(c)
	}
	return addr, chunk, ok
}

// launch queues the frame in b as the next in the sequence. c.header has its
// kind, flags and what belongs to the kind. With rings (sendAlone) the doorbell is
// rung before anything else. False: no ring entry; the chunk is given back, and c
// comes up again.
func (p *port) launch(c *conn, addr uint64, b []byte, now int64) bool {
	h := &c.header
	size := c.template.Len() + len(b)
	if c.sender != nil && c.asksAck(wire.Units(size+c.overhead)) {
		h.Flags |= wire.FlagAckNow
	}
	h.Seq = c.nextSeq()
	h.Length = uint16(len(b) - wire.HeaderLen)
	p.stamp(c)
	h.Put(b)
	c.putChecksum(b)
	if !p.send(c, addr, size, c.sender != nil) {
		p.nic.Release(addr)
		if now == rings {
			now = p.now()
		}
		p.notStamped(c, now)
		return false
	}
	if now == rings {
		p.ring()
		now = p.now()
		c.postedAt = now
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
	return p.nic.TxFree() > p.spare
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
	p.remember(c, addr<<tagShift|uint64(size), wire.Units(size+c.overhead), now)
}

// remember takes note of a frame of a reliable VI until it is acknowledged.
func (p *port) remember(c *conn, tag uint64, units int, now int64) {
	if c.sender.Idle() {
		c.moved = now
	}
	c.patience.dataGoes(now)
	c.sender.Send(now, tag, units)
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
	h.Ack = c.acked()
	if c.receiver.Held() == 0 { // else the peer also needs the ranges
		c.receiver.Acked()
		p.settle(c)
	}
}

// notStamped notes that a frame did not go which was stamped: what it would have
// acknowledged is still owed. c comes up again.
func (p *port) notStamped(c *conn, now int64) {
	if c.receiver != nil {
		p.owe(c, now)
	}
	p.enqueue(c)
}

// rings is no time: launch rings the doorbell and then looks at the clock.
const rings = 0

// alone says whether the message that c's program has just posted goes in one
// frame, and nothing else goes or waits: so that its doorbell need not wait for
// company either.
func (p *port) alone(c *conn) bool {
	q := &c.vi.send
	if q.current+1 != q.tail.Load() || !c.open || c.streaming && c.vi.recv.ready() || c.closing || c.sender != nil && !c.sender.Idle() ||
		c.reads > 0 || c.answers.waiting() || len(p.ready) > 0 || len(p.holding) > 0 || p.nic.Pending() > 0 {
		return false
	}
	e := q.at(q.current)
	return !e.status.Failed() && e.op != StatusOpRDMARead && int(e.length) <= c.inChunk && c.fits(int(e.length))
}

// sendAlone sends the message of which alone is true. The doorbell comes first, and
// behind it what takes time and is not needed for it: the clock, and what is noted of
// the frame, while it is under way. So it counts as sent when the kernel has it.
func (p *port) sendAlone(c *conn) {
	c.postedAt = rings
	p.idleAtPost.Store(p.idle.Load())
	p.pump(c, rings)
	now := c.postedAt
	if now == rings { // the port, or the window, has no room
		now = p.now()
		c.postedAt = now
	} else {
		p.lazy = true // not twice: a driver with a queue of its own takes the entry in its time
	}
	p.finish(now, false)
	p.lazy = false
	if c.streaming {
		c.rest(now)
	}
	c.dense = c.dense && c.streaming
	p.settleHanded()
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
	more |= wire.FlagAgain
	tag := c.sender.Tag(seq)
	var result resendResult
	if isLong(tag) {
		result = p.resendLong(c, &p.chains.sent[tag>>tagShift], more)
	} else {
		result = p.resendShort(c, tag>>tagShift, tag&tagMask, more)
	}
	switch result {
	case resent:
		c.sender.Resent(now, seq)
		p.timers.schedule(c, c.sender.Deadline())
		p.stats.Resent++
	case portFull:
		p.notStamped(c, now)
	}
	return result
}

func (p *port) resendShort(c *conn, addr, size uint64, more wire.Flags) resendResult {
	if p.nic.InFlight(addr) {
		if p.flush(); p.nic.InFlight(addr) {
			return notYet
		}
	}
	p.stamp(c)
	b := p.mem[addr+uint64(c.template.Len()) : addr+size]
	wire.Restamp(b, c.header.Ack, c.header.Window, more)
	c.putChecksum(b)
	if !p.send(c, addr, int(size), true) {
		return portFull
	}
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
	h.RemoteAddr, h.RemoteHandle = 0, 0
	if kind == wire.KindError {
		h.RemoteAddr = uint64(c.refusedPart)
	}
	h.Window = uint16(p.window)
	if h.Ack = 0; c.receiver != nil {
		h.Ack = c.acked()
	}
	h.Put(b)
	c.putChecksum(b)
	if !p.send(c, addr, c.template.Len()+len(b), false) {
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
	c.closeSent, c.closeSeq = true, h.Seq
	return true
}

// tellBroken tells the peer that this side has broken the connection, at most
// once in a while, since every frame that still comes asks for it.
func (p *port) tellBroken(c *conn, reason wire.Reason, now int64) {
	if c.toldAt != 0 && now-c.toldAt < int64(tellEvery) {
		return
	}
	seq := uint32(0)
	if c.refused != 0 {
		reason, seq = c.refused, c.refusedSeq // also when it is told again
	} else if c.receiver != nil {
		seq = c.receiver.Next() - 1
	}
	if p.control(c, wire.KindError, seq, uint32(reason)) {
		c.toldAt = now
	}
}
