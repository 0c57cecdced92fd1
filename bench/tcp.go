package bench

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// tcp is a TCP connection driven by system calls: tcp-spin, whose calls never
// block and are repeated, and tcp-block, whose calls block.
type tcp struct {
	*streamed
	params   Params
	block    bool
	listener int // -1 but on the server before Connect
	fd       int
	port     int
	watch    watchdog
}

// tcpRTOMaxMS is TCP_RTO_MAX_MS of linux/tcp.h.
const tcpRTOMaxMS = 44

func openTCP(p Params, w watchdog, block bool) (*tcp, error) {
	t := &tcp{params: p, block: block, listener: -1, fd: -1, watch: w}
	t.streamed = newStreamed(t, p.MaxBytes)
	if !p.Server {
		return t, nil
	}
	var err error
	if t.listener, err = unix.Socket(family(p.Local), unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	if err := unix.Bind(t.listener, sockaddr(p.Local, p.Port)); err != nil {
		t.Close()
		return nil, fmt.Errorf("bind %v: %w", p.Local, err)
	}
	if err := unix.Listen(t.listener, 1); err != nil {
		t.Close()
		return nil, fmt.Errorf("listen: %w", err)
	}
	if t.port, err = boundPort(t.listener); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

func (t *tcp) Hello() Hello {
	return Hello{Addr: t.params.Local, Port: t.port}
}

func (t *tcp) Connect(peer Hello) (err error) {
	if t.params.Server {
		if t.fd, err = acceptWithin(t.listener, waitLimit); err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		unix.Close(t.listener)
		t.listener = -1
	} else {
		if t.fd, err = unix.Socket(family(t.params.Local), unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return fmt.Errorf("socket: %w", err)
		}
		if err := unix.Connect(t.fd, sockaddr(peer.Addr, peer.Port)); err != nil {
			return fmt.Errorf("connect %v port %d: %w", peer.Addr, peer.Port, err)
		}
	}
	if err := unix.SetsockoptInt(t.fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return fmt.Errorf("TCP_NODELAY: %w", err)
	}
	if name := t.params.Congestion; name != "" {
		if err := unix.SetsockoptString(t.fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name); err != nil {
			return fmt.Errorf("TCP_CONGESTION %s: %w", name, err)
		}
	}
	if d := t.params.LongestTimeout; d > 0 {
		// Not known to older kernels, which then have their own.
		unix.SetsockoptInt(t.fd, unix.IPPROTO_TCP, tcpRTOMaxMS, int(d.Milliseconds()))
	}
	// A blocked call returns now and then to see whether it should go on.
	tv := unix.NsecToTimeval(int64(maxSleep))
	if err := unix.SetsockoptTimeval(t.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return fmt.Errorf("SO_RCVTIMEO: %w", err)
	}
	if err := unix.SetsockoptTimeval(t.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv); err != nil {
		return fmt.Errorf("SO_SNDTIMEO: %w", err)
	}
	return nil
}

func (t *tcp) Close() error {
	for _, fd := range []*int{&t.listener, &t.fd} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
	return nil
}

func (t *tcp) round() error {
	t.watch.progress()
	return nil
}

func (t *tcp) write(p []byte) error {
	for len(p) > 0 {
		n, err := t.writeOnce(p)
		if err != nil {
			if err = t.again(err); err != nil {
				return fmt.Errorf("send: %w", err)
			}
			continue
		}
		t.watch.progress()
		p = p[n:]
	}
	return nil
}

func (t *tcp) read(p []byte) (int, error) {
	for {
		n, err := t.readOnce(p)
		if err != nil {
			if err = t.again(err); err != nil {
				return 0, fmt.Errorf("receive: %w", err)
			}
			continue
		}
		if n == 0 {
			return 0, io.ErrUnexpectedEOF // the peer has closed
		}
		t.watch.progress()
		return n, nil
	}
}

func (t *tcp) writeOnce(p []byte) (int, error) {
	if t.block {
		return unix.Write(t.fd, p)
	}
	return errnoError(sendNow(t.fd, p))
}

func (t *tcp) readOnce(p []byte) (int, error) {
	if t.block {
		return unix.Read(t.fd, p)
	}
	return errnoError(recvNow(t.fd, p))
}

// again returns nil if the call is to be repeated.
func (t *tcp) again(err error) error {
	switch {
	case errors.Is(err, unix.EAGAIN) && t.block:
		return t.watch.blocked()
	case errors.Is(err, unix.EAGAIN):
		return t.watch.idle()
	case errors.Is(err, unix.EINTR):
		return nil
	}
	return err
}

// errnoError turns the result of a raw call into an error without allocating.
func errnoError(n int, errno unix.Errno) (int, error) {
	switch errno {
	case 0:
		return n, nil
	case unix.EAGAIN:
		return 0, errAgain
	}
	return 0, errno
}

// errAgain is EAGAIN, made once.
var errAgain error = unix.EAGAIN

func family(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func sockaddr(a netip.Addr, port int) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Port: port, Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Port: port, Addr: a.As16()}
}

func boundPort(fd int) (int, error) {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return 0, fmt.Errorf("getsockname: %w", err)
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return sa.Port, nil
	case *unix.SockaddrInet6:
		return sa.Port, nil
	}
	return 0, fmt.Errorf("getsockname: unexpected address %T", sa)
}

