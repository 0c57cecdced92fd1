package bpf

import (
	"encoding/binary"
	"net/netip"
)

// Actions, as the kernel numbers them (enum xdp_action).
const (
	xdpDrop     = 1
	xdpPass     = 2
	xdpRedirect = 4
)

// model is a reference for the demux program. It is written from the rules, not from the program: it parses the
// whole frame first and judges it afterwards.
type model struct {
	table   map[uint32]VIEntry // by VI number
	size    int                // entries of the VI table
	sockets map[uint32]bool    // slots in use
	queue   uint32             // where frames come in
}

// verdict returns the action and the name of the counter that changes; "" is none.
func (m *model) verdict(b []byte) (action uint32, counter string) {
	src, udp, ok := dissect(b)
	if !ok || binary.BigEndian.Uint16(udp[2:]) != DefaultPort {
		return xdpPass, ""
	}
	via := udp[8:]
	switch {
	case len(via) >= 2 && via[1]&0x80 != 0:
		return xdpPass, "control"
	case len(via) < 48:
		return xdpDrop, "short"
	case via[0] != 0xa2:
		return xdpDrop, "version"
	}
	num := binary.BigEndian.Uint32(via[4:])
	e, known := m.table[num]
	switch {
	case !known || int(num&0xffff) >= m.size:
		return xdpDrop, "no_vi"
	case e.Key != binary.BigEndian.Uint64(via[8:]):
		return xdpDrop, "key"
	case e.Peer.Unmap() != src.Unmap():
		return xdpDrop, "source"
	case e.Queue != m.queue:
		return xdpDrop, "queue"
	case !m.sockets[e.Slot]:
		return xdpDrop, "no_socket"
	}
	return xdpRedirect, "redirected"
}

// dissect returns sender and UDP datagram of a plain frame: at most one tag, no options, no fragment, no extension
// header.
func dissect(b []byte) (src netip.Addr, udp []byte, ok bool) {
	at := 14
	if len(b) < at {
		return src, nil, false
	}
	proto := binary.BigEndian.Uint16(b[12:])
	if proto == 0x8100 || proto == 0x88a8 {
		at += 4
		if len(b) < at {
			return src, nil, false
		}
		proto = binary.BigEndian.Uint16(b[16:])
	}
	b = b[at:]
	switch proto {
	case 0x0800:
		if len(b) < 20 || b[0]>>4 != 4 || b[0]&15 != 5 || b[9] != 17 {
			return src, nil, false
		}
		more, offset := b[6]&0x20 != 0, binary.BigEndian.Uint16(b[6:])&0x1fff
		if more || offset != 0 {
			return src, nil, false
		}
		src, udp = netip.AddrFrom4([4]byte(b[12:16])), b[20:]
	case 0x86dd:
		if len(b) < 40 || b[0]>>4 != 6 || b[6] != 17 {
			return src, nil, false
		}
		src, udp = netip.AddrFrom16([16]byte(b[8:24])), b[40:]
	default:
		return src, nil, false
	}
	return src, udp, len(udp) >= 8
}
