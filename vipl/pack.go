package vipl

// Step 2 of the way of small messages: several of them in one frame. A frame
// costs the same whatever is in it, most of it the kernel's; so messages that
// wait in the send queue of a reliable VI, because the window is closed or by
// the rule of hold.go, go together.

import (
	"viaxdp/wire"
)

// small says whether a message may share a frame: two of its size fit.
func (c *conn) small(e *posted) bool {
	return (e.op == StatusOpSend || e.op == StatusOpRDMAWrite) && !e.begun && !e.status.Failed() &&
		e.control&ControlQFence == 0 && int(e.length)+mostRecord <= c.inPack/2
}

// mostRecord is what a record takes beside its data, at most.
var mostRecord = wire.RecordLen(0, true, true)

// record makes r e's in a frame of several messages, but for the data.
func (e *posted) record(r *wire.Record) {
	r.HasImmediate, r.Immediate = e.control&ControlImmediate != 0, e.imm
	if r.Write = e.op == StatusOpRDMAWrite; r.Write {
		to := e.asPosted.remote()
		r.RemoteAddr, r.RemoteHandle = to.Data, uint32(to.Handle)
	}
}

// room is what the message takes in such a frame.
func (e *posted) room() int {
	return wire.RecordLen(int(e.length), e.control&ControlImmediate != 0, e.op == StatusOpRDMAWrite)
}

// gathering is how far the waiting messages have been looked at: those from
// queue index from to index to take bytes in a frame.
type gathering struct {
	from, to uint64
	bytes    int
}

// company gathers the small messages at the head of the send queue that fit in
// one frame. full says that the next one does not, or is none of them.
func (c *conn) company() (count int, full bool) {
	q, g := &c.vi.send, &c.gathered
	if g.from != q.current {
		*g = gathering{from: q.current, to: q.current}
	}
	for tail := q.tail.Load(); g.to != tail; g.to++ {
		e := q.at(g.to)
		n := e.room()
		if g.bytes+n > c.inPack || !c.small(e) {
			full = true
			break
		}
		g.bytes += n
	}
	return int(g.to - g.from), full
}

// sendSmall sends the small message at the head of the send queue, alone or
// with those behind it, or lets it wait for them.
func (p *port) sendSmall(c *conn, e *posted, now int64) sendResult {
	count, full := c.company()
	if !full && !c.hurry && c.dense && c.holds() {
		p.hold(c, now)
		return sendNothing
	}
	if count > 1 {
		return p.sendPack(c, count, now)
	}
	if !p.sendPiece(c, e, int(e.length), now) {
		return sendFull
	}
	p.sentWhole(c, e)
	return sentFrame
}

// sendPack sends count messages in one frame.
func (p *port) sendPack(c *conn, count int, now int64) sendResult {
	addr, chunk, ok := p.chunk(c)
	if !ok {
		return sendFull
	}
	q := &c.vi.send
	b := c.template.Put(chunk, wire.HeaderLen+c.gathered.bytes)
	rest := b[wire.HeaderLen:]
	r, seq := &p.packing, c.nextSeq()
	for i := range uint64(count) {
		e := q.at(q.current + i)
		e.record(r)
		at := r.Put(rest, int(e.length))
		e.gather(at)
		rest = rest[e.room():]
		e.begun, e.packed, e.first, e.last = true, true, seq, seq
	}
	h := &c.header
	h.Kind, h.Flags, h.Immediate, h.RemoteAddr, h.RemoteHandle = wire.KindPack, 0, 0, 0, 0
	if !p.launch(c, addr, b, now) {
		for i := range uint64(count) {
			e := q.at(q.current + i)
			e.rewind()
			e.begun, e.packed = false, false
		}
		return sendFull
	}
	p.stats.Packed += uint64(count)
	q.current += uint64(count)
	p.handOver(c)
	return sentFrame
}

// sentWhole notes that the message at the head is on the ring, wholly and alone
// in the frame that went last.
func (p *port) sentWhole(c *conn, e *posted) {
	e.begun, e.first = true, c.header.Seq
	p.sentLast(c, e)
}

// placePack delivers the messages of a frame, each as if it had come alone.
func (p *port) placePack(c *conn, pkt *wire.Packet, now int64) {
	if c.part != 0 || c.receiver == nil {
		p.nonsense(c, now)
		return
	}
	v := c.vi
	rest := p.chains.join(pkt)
	for c.refusedPart = 0; len(rest) > 0; {
		r := &p.record
		var ok bool
		if rest, ok = r.Next(rest); !ok {
			p.nonsense(c, now)
			return
		}
		e := v.recv.waiting()
		switch {
		case r.Write:
			if !p.placeRecord(c, r, now) {
				return
			}
		case e == nil:
			p.recvEmpty(c, now)
			return
		case e.place(r.Data) < len(r.Data):
			p.tooLong(c, e, now)
			return
		}
		c.refusedPart++
		c.unpacking = len(rest) > 0
		switch {
		case !r.Write:
			p.finishReceive(c, e, e.moved, r.HasImmediate, r.Immediate)
		case r.HasImmediate:
			p.finishWrite(c, e, uint32(len(r.Data)), r.Immediate)
		}
		if !c.open {
			return // the next receive was wrong when posted
		}
	}
	c.refusedPart, c.unpacking = 0, false
}
