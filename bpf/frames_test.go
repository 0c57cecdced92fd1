package bpf

import (
	"cmp"
	"encoding/binary"
	"net/netip"
)

// frame describes a test frame, layer by layer. The zero value of a field is
// what a good data frame has; bytes makes the frame.
//
// The builder shares nothing with package wire: one end's view of the format
// checks the other's.
type frame struct {
	tags     []uint16   // Ethernet types of VLAN tags, outermost first
	proto    uint16     // Ethernet type; 0: by the family of src
	src, dst netip.Addr // zero: 192.0.2.1 to 192.0.2.2
	version  uint8      // version field of the IP header; 0: by the family
	options  int        // words of IPv4 options
	fragment uint16     // flags and offset of IPv4; 0: don't fragment
	next     uint8      // protocol, or next header; 0: UDP
	port     uint16     // UDP destination port; 0: DefaultPort
	magic    uint8      // first byte of our header; 0: version 1
	kind     uint8      // 0: data
	vi       uint32
	key      uint64
	payload  int // bytes after our header
}

const (
	kindData    = 1
	kindControl = 0x81
	bareIP      = 0x4000 // don't fragment
)

var (
	hostA = netip.MustParseAddr("192.0.2.1")
	hostB = netip.MustParseAddr("192.0.2.2")
	host6 = netip.MustParseAddr("2001:db8::1")
	peer6 = netip.MustParseAddr("2001:db8::2")
)

func (f frame) bytes() []byte {
	src, dst := cmp.Or(f.src, hostA), cmp.Or(f.dst, hostB)
	if src.Is6() && !f.dst.IsValid() {
		dst = peer6
	}
	datagram := 8 + 48 + f.payload

	b := []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1}
	for _, tag := range f.tags {
		b = binary.BigEndian.AppendUint16(b, tag)
		b = binary.BigEndian.AppendUint16(b, 100)
	}
	if src.Is4() {
		b = binary.BigEndian.AppendUint16(b, cmp.Or(f.proto, 0x0800))
		b = append(b, cmp.Or(f.version, 4)<<4|uint8(5+f.options), 0)
		b = binary.BigEndian.AppendUint16(b, uint16(20+4*f.options+datagram))
		b = append(b, 0, 0)
		b = binary.BigEndian.AppendUint16(b, cmp.Or(f.fragment, bareIP))
		b = append(b, 64, cmp.Or(f.next, 17), 0, 0)
		b = append(b, src.AsSlice()...)
		b = append(b, dst.AsSlice()...)
		b = append(b, make([]byte, 4*f.options)...)
	} else {
		b = binary.BigEndian.AppendUint16(b, cmp.Or(f.proto, 0x86dd))
		b = append(b, cmp.Or(f.version, 6)<<4, 0, 0, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(datagram))
		b = append(b, cmp.Or(f.next, 17), 64)
		b = append(b, src.AsSlice()...)
		b = append(b, dst.AsSlice()...)
	}
	b = binary.BigEndian.AppendUint16(b, DefaultPort)
	b = binary.BigEndian.AppendUint16(b, cmp.Or(f.port, DefaultPort))
	b = binary.BigEndian.AppendUint16(b, uint16(datagram))
	b = append(b, 0, 0)

	b = append(b, cmp.Or(f.magic, 0xa3), cmp.Or(f.kind, kindData), 0, 0)
	b = binary.BigEndian.AppendUint32(b, f.vi)
	b = binary.BigEndian.AppendUint64(b, f.key)
	return append(b, make([]byte, 32+f.payload)...)
}

// cut returns the first n bytes of the frame.
func (f frame) cut(n int) []byte { return f.bytes()[:n] }

// arp returns a request, padded to the minimum length of an Ethernet frame.
func arp() []byte {
	b := []byte{
		255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1, 0x08, 0x06,
		0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 192, 0, 2, 2,
	}
	return append(b, make([]byte, 60-len(b))...)
}

// The VIs of the tests, in a table of testVIs entries.
const (
	testVIs     = 64
	testSockets = 8

	slotSocket = 3 // has a socket
	slotEmpty  = 4

	viIPv4     = 0x0003_0005
	viIPv6     = 0x0001_003f // the last index
	viFirst    = 0x0001_0000 // the first
	viQueue1   = 0x0001_0007
	viNoSocket = 0x0001_0008
	viQueues   = 0x0001_0009

	key4 = 0x0123456789abcdef
	key6 = 0xfedcba9876543210
)

var testTable = map[uint32]VIEntry{
	viIPv4:     {Slot: slotSocket, Key: key4, Peer: hostA},
	viIPv6:     {Slot: slotSocket, Key: key6, Peer: host6},
	viFirst:    {Slot: slotSocket, Key: key4, Peer: hostA},
	viQueue1:   {Slot: slotSocket, Key: key4, Peer: hostA, Queue: 1},
	viNoSocket: {Slot: slotEmpty, Key: key4, Peer: hostA},
	viQueues:   {Slot: slotSocket, Key: key4, Peer: hostA, Queue: 9, Queues: 3}, // the slots after the first are empty
}

// good4 and good6 are frames that reach a socket.
func good4() frame { return frame{vi: viIPv4, key: key4} }
func good6() frame { return frame{src: host6, vi: viIPv6, key: key6} }
