package vipl

// RDMA at the target of the operation, and the reading side of an RDMA read. tx.go sends the frames of
// writes and the requests of reads.
//
//	write:  KindWrite, KindWrite, ... ---------------->  placed on arrival
//	read:   KindRead  -------------------------------->  checked, queued
//	        placed on arrival  <---  KindReadData, KindReadData, ...
//
// All of these frames have numbers in the connection's sequence, so operations of one VI stay in order. Each frame
// is checked separately against the region's current state, and acquires the region while it copies.

import (
	"errors"

	"viaxdp/internal/base/wire"
	"viaxdp/memreg"
)

// maxReads is how many RDMA reads of one VI may be outstanding; the peer queues as many. It is fixed by this
// version of the wire format.
const maxReads = 16

var (
	errWriteRefused = errors.New("the VI does not take RDMA writes (EnableRDMAWrite)")
	errReadRefused  = errors.New("the VI does not serve RDMA reads (EnableRDMARead)")
)

// connRDMA is the state of a connection's RDMA reads, in both directions.
type connRDMA struct {
	reads    int     // reads of this side that are outstanding
	answers  answers // to the peer's reads
	replied  bool    // frames of answers are unacknowledged
	replySeq uint32  // number of the last such frame
}

// dropAnswers gives up the peer's reads: it will not get the rest.
func (r *connRDMA) dropAnswers() { r.answers = nil }

// acknowledged records that the peer has all frames before number to.
func (r *connRDMA) acknowledged(to uint32) { r.replied = r.replied && int32(r.replySeq-to) >= 0 }

// answer is an RDMA read of the peer that is being served.
type answer struct {
	addr   uint64
	handle MemHandle
	length uint32
	moved  uint32
	seq    uint32 // number of the request
}

// answers are the reads to serve, oldest first.
type answers []answer

func (a answers) waiting() bool { return len(a) > 0 }

func (a *answers) drop() {
	copy(*a, (*a)[1:])
	*a = (*a)[:len(*a)-1]
}

// placeWrite places a frame of the peer's RDMA write. If the write carries immediate data, its last frame consumes
// a receive.
func (p *port) placeWrite(c *conn, pkt *wire.Packet, now int64) {
	v := c.vi
	if pkt.Flags&wire.FlagFirst != 0 {
		c.part, c.written = wire.KindWrite, 0
	}
	n := int(pkt.Length)
	if uint64(c.written)+uint64(n) > uint64(v.attrs.MaxTransferSize) {
		p.protocolError(c, now)
		return
	}
	if err := v.writeTo(MemHandle(pkt.RemoteHandle), pkt.RemoteAddr, uint32(n), pkt.Payload, pkt.Rest); err != nil {
		p.refuseWrite(c, err, now)
		return
	}
	c.written += uint32(n)
	if pkt.Flags&wire.FlagLast == 0 {
		return
	}
	c.part = 0
	p.stats.Writes++
	if pkt.Flags&wire.FlagImmediate == 0 {
		return
	}
	e := v.recv.waiting()
	if e == nil {
		p.recvEmpty(c, now)
		return
	}
	p.finishWrite(c, e, c.written, pkt.Immediate)
}

// placeRecord places an RDMA write that shares its frame with other messages. False: it was refused.
func (p *port) placeRecord(c *conn, r *wire.Record, now int64) bool {
	v := c.vi
	n := uint32(len(r.Data))
	if uint64(n) > uint64(v.attrs.MaxTransferSize) {
		p.protocolError(c, now)
		return false
	}
	if err := v.writeTo(MemHandle(r.RemoteHandle), r.RemoteAddr, n, r.Data, nil); err != nil {
		p.refuseWrite(c, err, now)
		return false
	}
	p.stats.Writes++
	if r.HasImmediate && v.recv.waiting() == nil {
		p.recvEmpty(c, now)
		return false
	}
	return true
}

// finishWrite completes the receive that a write of n bytes with immediate data consumes.
func (p *port) finishWrite(c *conn, e *posted, n, immediate uint32) {
	e.op = StatusOpRemoteRDMAWrite
	p.finishReceive(c, e, n, true, immediate)
}

// refuseWrite ends a write to memory that is not open to it.
func (p *port) refuseWrite(c *conn, err error, now int64) {
	c.part = 0
	p.stats.RDMARefused++
	c.vi.report(ErrorRDMAWriteProtection, StatusOpRDMAWrite, err)
	if c.receiver != nil {
		p.refuse(c, wire.ReasonRDMAWrite, err, now)
	}
}

// writeTo copies n bytes, in first and rest, in ascending order to memory that the peer names.
func (v *VI) writeTo(h MemHandle, addr uint64, n uint32, first []byte, rest [][]byte) error {
	if !v.attrs.EnableRDMAWrite {
		return errWriteRefused
	}
	if n == 0 {
		return nil
	}
	dst, region, err := v.nic.mem.ResolveRemote(h, addr, n, v.tag, memreg.RemoteWrite)
	if err != nil {
		return err
	}
	if len(rest) == 0 {
		copyAscending(dst, first)
	} else {
		copyPieces(dst, first, rest)
	}
	region.Release()
	return nil
}

// copyPieces is copyAscending for several pieces. The last piece may be shorter than a word.
func copyPieces(dst, first []byte, rest [][]byte) {
	var tail [8]byte
	body := max(0, len(dst)-len(tail))
	at := 0
	for i := -1; i < len(rest); i++ {
		b := first
		if i >= 0 {
			b = rest[i]
		}
		k := 0
		if at < body {
			k = copy(dst[at:body], b)
		}
		if k < len(b) {
			copy(tail[at+k-body:], b[k:])
		}
		at += len(b)
	}
	copyAscending(dst[body:], tail[:len(dst)-body])
}

