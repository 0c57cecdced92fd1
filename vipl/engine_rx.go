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

// Causes of a broken connection.
var (
	errPeerSilent = errors.New("the peer went silent")
	errPeerClosed = errors.New("the peer disconnected")
	errPeerBroke  = errors.New("the peer broke the connection")
	errRecvEmpty  = errors.New("a message met an empty receive queue")
	errTooLong    = errors.New("a message was longer than its receive descriptor")
	errProtocol   = errors.New("the peer's frames do not make messages")
	errDescriptor = errors.New("a descriptor was wrong")
)

// receive takes one frame. It returns true when the engine keeps the chunk.
func (p *port) receive(f *xdpnic.Frame, now int64) (kept bool) {
	p.stats.Frames++
	pkt := &p.pkt
	if f.More {
		p.stats.Chained++
		return false
	}
	if err := pkt.Decode(f.Data); err != nil {
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
	case c.peer != pkt.Src:
		p.stats.WrongSource++
		return false
	case pkt.Verify() != nil:
		p.stats.Corrupt++
		return false
	}
	c.heard = now
	if c.established != nil {
		c.established()
		c.established = nil
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
	case wire.KindData, wire.KindClose:
		if c.receiver == nil {
			p.takeUnreliable(c, pkt, now)
			return false
		}
		return p.takeReliable(c, f, now)
	case wire.KindProbe:
		if c.receiver != nil {
			c.receiver.AskUrgent()
		}
		p.owe(c, now)
	case wire.KindError:
		p.takeError(c, pkt)
	}
	return false
}

