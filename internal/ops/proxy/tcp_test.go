package proxy

import (
	"bytes"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"

	"viaxdp/internal/lab/nstest"
)

// A Write gets the peer's reset, as it waits when that comes. What the peer has sent before is read. Then the stream has ended
// if the peer had ended it before the reset, and is broken otherwise.
func TestResetGoesToWrite(t *testing.T) {
	l := listen(t)
	for _, ended := range []bool{false, true} {
		c := asTCP(dial(t, l.Addr()))
		peer := accept(t, l).(*net.TCPConn)
		answer := []byte("answer")
		must(t, nstest.Err(peer.Write(answer)))
		if ended {
			must(t, peer.CloseWrite())
		}
		wrote := make(chan error, 1)
		go func() {
			_, err := c.Write(make([]byte, 64<<20)) // more than the sockets hold
			wrote <- err
		}()
		must(t, nstest.Err(peer.Read(make([]byte, 1)))) // it has begun
		must(t, peer.SetLinger(0))
		must(t, peer.Close())
		wantWrite, wantRead := error(syscall.ECONNRESET), error(syscall.ECONNRESET)
		if ended {
			wantWrite, wantRead = syscall.EPIPE, io.EOF
		}
		if err := <-wrote; !errors.Is(err, wantWrite) {
			t.Errorf("ended %v: Write: %v, want %v", ended, err, wantWrite)
		}
		b := make([]byte, 100)
		n, err := c.Read(b)
		if !bytes.Equal(b[:n], answer) {
			t.Errorf("ended %v: read %q, %v", ended, b[:n], err)
		}
		if _, err = c.Read(b); !errors.Is(err, wantRead) {
			t.Errorf("ended %v: the Read behind it: %v, want %v", ended, err, wantRead)
		}
	}
}
