// Package gso sends several frames by one system call, as one UDP datagram (UDP_SEGMENT, generic segmentation offload).
// The NIC divides it, or the kernel before the driver. Virtual links pass it on whole.
package gso

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

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

// maxConnected is how many paths of a Socket have a socket of their own at a time.
const maxConnected = 64

// Socket sends packets from one interface. It receives nothing. One goroutine at a time may use it.
//
// It has UDP sockets. The first maxConnected paths have a connected one each, which keeps the route and the frames' length: a
// system call takes 0.4 us less. All others share one, whose messages carry both. With Trim it has a packet socket before them.
type Socket struct {
	ifindex   int
	netns     uint64 // cookie of the network namespace; 0: unknown
	trimming  trimming
	v4, v6    endpoint
	connected []*Path
}

// Path is what the packets of a connection have in common. From the first Send to Release it is the Socket's.
type Path struct {
	Src    netip.Addr // of this host
	Dst    netip.AddrPort
	Tagged bool // frames leave in a VLAN, by another interface than that of Open
	Size   int  // bytes of a frame

	tried bool // a socket of its own has been opened, or cannot be
	fd    int  // that socket, if the path is one of Socket.connected
}

// endpoint is the shared socket of one address family, and the message that is sent on it.
type endpoint struct {
	fd      int
	message message
}

