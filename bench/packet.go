package bench

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// ethernetHeader is the length of an Ethernet header without a tag.
const ethernetHeader = 14

// rawPort is the UDP port of raw frames; data frames of VIs have 4793.
const rawPort = 4794

// headers are the Ethernet, IP and UDP headers of raw frames, made once per
// connection. Only the lengths change, and for IPv4 the checksum.
type headers struct {
	bytes []byte
	v4    bool
	size  int // content for which the lengths are set
}

// newHeaders prepares frames from one side to the other, on the same segment.
func newHeaders(from, to Hello, port int) (*headers, error) {
	if len(from.MAC) != 6 || len(to.MAC) != 6 {
		return nil, errors.New("raw frames need an Ethernet interface on both sides")
	}
	if from.Addr.Is4() != to.Addr.Is4() {
		return nil, errors.New("one side has an IPv4 address, the other one an IPv6 address")
	}
	h := &headers{v4: from.Addr.Is4(), size: -1}
	b := append(append([]byte{}, to.MAC...), from.MAC...)
	if h.v4 {
		b = append(b, 0x08, 0x00)
		b = append(b, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0)
	} else {
		b = append(b, 0x86, 0xdd)
		b = append(b, 0x60, 0, 0, 0, 0, 0, 17, 64)
	}
	b = append(append(b, from.Addr.AsSlice()...), to.Addr.AsSlice()...)
	b = binary.BigEndian.AppendUint16(b, uint16(port))
	b = binary.BigEndian.AppendUint16(b, uint16(port))
	h.bytes = append(b, 0, 0, 0, 0) // length and checksum of UDP; none is sent
	return h, nil
}

// headersLen is the length of the headers before the content.
func headersLen(a netip.Addr) int {
	if a.Is4() {
		return ethernetHeader + ipv4Header + udpHeader
	}
	return ethernetHeader + ipv6Header + udpHeader
}

// put writes the headers of a frame with n bytes of content.
func (h *headers) put(frame []byte, n int) {
	if n != h.size {
		h.resize(n)
	}
	copy(frame, h.bytes)
}

func (h *headers) resize(n int) {
	h.size = n
	ip := h.bytes[ethernetHeader:]
	binary.BigEndian.PutUint16(h.bytes[len(h.bytes)-4:], uint16(udpHeader+n))
	if !h.v4 {
		binary.BigEndian.PutUint16(ip[4:], uint16(udpHeader+n))
		return
	}
	binary.BigEndian.PutUint16(ip[2:], uint16(ipv4Header+udpHeader+n))
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], checksum(ip[:ipv4Header]))
}

// checksum is the Internet checksum, RFC 1071.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
