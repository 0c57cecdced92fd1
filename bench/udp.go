package bench

import (
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/fail"
)

// Bytes in front of the content of a datagram.
const (
	udpHeader  = 8
	ipv4Header = 20
	ipv6Header = 40
)

// udpReceiveBuffer is asked for; without privilege the kernel grants less
// (net.core.rmem_max).
const udpReceiveBuffer = 8 << 20

// udpSocket is a UDP socket, connected and driven by system calls that never block. A message is
// cut into datagrams that fit the MTU, one system call each.
type udpSocket struct {
	params  Params
	fd      int
	port    int
	payload int
	window  int
	out, in []byte
}

func openUDP(o opening) endpoint {
	ifi := fail.Must(interfaceWith(o.Local))
	conn := fail.Must(net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(o.Local, 0))))
	u := &udpSocket{
		params: o.Params, port: conn.LocalAddr().(*net.UDPAddr).Port,
		// The longest datagram that is not fragmented; the loopback's MTU does not fit in a length of IP.
		payload: min(ifi.MTU, 1<<16-1) - (headersLen(o.Local) - ethernetHeader),
	}
	u.fd = fail.Must(takeSocket(conn))
	f := o.framed(u)
	orClose(f, func() { u.window = udpWindow(u.fd, u.payload) })
	u.out, u.in = make([]byte, u.payload), make([]byte, u.payload)
	return f
}

// udpWindow enlarges the receive buffer and returns how many datagrams fit: a
// buffer is charged for the memory behind a datagram, not for its length.
func udpWindow(fd, payload int) int {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, udpReceiveBuffer) != nil {
		fail.Wrap(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, udpReceiveBuffer), "SO_RCVBUF")
	}
	size, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	fail.Wrap(err, "SO_RCVBUF")
	const overhead = 1536 // socket buffer, shared info, rounding up
	return max(4, min(256, size/(2*payload+overhead)-otherFrames))
}

func (u *udpSocket) hello() Hello {
	return Hello{Addr: u.params.Local, Port: u.port, Payload: u.payload, Window: u.window}
}

func (u *udpSocket) connect(peer Hello) {
	to := unix.Sockaddr(&unix.SockaddrInet6{Port: peer.Port, Addr: peer.Addr.As16()})
	if peer.Addr.Is4() {
		to = &unix.SockaddrInet4{Port: peer.Port, Addr: peer.Addr.As4()}
	}
	fail.Wrap(unix.Connect(u.fd, to), "connect %v", netip.AddrPortFrom(peer.Addr, uint16(peer.Port)))
}

func (u *udpSocket) next() []byte { return u.out }

func (u *udpSocket) commit(n int) {
	for {
		_, errno := sendNow(u.fd, u.out[:n])
		switch errno {
		case 0:
			return
		case unix.EAGAIN, unix.EINTR, unix.ENOBUFS:
			// The send buffer is full of datagrams on their way.
		default:
			fail.With("send: %w", errno)
		}
	}
}

func (u *udpSocket) flush() {}

func (u *udpSocket) poll() []byte {
	n, errno := recvNow(u.fd, u.in)
	switch errno {
	case 0:
		return u.in[:n]
	case unix.EAGAIN, unix.EINTR:
	default:
		fail.With("receive: %w", errno)
	}
	return nil
}

func (u *udpSocket) wait() {
	fds := []unix.PollFd{{Fd: int32(u.fd), Events: unix.POLLIN}}
	if _, err := unix.Poll(fds, int(maxSleep.Milliseconds())); err != nil && err != unix.EINTR {
		fail.With("poll: %w", err)
	}
}

func (u *udpSocket) close() error { return unix.Close(u.fd) }
