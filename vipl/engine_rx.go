package vipl

// Steps 7 to 9 of the way of a message: sequence, place, complete.

import (
	"errors"
	"time"

	"viaxdp/reliable"
	"viaxdp/wire"
	"viaxdp/xdpnic"
)

const tellEvery = time.Millisecond

// ErrPeerClosed is the Cause of a VI in Error whose peer has disconnected it.
var ErrPeerClosed = errors.New("the peer disconnected")

// Causes of a broken connection.
var (
	errPeerSilent = errors.New("the peer went silent")
	// Connection management goes another way, through the kernel.
	errPeerUnheard = errors.New("no frame of the peer has come since the connection was made: they are lost on the way, or come in on " +
		"another queue than this NIC's (the demux counter queue): see Info().Notes, and open both NICs on the queues that meet")
	errUnheard    = errors.New("the peer is there, has heard nothing of this side for its silence, and ended the connection: frames are lost on the way there")
	errNoWay      = errors.New("the peer is there, and frames do not reach it: a smaller MTU on the way?")
	errTooSmall   = errors.New("the interface's MTU is smaller now than what the connection's frames need: connect again")
	errPeerBroke  = errors.New("the peer broke the connection")
	errRecvEmpty  = errors.New("a message met an empty receive queue")
	errFrameLost  = errors.New("a frame of it was lost")
	errGone       = errors.New("the interface is gone")
	errMoved      = errors.New("the interface does not have the address any more that the connection comes from: connect again")
	errTooLong    = errors.New("a message was longer than its receive descriptor")
	errProtocol   = errors.New("the peer's frames do not make messages")
	errDescriptor = errors.New("a descriptor was wrong")
)

// receive takes one frame. It returns true when the engine keeps its chunks.
func (p *port) receive(frame []xdpnic.Frame, now int64) (kept bool) {
	p.stats.Frames++
	pkt := &p.pkt
	if len(frame) > 1 {
		p.stats.Chained++
	}
	if err := p.chains.decode(pkt, frame); err != nil {
		p.stats.count(err)
		return false
	}
	i := int(pkt.VI & 0xffff)
	if i >= len(p.vis) || p.vis[i] == nil || p.vis[i].num != pkt.VI {
		p.stats.UnknownVI++
		return false
	}
	v := p.vis[i]
	c := v.conn
	switch {
	case c.key != pkt.Key:
		p.stats.WrongKey++
		return false
	case c.peer != pkt.Src, c.lane != p.from:
		p.stats.WrongSource++
		return false
	case c.secure != nil || pkt.Kind == wire.KindSealed:
		if !p.unseal(c, pkt) {
			return false
		}
	case c.verify(pkt) != nil:
		p.stats.Corrupt++
		if c.open && c.receiver == nil && pkt.Kind == wire.KindWrite {
			v.report(ErrorRDMAWriteData, StatusOpRDMAWrite, wire.ErrChecksum)
		}
		return false
	}
	c.heard = now
	if c.established != nil {
		c.established()
		c.established = nil
	}
	if v.state == ConnectPending && c.open {
		v.state = Connected // the call that connects is about to return; an answer need not wait for it
	}
	if !c.open {
		p.afterwards(c, now)
		return false
	}
	if c.sender != nil {
		p.takeAck(c, pkt, now)
		if !c.open {
			return false
		}
	}
	switch pkt.Kind {
	case wire.KindData, wire.KindPack, wire.KindClose, wire.KindWrite, wire.KindRead, wire.KindReadData:
		if c.receiver == nil {
			p.takeUnreliable(c, pkt, now)
			return false
		}
		return p.takeReliable(c, frame, now)
	case wire.KindProbe:
		if c.receiver != nil {
			c.receiver.AskUrgent()
		}
		c.pressed()
		p.owe(c, now)
	case wire.KindError:
		p.takeError(c, pkt)
	}
	return false
}

