package vipl

// The path of a message from the NIC to a completion.
//
//  1. receiveAll leases a batch of frames from the RX ring; refill returns their chunks to the kernel.
//  2. receive decodes a frame, finds its VI, and checks key, source and checksum (or opens its seal, seal.go).
//  3. takeAck (ack.go) takes what the frame acknowledges.
//  4. takeReliable puts the frame in order: next, out of order (reorder.go), duplicate. takeUnreliable drops what is late.
//  5. deliver places its data: in the receive at the head (placeMessage), in several (placePack), or where an RDMA
//     write or the answer to an RDMA read names (rdma.go). A byte is copied once, in ascending order.
//  6. finishReceive completes the receive (workqueue.go): length and immediate data, then the status, then the CQ
//     entry and the waiters.
//  7. respond (port.go) sends what has become possible, and the acknowledgements that are due.
//
// An error in a message breaks a reliable connection (refuse); on an unreliable VI the message is dropped.

import (
	"slices"

	"viaxdp/internal/base/reliable"
	"viaxdp/internal/base/wire"
	"viaxdp/xdpnic"
)

// receiver is the state of the frame that is being received.
type receiver struct {
	frames   [rxBatch]xdpnic.Frame
	pkt      wire.Packet
	record   wire.Record
	from     *shmLink              // the link that the frame arrived on; nil: the queue
	inOrder  [rxBatch]xdpnic.Frame // a buffered frame that is being delivered
	late     [rxBatch]xdpnic.Frame // a buffered frame that is being given up, which may happen during a delivery
	reorder  reorderBuffer
	leased   int // chunks received since the last Refill
	refillAt int // how many cause one

	rest   [][]byte // the bytes of the frame in its chunks after the first
	joined []byte   // a frame of several chunks in one piece
	gso    gsoReceiver
}

func (r *receiver) init(chunks, mostSegs int) {
	r.refillAt = min(refillBatch, max(1, chunks/8))
	r.reorder.init(chunks, mostSegs, r.refillAt)
	r.rest = make([][]byte, 0, rxBatch)
}

// receiveAll processes the frames that have arrived, a bounded number so that others get the lock. It reports
// whether there were any.
func (p *port) receiveAll(now int64) (came bool) {
	before := p.stats.Frames + p.stats.GSOReceivedFrames
	for range 4 {
		n := p.nic.Receive(p.rx.frames[:])
		if n > 0 {
			p.sendGSO() // before a frame acknowledges what has not left: its chunk would be another frame's
		}
		if len(p.taps) > 0 {
			p.tapReceived(p.rx.frames[:n])
		}
		for i, k := 0, 0; i < n; i = k {
			for k = i + 1; p.rx.frames[k-1].More && k < n; k++ {
			}
			if !p.receive(p.rx.frames[i:k], now) {
				p.recycle(p.rx.frames[i:k])
			}
		}
		if p.rx.leased += n; p.rx.leased >= p.rx.refillAt {
			p.refill()
		}
		if n <= len(p.rx.frames)-p.long.most { // the next frame would have fitted, so there was none
			break
		}
	}
	if n := p.stats.Frames + p.stats.GSOReceivedFrames - before; n > 0 {
		if came = true; !p.poller.pause.off {
			p.pausePolling(int(n), now)
		}
	}
	if p.links.all.Load() != nil && p.receiveLinks(now) {
		came = true
	}
	return came
}

// receiveLinks processes frames that arrived on links, a bounded number. Under the lock.
func (p *port) receiveLinks(now int64) (came bool) {
	for _, l := range p.allLinks() {
		whole := l.buf[0].Data
		for range rxBatch {
			n, ok := l.Receive(whole)
			if !ok {
				break
			}
			came = true
			l.buf[0].Data = whole[:n]
			p.rx.from = l
			p.receive(l.buf[:], now)
			p.rx.from = nil
			l.buf[0].Data = whole
		}
	}
	return came
}

