package vipl

// Step 2 of the path of small messages: several of them in one frame. A frame has a fixed cost, most of it the
// kernel's. So messages that wait in the send queue of a reliable VI share a frame, whether they wait for the
// window or are coalesced (coalesce.go).

import (
	"viaxdp/internal/base/wire"
)

// small reports whether a message may share a frame: two of its size must fit.
func (c *conn) small(e *posted) bool {
	return (e.op == StatusOpSend || e.op == StatusOpRDMAWrite) && !e.begun && !e.status.Failed() &&
		e.control&ControlQFence == 0 && int(e.length)+mostRecord <= c.inPack/2
}

// mostRecord is the most that a record takes in addition to its data.
var mostRecord = wire.RecordLen(0, true, true)

// record fills in r for e, except for the data.
func (e *posted) record(r *wire.Record) {
	r.HasImmediate, r.Immediate = e.control&ControlImmediate != 0, e.imm
	if r.Write = e.op == StatusOpRDMAWrite; r.Write {
		to := e.asPosted.remote()
		r.RemoteAddr, r.RemoteHandle = to.Data, uint32(to.Handle)
	}
}

// room returns the bytes that the message takes in a frame of several.
func (e *posted) room() int {
	return wire.RecordLen(int(e.length), e.control&ControlImmediate != 0, e.op == StatusOpRDMAWrite)
}

// gathering records how many waiting messages fit in one frame: those from queue index from up to index to, which
// take bytes in the frame.
type gathering struct {
	from, to uint64
	bytes    int
}

// packable counts the small messages at the head of the send queue that fit in one frame. full means that the next
// one does not fit or may not share a frame.
func (c *conn) packable() (count int, full bool) {
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

// sendSmall sends the small message at the head of the send queue, alone or with those behind it, or lets it wait
// for more.
func (p *port) sendSmall(c *conn, e *posted, now int64) sendResult {
	count, full := c.packable()
	if !full && !c.noCoalesce && c.backToBack && c.coalesces() {
		p.coalesce(c, now)
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

// sentWhole records that all of the message at the head is on the ring, alone in the last frame.
func (p *port) sentWhole(c *conn, e *posted) {
	e.begun, e.first = true, c.header.Seq
	p.sentLast(c, e)
}

// placePack delivers the messages of a frame, each as if it had arrived in a frame of its own.
func (p *port) placePack(c *conn, pkt *wire.Packet, now int64) {
	if c.part != 0 || c.receiver == nil {
		p.protocolError(c, now)
		return
	}
	v := c.vi
	rest := p.chains.join(pkt)
	for c.refusedPart = 0; len(rest) > 0; {
		r := &p.record
		var ok bool
		if rest, ok = r.Next(rest); !ok {
			p.protocolError(c, now)
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
