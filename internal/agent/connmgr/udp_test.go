package connmgr_test

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/connmgr"
	"viaxdp/internal/agent/ctrlport"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
)

// host is connection management on one end of a pair, without AF_XDP.
type host struct {
	*connmgr.Manager
	udp *ctrlport.UDP
}

func newHost(t *testing.T, n *nstest.NS) *host {
	t.Helper()
	var u *ctrlport.UDP
	nstest.Must(t, n.Do(func() (err error) {
		u, err = ctrlport.Listen(n.Name, wire.Port, func(a netip.Addr) bool { return a == n.IPv4 })
		return err
	}))
	h := &host{connmgr.NewManager(u, wire.Port), u}
	t.Cleanup(func() { nstest.Check(t, h.Close()) })
	return h
}

// tell sends what is no message to a host. The socket may be full until the host's address is resolved.
func (h *host) tell(t *testing.T, to *nstest.NS) {
	t.Helper()
	await.Until(t, "the socket has room", func() bool {
		err := h.udp.Send([]byte("no message"), netip.Addr{}, netip.AddrPortFrom(to.IPv4, wire.Port))
		nstest.FatalIf(t, err != nil && !errors.Is(err, unix.EAGAIN), "%v", err)
		return err == nil
	})
}

// Poll passes on one datagram at a time, and no more than there are. Serve may be faster.
func TestUDPPoll(t *testing.T) {
	an, bn := nstest.Pair(t, nstest.Options{})
	a, b := newHost(t, an), newHost(t, bn)
	nstest.ErrorIf(t, a.udp.Poll(), "a datagram although nothing was sent")
	await.Until(t, "a datagram that Poll passes on", func() bool {
		b.tell(t, an)
		return a.udp.Poll()
	})
	await.Until(t, "malformed messages", func() bool { return a.Counters().Malformed >= 1 })
}

// Whatever is sent to a socket that is not being read is read later or counted.
func TestOverrun(t *testing.T) {
	an, bn := nstest.Pair(t, nstest.Options{})
	a, b := newHost(t, an), newHost(t, bn)
	const flood = 4000 // more than fit
	resume := b.Hold() // so that the reader comes no further than the first one
	for range flood {
		a.tell(t, bn)
	}
	resume()
	await.Until(t, "all that there was room for is read", func() bool {
		left := 0
		nstest.Must(t, b.udp.Control(func(fd uintptr) { left, _ = unix.IoctlGetInt(int(fd), unix.SIOCINQ) }))
		return left == 0
	})
	a.tell(t, bn) // carries the count of those before it
	var n kagent.Counters
	await.Until(t, "all are accounted for", func() bool {
		n = b.Counters()
		return n.Malformed+n.Overrun == flood+1
	})
	nstest.ErrorIf(t, n.Overrun == 0, "there was room for all: %+v", n)
	if got := a.Counters().Overrun; got > 0 {
		t.Errorf("%d where nothing was sent", got)
	}
}
