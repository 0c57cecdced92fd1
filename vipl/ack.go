package vipl

// Acknowledgements: those of the peer, which complete and free what was sent, and those that the peer is owed. Data
// carries them if it comes soon enough.

import (
	"viaxdp/internal/base/reliable"
	"viaxdp/internal/base/wire"
)

// ackList has the connections whose peers are owed an acknowledgement. Invariant: due[i] is a connection whose
// ack.slot is i+1; the slot of every other connection is 0.
type ackList struct{ due []*conn }

const (
	ackFrames = 16 // unacknowledged frames after which an acknowledgement is sent at once
	// ackPacketFrames is the same for short frames in GSO packets. With it the answer to a message of 64 KiB, 47 frames at MTU
	// 1500, acknowledges all of it: a bare one takes 2 us of this side's CPU, in which the next packet arrives.
	ackPacketFrames = 48
)

// ackEvery returns after how many unacknowledged frames an acknowledgement is sent at once.
func (p *port) ackEvery() int {
	most := ackFrames
	if p.rx.gso.inner && p.rx.pkt.Length <= wire.WindowUnit {
		most = ackPacketFrames
	}
	return max(1, min(most, p.shares.window/4))
}

// connAck is the acknowledgement that a peer is owed.
type connAck struct {
	slot  int      // index in ackList.due + 1; 0: none is owed
	due   int64    // when it must be sent
	bare  bool     // data does not carry it: what announce writes is owed, too
	delay ackDelay // estimates how long one is delayed
}

// takeAck processes what a frame acknowledges.
func (p *port) takeAck(c *conn, pkt *wire.Packet, now int64) {
	s := c.sender
	if pkt.Kind == wire.KindAck && pkt.RemoteHandle == wire.AckEchoesMarks {
		c.template.AllowMarks()
		s.Marked(pkt.Immediate)
	}
	from, to, valid := s.Ack(now, pkt.Ack, int(pkt.Window))
	if !valid {
		p.stats.BadAcks++
		return
	}
	if from != to {
		c.moved = now
		c.rdma.acknowledged(to)
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
	if c.ending.sent && int32(s.Unacked()-c.ending.seq) > 0 {
		c.finishClose(p)
	}
	if c.refusal.cause != nil && !c.answering() {
		p.teardownRefused(c, now)
		return
	}
	if c.batch.inStream && s.Idle() && c.vi.send.waiting() == nil {
		c.endStream(now)
	}
	if _, lost := s.NextLost(); lost || c.ending.begun || c.rdma.answers.waiting() || c.vi.send.waiting() != nil {
		p.enqueue(c)
	}
}

// acked returns the acknowledgement number: the number of the frame that this side refused, or else of the next
// frame expected.
func (c *conn) acked() uint32 {
	next := c.receiver.Next()
	if c.refusal.reason != 0 && c.refusal.seq == next-1 {
		return c.refusal.seq
	}
	return next
}

// stamp fills in the fields that every frame has about this side's receiver: window and acknowledgement.
func (p *port) stamp(c *conn) {
	h := &c.header
	h.Window = uint16(p.shares.window)
	if c.receiver == nil {
		h.Ack = 0
		return
	}
	h.Ack = c.acked()
	if !c.receiver.Bare() && !c.ack.bare { // else the peer also needs the ranges, or the count of marks
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

// acknowledgeDue sends the acknowledgements that are due; quiet: all that are owed. It returns the time at which the
// next one must be sent.
func (p *port) acknowledgeDue(now int64, quiet bool) (due int64) {
	due = never
	for i := 0; i < len(p.acks.due); {
		c := p.acks.due[i]
		if quiet || c.ack.due <= now {
			c.ack.delay.wentAlone(min(c.ack.due, now))
			if p.acknowledge(c) {
				p.doorbell.hurry()
				continue // due[i] is another connection now
			}
			c.ack.due = now + defaultAckDelay // a chunk may be free by then
		}
		due = min(due, c.ack.due)
		i++
	}
	return due
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
	c.ack.bare = false
	p.settle(c)
	return true
}

// oweBareAck records that the peer is owed a bare acknowledgement.
func (p *port) oweBareAck(c *conn) {
	c.ack.bare = true
	p.oweAckUntil(c, p.now())
}

// oweAck records that the peer is owed an acknowledgement of the current frame.
func (p *port) oweAck(c *conn, now int64) {
	if c.ack.slot == 0 {
		p.oweAckUntil(c, c.ack.delay.begin(now, len(p.acks.due)+1))
	}
	switch {
	case c.receiver == nil || c.receiver.Urgent() || c.receiver.Unacked() >= p.ackEvery():
		c.ack.due = now // due before the turn ends
	case p.rx.pkt.Flags&wire.FlagAckSoon != 0:
		c.ack.due = min(c.ack.due, now+ackSoon)
		if len(p.rx.pkt.Rest) > 0 {
			p.wakeBackground() // the peer's program waits for the memory, and this program may be busy
		}
	case len(p.rx.pkt.Rest) > 0 || c.vi.attrs.Level == ReliableReception || c.receiver.Buffered() > 0:
		c.ack.due = min(c.ack.due, now+defaultAckDelay) // the last frame of a burst does not ask, and nothing may follow it
	}
}

// oweAckUntil records that the peer is owed an acknowledgement, which is delayed until by at most.
func (p *port) oweAckUntil(c *conn, by int64) {
	if c.ack.slot != 0 {
		c.ack.due = min(c.ack.due, by)
		return
	}
	p.acks.due = append(p.acks.due, c)
	c.ack.slot = len(p.acks.due)
	c.ack.due = by
}

// pressed records that the peer asked again. If an acknowledgement is still owed, it was delayed too long.
func (c *conn) pressed() {
	if c.ack.slot != 0 {
		c.ack.delay.pressed()
	}
}

// settle records that the acknowledgement was sent.
func (p *port) settle(c *conn) {
	if c.ack.slot == 0 {
		return
	}
	i, last := c.ack.slot-1, len(p.acks.due)-1
	p.acks.due[i] = p.acks.due[last]
	p.acks.due[i].ack.slot = i + 1
	p.acks.due[last] = nil
	p.acks.due = p.acks.due[:last]
	c.ack.slot = 0
}