// askRead sends the request of an RDMA read. False: the port is full; c is tried again.
func (p *port) askRead(c *conn, e *posted, now int64) bool {
	addr, chunk, ok := p.chunk(c)
	if !ok {
		return false
	}
	b := c.template.Put(chunk, wire.HeaderLen)
	h := &c.header
	h.Kind, h.Flags, h.Immediate = wire.KindRead, 0, e.length
	from := e.asPosted.remote()
	h.RemoteAddr, h.RemoteHandle = from.Data, uint32(from.Handle)
	if !p.launch(c, addr, b, now) {
		return false
	}
	c.rdma.reads++
	return true
}

// takeRead processes the peer's request for an RDMA read. An invalid one breaks the connection before any later
// frame of the peer is examined.
func (p *port) takeRead(c *conn, pkt *wire.Packet, now int64) {
	v := c.vi
	r := answer{addr: pkt.RemoteAddr, handle: MemHandle(pkt.RemoteHandle), length: pkt.Immediate, seq: pkt.Seq}
	if c.part != 0 || pkt.Length > 0 || len(c.rdma.answers) == maxReads || uint64(r.length) > uint64(v.attrs.MaxTransferSize) {
		p.protocolError(c, now)
		return
	}
	err := errReadRefused
	if v.attrs.EnableRDMARead {
		err = p.readFrom(v, &r, nil, nil)
	}
	if err != nil {
		p.refuseRead(c, r.seq, err, now)
		return
	}
	if c.rdma.answers == nil {
		c.rdma.answers = make(answers, 0, maxReads)
	}
	c.rdma.answers = append(c.rdma.answers, r)
	p.enqueue(c)
}

// readFrom checks that the remainder of r may be read, and copies its next bytes to first and rest.
func (p *port) readFrom(v *VI, r *answer, first []byte, rest [][]byte) error {
	if r.length == 0 {
		return nil
	}
	src, region, err := v.nic.mem.ResolveRemote(
		r.handle, r.addr+uint64(r.moved), r.length-r.moved, v.tag, memreg.RemoteRead)
	if err != nil {
		return err
	}
	src = src[copy(first, src):]
	for _, b := range rest {
		src = src[copy(b, src):]
	}
	region.Release()
	return nil
}

func (p *port) refuseRead(c *conn, seq uint32, err error, now int64) {
	p.stats.RDMARefused++
	c.vi.report(ErrorRDMAReadProtection, StatusOpRDMARead, err)
	p.refuseAt(c, wire.ReasonRDMARead, seq, err, now)
}

// left returns how many bytes of the oldest read have not left.
func (a answers) left() int { return int(a[0].length - a[0].moved) }

// answerPiece returns how many bytes of the oldest read the next frame carries.
func (c *conn) answerPiece() int { return min(c.payload, c.rdma.answers.left()) }

// sendAnswer sends the next frame of the oldest read that is being served. False: the port is full; c is tried
// again.
func (p *port) sendAnswer(c *conn, now int64) bool {
	r := &c.rdma.answers[0]
	n := c.answerPiece()
	if !p.beginLong(c, n) || !p.roomForLong(c, n) {
		return false
	}
	head := p.long.parts[0]
	if err := p.readFrom(c.vi, r, head[wire.HeaderLen:], p.long.parts[1:]); err != nil {
		p.dropLong()
		seq := r.seq
		c.rdma.answers = c.rdma.answers[:0]
		p.refuseRead(c, seq, err, now)
		return true
	}
	h := &c.header
	h.Kind, h.Flags, h.Immediate = wire.KindReadData, 0, r.seq
	h.RemoteAddr, h.RemoteHandle = uint64(r.moved), 0
	if r.moved+uint32(n) == r.length {
		h.Flags = wire.FlagLast
	}
	if n <= c.inChunk {
		if !p.launch(c, p.long.now.segs[0].Addr, head, now) {
			return false
		}
	} else if !p.launchLong(c, n, now) {
		return false
	}
	c.rdma.replied, c.rdma.replySeq = true, h.Seq
	if r.moved += uint32(n); r.moved == r.length {
		c.rdma.answers.drop()
		p.stats.Reads++
	}
	return true
}

// takeReadData places a frame of the answer to this side's oldest read.
func (p *port) takeReadData(c *conn, pkt *wire.Packet, now int64) {
	q := &c.vi.send
	var e *posted
	for i := q.completed.Load(); i != q.current; i++ {
		if x := q.at(i); x.op == StatusOpRDMARead && !x.done {
			e = x
			break
		}
	}
	if e == nil || pkt.Immediate != e.first || pkt.RemoteAddr != uint64(e.moved) ||
		uint64(e.moved)+uint64(pkt.Length) > uint64(e.length) {
		p.protocolError(c, now)
		return
	}
	c.moved = now // answers go on as our acknowledgements arrive; a later frame that was refused has none until they end
	e.placeAll(pkt)
	last := pkt.Flags&wire.FlagLast != 0
	if last != (e.moved == e.length) || !last && pkt.Length == 0 {
		p.protocolError(c, now)
		return
	}
	if last {
		e.done = true
		c.rdma.reads--
		p.settleQueue(&c.vi.send)
		p.enqueue(c)
	}
}
