package vianet_test

import (
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/nettest"
)

// What golang.org/x/net asks of any net.Conn. It gives each check a minute, in which
// two that sleep may not get the CPU a thousand times: that lane is TestConn's alone.
func TestNettest(t *testing.T) {
	eachLane(t, func(t *testing.T, h *hosts) {
		if strings.HasSuffix(t.Name(), "/asleep") {
			t.Skip("TestConn has these checks without a limit")
		}
		nettest.TestConn(t, func() (a, b net.Conn, stop func(), err error) {
			l := h.listen(t)
			defer l.Close()
			if a, err = h.a.Dial("via", l.Addr().String()); err != nil {
				return nil, nil, nil, err
			}
			l.SetDeadline(time.Now().Add(patience))
			b, err = l.Accept()
			return a, b, func() { a.Close(); b.Close() }, err
		})
	})
}
