package vipl

import "viaxdp/wire"

// Sealed is a frame from v to its peer, sealed as if v had sent it, whose header says
// that it has length bytes of data.
func (v *VI) Sealed(data []byte, length int) []byte {
	p := v.port
	p.mu.Lock()
	defer p.mu.Unlock()
	c := v.conn
	plain := make([]byte, wire.HeaderLen+len(data))
	h := c.header
	h.Kind, h.Flags, h.Seq, h.Length = wire.KindData, wire.FlagFirst|wire.FlagLast, c.nextSeq(), uint16(length)
	h.Put(plain)
	copy(plain[wire.HeaderLen:], data)
	frame := make([]byte, c.template.Len()+len(plain)+wire.SealOverhead)
	p.seal(c, c.template.Put(frame, len(plain)+wire.SealOverhead), plain)
	return frame
}
