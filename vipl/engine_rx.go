package vipl

// Steps 7 to 9 of the path of a message: sequence, place, complete.

import (
	"errors"
	"time"

	"viaxdp/internal/base/reliable"
	"viaxdp/internal/base/wire"
	"viaxdp/xdpnic"
)

const resetEvery = time.Millisecond

// ErrPeerClosed is the Cause of a VI in Error whose peer has disconnected it.
var ErrPeerClosed = errors.New("the peer disconnected")

// Causes of a broken connection.
var (
	errPeerSilent = errors.New("the peer went silent")
	// Connection management uses UDP through the kernel, so it can work while this path does not.
	errPeerUnheard = errors.New("no frame of the peer has arrived since the connection was made: frames are lost on the path, or arrive " +
		"on another queue than this NIC's (the demux counter queue): see Info().Notes, and open both NICs on the queues that meet")
	errUnheard    = errors.New("the peer received nothing from this side for its silence time and ended the connection: frames to it are lost on the path")
	errNoWay      = errors.New("the peer is alive but frames do not reach it: check for a smaller MTU on the path")
	errTooSmall   = errors.New("the interface's MTU is now smaller than the connection's frames need: connect again")
	errPeerBroke  = errors.New("the peer broke the connection")
	errRecvEmpty  = errors.New("a message arrived and no receive was posted")
	errFrameLost  = errors.New("a frame of the message was lost")
	errGone       = errors.New("the interface was removed")
	errMoved      = errors.New("the interface no longer has the local address of the connection: connect again")
	errTooLong    = errors.New("a message was longer than its receive descriptor")
	errPastRegion = errors.New("a message reached past the end of the region that its receive descriptor names")
	errProtocol   = errors.New("protocol error: the peer's frames do not form messages")
	errDescriptor = errors.New("a posted descriptor was invalid")
)

// receive processes one frame. It returns true if the engine keeps the frame's chunks.
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
	case c.peer != pkt.Src, c.shm != p.from:
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
		v.state = Connected // the call that connects is about to return; the program's answer need not wait for it
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
		p.oweAck(c, now)
	case wire.KindError:
		p.takeError(c, pkt)
	}
	return false
}

// afterwards answers frames that arrive for a broken connection. If a disconnecting peer repeats its last frame, it
// is told that the frame arrived. Any other frame is answered with a reset.
func (p *port) afterwards(c *conn, now int64) {
	if p.pkt.Kind == wire.KindError || p.pkt.Kind == wire.KindAck {
		return
	}
	switch p.pkt.Kind {
	case wire.KindData, wire.KindPack, wire.KindWrite, wire.KindRead, wire.KindReadData:
		if c.vi.cause != ErrPeerClosed {
			break // tell it the cause
		}
		fallthrough
	case wire.KindClose:
		if c.receiver != nil && int32(c.receiver.Next()-p.pkt.Seq) > 0 {
			p.control(c, wire.KindAck, 0, 0)
			return
		}
	}
	p.sendReset(c, wire.ReasonClosed, now)
}

// takeAck processes what a frame acknowledges.
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
		p.release(c, s.Tag(seq))
	}
	if pkt.Kind == wire.KindAck && len(pkt.Payload) >= wire.RangeLen {
		var ranges [wire.MaxAckRanges]reliable.Range
		n := min(len(pkt.Payload)/wire.RangeLen, len(ranges))
		for i := range n {
			ranges[i] = reliable.Range(wire.GetRange(pkt.Payload, i))
		}
		if !s.AckRanges(now, pkt.Ack, ranges[:n]) {
			p.stats.BadAcks++
		}
		s.DetectLosses(now)
	}
	if t := s.Deadline(); t != 0 && t < c.due { // earlier: a loss was found, or a round trip ended the timer's backoff
		p.timers.schedule(c, t)
	}
	if from != to && (c.byRef || c.vi.attrs.Level == ReliableReception) {
		c.byRef = c.byRef && !s.Idle()
		p.settleQueue(&c.vi.send)
	}
	if c.closeSent && int32(s.Unacked()-c.closeSeq) > 0 {
		c.finishClose(p)
	}
	if c.draining != nil && !c.answering() {
		p.teardownRefused(c, now)
		return
	}
	if c.inStream && s.Idle() && c.vi.send.waiting() == nil {
		c.endStream(now)
	}
	if _, lost := s.NextLost(); lost || c.closing || c.answers.waiting() || c.vi.send.waiting() != nil {
		p.enqueue(c)
	}
}

