package vipl

// Frames outside of the sequence, and the orderly end.

import (
	"time"

	"viaxdp/internal/base/reliable"
	"viaxdp/internal/base/wire"
)

const resetEvery = time.Millisecond

// control sends a frame outside of the sequence. The meaning of seq and imm depends on the kind.
func (p *port) control(c *conn, kind wire.Kind, seq, imm uint32) bool {
	addr, chunk, ok := p.nic.Alloc()
	if !ok {
		if p.flush(); p.nic.TxFree() == 0 {
			return false
		}
		if addr, chunk, ok = p.nic.Alloc(); !ok {
			return false
		}
	}
	var ranges [wire.MaxAckRanges]reliable.Range
	n := 0
	if kind == wire.KindAck && c.receiver != nil && c.receiver.Buffered() > 0 {
		n = c.receiver.Ranges(ranges[:min(len(ranges), c.payload/wire.RangeLen)])
	}
	b := c.template.Put(chunk, wire.HeaderLen+n*wire.RangeLen)
	for i, r := range ranges[:n] {
		wire.PutRange(b[wire.HeaderLen+i*wire.RangeLen:], wire.AckRange(r))
	}
	h := &c.header
	h.Kind, h.Flags, h.Seq, h.Immediate, h.Length = kind, 0, seq, imm, uint16(n*wire.RangeLen)
	h.RemoteAddr, h.RemoteHandle = 0, 0
	switch kind {
	case wire.KindError:
		h.RemoteAddr = uint64(c.refusal.part)
	case wire.KindAck:
		p.announce(c)
		if c.receiver != nil {
			h.Immediate, h.RemoteHandle = c.receiver.Marks(), wire.AckEchoesMarks
		}
	}
	h.Window = uint16(p.shares.window)
	switch h.Ack = 0; {
	case c.receiver != nil:
		h.Ack = c.acked()
	case kind == wire.KindAck:
		h.Ack = c.expect
	}
	h.Put(b)
	c.putChecksum(b)
	if !p.send(c, addr, c.template.Len()+len(b), false, false) {
		p.nic.Release(addr)
		return false
	}
	return true
}

// sendReset tells the peer that this side has broken the connection. It does so at most once per resetEvery, since
// every frame that still arrives asks for it.
func (p *port) sendReset(c *conn, reason wire.Reason, now int64) {
	if c.resetAt != 0 && now-c.resetAt < int64(resetEvery) || c.unproven() {
		return
	}
	seq := uint32(0)
	if c.refusal.reason != 0 {
		reason, seq = c.refusal.reason, c.refusal.seq // also if it is repeated
	} else if c.receiver != nil {
		seq = c.receiver.Next() - 1
	}
	if p.control(c, wire.KindError, seq, uint32(reason)) {
		c.resetAt = now
	}
}

// afterwards answers frames that arrive for a broken connection. If a disconnecting peer repeats its last
// frame, the frame is acknowledged. Any other frame is answered with a reset.
func (p *port) afterwards(c *conn, now int64) {
	if p.rx.pkt.Kind == wire.KindError || p.rx.pkt.Kind == wire.KindAck {
		return
	}
	switch p.rx.pkt.Kind {
	case wire.KindData, wire.KindPack, wire.KindWrite, wire.KindRead, wire.KindReadData:
		if c.vi.cause != ErrPeerClosed {
			break // send it the cause
		}
		fallthrough
	case wire.KindClose:
		if c.receiver != nil && int32(c.receiver.Next()-p.rx.pkt.Seq) > 0 {
			p.control(c, wire.KindAck, 0, 0)
			return
		}
	}
	p.sendReset(c, wire.ReasonClosed, now)
}

// takeError processes the peer's reset: it broke the connection at the frame of ours that the reset names.
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
