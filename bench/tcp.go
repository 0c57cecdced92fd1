package bench

import (
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/fail"
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

func openTCP(o opening) endpoint {
	t := &tcp{netStream: openNetStream(o, false), block: o.sleeps, fd: -1}
	t.streamed.s = t
	return t
}

func (t *tcp) Connect(peer Hello) {
	t.netStream.Connect(peer)
	conn := t.conn.(*net.TCPConn)
	t.conn = nil
	t.fd = fail.Must(takeSocket(conn))
	fail.If(setCongestion(t.fd, t.params.Congestion))
	if d := t.params.LongestTimeout; d > 0 {
		// Not known to older kernels, which then have their own.
		unix.SetsockoptInt(t.fd, unix.IPPROTO_TCP, tcpRTOMaxMS, int(d.Milliseconds()))
	}
	// A blocked call returns now and then to see whether it should go on.
	tv := unix.NsecToTimeval(int64(maxSleep))
	for name, option := range map[string]int{"SO_RCVTIMEO": unix.SO_RCVTIMEO, "SO_SNDTIMEO": unix.SO_SNDTIMEO} {
		fail.Wrap(unix.SetsockoptTimeval(t.fd, unix.SOL_SOCKET, option, &tv), "%s", name)
	}
}

// setCongestion chooses TCP's congestion control; empty: the host's.
func setCongestion(fd int, name string) error {
	if name == "" {
		return nil
	}
	if err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name); err != nil {
		return fmt.Errorf("TCP_CONGESTION %s: %w", name, err)
	}
	return nil
}

func (t *tcp) Close() error {
	if t.fd >= 0 {
		unix.Close(t.fd)
		t.fd = -1
	}
	return t.netStream.Close()
}

func (t *tcp) round() { t.watch.progress() }

func (t *tcp) write(p []byte) {
	for len(p) > 0 {
		n, err := t.writeOnce(p)
		if err != nil {
			t.again("send", err)
			continue
		}
		t.watch.progress()
		p = p[n:]
	}
}

func (t *tcp) read(p []byte) int {
	for {
		n, err := t.readOnce(p)
		if err != nil {
			t.again("receive", err)
			continue
		}
		if n == 0 {
			fail.If(io.ErrUnexpectedEOF) // the peer has closed
		}
		t.watch.progress()
		return n
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

// again returns if the call is to be repeated.
func (t *tcp) again(doing string, err error) {
	switch {
	case errors.Is(err, unix.EAGAIN) && t.block:
		err = t.watch.blocked()
	case errors.Is(err, unix.EAGAIN):
		err = t.watch.idle()
	case errors.Is(err, unix.EINTR):
		return
	}
	if err != nil {
		fail.With("%s: %w", doing, err)
	}
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

// byteStream is a connected stream of bytes, the ground of the TCP transports. What fails does so by package fail.
type byteStream interface {
	// write sends all of p.
	write(p []byte)
	// read returns as soon as there are bytes, at least one.
	read(p []byte) int
	// round is called before each round.
	round()
}

// streamed makes messages of a byte stream: equal sizes, so that nothing marks
// their bounds.
type streamed struct {
	s       byteStream
	out, in []byte
}

// readBuffer is the room for reads of a stream, where messages are small.
const readBuffer = 64 << 10

func (t *streamed) enter(r Round) {
	fail.If(r.check())
	if r.Bytes > len(t.out) {
		fail.With("message larger than announced")
	}
	t.s.round()
}

func (t *streamed) Ping(r Round, rtt []int64) Span {
	t.enter(r)
	t.enter(r.reply())
	return timed(r, rtt, func(i int) {
		t.send(r, i)
		t.receive(r.reply(), i)
	})
}

func (t *streamed) Echo(r Round) {
	t.enter(r)
	t.enter(r.reply())
	for i := range r.Lead + r.Messages {
		t.receive(r, i)
		t.send(r.reply(), i)
	}
}

func (t *streamed) Send(r Round) Span {
	t.enter(r)
	// One byte says that the receiver is ready, another one that it has all.
	t.full(t.in[:1])
	clock := startStopwatch()
	for i := range r.Messages {
		t.send(r, i)
	}
	t.full(t.in[:1])
	return clock.span()
}

func (t *streamed) Receive(r Round) Span {
	t.enter(r)
	t.s.write(t.out[:1])
	clock := startStopwatch()
	if r.Check {
		for i := range r.Messages {
			t.receive(r, i)
		}
	} else {
		// As large reads as there are bytes, like any program that expects
		// many messages.
		for rest := r.Bytes * r.Messages; rest > 0; {
			rest -= t.s.read(t.in[:min(len(t.in), rest)])
		}
	}
	t.s.write(t.out[:1])
	return clock.span()
}

func (t *streamed) send(r Round, i int) {
	p := t.out[:r.Bytes]
	if r.Check {
		copy(p, content(i, 0, r.Bytes))
	}
	t.s.write(p)
}

func (t *streamed) receive(r Round, i int) {
	p := t.in[:r.Bytes]
	t.full(p)
	if r.Check {
		fail.If(verify(i, 0, p))
	}
}

// full reads until p is full.
func (t *streamed) full(p []byte) {
	for len(p) > 0 {
		p = p[t.s.read(p):]
	}
}
