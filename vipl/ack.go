package vipl

// Acknowledgements: those of the peer, which complete and free what was sent, and those that the peer is owed. Data
// carries them if it comes soon enough.

import (
	"viaxdp/internal/base/reliable"
	"viaxdp/internal/base/wire"
)

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

// acked returns the acknowledgement number: the number of the frame that this side refused, or else of the next
// frame expected.
func (c *conn) acked() uint32 {
	next := c.receiver.Next()
	if c.refused != 0 && c.refusedSeq == next-1 {
		return c.refusedSeq
	}
	return next
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

// oweAck records that the peer is owed an acknowledgement of the current frame.
func (p *port) oweAck(c *conn, now int64) {
	if c.ackSlot == 0 {
		p.oweAckUntil(c, c.ackDelay.begin(now, len(p.acksDue)+1))
	}
	switch {
	case c.receiver == nil || c.receiver.Urgent() || c.receiver.Unacked() >= p.ackEvery:
		c.ackDue = now // due before the turn ends
	case p.pkt.Flags&wire.FlagAckSoon != 0:
		c.ackDue = min(c.ackDue, now+ackSoon)
		if len(p.pkt.Rest) > 0 {
			p.wakeBackground() // the peer's program waits for the memory, and this program may be busy
		}
	case len(p.pkt.Rest) > 0 || c.vi.attrs.Level == ReliableReception || c.receiver.Buffered() > 0:
		c.ackDue = min(c.ackDue, now+defaultAckDelay) // the last frame of a burst does not ask, and nothing may follow it
	}
}

// oweAckUntil records that the peer is owed an acknowledgement, which is delayed until by at most.
func (p *port) oweAckUntil(c *conn, by int64) {
	if c.ackSlot != 0 {
		c.ackDue = min(c.ackDue, by)
		return
	}
	p.acksDue = append(p.acksDue, c)
	c.ackSlot = len(p.acksDue)
	c.ackDue = by
}

// pressed records that the peer asked again. If an acknowledgement is still owed, it was delayed too long.
func (c *conn) pressed() {
	if c.ackSlot != 0 {
		c.ackDelay.pressed()
	}
}

// settle records that the acknowledgement was sent.
func (p *port) settle(c *conn) {
	if c.ackSlot == 0 {
		return
	}
	i, last := c.ackSlot-1, len(p.acksDue)-1
	p.acksDue[i] = p.acksDue[last]
	p.acksDue[i].ackSlot = i + 1
	p.acksDue[last] = nil
	p.acksDue = p.acksDue[:last]
	c.ackSlot = 0
}
