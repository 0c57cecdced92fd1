package wire

import (
	"cmp"
	"encoding/binary"
	"net/netip"
)

const (
	ethLen  = 14
	vlanLen = 4
	ip4Len  = 20
	ip6Len  = 40
	udpLen  = 8

	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd
	etherVLAN = 0x8100
	etherQinQ = 0x88a8
	protoUDP  = 17

	// Values of the ECN field, the last two bits of the type of service or traffic class (RFC 3168).
	ecnCapable = 2 // ECT(0): routers may mark the frame where they would drop it
	ecnMarked  = 3
)

const (
	// MaxDatagram is the most bytes of UDP payload in a packet, over IPv4 and IPv6.
	MaxDatagram = 0xffff - ip4Len - udpLen
	// MaxPacket is the length of the frame of such a packet, from the Ethernet header on.
	MaxPacket = ethLen + vlanLen + 0xffff + ip6Len - ip4Len
)

// Host is an IP address as the data path compares it: 16 bytes in two words, an IPv4 address as ::ffff:a.b.c.d.
type Host struct{ Hi, Lo uint64 }

// HostOf returns the comparable form of a.
func HostOf(a netip.Addr) Host {
	b := a.As16()
	return Host{binary.BigEndian.Uint64(b[:]), binary.BigEndian.Uint64(b[8:])}
}

// Addr converts back; an IPv4 address is returned as such.
func (h Host) Addr() netip.Addr {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], h.Hi)
	binary.BigEndian.PutUint64(b[8:], h.Lo)
	return netip.AddrFrom16(b).Unmap()
}

// Packet is a decoded frame. Payload points into the frame. If the frame is in several buffers, Payload is the part
// in the first one, and Rest has the parts in the others.
type Packet struct {
	Header
	Src     Host
	Marked  bool // a router has marked the frame: congestion experienced (ECN)
	Payload []byte
	Rest    [][]byte
	udp     []byte // VIA header and payload in the first buffer, for Verify

	first  []byte // udp and Rest before Join; nil: the packet was not joined
	others [][]byte
}

// Decode parses a whole Ethernet frame: lower headers, VIA header and lengths, but not the checksum. Bytes behind
// the UDP datagram (Ethernet padding) are ignored. It accepts what the demux program redirects: one VLAN tag at
// most, no IPv4 options, no fragments, no IPv6 extension headers.
func (p *Packet) Decode(frame []byte) error {
	p.Rest = nil
	return p.decode(frame, 0)
}

// DecodeChain is Decode for a frame in several buffers. The first buffer has all headers. DecodeChain keeps rest,
// and may shorten its elements.
func (p *Packet) DecodeChain(frame []byte, rest [][]byte) error {
	more := 0
	for _, b := range rest {
		more += len(b)
	}
	p.Rest = nil
	if err := p.decode(frame, more); err != nil {
		return err
	}
	missing := int(p.Length) - len(p.Payload)
	n := 0
	for ; missing > 0; n++ {
		rest[n] = rest[n][:min(missing, len(rest[n]))]
		missing -= len(rest[n])
	}
	p.Rest = rest[:n]
	return nil
}

