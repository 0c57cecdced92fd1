package kagent

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
)

const testPort = wire.Port

// host is connection management on one end of a pair, without AF_XDP.
type host struct {
	*Manager
	router *router
}

func newHost(t *testing.T, n *nstest.NS) *host {
	t.Helper()
	r := &router{nl: n.Netlink(), name: n.Name, index: n.Index, port: testPort}
	var u *UDP
	if err := n.Do(func() (err error) {
		u, err = ListenUDP(n.Name, testPort, r.own)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	h := &host{NewManager(u, testPort), r}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func testOffer(vi uint32) Offer {
	return Offer{VI: vi, Key: NewKey(), Seq: NewSeq(), Window: 64, MaxPayload: 1472, Level: 4, RDMARead: true, MaxTransfer: 1 << 15}
}

// patience is how long a test waits for what must happen.
const waitLimit = time.Minute

func deadline(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// Requests and answers over the kernel's UDP, by both families.
func TestUDPConnect(t *testing.T) {
	an, bn := nstest.Pair(t, nstest.Options{})
	a, b := newHost(t, an), newHost(t, bn)
	for _, addrs := range [][2]netip.Addr{{an.IPv4, bn.IPv4}, {an.IPv6, bn.IPv6}} {
		disc := []byte(addrs[0].String())
		l, err := b.Listen(Address{Disc: disc})
		if err != nil {
			t.Fatal(err)
		}
		ao, bo := testOffer(1), testOffer(2)
		served := make(chan error, 1)
		go func() {
			in, err := l.Wait(deadline(t, waitLimit))
			if err == nil {
				err = in.Accept(deadline(t, waitLimit), bo)
			}
			if err == nil && (in.Remote().Host != addrs[0] || in.Local().Host != addrs[1] || in.Offer() != ao) {
				err = errors.New("the request says something else than was sent")
			}
			served <- err
		}()
		ans, err := a.Request(deadline(t, waitLimit), Address{}, Address{addrs[1], disc}, ao)
		if err != nil {
			t.Fatal(err)
		}
		if ans.Offer != bo || ans.Local.Host != addrs[0] || ans.Remote.Host != addrs[1] {
			t.Errorf("got %+v", ans)
		}
		if err := ans.Confirm(); err != nil {
			t.Fatal(err)
		}
		if err := <-served; err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Request(deadline(t, waitLimit), Address{}, Address{addrs[1], disc}, ao); !errors.Is(err, ErrNoMatch) {
			t.Errorf("after the listener closed: %v", err)
		}
		// The host's own address, which the kernel would route elsewhere.
		if _, err := a.Request(deadline(t, waitLimit), Address{}, Address{addrs[0], disc}, ao); !errors.Is(err, ErrNoMatch) {
			t.Errorf("a request to itself: %v", err)
		}
	}
}

// A host without an agent is told from one that is not there.
func TestUDPNobodyThere(t *testing.T) {
	an, bn := nstest.Pair(t, nstest.Options{})
	a := newHost(t, an)
	for _, addr := range []netip.Addr{bn.IPv4, bn.IPv6} {
		_, err := a.Request(deadline(t, waitLimit), Address{}, Address{Host: addr}, testOffer(1))
		if !errors.Is(err, ErrNoMatch) || !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%v has no agent: %v", addr, err)
		}
	}
	_, err := a.Request(deadline(t, 100*time.Millisecond), Address{}, Address{Host: netip.MustParseAddr("10.99.0.77")}, testOffer(1))
	if !errors.Is(err, ErrTimeout) {
		t.Errorf("no host: %v", err)
	}
}

// The port of an interface has one holder.
func TestUDPPortInUse(t *testing.T) {
	an, bn := nstest.Pair(t, nstest.Options{})
	newHost(t, an)
	err := an.Do(func() error {
		_, err := ListenUDP(an.Name, testPort, nil)
		return err
	})
	if !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("second socket: %v", err)
	}
	newHost(t, bn) // the other namespace's is another port
}

// quickNeighbours makes the kernel give up on a silent neighbour after 60 ms
// instead of 3 s.
func quickNeighbours(t *testing.T, n *nstest.NS) {
	t.Helper()
	for _, family := range []string{"ipv4", "ipv6"} {
		file := "/proc/sys/net/" + family + "/neigh/" + n.Name + "/retrans_time_ms"
		if err := n.Do(func() error { return os.WriteFile(file, []byte("20"), 0) }); err != nil {
			t.Fatal(err)
		}
	}
}

// Path gives what the kernel itself would put into the headers.
func TestPath(t *testing.T) {
	an, bn := nstest.Pair(t, nstest.Options{MTU: 3000})
	r := &router{nl: an.Netlink(), name: an.Name, index: an.Index, port: testPort}
	ends := [][2]netip.Addr{{an.IPv4, bn.IPv4}, {an.IPv6, bn.IPv6}}
	for range 2 { // unresolved, resolved
		for _, e := range ends {
			p, err := r.path(deadline(t, waitLimit), netip.Addr{}, e[1])
			if err != nil {
				t.Fatal(err)
			}
			want := Path{
				Link: wire.Link{SrcMAC: mac(an.MAC), DstMAC: mac(bn.MAC), Src: e[0], Dst: e[1], Port: testPort}, MTU: 3000,
			}
			if p != want {
				t.Errorf("got %+v, want %+v", p, want)
			}
			if p, err = r.path(deadline(t, waitLimit), e[0], e[1]); err != nil || p != want {
				t.Errorf("with a source: %+v, %v", p, err)
			}
			if p, err = r.path(deadline(t, waitLimit), netip.Addr{}, e[0]); err != nil || !p.Loopback || p.Src != e[0] || p.DstMAC != mac(an.MAC) {
				t.Errorf("to itself: %+v, %v", p, err)
			}
		}
	}

	// Through a gateway, with an MTU of the route.
	link, err := an.Netlink().LinkByIndex(an.Index)
	if err != nil {
		t.Fatal(err)
	}
	_, dst, err := net.ParseCIDR("198.51.100.0/24")
	if err != nil {
		t.Fatal(err)
	}
	if err := an.Netlink().RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst, Gw: bn.IPv4.AsSlice(), MTU: 1400}); err != nil {
		t.Fatal(err)
	}
	p, err := r.path(deadline(t, waitLimit), netip.Addr{}, netip.MustParseAddr("198.51.100.7"))
	if err != nil {
		t.Fatal(err)
	}
	if p.DstMAC != mac(bn.MAC) || p.Src != an.IPv4 || p.MTU != 1400 || p.Dst != netip.MustParseAddr("198.51.100.7") {
		t.Errorf("through a gateway: %+v", p)
	}

	// The kernel takes 3 s to give up.
	if _, err := r.path(deadline(t, time.Millisecond), netip.Addr{}, netip.MustParseAddr("10.99.0.78")); !errors.Is(err, ErrTimeout) {
		t.Errorf("short of time: %v", err)
	}
	quickNeighbours(t, an)
	for _, host := range []string{"192.0.2.1", "10.99.0.77", "fd99::77", "2001:db8::1", "224.0.0.1", "0.0.0.0", "127.0.0.1"} {
		_, err := r.path(deadline(t, waitLimit), netip.Addr{}, netip.MustParseAddr(host))
		if !errors.Is(err, ErrUnreachable) {
			t.Errorf("%s: %v", host, err)
		}
	}
}

// Whatever is sent to a socket that nobody reads is read later or counted.
func TestOverrun(t *testing.T) {
	an, bn := nstest.Pair(t, nstest.Options{})
	a, b := newHost(t, an), newHost(t, bn)
	f := newFlooder(t, an, bn.IPv4)
	const flood = 4000 // more than fit
	stranger := func() {
		if err := f.send([]byte("nothing of ours")); err != nil {
			t.Error(err)
		}
	}
	b.mu.Lock() // so that the reader comes no further than the first one
	for range flood {
		stranger()
	}
	b.mu.Unlock()
	await.Until(t, "all that there was room for is read", func() bool { return !b.waits() })
	stranger() // tells of those before it
	var n Counters
	await.Until(t, "all are accounted for", func() bool {
		n = b.Counters()
		return n.Malformed+n.Overrun == flood+1
	})
	if n.Overrun == 0 {
		t.Errorf("there was room for all: %+v", n)
	}
	if got := a.Counters().Overrun; got > 0 {
		t.Errorf("%d where nothing was sent", got)
	}
}