// afterwards answers frames that come for a connection that is broken: a
// disconnecting peer hears that its last frame arrived, any other that there
// is nothing here any more.
func (p *port) afterwards(c *conn, now int64) {
	if p.pkt.Kind == wire.KindError || p.pkt.Kind == wire.KindAck {
		return
	}
	if p.pkt.Kind == wire.KindClose && c.receiver != nil && int32(c.receiver.Next()-p.pkt.Seq) > 0 {
		p.control(c, wire.KindAck, 0, 0)
		return
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
	for seq := from; seq != to; seq++ {
		p.nic.Release(s.Tag(seq) >> tagShift)
	}
	if pkt.Kind == wire.KindAck && len(pkt.Payload) >= wire.RangeLen {
		for i := range min(len(pkt.Payload)/wire.RangeLen, wire.MaxAckRanges) {
			r := wire.GetRange(pkt.Payload, i)
			s.AckRange(now, r.Start, r.End)
		}
		s.DetectLosses(now)
		if t := s.Deadline(); t != 0 {
			p.timers.schedule(c, t)
		}
	}
	if from != to && c.vi.attrs.Level == ReliableReception {
		p.completeReceived(c, to)
	}
	if c.closeSent && int32(s.Unacked()-c.closeSeq) > 0 {
		c.finishClose(p)
	}
	if _, lost := s.NextLost(); lost || c.closing || c.vi.send.waiting() != nil {
		p.enqueue(c)
	}
}

// completeReceived completes the sends of a Reliable Reception VI of which the
// peer has everything: frames before una.
func (p *port) completeReceived(c *conn, una uint32) {
	q := &c.vi.send
	for i := q.completed.Load(); i != q.current; i++ {
		e := q.at(i)
		if int32(una-e.last) <= 0 {
			return
		}
		p.complete(c.vi, q, e, StatusOpSend)
	}
}

// takeReliable puts a frame of a reliable VI in order and delivers what is in
// order now.
func (p *port) takeReliable(c *conn, f *xdpnic.Frame, now int64) (kept bool) {
	seq := p.pkt.Seq
	if p.pkt.Flags&wire.FlagAckNow != 0 {
		c.receiver.AskUrgent()
	}
	switch c.receiver.Arrive(seq) {
	case reliable.InOrder:
		p.deliver(c, &p.pkt, now)
		for c.open {
			tag, ok := c.receiver.Pop()
			if !ok {
				break
			}
			early := p.held.take(tag)
			if p.pkt.Decode(early.Data) == nil { // it did when it came
				p.deliver(c, &p.pkt, now)
			}
			p.nic.Recycle(early.Addr)
		}
	case reliable.Early:
		p.stats.Early++
		c.receiver.Hold(seq, p.held.put(f))
		kept = true
	case reliable.Duplicate:
		p.stats.Duplicate++
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
		if c.assembling {
			p.drop(c)
		}
	}
	c.expect = pkt.Seq + 1
	p.deliver(c, pkt, now)
}

// drop gives up the message that is arriving; its descriptor serves the next.
func (p *port) drop(c *conn) {
	c.assembling = false
	p.stats.Dropped++
	if e := c.vi.recv.waiting(); e != nil {
		e.moved, e.seg, e.off = 0, 0, 0
	}
}

// deliver places a frame that is next in order.
func (p *port) deliver(c *conn, pkt *wire.Packet, now int64) {
	if pkt.Kind == wire.KindClose {
		if c.receiver != nil {
			p.control(c, wire.KindAck, 0, 0)
		} else {
			p.tellBroken(c, wire.ReasonClosed, now)
		}
		p.breakDown(c, errPeerClosed, 0)
		return
	}
	if c.closing {
		return // nobody waits for it any more
	}
	v := c.vi
	if first := pkt.Flags&wire.FlagFirst != 0; first == c.assembling {
		// A message begins in another, or goes on without a beginning.
		if c.receiver != nil {
			p.refuse(c, wire.ReasonProtocol, errProtocol, now)
			return
		}
		if !first {
			return // the rest of a dropped message
		}
		p.drop(c)
	}
	e := v.recv.waiting()
	if !c.assembling {
		if e == nil {
			p.stats.RecvQueueEmpty++
			if c.receiver != nil {
				p.refuse(c, wire.ReasonRecvQueueEmpty, errRecvEmpty, now)
			}
			return
		}
		c.assembling = true
	}
	status := StatusOpReceive
	if e.place(pkt.Payload) < len(pkt.Payload) {
		p.stats.TooLong++
		e.arrived = e.moved
		v.recv.current++
		c.assembling = false
		p.complete(v, &v.recv, e, StatusOpReceive|StatusLengthError)
		if c.receiver != nil {
			p.refuse(c, wire.ReasonLength, errTooLong, now)
		} else {
			p.settleReceives(v)
		}
		return
	}
	if pkt.Flags&wire.FlagLast == 0 {
		return
	}
	e.arrived = e.moved
	e.imm = 0
	if pkt.Flags&wire.FlagImmediate != 0 {
		status |= StatusImmediate
		e.imm = pkt.Immediate
	}
	v.recv.current++
	c.assembling = false
	p.stats.Messages++
	p.complete(v, &v.recv, e, status)
	p.settleReceives(v)
}

// refuse breaks a reliable connection by an error on this side. A reason other than
// ReasonClosed says what was wrong with the frame that came last, which then
// counts as not arrived.
func (p *port) refuse(c *conn, reason wire.Reason, cause error, now int64) {
	if reason != wire.ReasonClosed {
		c.refused = reason
	}
	p.tellBroken(c, reason, now)
	p.breakDown(c, cause, 0)
}

// takeError takes the news that the peer broke the connection.
func (p *port) takeError(c *conn, pkt *wire.Packet) {
	first := Status(0)
	if c.vi.attrs.Level == ReliableReception {
		switch wire.Reason(pkt.Immediate) {
		case wire.ReasonRecvQueueEmpty:
			first = StatusRemoteDescError
		case wire.ReasonLength:
			first = StatusLengthError
		case wire.ReasonProtocol:
			first = StatusTransportError
		}
	}
	p.breakDown(c, errPeerBroke, first)
}
