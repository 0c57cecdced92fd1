package wire

import "encoding/binary"

// A frame of a connection with a pre-shared key is sealed. The clear part is what the demux program and the lookup
// of the connection need. The rest of the header is encrypted with the payload, and the tag covers both:
//
//	 0 version  1 KindSealed  2 epoch of the key    4 VI
//	 8 key of the connection
//	16 packet number
//	24 the header's bytes 16 to 43, sequence to remote handle, encrypted
//	52 kind   53 zero   54 flags                                    "
//	56 payload                                                      "
//	   tag
//
// Kind and flags take the place of a plain frame's checksum.
const (
	KindSealed Kind = 10 // another frame, encrypted and authenticated

	// SealedLen is the length of the clear part, TagLen that of the tag. Sealing makes a frame SealOverhead bytes
	// longer.
	SealedLen    = 24
	TagLen       = 16
	SealOverhead = SealedLen + TagLen - clearLen

	clearLen    = 16 // leading bytes that sealed and plain frame share
	numberAt    = 16
	leastSealed = HeaderLen + SealOverhead
)

// PutSealed begins the sealed form, at b, of the frame plain, which is header and payload. It returns the clear
// part, which is to be authenticated, and the bytes to be encrypted behind it. Those are bytes of plain, whose
// checksum field it overwrites.
func PutSealed(b, plain []byte, epoch uint16, number uint64) (clear, inner []byte) {
	plain[checksumAt], plain[checksumAt+1] = plain[1], 0
	copy(plain[checksumAt+2:checksumAt+4], plain[2:4])
	copy(b, plain[:clearLen])
	b[1] = byte(KindSealed)
	binary.BigEndian.PutUint16(b[2:], epoch)
	binary.BigEndian.PutUint64(b[numberAt:], number)
	return b[:SealedLen], plain[clearLen:]
}

// parseSealed reads the clear part of a frame with a UDP payload of n bytes.
func (h *Header) parseSealed(b []byte, n int) error {
	if n < leastSealed {
		return ErrShort
	}
	*h = Header{
		Kind: KindSealed, VI: binary.BigEndian.Uint32(b[4:]), Key: binary.BigEndian.Uint64(b[8:]),
		Length: uint16(n - HeaderLen),
	}
	return nil
}

// Epoch returns the epoch of a sealed packet: which key of the connection it is sealed with.
func (p *Packet) Epoch() uint16 { return binary.BigEndian.Uint16(p.udp[2:]) }

// Number returns the packet number of a sealed packet.
func (p *Packet) Number() uint64 { return binary.BigEndian.Uint64(p.udp[numberAt:]) }

// Join copies a packet that lies in several buffers to b and returns it. The packet then refers to that memory.
func (p *Packet) Join(b []byte) []byte {
	b = append(b[:0], p.udp...)
	for _, r := range p.Rest {
		b = append(b, r...)
	}
	p.first, p.others = p.udp, p.Rest
	p.udp, p.Payload, p.Rest = b, b[HeaderLen:], nil
	return b
}

// Spread writes what Join has joined back to the original buffers. A packet that was not joined stays as it is.
func (p *Packet) Spread() {
	n := copy(p.first, p.udp)
	for _, r := range p.others {
		n += copy(r, p.udp[n:])
	}
}

// Sealed returns the parts of a sealed packet in one buffer: the clear part, and the encrypted rest with the tag.
// The encrypted part is decrypted in place.
func (p *Packet) Sealed() (clear, sealed []byte) { return p.udp[:SealedLen], p.udp[SealedLen:] }

// Opened parses a sealed packet that was decrypted in place. The packet is then the one that was sealed.
func (p *Packet) Opened() error {
	inner := p.udp[SealedLen : len(p.udp)-TagLen]
	at := inner[checksumAt-clearLen:]
	p.Kind = Kind(at[0])
	p.Flags = Flags(binary.BigEndian.Uint16(at[2:]))
	p.Seq = binary.BigEndian.Uint32(inner)
	p.Ack = binary.BigEndian.Uint32(inner[4:])
	p.Window = binary.BigEndian.Uint16(inner[8:])
	p.Length = binary.BigEndian.Uint16(inner[10:])
	p.Immediate = binary.BigEndian.Uint32(inner[12:])
	p.RemoteAddr = binary.BigEndian.Uint64(inner[16:])
	p.RemoteHandle = binary.BigEndian.Uint32(inner[24:])
	p.Payload, p.Rest = inner[HeaderLen-clearLen:], nil
	if p.Kind < KindData || p.Kind > KindPack || at[1] != 0 || p.Flags&^flagsKnown != 0 {
		return ErrKind
	}
	if int(p.Length) != len(p.Payload) {
		return ErrLength
	}
	return nil
}
