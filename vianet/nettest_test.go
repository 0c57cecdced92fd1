package vianet_test

import (
	"net"
	"testing"
	"time"

	"golang.org/x/net/nettest"
)

// What golang.org/x/net asks of any net.Conn.
func TestNettest(t *testing.T) {
	eachLane(t, func(t *testing.T, h *hosts) {
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
