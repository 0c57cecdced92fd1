package vipl

// The path of a message to the NIC. A message becomes frames of at most the path's MTU.
//
//  1. post and join put the descriptor on the send queue. translate.go has read, checked and translated it: the
//     engine works on that copy.
//  2. sendPosted decides when the message goes: at once (sendAlone), with the others that can go now (pump), or
//     later (coalesce.go).
//  3. pump takes the connection's work in order: lost frames, answers to RDMA reads, the send queue (sendNext).
//  4. sendNext makes one frame: of the next bytes of a message (sendPiece; long.go if the frame is longer than a
//     chunk), of several small messages (sendSmall, sendPack), or of the request of an RDMA read (rdma.go).
//     Headers come from the connection's template, and the payload is copied behind them into a TX chunk.
//  5. sendNumbered numbers the frame, adds acknowledgement and checksum, and sends it (transmit.go): sealed or plain,
//     to the TX ring, a shared-memory link or another VI of this port. record keeps it until the peer has
//     acknowledged it, so that the program may reuse its buffer as soon as the send is done. launch is both.
//  6. The doorbell (transmit.go) hands the frames over and completes the sends that wait for nothing else.
//
// ack.go has acknowledgements, resend.go retransmissions, control.go the other frames outside of the sequence.

import "viaxdp/internal/base/wire"

// post puts d on q.
func (v *VI) post(op string, q *workQueue, d *Descriptor, h MemHandle) error {
	p := v.port
	p.mu.Lock()
	err := v.join(op, q, d, h)
	if err == nil && !q.isRecv {
		v.sendPosted(false)
	}
	p.mu.Unlock()
	return err
}

// postList puts ds on q, as post does one by one, under one lock and with one doorbell.
func (v *VI) postList(op string, q *workQueue, ds []*Descriptor, h MemHandle) (n int, err error) {
	p := v.port
	p.mu.Lock()
	for ; n < len(ds); n++ {
		if err = v.join(op, q, ds[n], h); err != nil {
			break
		}
	}
	if n > 0 && !q.isRecv {
		v.sendPosted(false)
	}
	p.mu.Unlock()
	return n, err
}

// join puts d at the tail of q. Wrong contents complete the descriptor in error; the returned error is about the
// descriptor itself. Under the lock.
func (v *VI) join(op string, q *workQueue, d *Descriptor, h MemHandle) error {
	switch {
	case v.gone.Load():
		return opError(op, v, ErrInvalidParameter, errDestroyed)
	case v.nic.closing():
		return closedError(op)
	}
	e := q.push()
	if e == nil {
		v.reportDescriptor(ErrorVIOverrun, d, 0, errOverrun)
		return opError(op, v, ErrResource, errOverrun)
	}
	if err := v.read(e, d, h); err != nil {
		v.reportDescriptor(ErrorPostDesc, d, 0, err)
		return opError(op, v, ErrInvalidParameter, err)
	}
	d.setStatus(0)
	e.status = v.translate(e, d, q.isRecv)
	q.commit()

	p := v.port
	switch {
	case q.isRecv && v.state == Error, !q.isRecv && v.state != Connected:
		if q.current != q.tail.Load()-1 {
			break // a Disconnect that is under way flushes it after the earlier ones
		}
		q.current++
		e.status, e.over = StatusFlushed|e.status, true
		p.settleQueue(q) // after the earlier ones, whose memory may still be read
	case q.isRecv:
		if e.status.Failed() {
			p.settleReceives(v)
			p.finish(p.now(), false) // the peer hears of the broken connection now, not with the next frame
		}
	}
	return nil
}

// sendPosted sends what was posted, as far as possible now, and processes frames that have arrived. later delays
// the doorbell until Ring. Under the lock.
func (v *VI) sendPosted(later bool) {
	if v.state != Connected {
		return
	}
	p := v.port
	p.poller.pause.posted()
	arrived := p.arrived()
	if c := v.conn; c != nil && !arrived && !later && p.alone(c) && p.sendAlone(c) {
		return
	}
	now := p.now()
	if arrived {
		p.receiveAll(now)
	}
	if v.conn != nil {
		p.posting(v.conn, now)
		p.pump(v.conn, now)
		p.doorbell.waitIf(p.mayWait(v.conn, now) || later && p.mayRingLater())
	}
	p.finish(now, false)
	p.doorbell.hurry()
	if v.conn != nil {
		p.posted(v.conn, now)
	}
}

