package agentd

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
)

// A wait on behalf of a program ends when the program hangs up, and not when it sends another message.
func TestWhilePresent(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	nstest.Must(t, err)
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		c, err := net.FileConn(f)
		err = errors.Join(err, f.Close())
		nstest.Must(t, err)
		defer c.Close()
		ends[i] = c.(*net.UnixConn)
	}
	c := &conn{c: ends[0]}
	ctx, stop := c.whilePresent()
	if _, err := ends[1].Write([]byte("and")); err != nil {
		t.Fatal(err)
	}
	if ctx.Err() != nil {
		t.Error("it hung up, and has not")
	}
	stop()
	if context.Cause(ctx) != context.Canceled {
		t.Errorf("after stop: %v", context.Cause(ctx))
	}
	ctx, stop = c.whilePresent()
	defer stop()
	ends[1].Close()
	<-ctx.Done()
	if context.Cause(ctx) != errHungUp {
		t.Errorf("%v, want errHungUp", context.Cause(ctx))
	}
}