// afterwards answers frames that come for a connection that is broken: a
// disconnecting peer hears that its last frame arrived, whichever it sends again, any
// other that there is nothing here any more.
func (p *port) afterwards(c *conn, now int64) {
	if p.pkt.Kind == wire.KindError || p.pkt.Kind == wire.KindAck {
		return
	}
	switch p.pkt.Kind {
	case wire.KindData, wire.KindPack, wire.KindWrite, wire.KindRead, wire.KindReadData:
		if c.vi.cause != ErrPeerClosed {
			break // it has to hear why
		}
		fallthrough
	case wire.KindClose:
		if c.receiver != nil && int32(c.receiver.Next()-p.pkt.Seq) > 0 {
			p.control(c, wire.KindAck, 0, 0)
			return
		}
	}
	p.tellBroken(c, wire.ReasonClosed, now)
}

// takeAck takes what a frame says about frames of ours.
func (p *port) takeAck(c *conn, pkt *wire.Packet, now int64) {
	s := c.sender
	from, to, valid := s.Ack(now, pkt.Ack, int(pkt.Window))
	if !valid {
		p.stats.BadAcks++
		return
	}
	if from != to {
		c.moved = now
		c.replied = c.replied && int32(c.replySeq-to) >= 0
	}
	for seq := from; seq != to; seq++ {
		p.release(s.Tag(seq))
	}
	if pkt.Kind == wire.KindAck && len(pkt.Payload) >= wire.RangeLen {
		for i := range min(len(pkt.Payload)/wire.RangeLen, wire.MaxAckRanges) {
			r := wire.GetRange(pkt.Payload, i)
			s.AckRange(now, r.Start, r.End)
		}
		s.DetectLosses(now)
	}
	if t := s.Deadline(); t != 0 && t < c.due { // by a loss found, or a round trip that ended the timer's doubling
		p.timers.schedule(c, t)
	}
	if from != to && (c.lent || c.vi.attrs.Level == ReliableReception) {
		c.lent = c.lent && !s.Idle()
		p.settleSends(c)
	}
	if c.closeSent && int32(s.Unacked()-c.closeSeq) > 0 {
		c.finishClose(p)
	}
	if c.deaf != nil && !c.answering() {
		p.breakOff(c, now)
		return
	}
	if c.streaming && s.Idle() && c.vi.send.waiting() == nil {
		c.rest(now)
	}
	if _, lost := s.NextLost(); lost || c.closing || c.answers.waiting() || c.vi.send.waiting() != nil {
		p.enqueue(c)
	}
}

// settleSends completes what is done at the head of the send queue.
func (p *port) settleSends(c *conn) {
	q := &c.vi.send
	for i := q.completed.Load(); i != q.current; i++ {
		e := q.at(i)
		if !c.isDone(e) {
			return
		}
		p.complete(c.vi, q, e, 0)
	}
}

// isDone says whether a descriptor whose frames are all on the ring is done.
func (c *conn) isDone(e *posted) bool {
	if e.op == StatusOpRDMARead {
		return e.done
	}
	return !e.lent && c.vi.attrs.Level != ReliableReception || int32(c.sender.Unacked()-e.last) > 0
}

// takeReliable puts a frame of a reliable VI in order and delivers what is in
// order now.
func (p *port) takeReliable(c *conn, frame []xdpnic.Frame, now int64) (kept bool) {
	seq := p.pkt.Seq
	if c.deaf != nil {
		return false // what follows the refused frame is not looked at
	}
	if p.pkt.Flags&wire.FlagAckNow != 0 {
		c.receiver.AskUrgent()
	}
	switch c.receiver.Arrive(seq, p.pkt.Flags&wire.FlagAgain != 0) {
	case reliable.InOrder:
		p.deliver(c, &p.pkt, now)
		for c.open && c.deaf == nil {
			tag, ok := c.receiver.Pop()
			if !ok {
				break
			}
			early := p.held.take(tag, p.early[:])
			if p.decodeAgain(c, early) == nil { // it did when it came
				p.deliver(c, &p.pkt, now)
			}
			p.recycle(early)
		}
	case reliable.Early:
		if c.loop {
			break // the chunk is the sender's: it comes again
		}
		if !p.held.fits(len(frame)) {
			p.stats.EarlyDropped++
			break // as if it were lost: it comes again
		}
		p.stats.Early++
		p.keepOpen(c, frame)
		c.receiver.Hold(seq, p.held.put(frame))
		kept = true
	case reliable.Duplicate:
		p.stats.Duplicate++
		c.pressed()
	case reliable.Outside:
		p.stats.Outside++
	}
	if c.open {
		p.owe(c, now)
	}
	return kept
}

