package vipl

// Sealing and opening of frames of connections with a pre-shared key. The engine builds plain frames and keeps them
// for retransmission. A sealed copy of each frame goes on the ring, with a new packet number every time. The rest of
// the engine sees a received frame as it was before sealing.

import (
	"viaxdp/internal/base/secure"
	"viaxdp/internal/base/wire"
	"viaxdp/xdpnic"
)

// sealBuffer is where a frame of several segments is sealed.
type sealBuffer struct {
	whole  []byte        // the frame in one piece
	chunks []xdpnic.Desc // the chunks of its sealed copy
}

func (b *sealBuffer) init(most int) { b.chunks = make([]xdpnic.Desc, 0, most) }

// sendSealed queues the sealed form of the frame of the given size at addr. With retain the frame stays with the
// engine, else it is released. False: no chunk for the copy, or no ring entry.
func (p *port) sendSealed(c *conn, addr uint64, size int, retain, isNew bool) bool {
	if !p.roomToSeal(1) {
		return false
	}
	to, chunk, _ := p.nic.Alloc()
	plain := p.mem[addr+uint64(c.template.Len()) : addr+uint64(size)]
	p.seal(c, c.template.Put(chunk, len(plain)+wire.SealOverhead), plain)
	if !p.queue(c, to, size+wire.SealOverhead, false, isNew) {
		p.nic.Release(to)
		return false
	}
	if !retain {
		p.nic.Release(addr)
	}
	return true
}

// sendLongSealed is sendSealed for a frame of several segments. crypto/cipher seals only contiguous bytes, so the
// frame is sealed in one piece and then copied into as many chunks as it needs.
func (p *port) sendLongSealed(c *conn, f *longFrame, retain, isNew bool) bool {
	b := &p.long.seal
	b.whole = append(b.whole[:0], make([]byte, sealAhead)...)
	for _, part := range p.long.parts {
		b.whole = append(b.whole, part...)
	}
	plain := b.whole[sealAhead:]
	if !p.roomToSeal(c.chunksFor(len(plain))) {
		return false
	}
	b.whole = append(b.whole, make([]byte, wire.TagLen)...)
	p.seal(c, b.whole, b.whole[sealAhead:][:len(plain)])

	b.chunks = b.chunks[:0]
	lower := c.template.Len()
	for rest := b.whole; len(rest) > 0; lower = 0 {
		addr, chunk, _ := p.nic.Alloc()
		if lower > 0 {
			c.template.PutHead(chunk, len(b.whole))
		}
		n := copy(chunk[lower:], rest)
		rest = rest[n:]
		b.chunks = append(b.chunks, xdpnic.Desc{Addr: addr, Len: uint32(lower + n)})
	}
	if !p.queueSegs(c, b.chunks, false, isNew) {
		for _, s := range b.chunks {
			p.nic.Release(s.Addr)
		}
		return false
	}
	if !retain {
		p.giveUp(f)
	}
	return true
}

// sealAhead is the distance from the beginning of the sealed form to the plain frame that lets encryption work in
// place.
const sealAhead = wire.SealOverhead - wire.TagLen

// seal writes the sealed form of plain, header and payload, to b.
func (p *port) seal(c *conn, b, plain []byte) {
	s := c.secure
	before := s.Epoch()
	epoch, number := s.Next()
	if epoch != before {
		p.stats.Rekeyed++
	}
	clear, inner := wire.PutSealed(b, plain, epoch, number)
	s.Seal(clear, inner, clear)
}

// chunksFor returns how many chunks the sealed form of a frame takes that has n bytes of header and payload.
func (c *conn) chunksFor(n int) int {
	tx, _ := c.vi.port.nic.FrameCap()
	return (c.template.Len() + n + wire.SealOverhead + tx - 1) / tx
}

// roomToSeal reports whether there are enough chunks for a sealed copy. They may be of those that data leaves free
// (shares.spare), since they are completed when the frame has been sent.
func (p *port) roomToSeal(chunks int) bool {
	if p.nic.TxFree() < chunks {
		p.nic.Reap()
	}
	if p.nic.TxFree() < chunks {
		p.flush()
	}
	return p.nic.TxFree() >= chunks
}

// unseal opens a frame of a connection with a key: in its chunk or, if it has several, in a copy.
func (p *port) unseal(c *conn, pkt *wire.Packet) bool {
	if c.secure == nil || pkt.Kind != wire.KindSealed {
		p.stats.Unsealed++
		return false
	}
	p.rx.joinSealed()
	clear, sealed := pkt.Sealed()
	switch c.secure.Open(sealed, clear, pkt.Epoch(), pkt.Number()) {
	case nil:
	case secure.ErrReplay:
		p.stats.Replayed++
		return false
	default:
		p.stats.Forged++
		return false
	}
	if pkt.Opened() != nil {
		p.stats.Malformed++
		return false
	}
	return true
}
