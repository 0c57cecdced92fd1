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
	return c.sealedFrame(plain)
}

// Seal is the frame to v's peer with that header and payload, sealed as if v had sent it. plain is then of no use.
func (v *VI) Seal(plain []byte) []byte {
	v.port.mu.Lock()
	defer v.port.mu.Unlock()
	return v.conn.sealedFrame(plain)
}

func (c *conn) sealedFrame(plain []byte) []byte {
	frame := make([]byte, c.template.Len()+len(plain)+wire.SealOverhead)
	c.vi.port.seal(c, c.template.Put(frame, len(plain)+wire.SealOverhead), plain)
	return frame
}

// Unseal is what v's peer has sealed in a frame, which v has not received. The frame is then of no use.
func (v *VI) Unseal(frame []byte) ([]byte, error) {
	v.port.mu.Lock()
	defer v.port.mu.Unlock()
	var pkt wire.Packet
	if err := pkt.Decode(frame); err != nil {
		return nil, err
	}
	clear, sealed := pkt.Sealed()
	if err := v.conn.secure.Open(sealed, clear, pkt.Epoch(), pkt.Number()); err != nil {
		return nil, err
	}
	err := pkt.Opened()
	return pkt.Payload, err
}
