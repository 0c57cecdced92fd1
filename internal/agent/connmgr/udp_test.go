package connmgr_test

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/connmgr"
	"viaxdp/internal/agent/ctrlport"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/route"
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
	r := route.New(n.Netlink(), n.Name, n.Index, wire.Port)
	var u *ctrlport.UDP
	nstest.Must(t, n.Do(func() (err error) {
		u, err = ctrlport.Listen(n.Name, wire.Port, r.Own)
		return err
	}))
	h := &host{connmgr.NewManager(u, wire.Port), u}
	t.Cleanup(func() { nstest.Check(t, h.Close()) })
	return h
}

func testOffer(vi uint32) kagent.Offer {
	return kagent.Offer{VI: vi, Key: kagent.NewKey(), Seq: kagent.NewSeq(), Window: 64, MaxPayload: 1472, Level: 4, RDMARead: true, MaxTransfer: 1 << 15, PortOffset: 5}
}

// Poll passes on one datagram at a time, and no more than there are. Serve may be faster.
func TestUDPPoll(t *testing.T) {
	an, bn := nstest.Pair(t, nstest.Options{})
	a, b := newHost(t, an), newHost(t, bn)
	nstest.ErrorIf(t, a.udp.Poll(), "a datagram although nothing was sent")
	polled := 0
	await.Until(t, "a datagram that Poll passes on", func() bool {
		err := b.udp.Send([]byte("no message"), netip.Addr{}, netip.AddrPortFrom(an.IPv4, wire.Port))
		if err == nil && a.udp.Poll() { // err: the socket is full until the address is resolved
			polled++
		}
		return polled > 0
	})
	await.Until(t, "malformed messages", func() bool { return a.Counters().Malformed >= 1 })
}

// Requests and answers over the kernel's UDP, by both families.
func TestUDPConnect(t *testing.T) {
	an, bn := nstest.Pair(t, nstest.Options{})
	a, b := newHost(t, an), newHost(t, bn)
	for _, addrs := range [][2]netip.Addr{{an.IPv4, bn.IPv4}, {an.IPv6, bn.IPv6}} {
		disc := []byte(addrs[0].String())
		l, err := b.Listen(kagent.Address{Disc: disc})
		nstest.Must(t, err)
		ao, bo := testOffer(1), testOffer(2)
		served := make(chan error, 1)
		go func() {
			in, err := l.Wait(within(time.Minute))
			if err == nil {
				err = in.Accept(within(time.Minute), bo)
			}
			if err == nil && (in.Remote().Host != addrs[0] || in.Local().Host != addrs[1] || in.Offer() != ao) {
				err = errors.New("the request says something else than was sent")
			}
			served <- err
		}()
		ans, err := a.Request(within(time.Minute), kagent.Address{}, kagent.Address{Host: addrs[1], Disc: disc}, ao)
		nstest.Must(t, err)
		nstest.ErrorIf(t, ans.Offer != bo || ans.Local.Host != addrs[0] || ans.Remote.Host != addrs[1], "got %+v", ans)
		nstest.Must(t, ans.Confirm())
		nstest.Must(t, <-served)
		nstest.Must(t, l.Close())
		if _, err := a.Request(within(time.Minute), kagent.Address{}, kagent.Address{Host: addrs[1], Disc: disc}, ao); !errors.Is(err, kagent.ErrNoMatch) {
			t.Errorf("after the listener closed: %v", err)
		}
		// The host's own address, which the kernel would route elsewhere.
		if _, err := a.Request(within(time.Minute), kagent.Address{}, kagent.Address{Host: addrs[0], Disc: disc}, ao); !errors.Is(err, kagent.ErrNoMatch) {
			t.Errorf("a request to itself: %v", err)
		}
	}
}

// A host without an agent is distinguished from one that does not exist.
func TestUDPNobodyThere(t *testing.T) {
	an, bn := nstest.Pair(t, nstest.Options{})
	a := newHost(t, an)
	for _, addr := range []netip.Addr{bn.IPv4, bn.IPv6} {
		_, err := a.Request(within(time.Minute), kagent.Address{}, kagent.Address{Host: addr}, testOffer(1))
		nstest.ErrorIf(t, !errors.Is(err, kagent.ErrNoMatch) || !errors.Is(err, unix.ECONNREFUSED), "%v has no agent: %v", addr, err)
	}
	_, err := a.Request(within(100*time.Millisecond), kagent.Address{}, kagent.Address{Host: netip.MustParseAddr("10.99.0.77")}, testOffer(1))
	nstest.ErrorIf(t, !errors.Is(err, kagent.ErrTimeout), "no host: %v", err)
}

// The port of an interface has one holder.
func TestUDPPortInUse(t *testing.T) {
	an, bn := nstest.Pair(t, nstest.Options{})
	newHost(t, an)
	err := an.Do(func() error {
		_, err := ctrlport.Listen(an.Name, wire.Port, nil)
		return err
	})
	nstest.ErrorIf(t, !errors.Is(err, unix.EADDRINUSE), "second socket: %v", err)
	newHost(t, bn) // the other namespace's is another port
}

// Whatever is sent to a socket that is not being read is read later or counted.
func TestOverrun(t *testing.T) {
	an, bn := nstest.Pair(t, nstest.Options{})
	a, b := newHost(t, an), newHost(t, bn)
	f := newFlooder(t, an, bn.IPv4)
	const flood = 4000 // more than fit
	stranger := func() { nstest.Check(t, f.send([]byte("nothing of ours"))) }
	resume := b.Hold() // so that the reader comes no further than the first one
	for range flood {
		stranger()
	}
	resume()
	await.Until(t, "all that there was room for is read", func() bool { return !b.waits() })
	stranger() // carries the count of those before it
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