// alone reports whether the message that c's program has just posted fits in one frame and nothing else is being
// sent or waits. Its doorbell is then rung at once.
func (p *port) alone(c *conn) bool {
	q := &c.vi.send
	if q.current+1 != q.tail.Load() || !c.open || c.batch.inStream && c.vi.recv.ready() || c.ending.begun ||
		c.sender != nil && (!c.sender.Idle() || c.sender.Room() == 0) || c.rdma.reads > 0 || c.rdma.answers.waiting() || len(p.ready.conns) > 0 || len(p.coalescer.conns) > 0 || p.pending() > 0 {
		return false
	}
	e := q.at(q.current)
	return !e.status.Failed() && e.op != StatusOpRDMARead && int(e.length) <= c.inChunk && c.fits(int(e.length))
}

// sendAlone sends the message for which alone is true. It rings the doorbell first. What the doorbell does not need
// comes after it, while the frame is under way: reading the clock, and recording the frame. So the frame's send
// time is the time at which the kernel has it. It returns false, with nothing done, if there is no chunk or no ring
// entry.
func (p *port) sendAlone(c *conn) bool {
	p.notePost()
	e := c.vi.send.waiting()
	addr, b, ok := p.buildPiece(c, e, int(e.length))
	if !ok {
		return false
	}
	if !p.sendNumbered(c, addr, b) {
		e.rewind()
		p.notStamped(c, p.now())
		return false
	}
	p.ring()
	now := p.now()
	p.record(c, addr, b, now)
	p.sentWhole(c, e)
	c.sentAlone(now)
	p.doorbell.waitIf(true) // finish need not ring again: a driver in zero-copy mode takes the entry in its own time
	p.finish(now, false)
	p.doorbell.hurry()
	p.settleHanded()
	return true
}