// takeUnreliable delivers a frame at most once and in order; a gap or an old
// frame costs the message that it belongs to.
func (p *port) takeUnreliable(c *conn, pkt *wire.Packet, now int64) {
	if pkt.Kind == wire.KindClose {
		p.deliver(c, pkt, now)
		return
	}
	ahead := int32(pkt.Seq - c.expect)
	if ahead < 0 {
		p.stats.Duplicate++
		return
	}
	if ahead > 0 {
		p.stats.Lost += uint64(ahead)
		if c.part != 0 {
			p.drop(c)
		}
	}
	c.expect = pkt.Seq + 1
	if pkt.Kind == wire.KindRead || pkt.Kind == wire.KindReadData {
		p.stats.Malformed++ // no such thing on an unreliable VI
		return
	}
	p.deliver(c, pkt, now)
}

// drop gives up the message that is arriving; its descriptor serves the next.
func (p *port) drop(c *conn) {
	v := c.vi
	p.stats.Dropped++
	if c.part == wire.KindWrite {
		v.report(ErrorRDMAWriteAbort, StatusOpRDMAWrite, errFrameLost)
	} else if e := v.recv.waiting(); e != nil {
		e.rewind()
	}
	c.part = 0
}

// deliver places a frame that is next in order.
func (p *port) deliver(c *conn, pkt *wire.Packet, now int64) {
	if pkt.Kind == wire.KindClose {
		if c.receiver != nil {
			p.control(c, wire.KindAck, 0, 0)
		} else {
			p.tellBroken(c, wire.ReasonClosed, now)
		}
		p.breakDown(c, broken{cause: ErrPeerClosed})
		return
	}
	if c.closing {
		return // nobody waits for it any more
	}
	switch pkt.Kind {
	case wire.KindRead:
		p.takeRead(c, pkt, now)
		return
	case wire.KindReadData:
		p.takeReadData(c, pkt, now)
		return
	case wire.KindPack:
		p.placePack(c, pkt, now)
		return
	}
	first := pkt.Flags&wire.FlagFirst != 0
	if first != (c.part == 0) || !first && c.part != pkt.Kind {
		// A message begins in another, or goes on without a beginning.
		if c.receiver != nil {
			p.nonsense(c, now)
			return
		}
		if c.part != 0 {
			p.drop(c)
		}
		if !first {
			return // the rest of a dropped message
		}
	}
	if pkt.Kind == wire.KindWrite {
		p.placeWrite(c, pkt, now)
	} else {
		p.placeMessage(c, pkt, now)
	}
}

// placeMessage places a frame of a message in the receive at the head.
func (p *port) placeMessage(c *conn, pkt *wire.Packet, now int64) {
	v := c.vi
	e := v.recv.waiting()
	if c.part == 0 {
		if e == nil {
			p.recvEmpty(c, now)
			return
		}
		c.part = wire.KindData
	}
	if !e.placeAll(pkt) {
		c.part = 0
		p.tooLong(c, e, now)
		return
	}
	if pkt.Flags&wire.FlagLast != 0 {
		c.part = 0
		p.finishReceive(c, e, e.moved, pkt.Flags&wire.FlagImmediate != 0, pkt.Immediate)
	}
}

// tooLong ends a message that has filled the receive at the head and goes on.
func (p *port) tooLong(c *conn, e *posted, now int64) {
	v := c.vi
	p.stats.TooLong++
	e.arrived = e.moved
	v.recv.current++
	p.complete(v, &v.recv, e, StatusLengthError)
	if c.receiver != nil {
		p.refuse(c, wire.ReasonLength, errTooLong, now)
	} else {
		p.settleReceives(v)
	}
}

