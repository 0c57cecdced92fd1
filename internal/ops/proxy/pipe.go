package proxy

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"viaxdp/vianet"
)

// buffers are for pipes. They are larger than Options.Threshold, so vianet sends full ones by RDMA.
var buffers = sync.Pool{New: func() any { b := make([]byte, 64<<10); return &b }}

// pipe copies a stream to its end, and ends it on the other side. If that fails, it breaks both connections: no peer
// may wait for the other, or take a part of the stream for all of it. If a peer by VIA merely reads no more, the
// other direction first goes on to its end.
func pipe(to, from net.Conn, other <-chan struct{}) error {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	// a hostile peer by VIA may report a write that it has not made: no data of other connections is forwarded
	clear(*buf)
	// Neither side's ReadFrom: it would take a buffer of its own.
	_, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, *buf)
	if err == nil {
		err = closeWrite(to)
	}
	if err == nil || unheard(to, err) && drain(from, other) {
		return nil
	}
	abort(to)
	abort(from)
	if errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return nil // the other direction has ended it, or a program
	}
	return err
}

// unheard reports whether err, from a copy to to or from its end, may mean that the peer reads no more but still
// sends. A peer that has closed has sent everything before. A connection that broke otherwise may have lost what was
// written.
func unheard(to net.Conn, err error) bool {
	var op *net.OpError
	_, via := to.(*vianet.Conn)
	return via && errors.As(err, &op) && (op.Op == "write" || op.Op == "close") && errors.Is(err, vianet.ErrReadClosed)
}

// drain drops what comes, so that the kernel does not reset a connection on which an answer is still under way. It
// reports whether the stream has come to its end before the other direction has, or within drainTime after that.
func drain(from net.Conn, other <-chan struct{}) bool {
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-other:
			from.SetReadDeadline(time.Now().Add(drainTime))
		case <-over:
		}
	}()
	_, err := io.Copy(io.Discard, struct{ io.Reader }{from})
	return err == nil
}

// hold makes the kernel reset a TCP connection if this process is killed, so that a partly forwarded stream does not
// look complete. The result undoes that, for an orderly Close. A peer by VIA notices a death anyway.
func hold(c net.Conn) (release func()) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return func() {}
	}
	_ = tcp.SetLinger(0)
	return func() { _ = tcp.SetLinger(-1) } // it may be closed
}

// abort closes a connection so that its peer reads an error, not the end.
func abort(c net.Conn) {
	if l, ok := c.(interface{ SetLinger(sec int) error }); ok {
		_ = l.SetLinger(0) // it may be closed
	}
	c.Close()
}

func closeWrite(c net.Conn) error {
	if w, ok := c.(interface{ CloseWrite() error }); ok {
		if err := w.CloseWrite(); !errors.Is(err, syscall.ENOTCONN) { // it is gone
			return err
		}
	}
	return nil
}