// pump sends what c can send now: lost frames first, then alternately the answers to the peer's RDMA reads and the
// send queue, each in order. It returns false if the port has no room for more.
func (p *port) pump(c *conn, now int64) bool {
	if !c.open {
		return true
	}
	if c.sender != nil {
		if c.sender.Pace(now); !p.resendLost(c, now) {
			return false
		}
	}
	for c.open && (c.sender == nil || c.sender.Room() > 0) {
		answered := false
		if c.rdma.answers.waiting() && c.fits(c.answerPiece()) {
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
			if c.open && c.ending.begun && !c.ending.sent {
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
	if e == nil || c.ending.begun {
		return sendNothing
	}
	if e.status.Failed() {
		return p.failSend(c, e, now)
	}
	if !e.begun && c.rdma.reads > 0 && (e.control&ControlQFence != 0 || e.op == StatusOpRDMARead && c.rdma.reads == maxReads) {
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
		if !c.fits(n) || p.defersGSO(c, int(e.length-e.moved)) {
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
	} else {
		p.sendMiddle(c, e, now)
	}
	return sentFrame
}

// sendPiece builds and sends a frame of the next n bytes of a send or an RDMA write. False: the port is full; c
// is tried again.
func (p *port) sendPiece(c *conn, e *posted, n int, now int64) bool {
	if n > c.inChunk {
		return p.sendLong(c, e, n, now)
	}
	moved, seg, off := e.moved, e.seg, e.off
	addr, b, ok := p.buildPiece(c, e, n)
	if ok && !p.launch(c, addr, b, now) {
		e.moved, e.seg, e.off = moved, seg, off
		ok = false
	}
	return ok
}

// buildPiece builds the frame of sendPiece in a chunk. b is the chunk's content from our header on; c.header has
// what is special to the frame.
func (p *port) buildPiece(c *conn, e *posted, n int) (addr uint64, b []byte, ok bool) {
	addr, chunk, ok := p.chunk(c)
	if !ok {
		return 0, nil, false
	}
	from := e.moved
	b = c.template.Put(chunk, wire.HeaderLen+n)
	c.summed = c.secure == nil && !c.bare
	c.sum = e.gather(b[wire.HeaderLen:], c.summed)
	c.describe(e, from)
	return addr, b, true
}

// describe fills in the header for the part of e that the frame carries: the bytes from offset from to e's current
// position. The last frame asks for an acknowledgement, unless data comes back sooner, if the descriptor waits for it, or if
// the frames of the message let small ones after it wait (coalesces). In a stream other frames ask.
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
		if c.sender != nil && (e.byRef || c.vi.attrs.Level == ReliableReception || from > 0) && c.outstandingBefore(e) < streamAfter {
			h.Flags |= wire.FlagAckSoon
		}
		if e.control&ControlImmediate != 0 {
			h.Flags |= wire.FlagImmediate
			h.Immediate = e.imm
		}
	}
}

// outstandingBefore returns how many frames of the messages before e are outstanding, while those of e are being sent.
func (c *conn) outstandingBefore(e *posted) int {
	if !e.begun {
		return c.sender.Outstanding()
	}
	return c.sender.Outstanding() - int(c.sender.Next()-e.first)
}

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

// sendSmall sends the small message at the head of the send queue, alone or with those behind it, or lets it wait
// for more.
func (p *port) sendSmall(c *conn, e *posted, now int64) sendResult {
	count, full := c.packable()
	if !full && !c.batch.off && c.batch.backToBack && c.coalesces() {
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
	b := c.template.Put(chunk, wire.HeaderLen+c.batch.gathered.bytes)
	rest := b[wire.HeaderLen:]
	var r wire.Record
	seq := c.nextSeq()
	for i := range uint64(count) {
		e := q.at(q.current + i)
		e.record(&r)
		at := r.Put(rest, int(e.length))
		e.gather(at, false)
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

// sentLast records that all of the descriptor at the head of the send queue is on the ring. Its last frame is the
// one that was just sent.
func (p *port) sentLast(c *conn, e *posted) {
	e.last = c.header.Seq
	c.byRef = c.byRef || e.byRef
	c.vi.send.current++
	p.handOver(c)
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

// launch sends the frame in b as the next in the sequence, and records it. c.header has its kind, its flags and
// the fields of the kind. False: the ring is full; the chunk is given back, and c is tried again.
func (p *port) launch(c *conn, addr uint64, b []byte, now int64) bool {
	if !p.sendNumbered(c, addr, b) {
		p.notStamped(c, now)
		return false
	}
	p.record(c, addr, b, now)
	if p.nic.Pending() >= kickBatch {
		p.flush()
	}
	return true
}

// sendNumbered numbers the frame in b and sends it. False: the ring is full; the chunk is given back.
func (p *port) sendNumbered(c *conn, addr uint64, b []byte) bool {
	h := &c.header
	size := c.template.Len() + len(b)
	if c.sender != nil && c.asksAck(wire.Units(size+c.overhead)) || c.sender == nil && p.asksGSO(c) || p.unheardGSO(c) {
		h.Flags |= wire.FlagAckNow
	}
	h.Seq = c.nextSeq()
	h.Length = uint16(len(b) - wire.HeaderLen)
	p.stamp(c)
	h.Put(b)
	c.putChecksum(b)
	if !p.send(c, addr, size, c.sender != nil, true) {
		p.nic.Release(addr)
		return false
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

// record records the frame in b, which was sent with number header.Seq.
func (p *port) record(c *conn, addr uint64, b []byte, now int64) {
	if c.sender == nil {
		c.seq++
		return
	}
	c.chunks++
	size := c.template.Len() + len(b)
	p.remember(c, addr<<tagShift|uint64(size), wire.Units(size+c.overhead), now)
}

// remember records a frame of a reliable VI until it is acknowledged.
func (p *port) remember(c *conn, tag uint64, units int, now int64) {
	if c.sender.Idle() {
		c.moved = now
	}
	c.ack.delay.dataGoes(now)
	c.sender.Send(now, tag, units)
	p.timers.schedule(c, c.sender.Deadline())
}