// decode parses the headers at the start of a frame that has more bytes in other buffers.
func (p *Packet) decode(frame []byte, more int) error {
	p.first, p.others = nil, nil
	if len(frame) < ethLen+ip4Len+udpLen+HeaderLen {
		return ErrShort
	}
	off := ethLen
	proto := binary.BigEndian.Uint16(frame[12:])
	if proto == etherVLAN || proto == etherQinQ {
		proto = binary.BigEndian.Uint16(frame[16:])
		off += vlanLen
	}
	b := frame[off:]
	switch proto {
	case etherIPv4:
		if len(b) < ip4Len+udpLen+HeaderLen {
			return ErrShort
		}
		if b[0] != 0x45 || b[9] != protoUDP || binary.BigEndian.Uint16(b[6:])&0x3fff != 0 {
			return ErrProtocol
		}
		p.Src = Host{0, 0xffff<<32 | uint64(binary.BigEndian.Uint32(b[12:]))}
		p.Marked = b[1]&ecnMarked == ecnMarked
		b = b[ip4Len:]
	case etherIPv6:
		if len(b) < ip6Len+udpLen+HeaderLen {
			return ErrShort
		}
		if b[0]>>4 != 6 || b[6] != protoUDP {
			return ErrProtocol
		}
		p.Src = Host{binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:])}
		if p.Src.Hi == 0 && p.Src.Lo>>32 == 0xffff {
			return ErrProtocol // an IPv4 host does not send IPv6 (RFC 4291, 2.5.5.2)
		}
		p.Marked = b[1]>>4&ecnMarked == ecnMarked // the traffic class begins in the middle of the first byte
		b = b[ip6Len:]
	default:
		return ErrProtocol
	}
	n := int(binary.BigEndian.Uint16(b[4:]))
	if n < udpLen+HeaderLen || n > len(b)+more {
		return ErrLength
	}
	p.udp = b[udpLen:min(n, len(b))]
	if err := p.Header.parse(p.udp, n-udpLen); err != nil {
		return err
	}
	p.Payload = p.udp[HeaderLen:]
	return nil
}

// DecodeInner decodes a frame of a GSO packet, which has no lower headers of its own. Its bytes are b, at least
// HeaderLen, and rest. Src stays that of the packet.
func (p *Packet) DecodeInner(b []byte, rest [][]byte) error {
	n := len(b)
	for _, r := range rest {
		n += len(r)
	}
	p.udp, p.Rest = b, rest
	p.first, p.others = nil, nil
	if err := p.Header.parse(b, n); err != nil {
		return err
	}
	p.Payload = b[HeaderLen:]
	return nil
}

// Datagram returns where the UDP payload begins in a frame that Decode has examined, or else DecodeChain as the first
// buffer, and how many bytes it has in all buffers.
func Datagram(frame []byte) (at, n int) {
	at = ethLen
	proto := binary.BigEndian.Uint16(frame[12:])
	if proto == etherVLAN || proto == etherQinQ {
		proto = binary.BigEndian.Uint16(frame[16:])
		at += vlanLen
	}
	if at += ip4Len; proto == etherIPv6 {
		at += ip6Len - ip4Len
	}
	return at + udpLen, int(binary.BigEndian.Uint16(frame[at+4:])) - udpLen
}

// GoesOn reports whether the packet is a piece of a message that continues in a later packet.
func (p *Packet) GoesOn() bool {
	return p.Flags&FlagLast == 0 && (p.Kind == KindData || p.Kind == KindWrite || p.Kind == KindReadData)
}

// Verify checks the CRC32C of a decoded packet.
func (p *Packet) Verify() error { return verify(p.udp, p.Rest...) }

// VerifyHeader checks the CRC32C of a packet whose checksum covers only the header, see PutHeaderChecksum.
func (p *Packet) VerifyHeader() error { return verify(p.udp[:HeaderLen]) }

// Link is the path from one end to the other, with the addresses of the lower headers.
type Link struct {
	SrcMAC, DstMAC [6]byte
	VLAN           uint16 // 0: no tag
	Src, Dst       netip.Addr
	Port           uint16 // UDP port of both interfaces, source and destination; 0: Port
	PortOffset     uint8  // of the receiver's queue: added to the destination port; less than Ports
}

// DstPort returns the destination port.
func (l *Link) DstPort() uint16 { return cmp.Or(l.Port, Port) + uint16(l.PortOffset) }

// Template holds the lower headers of a connection, ready to be copied in front of each VIA header.
type Template struct {
	b     [ethLen + vlanLen + ip6Len + udpLen]byte
	n     int // bytes used in b
	ip    int // offset of the IP header
	v4    bool
	check uint32 // sum of the IPv4 header's words without length and checksum
}