// acceptWithin is accept(2) with a time limit.
func acceptWithin(listener int, limit time.Duration) (int, error) {
	deadline := time.Now().Add(limit)
	for {
		fds := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(max(time.Until(deadline), 0)/time.Millisecond))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return -1, err
		case n == 0:
			return -1, fmt.Errorf("nobody connected within %v", limit)
		}
		fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
		return fd, err
	}
}

// byteStream is a connected stream of bytes, the ground of the TCP transports.
type byteStream interface {
	// write sends all of p.
	write(p []byte) error
	// read returns as soon as there are bytes, at least one.
	read(p []byte) (int, error)
	// round is called before each round.
	round() error
}

// streamed makes messages of a byte stream: equal sizes, so that nothing marks
// their bounds.
type streamed struct {
	s       byteStream
	out, in []byte
}

// readBuffer is the room for reads of a stream, where messages are small.
const readBuffer = 64 << 10

func newStreamed(s byteStream, maxBytes int) *streamed {
	return &streamed{s: s, out: make([]byte, maxBytes), in: make([]byte, max(maxBytes, readBuffer))}
}

func (t *streamed) enter(r Round) error {
	if err := r.check(); err != nil {
		return err
	}
	if r.Bytes > len(t.out) {
		return errors.New("message larger than announced")
	}
	return t.s.round()
}

// Ping, see Endpoint.
func (t *streamed) Ping(r Round, rtt []int64) (Span, error) { return pingBy(t, r, rtt) }

// Echo, see Endpoint.
func (t *streamed) Echo(r Round) error { return echoBy(t, r) }

// Send, see Endpoint.
func (t *streamed) Send(r Round) (Span, error) {
	if err := t.enter(r); err != nil {
		return Span{}, err
	}
	// One byte says that the receiver is ready, another one that it has all.
	if err := t.full(t.in[:1]); err != nil {
		return Span{}, err
	}
	clock := startStopwatch()
	for i := range r.Messages {
		if err := t.send(r, i); err != nil {
			return Span{}, err
		}
	}
	if err := t.full(t.in[:1]); err != nil {
		return Span{}, err
	}
	return clock.span(), nil
}

// Receive, see Endpoint.
func (t *streamed) Receive(r Round) (Span, error) {
	if err := t.enter(r); err != nil {
		return Span{}, err
	}
	if err := t.s.write(t.out[:1]); err != nil {
		return Span{}, err
	}
	clock := startStopwatch()
	if r.Check {
		for i := range r.Messages {
			if err := t.receive(r, i); err != nil {
				return Span{}, err
			}
		}
	} else {
		// As large reads as there are bytes, like any program that expects
		// many messages.
		for rest := r.Bytes * r.Messages; rest > 0; {
			n, err := t.s.read(t.in[:min(len(t.in), rest)])
			if err != nil {
				return Span{}, err
			}
			rest -= n
		}
	}
	if err := t.s.write(t.out[:1]); err != nil {
		return Span{}, err
	}
	return clock.span(), nil
}

func (t *streamed) send(r Round, i int) error {
	p := t.out[:r.Bytes]
	if r.Check {
		copy(p, content(i, 0, r.Bytes))
	}
	return t.s.write(p)
}

func (t *streamed) receive(r Round, i int) error {
	p := t.in[:r.Bytes]
	if err := t.full(p); err != nil {
		return err
	}
	if r.Check {
		return verify(i, 0, p)
	}
	return nil
}

// full reads until p is full.
func (t *streamed) full(p []byte) error {
	for len(p) > 0 {
		n, err := t.s.read(p)
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}
