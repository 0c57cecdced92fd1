package proxy

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// tcpConn is a TCP connection that one pipe reads and another one writes. It differs from net.TCPConn in two ways:
//   - Urgent data is an error: the kernel would silently take the byte out of the stream.
//   - A reset is an error of both directions. The kernel reports it once. If the Write gets it, a Read finds what looks like
//     the end of the stream.
type tcpConn struct {
	*net.TCPConn
	raw     syscall.RawConn
	in, out attempt

	// mu is held during each write, which may be the one that gets the reset: a read that finds the end waits for it. Other
	// reads do not wait, since the peer's next bytes often arrive before the write's system call has returned.
	mu   sync.Mutex
	lost error // that a Write got
}

// attempt is the Read or the Write that is under way.
type attempt struct {
	step func(fd uintptr) bool // goes on with b; false: the socket is not ready
	b    []byte
	n    int
	err  error
}

var errUrgent = errors.New("urgent data, which VIA does not carry: the connection is broken")

// asTCP returns c as a tcpConn if it is of TCP, else as it is.
func asTCP(c net.Conn) net.Conn {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return c
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return c // it is closed, as Read says
	}
	// The urgent mark is checked before each read. A byte that arrives between check and read at least stays in the
	// stream.
	_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_OOBINLINE, 1) })
	t := &tcpConn{TCPConn: tcp, raw: raw}
	t.in.step, t.out.step = t.read, t.write
	return t
}

// Read and Write are each for one goroutine at a time.
func (t *tcpConn) Read(b []byte) (int, error) { return t.in.do(b, t.raw.Read) }

func (t *tcpConn) Write(b []byte) (int, error) { return t.out.do(b, t.raw.Write) }

func (a *attempt) do(b []byte, wait func(func(fd uintptr) bool) error) (int, error) {
	a.b, a.n, a.err = b, 0, nil
	if err := wait(a.step); err != nil {
		return a.n, err
	}
	return a.n, a.err
}

func (t *tcpConn) read(fd uintptr) bool {
	a := &t.in
	if mark, err := unix.IoctlGetInt(int(fd), unix.SIOCATMARK); err == nil && mark != 0 {
		a.err = errUrgent
		return true
	}
	for {
		n, err := unix.Read(int(fd), a.b)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return false
		case err != nil:
			a.err = err
		case n > 0 || len(a.b) == 0:
			a.n = n
		default:
			a.err = t.end()
		}
		return true
	}
}

// end returns the reset that a Write got, else io.EOF.
func (t *tcpConn) end() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lost != nil {
		return t.lost
	}
	return io.EOF
}

func (t *tcpConn) write(fd uintptr) bool {
	a := &t.out
	t.mu.Lock()
	defer t.mu.Unlock()
	for a.n < len(a.b) {
		n, err := unix.Write(int(fd), a.b[a.n:])
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return false
		case err != nil:
			a.err = err
			if err != unix.EPIPE { // EPIPE: the peer had ended its stream before
				t.lost = err
			}
			return true
		default:
			a.n += n
		}
	}
	return true
}
