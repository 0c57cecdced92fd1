package vipl

// Step 2 of the path of a message: segment. A message becomes frames of at most the path's MTU. Each frame is built
// in a TX chunk, with the payload copied in behind the headers; long.go has the longer frames. On a reliable VI the
// chunk is retained until the peer has acknowledged the frame, so that the program may reuse its buffer as soon as
// the send is done. Retransmissions, acknowledgements and other control frames are here, too.

import (
	"viaxdp/internal/base/reliable"
	"viaxdp/internal/base/wire"
)

// A frame's tag in the reliable sender: the address of its chunk, and its length.
const (
	tagShift = 16
	tagMask  = 1<<tagShift - 1
)

// pump sends what c can send now: lost frames first, then alternately the answers to the peer's RDMA reads and the
// send queue, each in order. It returns false if the port has no room for more.
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

// sendResult is what sendNext did.
type sendResult int

const (
	sentFrame   sendResult = iota // one frame, or a descriptor that needs none
	sendNothing                   // nothing can be sent now
	sendFull                      // the port is full; c is tried again
)

// sendNext sends the next frame of the send queue. The sender has room for it.
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
		return sendNothing // retried when a read is done
	}
	if c.sender != nil && c.packs && (c.coalesces() || q.current+1 != q.tail.Load()) && c.small(e) {
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
			return sendNothing // retried after an acknowledgement
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

// sentLast records that all of the descriptor at the head of the send queue is on the ring. Its last frame is the
// one that was just sent.
func (p *port) sentLast(c *conn, e *posted) {
	e.last = c.header.Seq
	c.byRef = c.byRef || e.byRef
	c.vi.send.current++
	p.handOver(c)
}

// handOver records that descriptors of c are on the ring. They are done with the next doorbell, unless they wait
// for the peer.
func (p *port) handOver(c *conn) {
	if c.vi.attrs.Level != ReliableReception && !c.inHanded {
		c.inHanded = true
		p.handed = append(p.handed, c)
	}
}

// failSend ends a descriptor that was wrong when posted, once those before it are complete. On a reliable VI that
// breaks the connection.
func (p *port) failSend(c *conn, e *posted, now int64) sendResult {
	v, q := c.vi, &c.vi.send
	if p.flush(); q.completed.Load() != q.current {
		return sendNothing
	}
	if c.sender != nil {
		p.sendReset(c, wire.ReasonClosed, now)
		p.teardown(c, broken{cause: errDescriptor})
		return sentFrame
	}
	q.current++
	p.complete(v, q, e, e.status)
	return sentFrame
}

// sendPiece builds and queues a frame of the next n bytes of a send or an RDMA write. False: the port is full; c is
// tried again.
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

// describe fills in the header for the part of e that the frame carries: the bytes from offset from to e's current
// position.
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
		if e.byRef || c.vi.attrs.Level == ReliableReception {
			// The descriptor waits for the acknowledgement. In a stream others are sent that cover it.
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

// leaves returns how many chunks must stay free after c has taken one. Each connection has its share. It may exceed
// the share while half of all chunks are free, so that a peer that acknowledges nothing does not starve other
// connections.
func (p *port) leaves(c *conn) int {
	if c.chunks < p.txShare {
		return p.spare
	}
	return max(p.spare, p.txChunks/2)
}

// chunk allocates a chunk for a frame of data. False: c may take no more, or the ring is full; c is tried again.
func (p *port) chunk(c *conn) (addr uint64, chunk []byte, ok bool) {
	least := p.leaves(c)
	if p.nic.TxFree() > least || p.nic.Reap() != 0 && p.nic.TxFree() > least || p.kick(least) {
		addr, chunk, ok = p.nic.Alloc()
	}
	if !ok {
		p.enqueue(c)
	}
	return addr, chunk, ok
}

// launch queues the frame in b as the next in the sequence. c.header has its kind, its flags and the fields of the
// kind. If now is rings (see sendAlone), the doorbell is rung before anything else. False: the ring is full; the
// chunk is given back, and c is tried again.
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

// kick makes the kernel take the queued frames, so that chunks are completed, and reports whether more than least
// are free.
func (p *port) kick(least int) bool {
	p.flush()
	return p.nic.TxFree() > least
}

func (c *conn) nextSeq() uint32 {
	if c.sender != nil {
		return c.sender.Next()
	}
	return c.seq
}

// sent records a frame that was queued on the TX ring with number header.Seq.
func (c *conn) sent(p *port, addr uint64, size int, now int64) {
	if c.sender == nil {
		c.seq++
		return
	}
	c.chunks++
	p.remember(c, addr<<tagShift|uint64(size), wire.Units(size+c.overhead), now)
}

// remember records a frame of a reliable VI until it is acknowledged.
func (p *port) remember(c *conn, tag uint64, units int, now int64) {
	if c.sender.Idle() {
		c.moved = now
	}
	c.ackDelay.dataGoes(now)
	c.sender.Send(now, tag, units)
	p.timers.schedule(c, c.sender.Deadline())
}

// stamp fills in the fields that every frame has about this side's receiver: window and acknowledgement.
func (p *port) stamp(c *conn) {
	h := &c.header
	h.Window = uint16(p.window)
	if c.receiver == nil {
		h.Ack = 0
		return
	}
	h.Ack = c.acked()
	if c.receiver.Buffered() == 0 { // else the peer also needs the ranges
		c.receiver.Acked()
		p.settle(c)
	}
}

// notStamped records that a stamped frame was not sent: the acknowledgement in it is still owed. c is tried again.
func (p *port) notStamped(c *conn, now int64) {
	if c.receiver != nil {
		p.oweAck(c, now)
	}
	p.enqueue(c)
}

// rings in place of a time tells launch to ring the doorbell first and then to read the clock.
const rings = 0

// alone reports whether the message that c's program has just posted fits in one frame and nothing else is being
// sent or waits. Its doorbell is then rung at once.
func (p *port) alone(c *conn) bool {
	q := &c.vi.send
	if q.current+1 != q.tail.Load() || !c.open || c.inStream && c.vi.recv.ready() || c.closing || c.sender != nil && !c.sender.Idle() ||
		c.reads > 0 || c.answers.waiting() || len(p.ready) > 0 || len(p.coalescing) > 0 || p.nic.Pending() > 0 {
		return false
	}
	e := q.at(q.current)
	return !e.status.Failed() && e.op != StatusOpRDMARead && int(e.length) <= c.inChunk && c.fits(int(e.length))
}

// sendAlone sends the message for which alone is true. It rings the doorbell first. What the doorbell does not need
// comes after it, while the frame is under way: reading the clock, and recording the frame. So the frame's send
// time is the time at which the kernel has it.
func (p *port) sendAlone(c *conn) {
	c.postedAt = rings
	p.idleAtPost.Store(p.idle.Load())
	p.pump(c, rings)
	now := c.postedAt
	if now == rings { // the port or the window has no room
		now = p.now()
		c.postedAt = now
	} else {
		p.lazy = true // the doorbell was rung; a driver in zero-copy mode takes the entry in its own time
	}
	p.finish(now, false)
	p.lazy = false
	if c.inStream {
		c.endStream(now)
	}
	c.backToBack = c.backToBack && c.inStream
	p.settleHanded()
}

// resendLost retransmits lost frames. False: the port is full.
func (p *port) resendLost(c *conn, now int64) bool {
	for {
		seq, ok := c.sender.NextLost()
		if !ok {
			return true
		}
		switch p.resend(c, seq, now, 0) {
		case notYet:
			return true // the sender's timer tries again; other connections need not wait
		case portFull:
			return false
		}
	}
}

// resendResult is how a retransmission went.
type resendResult int

const (
	resent   resendResult = iota
	notYet                // the last transmission has not completed yet
	portFull              // the ring is full
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
	if c.loop && p.onLoop(c, addr) != nil {
		return notYet
	}
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
	c.resentLoop = c.loop
	return resent
}

// acknowledge sends a bare acknowledgement, with the ranges of frames that arrived out of order.
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

// control sends a frame outside of the sequence. The meaning of seq and imm depends on the kind.
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
	if kind == wire.KindAck && c.receiver != nil && c.receiver.Buffered() > 0 {
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

// sendClose sends the orderly end. On a reliable VI it has a number in the sequence: the peer sees it after
// everything sent before, and it is retransmitted like data. On an unreliable VI Disconnect repeats it.
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

// sendReset tells the peer that this side has broken the connection. It does so at most once per resetEvery, since
// every frame that still arrives asks for it.
func (p *port) sendReset(c *conn, reason wire.Reason, now int64) {
	if c.resetAt != 0 && now-c.resetAt < int64(resetEvery) || c.unproven() {
		return
	}
	seq := uint32(0)
	if c.refused != 0 {
		reason, seq = c.refused, c.refusedSeq // also if it is repeated
	} else if c.receiver != nil {
		seq = c.receiver.Next() - 1
	}
	if p.control(c, wire.KindError, seq, uint32(reason)) {
		c.resetAt = now
	}
}
