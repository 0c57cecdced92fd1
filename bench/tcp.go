package bench

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"
)

// tcp is a TCP connection driven by system calls: tcp-spin, whose calls never
// block and are repeated, and tcp-block, whose calls block. Package net connects it.
type tcp struct {
	*netStream
	block bool
	fd    int
}

// tcpRTOMaxMS is TCP_RTO_MAX_MS of linux/tcp.h.
const tcpRTOMaxMS = 44

func openTCP(p Params, w watchdog, block bool) (*tcp, error) {
	s, err := openNetStream(p, w, false)
	if err != nil {
		return nil, err
	}
	t := &tcp{netStream: s, block: block, fd: -1}
	t.streamed.s = t
	return t, nil
}

// Connect, see Endpoint.
func (t *tcp) Connect(peer Hello) error {
	if err := t.netStream.Connect(peer); err != nil {
		return err
	}
	fd, err := takeSocket(t.conn.(*net.TCPConn))
	t.conn = nil
	if err != nil {
		return err
	}
	t.fd = fd
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
	for name, option := range map[string]int{"SO_RCVTIMEO": unix.SO_RCVTIMEO, "SO_SNDTIMEO": unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(t.fd, unix.SOL_SOCKET, option, &tv); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// Close, see Endpoint.
func (t *tcp) Close() error {
	if t.fd >= 0 {
		unix.Close(t.fd)
		t.fd = -1
	}
	return t.netStream.Close()
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
func (t *streamed) Ping(r Round, rtt []int64) (Span, error) {
	if err := cmp.Or(t.enter(r), t.enter(r.reply())); err != nil {
		return Span{}, err
	}
	return timed(r, rtt, func(i int) error {
		if err := t.send(r, i); err != nil {
			return err
		}
		return t.receive(r.reply(), i)
	})
}

// Echo, see Endpoint.
func (t *streamed) Echo(r Round) error {
	if err := cmp.Or(t.enter(r), t.enter(r.reply())); err != nil {
		return err
	}
	for i := range r.Lead + r.Messages {
		if err := t.receive(r, i); err != nil {
			return err
		}
		if err := t.send(r.reply(), i); err != nil {
			return err
		}
	}
	return nil
}

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