// settleQueue completes the descriptors at the head of a send queue that are done or were flushed.
func (p *port) settleQueue(q *workQueue) {
	c := q.vi.conn
	for i := q.completed.Load(); i != q.current; i++ {
		e := q.at(i)
		if e.unread > 0 || !e.over && (c == nil || !c.isDone(e)) {
			return
		}
		p.complete(q.vi, q, e, e.status)
	}
}

// isDone reports whether a descriptor is done, all of whose frames are on the ring.
func (c *conn) isDone(e *posted) bool {
	if e.op == StatusOpRDMARead {
		return e.done
	}
	return !e.byRef && c.vi.attrs.Level != ReliableReception || int32(c.sender.Unacked()-e.last) > 0
}

// takeReliable puts a frame of a reliable VI in order and delivers the frames that are in order now.
func (p *port) takeReliable(c *conn, frame []xdpnic.Frame, now int64) (kept bool) {
	seq := p.pkt.Seq
	if c.draining != nil {
		return false // frames after the refused one are ignored
	}
	if p.pkt.Flags&wire.FlagAckNow != 0 {
		c.receiver.AskUrgent()
	}
	switch c.receiver.Arrive(seq, p.pkt.Flags&wire.FlagAgain != 0) {
	case reliable.InOrder:
		p.deliver(c, &p.pkt, now)
		for c.open && c.draining == nil {
			tag, ok := c.receiver.Pop()
			if !ok {
				break
			}
			early := p.reorder.take(tag, p.inOrder[:])
			if p.decodeAgain(c, early) == nil { // it was valid when it arrived
				p.deliver(c, &p.pkt, now)
			}
			p.recycle(early)
		}
	case reliable.OutOfOrder:
		if c.loop {
			break // the chunk belongs to the sender, which retransmits
		}
		if !p.reorder.fits(len(frame)) {
			p.stats.OutOfOrderDropped++
			break // treat it as lost: the peer retransmits
		}
		p.stats.OutOfOrder++
		p.keepOpen(c, frame)
		c.receiver.Buffer(seq, p.reorder.put(frame))
		kept = true
	case reliable.Duplicate:
		p.stats.Duplicate++
		c.pressed()
	case reliable.OutsideWindow:
		p.stats.OutsideWindow++
	}
	if c.open {
		p.oweAck(c, now)
	}
	return kept
}

// takeUnreliable delivers a frame at most once and in order. A gap drops the message that it falls into; an old
// frame is dropped.
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
		p.drop(c, errFrameLost)
	}
	c.expect = pkt.Seq + 1
	if pkt.Kind == wire.KindRead || pkt.Kind == wire.KindReadData {
		p.protocolError(c, now) // RDMA reads need a reliable VI
		return
	}
	p.deliver(c, pkt, now)
}

// drop gives up the message of an unreliable VI that is arriving, if there is one. Its descriptor receives the next
// message.
func (p *port) drop(c *conn, cause error) {
	if c.part == 0 {
		return
	}
	p.stats.Dropped++
	if c.part == wire.KindWrite {
		c.vi.report(ErrorRDMAWriteAbort, StatusOpRDMAWrite, cause)
	}
	c.part = 0
	c.vi.recv.rewindHead()
}