// Open makes a socket that sends from interface ifindex of the calling thread's network namespace. It
// needs no privilege. A kernel older than 4.18 has no UDP_SEGMENT and fails at the first Send.
func Open(ifindex int) (*Socket, error) {
	s := &Socket{ifindex: ifindex, v4: endpoint{fd: -1}, v6: endpoint{fd: -1}}
	var err error
	if s.v4.fd, err = open(unix.AF_INET); err != nil {
		return nil, err
	}
	s.netns, _ = unix.GetsockoptUint64(s.v4.fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if s.v6.fd, err = open(unix.AF_INET6); err != nil && !errors.Is(err, unix.EAFNOSUPPORT) { // IPv6 may be switched off
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// ErrNamespace is returned if the calling thread of Open is not in the network namespace of the interface.
var ErrNamespace = errors.New("gso: the calling thread is in another network namespace than the interface")

// CheckNamespace returns ErrNamespace unless a socket, which is in the interface's network namespace, is in that of s. In
// another one the interface's index is that of none, or of a wrong one.
func (s *Socket) CheckNamespace(socket int) error {
	netns, err := unix.GetsockoptUint64(socket, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return fmt.Errorf("gso: network namespace of the interface: %w", err)
	}
	if netns != s.netns {
		return ErrNamespace
	}
	return nil
}

// open makes a socket of a family. No router may fragment what it sends, and the caller knows the path's MTU. Routers may
// mark it (ECN).
func open(family int) (int, error) {
	level, discover, probe, class := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE, unix.IP_TOS
	if family == unix.AF_INET6 {
		level, discover, probe, class = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE, unix.IPV6_TCLASS
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("gso: socket: %w", err)
	}
	if err := unix.SetsockoptInt(fd, level, discover, probe); err != nil {
		return -1, errors.Join(fmt.Errorf("gso: path MTU discovery: %w", err), unix.Close(fd))
	}
	if err := unix.SetsockoptInt(fd, level, class, ecnCapable); err != nil {
		return -1, errors.Join(fmt.Errorf("gso: ECN: %w", err), unix.Close(fd))
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer)
	// No peer sends to its port. What arrives there all the same takes no memory.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1)
	return fd, nil
}

func (e *endpoint) close() error {
	if e.fd < 0 {
		return nil
	}
	fd := e.fd
	e.fd = -1
	return unix.Close(fd)
}

// Close closes the socket and those of its paths.
func (s *Socket) Close() error {
	for len(s.connected) > 0 {
		s.Release(s.connected[0])
	}
	return errors.Join(s.trimming.close(), s.v4.close(), s.v6.close())
}

// Send sends a packet on a path. pieces are its bytes: at most MaxFrames frames of path.Size bytes, the last of which may be
// shorter, and at most MaxBytes. headers are those in front of one of them, from the Ethernet header on. The kernel has read
// all when Send returns.
//
// It never waits. Errors: EAGAIN and ENOBUFS if the kernel has no room now. EMSGSIZE or EINVAL if a frame is longer
// than the path's MTU. EIO if the interface cannot compute checksums (tx-checksum-ip-generic), without which the kernel
// divides no packet. Others as sendmsg(2). No allocation, but for the first packet of a path, and of all.
func (s *Socket) Send(path *Path, headers []byte, pieces [][]byte) error {
	if t := s.trimming.ready.Load(); t != nil && !path.Tagged {
		switch errno := t.send(path.Size, headers, pieces); errno {
		case 0:
			s.trimming.works()
			return nil
		case unix.EAGAIN, unix.ENOBUFS:
			return errno
		default: // a UDP socket may do better, and has the errors that the comment above lists
			s.trimming.fails(errno)
		}
	} else if t == nil && s.trimming.attach != nil && !path.Tagged {
		s.start()
	}
	e := &s.v4
	if path.Dst.Addr().Is6() {
		e = &s.v6
	}
	if e.fd < 0 {
		return unix.EAFNOSUPPORT
	}
	if !path.tried {
		s.connect(path)
	}
	if path.connected() {
		e.message.toPeer()
		switch errno := e.message.send(path.fd, nil, pieces); errno {
		case 0:
			return nil
		case unix.EAGAIN, unix.ENOBUFS:
			return errno
		}
		// A connected socket also returns what ICMP has said of an earlier packet. The shared one has errors of this packet alone.
	}
	ifindex := s.ifindex
	if path.Tagged {
		ifindex = 0 // routing finds it
	}
	if path.Dst.Addr().Is4() {
		e.message.to4(path.Src, path.Dst, ifindex, path.Size)
	} else {
		e.message.to6(path.Src, path.Dst, ifindex, path.Size)
	}
	if errno := e.message.send(e.fd, nil, pieces); errno != 0 {
		return errno
	}
	return nil
}

// connect gives a path a socket of its own, if there may be one more and the calling thread is in the network namespace of
// Open.
func (s *Socket) connect(path *Path) {
	path.tried, path.fd = true, -1
	if len(s.connected) == maxConnected || s.netns == 0 {
		return
	}
	family, src, dst := unix.AF_INET, sockaddr(path.Src, 0, s.ifindex), sockaddr(path.Dst.Addr(), path.Dst.Port(), s.ifindex)
	if path.Dst.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := open(family)
	if err != nil {
		return
	}
	netns, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	ok := err == nil && netns == s.netns
	if ok && !path.Tagged {
		ok = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, s.ifindex) == nil
	}
	ok = ok && unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_SEGMENT, path.Size) == nil &&
		unix.Bind(fd, src) == nil && unix.Connect(fd, dst) == nil
	if !ok {
		_ = unix.Close(fd)
		return
	}
	path.fd = fd
	s.connected = append(s.connected, path)
}

func (p *Path) connected() bool { return p.tried && p.fd >= 0 }

func sockaddr(a netip.Addr, port uint16, ifindex int) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4(), Port: int(port)}
	}
	to := &unix.SockaddrInet6{Addr: a.As16(), Port: int(port)}
	if a.IsLinkLocalUnicast() {
		to.ZoneId = uint32(ifindex)
	}
	return to
}

// Release ends the use of a path. A path that nothing was sent on has nothing to release.
func (s *Socket) Release(path *Path) {
	if i := slices.Index(s.connected, path); i >= 0 {
		s.connected = slices.Delete(s.connected, i, i+1)
		_ = unix.Close(path.fd)
	}
	path.tried, path.fd = false, -1
}

// message is a message and what its header refers to: the address, and the control messages of UDP_SEGMENT and of the
// source address.
type message struct {
	name    [unix.SizeofSockaddrInet6]byte
	nameLen uint32
	control [64]byte
	used    int
	header  unix.Msghdr
	iov     [8*MaxFrames + 1]unix.Iovec
}

// toPeer is for a connected socket, which has the address and the frames' length.
func (m *message) toPeer() { m.nameLen, m.used = 0, 0 }

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
