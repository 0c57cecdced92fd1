package ctrlport

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/wire"
)

// udpReader holds one datagram, or the report of one that did not arrive.
type udpReader struct {
	data   []byte
	local  netip.Addr
	peer   netip.AddrPort
	failed error  // not nil: data quotes a datagram that did not reach peer
	missed uint32 // earlier datagrams that found the socket full, since it was opened

	buf [wire.CMMaxLen + 64]byte // longer datagrams are truncated, and so invalid
	oob [512]byte
}

// read takes the next entry of the error queue or of the socket. EAGAIN: there is none.
func (r *udpReader) read(fd int) error {
	n, oobn, _, from, err := unix.Recvmsg(fd, r.buf[:], r.oob[:], unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
	if err == nil {
		r.take(n, from)
		errno := errnoOf(r.oob[:oobn])
		r.failed = fmt.Errorf("%w: %w", kagent.ErrUnreachable, errno)
		if errno == unix.ECONNREFUSED {
			r.failed = fmt.Errorf("%w: no via-xdp program runs there (%w)", kagent.ErrNoMatch, errno)
		}
		return nil
	}
	n, oobn, _, from, err = unix.Recvmsg(fd, r.buf[:], r.oob[:], unix.MSG_DONTWAIT)
	if err != nil {
		return err
	}
	r.take(n, from)
	r.failed = nil
	r.note(r.oob[:oobn])
	return nil
}

func (r *udpReader) take(n int, from unix.Sockaddr) {
	r.data = r.buf[:n]
	switch sa := from.(type) {
	case *unix.SockaddrInet4:
		r.peer = netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		r.peer = netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))
	default:
		r.peer = netip.AddrPort{}
	}
}

// sockaddr returns an address in the socket's family, or nil if it has none.
func (u *UDP) sockaddr(to netip.AddrPort) unix.Sockaddr {
	switch {
	case u.v6:
		return &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	case to.Addr().Unmap().Is4():
		return &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().Unmap().As4()}
	}
	return nil
}

// sourceMessage is the control message that sets the source address of a
// datagram (ip(7), ipv6(7)): struct in6_pktinfo {addr[16], ifindex} or struct
// in_pktinfo {ifindex, spec_dst[4], addr[4]}. The device is the socket's.
func (u *UDP) sourceMessage(from netip.Addr) []byte {
	if !from.IsValid() {
		return nil
	}
	if u.v6 {
		addr := from.As16()
		return controlMessage(unix.SOL_IPV6, unix.IPV6_PKTINFO, append(addr[:], 0, 0, 0, 0))
	}
	if !from.Is4() {
		return nil
	}
	addr := from.As4()
	return controlMessage(unix.SOL_IP, unix.IP_PKTINFO, append(append(make([]byte, 4), addr[:]...), 0, 0, 0, 0))
}

// controlMessage returns one control message in the layout of cmsg(3): length (a machine word),
// level, type, data.
func controlMessage(level, kind int, data []byte) []byte {
	b := make([]byte, unix.CmsgSpace(len(data)))
	head := unix.CmsgLen(0)
	if head == 16 {
		binary.NativeEndian.PutUint64(b, uint64(unix.CmsgLen(len(data))))
	} else {
		binary.NativeEndian.PutUint32(b, uint32(unix.CmsgLen(len(data))))
	}
	binary.NativeEndian.PutUint32(b[head-8:], uint32(level))
	binary.NativeEndian.PutUint32(b[head-4:], uint32(kind))
	copy(b[head:], data)
	return b
}

// note reads the control messages of a datagram: its destination address, and the number of
// earlier datagrams for which the socket had no room (socket(7), SO_RXQ_OVFL; absent while that
// is 0).
func (r *udpReader) note(oob []byte) {
	r.local = netip.Addr{}
	for len(oob) >= unix.CmsgLen(0) {
		h, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			break
		}
		switch {
		case h.Level == unix.SOL_IPV6 && h.Type == unix.IPV6_PKTINFO && len(data) >= 16:
			r.local = netip.AddrFrom16([16]byte(data[:16])).Unmap()
		case h.Level == unix.SOL_IP && h.Type == unix.IP_PKTINFO && len(data) >= 12:
			r.local = netip.AddrFrom4([4]byte(data[8:12]))
		case h.Level == unix.SOL_SOCKET && h.Type == unix.SO_RXQ_OVFL && len(data) >= 4:
			r.missed = binary.NativeEndian.Uint32(data)
		}
		oob = rest
	}
}

// errnoOf finds the errno in the struct sock_extended_err of an error queue
// entry (ip(7), IP_RECVERR): its first 4 bytes.
func errnoOf(oob []byte) unix.Errno {
	for len(oob) >= unix.CmsgLen(0) {
		h, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			break
		}
		if (h.Level == unix.SOL_IPV6 && h.Type == unix.IPV6_RECVERR || h.Level == unix.SOL_IP && h.Type == unix.IP_RECVERR) && len(data) >= 4 {
			return unix.Errno(binary.NativeEndian.Uint32(data))
		}
		oob = rest
	}
	return unix.EIO
}