// NewTemplate prepares the headers for l. Both addresses must be of the same family.
func NewTemplate(l Link) (t Template, err error) {
	src, dst := l.Src.Unmap(), l.Dst.Unmap()
	if !src.IsValid() || !dst.IsValid() || src.Is4() != dst.Is4() {
		return t, ErrProtocol
	}
	b := t.b[:0]
	b = append(b, l.DstMAC[:]...)
	b = append(b, l.SrcMAC[:]...)
	if l.VLAN != 0 {
		b = binary.BigEndian.AppendUint16(b, etherVLAN)
		b = binary.BigEndian.AppendUint16(b, l.VLAN&0x0fff)
	}
	if t.v4 = src.Is4(); t.v4 {
		b = binary.BigEndian.AppendUint16(b, etherIPv4)
		t.ip = len(b)
		b = append(b, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protoUDP, 0, 0) // don't fragment, TTL 64
		b = append(b, src.AsSlice()...)
		b = append(b, dst.AsSlice()...)
		for i := 0; i < ip4Len; i += 2 {
			t.check += uint32(binary.BigEndian.Uint16(b[t.ip+i:]))
		}
	} else {
		b = binary.BigEndian.AppendUint16(b, etherIPv6)
		t.ip = len(b)
		b = append(b, 0x60, 0, 0, 0, 0, 0, protoUDP, 64)
		b = append(b, src.AsSlice()...)
		b = append(b, dst.AsSlice()...)
	}
	b = binary.BigEndian.AppendUint16(b, cmp.Or(l.Port, Port))
	b = binary.BigEndian.AppendUint16(b, l.DstPort())
	b = append(b, 0, 0, 0, 0)
	t.n = len(b)
	return t, nil
}

// AllowMarks lets routers mark the frames (ECN), from now on. Their receiver tells the sender of marks, see
// AckEchoesMarks.
func (t *Template) AllowMarks() {
	field := &t.b[t.ip+1]
	switch {
	case !t.v4:
		*field |= ecnCapable << 4
	case *field&ecnCapable == 0:
		*field |= ecnCapable
		t.check += ecnCapable
	}
}

// Len returns the number of bytes in front of the VIA header.
func (t *Template) Len() int { return t.n }

// Put writes the lower headers at b for a datagram of n bytes, VIA header included, and returns the n bytes behind
// them.
func (t *Template) Put(b []byte, n int) []byte {
	t.PutHead(b, n)
	return b[t.n : t.n+n]
}

// PutHead is Put for a datagram that need not fit in b.
func (t *Template) PutHead(b []byte, n int) {
	copy(b, t.b[:t.n])
	ip := b[t.ip:]
	udp := b[t.n-udpLen:]
	if t.v4 {
		length := uint32(ip4Len + udpLen + n)
		binary.BigEndian.PutUint16(ip[2:], uint16(length))
		sum := t.check + length
		sum = sum&0xffff + sum>>16
		sum += sum >> 16
		binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
	} else {
		binary.BigEndian.PutUint16(ip[4:], uint16(udpLen+n))
	}
	binary.BigEndian.PutUint16(udp[4:], uint16(udpLen+n))
}

// PayloadRoom returns the number of payload bytes that fit in a frame. Its IP packet has at most mtu bytes, and its
// UDP datagram carries at most datagram bytes, VIA header included (0: no bound). It is 0 if not even the headers
// fit.
func PayloadRoom(mtu int, v6 bool, datagram int) int {
	n := mtu - ip4Len - udpLen
	if v6 {
		n = mtu - ip6Len - udpLen
	}
	if datagram > 0 {
		n = min(n, datagram)
	}
	return max(0, min(n, 0xffff-udpLen-ip6Len)-HeaderLen)
}

// PacketLen returns the length of the IP packet of a frame with n bytes behind the VIA header.
func PacketLen(v6 bool, n int) int {
	if v6 {
		return ip6Len + udpLen + HeaderLen + n
	}
	return ip4Len + udpLen + HeaderLen + n
}