// refill returns recycled chunks to the kernel. The kernel reads that ring on another CPU, so each store to it is
// expensive: refill runs for several chunks at once, and before a goroutine sleeps.
func (p *port) refill() {
	if p.over {
		return
	}
	p.rx.leased = 0
	p.nic.Refill()
}

// recycle ends the lease of a frame.
func (p *port) recycle(frame []xdpnic.Frame) {
	for i := range frame {
		p.nic.Recycle(frame[i].Addr)
	}
}

// decode parses a frame that arrived in one or several chunks.
func (r *receiver) decode(frame []xdpnic.Frame) error {
	pkt := &r.pkt
	if len(frame) == 1 {
		return pkt.Decode(frame[0].Data)
	}
	r.rest = r.rest[:0]
	for i := range frame[1:] {
		r.rest = append(r.rest, frame[1+i].Data)
	}
	return pkt.DecodeChain(frame[0].Data, r.rest)
}

// decodeInner decodes a frame of a packet, which a router has marked or not.
func (r *receiver) decodeInner(pieces []xdpnic.Frame, marked bool) error {
	r.pkt.Marked = marked
	r.rest = r.rest[:0]
	b := pieces[0].Data
	for i := range pieces[1:] {
		r.rest = append(r.rest, pieces[1+i].Data)
	}
	if len(b) < wire.HeaderLen {
		n := copy(r.gso.head[:], b)
		for len(r.rest) > 0 && n < len(r.gso.head) {
			k := copy(r.gso.head[n:], r.rest[0])
			n += k
			if r.rest[0] = r.rest[0][k:]; len(r.rest[0]) == 0 {
				r.rest = slices.Delete(r.rest, 0, 1)
			}
		}
		b = r.gso.head[:n]
	}
	return r.pkt.DecodeInner(b, r.rest)
}

// receive processes one frame. It returns true if the engine keeps the frame's chunks.
func (p *port) receive(frame []xdpnic.Frame, now int64) (kept bool) {
	p.stats.Frames++
	pkt := &p.rx.pkt
	if len(frame) > 1 {
		p.stats.Chained++
	}
	if err := p.rx.decode(frame); err != nil {
		if err == wire.ErrLength {
			if size, ok := p.isGSO(frame); ok {
				p.receiveGSO(frame, size, now)
				return true
			}
		}
		p.stats.count(err)
		return false
	}
	v := p.vis.find(pkt.VI)
	if v == nil {
		p.stats.UnknownVI++
		return false
	}
	if pkt.Kind == wire.KindSealed {
		if size, ok := p.isGSO(frame); ok {
			p.receiveGSO(frame, size, now)
			return true
		}
	}
	return p.receiveFor(v, frame, now)
}

