// Package gso sends several frames by one system call, as one UDP datagram (UDP_SEGMENT, generic segmentation offload).
// The NIC divides it, or the kernel before the driver. Virtual links pass it on whole.
package gso

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

const (
	// MaxFrames is how many frames a packet may have. The kernel takes 64 (UDP_MAX_SEGMENTS, include/linux/udp.h), and
	// 128 since Linux 6.10.
	MaxFrames = 64
	// MaxBytes is how many bytes of UDP payload a packet may have, over IPv4 and IPv6.
	MaxBytes = 65535 - 20 - 8

	ecnCapable = 2 // ECT(0) (RFC 3168): routers may mark packets; receivers that take them count marks

	sendBuffer = 4 << 20 // bytes; the kernel bounds it by net.core.wmem_max
)

// Socket sends packets from one interface. It receives nothing. One goroutine at a time may use it.
type Socket struct {
	ifindex int
	v4, v6  endpoint
}

// endpoint is the socket of one address family, and the message that is sent on it.
type endpoint struct {
	fd      int
	message message
}

// Open makes a socket that sends from interface ifindex of the calling thread's network namespace. It
// needs no privilege. A kernel older than 4.18 has no UDP_SEGMENT and fails at the first Send.
func Open(ifindex int) (*Socket, error) {
	s := &Socket{ifindex: ifindex, v4: endpoint{fd: -1}, v6: endpoint{fd: -1}}
	err := s.v4.open(unix.AF_INET, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE, unix.IP_TOS)
	if err != nil {
		return nil, err
	}
	err = s.v6.open(unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE, unix.IPV6_TCLASS)
	if err != nil && !errors.Is(err, unix.EAFNOSUPPORT) { // IPv6 may be switched off
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// open makes the socket of a family. No router may fragment what it sends, and the caller knows the path's MTU. Routers may
// mark it (ECN).
func (e *endpoint) open(family, level, discover, probe, class int) (err error) {
	e.fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("gso: socket: %w", err)
	}
	if err := unix.SetsockoptInt(e.fd, level, discover, probe); err != nil {
		return errors.Join(fmt.Errorf("gso: path MTU discovery: %w", err), e.close())
	}
	if err := unix.SetsockoptInt(e.fd, level, class, ecnCapable); err != nil {
		return errors.Join(fmt.Errorf("gso: ECN: %w", err), e.close())
	}
	_ = unix.SetsockoptInt(e.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer)
	// No peer sends to its port. What arrives there all the same takes no memory.
	_ = unix.SetsockoptInt(e.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1)
	return nil
}

func (e *endpoint) close() error {
	if e.fd < 0 {
		return nil
	}
	fd := e.fd
	e.fd = -1
	return unix.Close(fd)
}

// Close closes the socket.
func (s *Socket) Close() error { return errors.Join(s.v4.close(), s.v6.close()) }

// Send sends a packet from address src of this host to dst. pieces are its bytes: frames of size bytes, MaxFrames at
// most, of which the last may be shorter; they have MaxBytes at most. The kernel has read them when Send returns. tagged
// means that the frames leave in a VLAN, by another interface than that of Open.
//
// It never waits. Errors: EAGAIN and ENOBUFS if the kernel has no room now. EMSGSIZE or EINVAL if a frame is longer
// than the path's MTU. EIO if the interface cannot compute checksums (tx-checksum-ip-generic), without which the kernel
// divides no packet. Others as sendmsg(2). No allocation.
func (s *Socket) Send(src netip.Addr, dst netip.AddrPort, tagged bool, size int, pieces [][]byte) error {
	ifindex := s.ifindex
	if tagged {
		ifindex = 0 // routing finds it
	}
	e := &s.v4
	if dst.Addr().Is4() {
		e.message.to4(src, dst, ifindex, size)
	} else {
		e = &s.v6
		e.message.to6(src, dst, ifindex, size)
	}
	if e.fd < 0 {
		return unix.EAFNOSUPPORT
	}
	if errno := e.message.send(e.fd, pieces); errno != 0 {
		return errno
	}
	return nil
}

// message is a message and what its header refers to: the address, and the control messages of UDP_SEGMENT and of the
// source address.
type message struct {
	name    [unix.SizeofSockaddrInet6]byte
	nameLen uint32
	control [64]byte
	used    int
	header  unix.Msghdr
	iov     [8 * MaxFrames]unix.Iovec
}

func (m *message) to4(src netip.Addr, dst netip.AddrPort, ifindex, size int) {
	binary.NativeEndian.PutUint16(m.name[:], unix.AF_INET)
	binary.BigEndian.PutUint16(m.name[2:], dst.Port())
	a := dst.Addr().As4()
	copy(m.name[4:], a[:])
	m.nameLen = unix.SizeofSockaddrInet4
	b := m.segment(size)
	b = m.head(b, unix.IPPROTO_IP, unix.IP_PKTINFO, unix.SizeofInet4Pktinfo)
	binary.NativeEndian.PutUint32(b, uint32(ifindex)) // struct in_pktinfo: ipi_ifindex, ipi_spec_dst, ipi_addr
	a = src.As4()
	copy(b[4:], a[:])
	clear(b[8:12])
}

func (m *message) to6(src netip.Addr, dst netip.AddrPort, ifindex, size int) {
	clear(m.name[:])
	binary.NativeEndian.PutUint16(m.name[:], unix.AF_INET6)
	binary.BigEndian.PutUint16(m.name[2:], dst.Port())
	a := dst.Addr().As16()
	copy(m.name[8:], a[:])
	if dst.Addr().IsLinkLocalUnicast() {
		binary.NativeEndian.PutUint32(m.name[24:], uint32(ifindex))
	}
	m.nameLen = unix.SizeofSockaddrInet6
	b := m.segment(size)
	b = m.head(b, unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, unix.SizeofInet6Pktinfo)
	a = src.As16() // struct in6_pktinfo: ipi6_addr, ipi6_ifindex
	copy(b, a[:])
	binary.NativeEndian.PutUint32(b[16:], uint32(ifindex))
}

// segment writes the control message of UDP_SEGMENT, and returns the room behind it.
func (m *message) segment(size int) []byte {
	m.used = 0
	b := m.head(m.control[:], unix.SOL_UDP, unix.UDP_SEGMENT, 2)
	binary.NativeEndian.PutUint16(b, uint16(size))
	return m.control[m.used:]
}

// head writes the header of a control message with n bytes of data at b, and returns the room for the data.
func (m *message) head(b []byte, level, kind, n int) []byte {
	binary.NativeEndian.PutUint64(b, uint64(unix.SizeofCmsghdr+n))
	binary.NativeEndian.PutUint32(b[8:], uint32(level))
	binary.NativeEndian.PutUint32(b[12:], uint32(kind))
	m.used += unix.CmsgSpace(n)
	return b[unix.SizeofCmsghdr:]
}