// finishReceive completes the receive at the head by a message of n bytes.
func (p *port) finishReceive(c *conn, e *posted, n uint32, immediate bool, value uint32) {
	v := c.vi
	status := Status(0)
	e.arrived, e.imm = n, 0
	if immediate {
		status = StatusImmediate
		e.imm = value
	}
	v.recv.current++
	p.stats.Messages++
	p.complete(v, &v.recv, e, status)
	p.settleReceives(v)
}

// settleReceives completes receives that were wrong when posted, now that they
// are at the head: on a reliable VI that breaks the connection, but not one that only
// Disconnect still waits for.
func (p *port) settleReceives(v *VI) {
	q := &v.recv
	for {
		e := q.waiting()
		if e == nil || !e.status.Failed() {
			return
		}
		if c := v.conn; c != nil && c.open && c.sender != nil && !c.closing {
			p.refuse(c, wire.ReasonClosed, errDescriptor, p.now())
			return // breakDown completed it, or the end of the connect does
		}
		q.current++
		p.complete(v, q, e, e.status)
	}
}

// recvEmpty ends a message that met an empty receive queue.
func (p *port) recvEmpty(c *conn, now int64) {
	p.stats.RecvQueueEmpty++
	c.vi.report(ErrorRecvQueueEmpty, StatusOpReceive, nil)
	if c.receiver != nil {
		p.refuse(c, wire.ReasonRecvQueueEmpty, errRecvEmpty, now)
	}
}

// nonsense ends a connection of which the frames do not make messages.
func (p *port) nonsense(c *conn, now int64) {
	p.stats.Malformed++
	if c.receiver == nil {
		c.part = 0
		return
	}
	p.refuse(c, wire.ReasonProtocol, errProtocol, now)
}

// refuse breaks a reliable connection by an error on this side. A reason other than
// ReasonClosed says what was wrong with the frame that came last, which then
// counts as not arrived; so does a frame of which not all messages were delivered.
func (p *port) refuse(c *conn, reason wire.Reason, cause error, now int64) {
	p.refuseAt(c, reason, c.receiver.Next()-1, cause, now)
}

// refuseAt is refuse for what frame seq asked for. What the peer asked for
// before, and is being answered, it still gets; nothing later is looked at.
func (p *port) refuseAt(c *conn, reason wire.Reason, seq uint32, cause error, now int64) {
	if reason != wire.ReasonClosed || c.unpacking {
		c.refused, c.refusedSeq = reason, seq
	}
	c.deaf = cause
	if reason == wire.ReasonClosed || reason == wire.ReasonProtocol || !c.answering() {
		p.breakOff(c, now)
	}
}

// breakOff carries out what refuseAt found.
func (p *port) breakOff(c *conn, now int64) {
	p.tellBroken(c, wire.ReasonClosed, now)
	p.breakDown(c, broken{cause: c.deaf})
}

// answering says that the peer does not have all answers to its reads yet.
func (c *conn) answering() bool {
	return c.answers.waiting() || c.replied
}

// acked is the number of the first frame that did not arrive: the one that this
// side refused, or that comes next.
func (c *conn) acked() uint32 {
	next := c.receiver.Next()
	if c.refused != 0 && c.refusedSeq == next-1 {
		return c.refusedSeq
	}
	return next
}

// takeError takes the news that the peer broke the connection, and at which
// frame of ours.
func (p *port) takeError(c *conn, pkt *wire.Packet) {
	b := broken{cause: errPeerBroke, told: true, seq: pkt.Seq, part: int(min(pkt.RemoteAddr, MaxDescriptorsPerQueue))}
	switch reason := wire.Reason(pkt.Immediate); {
	case reason == wire.ReasonUnheard:
		b = broken{cause: errUnheard, silent: c.sender != nil}
	case reason == wire.ReasonRDMARead:
		b.status = StatusRemoteRDMAError // the read is not done at any level
	case c.vi.attrs.Level != ReliableReception:
	case reason == wire.ReasonRecvQueueEmpty:
		b.status = StatusRemoteDescError
	case reason == wire.ReasonLength:
		b.status = StatusLengthError
	case reason == wire.ReasonProtocol:
		b.status = StatusTransportError
	case reason == wire.ReasonRDMAWrite:
		b.status = StatusRemoteRDMAError
	}
	p.breakDown(c, b)
}