// receiveFor processes a frame for v that was decoded. It returns true if the engine keeps the frame's chunks.
func (p *port) receiveFor(v *VI, frame []xdpnic.Frame, now int64) (kept bool) {
	pkt := &p.rx.pkt
	c := v.conn
	switch {
	case c.key != pkt.Key:
		p.stats.WrongKey++
		return false
	case c.peer != pkt.Src, c.shm != p.rx.from:
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
	if c.open && c.unproven() && c.sender != nil && pkt.Ack != c.sender.Next() {
		p.stats.BadAcks++ // nothing was sent yet
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
	case wire.KindAck:
		c.learnGSO(pkt)
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

// takeReliable puts a frame of a reliable VI in order and delivers the frames that are in order now.
func (p *port) takeReliable(c *conn, frame []xdpnic.Frame, now int64) (kept bool) {
	seq := p.rx.pkt.Seq
	if c.refusal.cause != nil { // frames after the refused one are ignored
		if p.rx.pkt.Kind == wire.KindClose {
			p.teardownRefused(c, now) // the peer takes no more answers
		}
		return false
	}
	if c.ending.begun && c.vi.attrs.Level == ReliableReception {
		// deliver would drop it, but an acknowledgement tells the peer that it is in memory. So the peer's close, which
		// ends both, need not wait for the frames before it.
		if p.rx.pkt.Kind == wire.KindClose {
			p.sendReset(c, wire.ReasonClosed, now)
			p.teardown(c, broken{cause: ErrPeerClosed})
		}
		return false
	}
	if p.rx.pkt.Flags&wire.FlagAckNow != 0 {
		c.receiver.AskUrgent()
	}
	if p.rx.pkt.Marked {
		c.receiver.Mark()
		p.stats.Marked++
	}
	switch c.receiver.Arrive(seq, p.rx.pkt.Flags&wire.FlagAgain != 0) {
	case reliable.InOrder:
		p.deliver(c, &p.rx.pkt, now)
		for c.open && c.refusal.cause == nil {
			tag, ok := c.receiver.Pop()
			if !ok {
				break
			}
			early := p.rx.reorder.take(tag&^innerTag, p.rx.inOrder[:])
			if p.decodeAgain(c, early, tag&innerTag != 0) == nil { // it was valid when it arrived
				p.deliver(c, &p.rx.pkt, now)
			}
			p.recycleKept(early)
		}
	case reliable.OutOfOrder:
		if c.loop {
			break // the chunk belongs to the sender, which retransmits
		}
		if !p.rx.reorder.fits(len(frame)) || c.secure != nil && len(frame[0].Data) < wire.HeaderLen {
			p.stats.OutOfOrderDropped++
			break // treat it as lost: the peer retransmits
		}
		p.stats.OutOfOrder++
		p.keepOpen(c, frame)
		tag := p.rx.reorder.put(frame)
		if p.rx.gso.inner {
			tag |= innerTag
			for i := range frame {
				p.rx.gso.hold(frame[i].Addr)
			}
		}
		c.receiver.Buffer(seq, tag)
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
	if pkt.Flags&wire.FlagAckNow != 0 {
		p.oweAck(c, now)
	}
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
	if c.ending.begun {
		return // its receives are flushed
	}
	if pkt.Kind == wire.KindPack || pkt.Flags&wire.FlagLast != 0 {
		p.poller.pause.arrived()
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

// placePack delivers the messages of a frame, each as if it had arrived in a frame of its own.
func (p *port) placePack(c *conn, pkt *wire.Packet, now int64) {
	if c.part != 0 || c.receiver == nil {
		p.protocolError(c, now)
		return
	}
	v := c.vi
	rest := p.rx.join()
	c.refusal.unpack(0, false)
	for n := 1; len(rest) > 0; n++ {
		r := &p.rx.record
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
		c.refusal.unpack(n, len(rest) > 0)
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
	c.refusal.unpack(0, false)
}

// join returns the payload of a frame in one piece, copied if it is in several chunks. It is valid until the next
// call.
func (r *receiver) join() []byte {
	pkt := &r.pkt
	if len(pkt.Rest) == 0 {
		return pkt.Payload
	}
	r.joined = append(r.joined[:0], pkt.Payload...)
	for _, b := range pkt.Rest {
		r.joined = append(r.joined, b...)
	}
	return r.joined
}

// joinSealed puts a sealed frame in one piece, since crypto/cipher opens only contiguous bytes.
func (r *receiver) joinSealed() {
	if len(r.pkt.Rest) > 0 {
		r.joined = r.pkt.Join(r.joined)
	}
}

// keepOpen writes an opened frame back to its chunks, so that decodeAgain can read it.
func (p *port) keepOpen(c *conn, frame []xdpnic.Frame) {
	if c.secure != nil && len(frame) > 1 {
		p.rx.pkt.Spread()
	}
}

// decodeAgain decodes a frame that was valid when it arrived; if it was sealed, it is open now.
func (p *port) decodeAgain(c *conn, frame []xdpnic.Frame, inner bool) error {
	var err error
	if inner {
		err = p.rx.decodeInner(frame, false) // the mark was counted when it arrived
	} else {
		err = p.rx.decode(frame)
	}
	if err != nil || c.secure == nil {
		return err
	}
	p.rx.joinSealed()
	return p.rx.pkt.Opened()
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

// answering reports whether the peer lacks answers to its reads.
func (c *conn) answering() bool {
	return c.rdma.answers.waiting() || c.rdma.replied
}