// deliver places the frame that is next in order.
func (p *port) deliver(c *conn, pkt *wire.Packet, now int64) {
	if pkt.Kind == wire.KindClose {
		if c.receiver != nil {
			p.control(c, wire.KindAck, 0, 0)
		} else {
			p.sendReset(c, wire.ReasonClosed, now)
		}
		p.teardown(c, broken{cause: ErrPeerClosed})
		return
	}
	if c.closing {
		return // its receives are flushed
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
		// A message begins within another one, or continues without a beginning.
		if c.receiver != nil {
			p.protocolError(c, now)
			return
		}
		p.drop(c, errProtocol)
		if !first {
			return // the remainder of a dropped message
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

// tooLong ends a message that has filled the receive at the head and continues. If the receive names more bytes
// than were filled, the next byte lies outside of its region (see translate).
func (p *port) tooLong(c *conn, e *posted, now int64) {
	v := c.vi
	p.stats.TooLong++
	status, reason, cause := StatusLengthError, wire.ReasonLength, errTooLong
	if e.moved < e.length {
		status, reason, cause = StatusProtectionError, wire.ReasonDescriptor, errPastRegion
	}
	e.arrived = e.moved
	v.recv.current++
	p.complete(v, &v.recv, e, status)
	if c.receiver != nil {
		p.refuse(c, reason, cause, now)
	} else {
		p.settleReceives(v)
	}
}

// finishReceive completes the receive at the head with a message of n bytes.
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

// settleReceives completes receives that were wrong when posted and are now at the head. On a reliable VI that
// breaks the connection, unless Disconnect is already ending it.
func (p *port) settleReceives(v *VI) {
	q := &v.recv
	for {
		e := q.waiting()
		if e == nil || !e.status.Failed() {
			return
		}
		if c := v.conn; c != nil && c.open && c.sender != nil && !c.closing {
			p.refuse(c, wire.ReasonClosed, errDescriptor, p.now())
			return // teardown completed it, or the end of the connect will
		}
		q.current++
		p.complete(v, q, e, e.status)
	}
}

// recvEmpty ends a message that found the receive queue empty.
func (p *port) recvEmpty(c *conn, now int64) {
	p.stats.RecvQueueEmpty++
	c.vi.report(ErrorRecvQueueEmpty, StatusOpReceive, nil)
	if c.receiver != nil {
		p.refuse(c, wire.ReasonRecvQueueEmpty, errRecvEmpty, now)
	}
}

// protocolError ends a reliable connection whose frames do not form messages. On an unreliable VI it drops the
// message in which the frame arrived.
func (p *port) protocolError(c *conn, now int64) {
	p.stats.Malformed++
	if c.receiver == nil {
		p.drop(c, errProtocol)
		return
	}
	p.refuse(c, wire.ReasonProtocol, errProtocol, now)
}

// refuse breaks a reliable connection because of an error on this side. A reason other than ReasonClosed says what
// was wrong with the last frame, which then counts as not arrived. So does a frame of which not all messages were
// delivered.
func (p *port) refuse(c *conn, reason wire.Reason, cause error, now int64) {
	p.refuseAt(c, reason, c.receiver.Next()-1, cause, now)
}

// refuseAt is refuse for the request in frame seq. Earlier requests of the peer that are being answered are
// answered completely; later frames are ignored.
func (p *port) refuseAt(c *conn, reason wire.Reason, seq uint32, cause error, now int64) {
	if reason != wire.ReasonClosed || c.unpacking {
		c.refused, c.refusedSeq = reason, seq
	}
	c.draining = cause
	if reason == wire.ReasonClosed || reason == wire.ReasonProtocol || !c.answering() {
		p.teardownRefused(c, now)
	}
}

// teardownRefused ends the connection as refuseAt decided.
func (p *port) teardownRefused(c *conn, now int64) {
	p.sendReset(c, wire.ReasonClosed, now)
	p.teardown(c, broken{cause: c.draining})
}

// answering reports whether the peer lacks answers to its reads.
func (c *conn) answering() bool {
	return c.answers.waiting() || c.replied
}

// acked returns the acknowledgement number: the number of the frame that this side refused, or else of the next
// frame expected.
func (c *conn) acked() uint32 {
	next := c.receiver.Next()
	if c.refused != 0 && c.refusedSeq == next-1 {
		return c.refusedSeq
	}
	return next
}

// takeError processes the peer's reset: it broke the connection, and the frame says at which frame of ours.
func (p *port) takeError(c *conn, pkt *wire.Packet) {
	b := broken{cause: errPeerBroke, told: true, seq: pkt.Seq, part: int(min(pkt.RemoteAddr, MaxDescriptorsPerQueue))}
	switch reason := wire.Reason(pkt.Immediate); {
	case reason == wire.ReasonUnheard:
		b = broken{cause: errUnheard, silent: c.sender != nil}
	case reason == wire.ReasonRDMARead:
		b.status = StatusRemoteRDMAError // the read is not done at any level
	case c.vi.attrs.Level != ReliableReception:
	case reason == wire.ReasonRecvQueueEmpty, reason == wire.ReasonDescriptor:
		b.status = StatusRemoteDescError
	case reason == wire.ReasonLength:
		b.status = StatusLengthError
	case reason == wire.ReasonProtocol:
		b.status = StatusTransportError
	case reason == wire.ReasonRDMAWrite:
		b.status = StatusRemoteRDMAError
	}
	p.teardown(c, b)
}
