package proxy

import (
	"errors"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

var errUrgent = errors.New("urgent data, which VIA does not carry: the connection is broken")

// ordinary reads a TCP connection until urgent data comes, which is an error: the kernel would take the byte out of
// the stream, and nobody would know.
type ordinary struct {
	raw  syscall.RawConn
	step func(fd uintptr) bool // tries to read into b

	b   []byte
	n   int
	err error
}

// reader gives what c's stream is read with.
func reader(c net.Conn) io.Reader {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return c
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return c // it is closed, as Read says
	}
	// The mark is looked for before each read. A byte that comes in between stays in the stream, at least.
	_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_OOBINLINE, 1) })
	r := &ordinary{raw: raw}
	r.step = r.try
	return r
}

func (r *ordinary) Read(b []byte) (int, error) {
	r.b, r.n, r.err = b, 0, nil
	if err := r.raw.Read(r.step); err != nil {
		return 0, err
	}
	return r.n, r.err
}

// try reads once. False: nothing is there.
func (r *ordinary) try(fd uintptr) bool {
	if mark, err := unix.IoctlGetInt(int(fd), unix.SIOCATMARK); err == nil && mark != 0 {
		r.err = errUrgent
		return true
	}
	for {
		n, err := unix.Read(int(fd), r.b)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return false
		case err != nil:
			r.err = err
		case n == 0 && len(r.b) > 0:
			r.err = io.EOF
		default:
			r.n = n
		}
		return true
	}
}
