package route

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/fds"
	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
)

const testPort = wire.Port

// waitLimit is how long a test waits for what must happen.
const waitLimit = time.Minute

func deadline(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// quickNeighbours makes the kernel give up on a silent neighbour after 60 ms
// instead of 3 s.
func quickNeighbours(t *testing.T, n *nstest.NS) {
	t.Helper()
	for _, family := range []string{"ipv4", "ipv6"} {
		file := "/proc/sys/net/" + family + "/neigh/" + n.Name + "/retrans_time_ms"
		nstest.Must(t, n.Do(func() error { return os.WriteFile(file, []byte("20"), 0) }))
	}
}

// Path gives what the kernel itself would put into the headers.
func TestPath(t *testing.T) {
	t.Parallel()
	an, bn := nstest.Pair(t, nstest.Options{MTU: 3000})
	r := New(an.Netlink(), an.Name, an.Index, testPort)
	ends := [][2]netip.Addr{{an.IPv4, bn.IPv4}, {an.IPv6, bn.IPv6}}
	for range 2 { // unresolved, resolved
		for _, e := range ends {
			p, err := r.Path(deadline(t, waitLimit), netip.Addr{}, e[1])
			nstest.Must(t, err)
			want := kagent.Path{
				Link: wire.Link{SrcMAC: mac(an.MAC), DstMAC: mac(bn.MAC), Src: e[0], Dst: e[1], Port: testPort}, MTU: 3000,
			}
			nstest.ErrorIf(t, p != want, "got %+v, want %+v", p, want)
			if p, err = r.Path(deadline(t, waitLimit), e[0], e[1]); err != nil || p != want {
				t.Errorf("with a source: %+v, %v", p, err)
			}
			if p, err = r.Path(deadline(t, waitLimit), netip.Addr{}, e[0]); err != nil || !p.Loopback || p.Src != e[0] || p.DstMAC != mac(an.MAC) {
				t.Errorf("to itself: %+v, %v", p, err)
			}
			for _, other := range ends {
				if other[0] != e[0] {
					nstest.WantErr(t, "to itself, from the other family", nstest.Err(r.Path(deadline(t, waitLimit), other[0], e[0])), kagent.ErrUnreachable)
				}
			}
		}
	}

	// Through a gateway, with an MTU of the route.
	link := an.Link(t)
	_, dst, err := net.ParseCIDR("198.51.100.0/24")
	nstest.Must(t, err)
	nstest.Must(t, an.Netlink().RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst, Gw: bn.IPv4.AsSlice(), MTU: 1400}))
	p, err := r.Path(deadline(t, waitLimit), netip.Addr{}, netip.MustParseAddr("198.51.100.7"))
	nstest.Must(t, err)
	nstest.ErrorIf(t, p.DstMAC != mac(bn.MAC) || p.Src != an.IPv4 || p.MTU != 1400 || p.Dst != netip.MustParseAddr("198.51.100.7"), "through a gateway: %+v", p)

	// The kernel takes 3 s to give up.
	nstest.WantErr(t, "short of time", nstest.Err(r.Path(deadline(t, time.Millisecond), netip.Addr{}, netip.MustParseAddr("10.99.0.78"))), kagent.ErrTimeout)
	quickNeighbours(t, an)
	for _, host := range []string{"192.0.2.1", "10.99.0.77", "fd99::77", "2001:db8::1", "224.0.0.1", "0.0.0.0", "127.0.0.1"} {
		_, err := r.Path(deadline(t, waitLimit), netip.Addr{}, netip.MustParseAddr(host))
		nstest.WantErr(t, host, err, kagent.ErrUnreachable)
	}

	nstest.Must(t, an.Netlink().LinkDel(link))
	nstest.WantErr(t, "through an interface that is gone", nstest.Err(r.Path(deadline(t, waitLimit), netip.Addr{}, bn.IPv4)), kagent.ErrGone)
}

// Of several gateways for IPv6 the kernel may choose another one for the datagram that is to have it resolve the address than it
// has named. The one that it has named is resolved all the same.
func TestPathGateways(t *testing.T) {
	t.Parallel()
	an, bn := nstest.Pair(t, nstest.Options{})
	nl, second := an.Netlink(), netip.MustParseAddr("fd99::77")
	link := bn.Link(t)
	nstest.Must(t, bn.Netlink().AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: second.AsSlice(), Mask: net.CIDRMask(64, 128)}, Flags: unix.IFA_F_NODAD}))
	_, dst, err := net.ParseCIDR("2001:db8::/32")
	nstest.Must(t, err)
	nstest.Must(t, nl.RouteAdd(&netlink.Route{Dst: dst, MultiPath: []*netlink.NexthopInfo{
		{LinkIndex: an.Index, Gw: bn.IPv6.AsSlice()}, {LinkIndex: an.Index, Gw: second.AsSlice()},
	}}))
	r := New(nl, an.Name, an.Index, testPort)
	var c *net.UDPConn
	nstest.Must(t, an.Do(func() (err error) {
		c, err = net.ListenUDP("udp6", &net.UDPAddr{IP: an.IPv6.AsSlice(), Port: testPort})
		if err == nil {
			err = fds.With(c, func(fd int) error { return unix.BindToDevice(fd, an.Name) })
		}
		return err
	}))
	defer c.Close()
	r.Nudge = func(_, to netip.Addr) error {
		return nstest.Err(c.WriteToUDPAddrPort([]byte("nudge"), netip.AddrPortFrom(to, testPort)))
	}
	for host := netip.MustParseAddr("2001:db8::1"); host.As16()[15] <= 20; host = host.Next() {
		for _, gw := range []netip.Addr{bn.IPv6, second} {
			if n, err := r.lookup(gw); err == nil && n != nil {
				nstest.Check(t, nl.NeighDel(n))
			}
		}
		p, err := r.Path(deadline(t, waitLimit), netip.Addr{}, host)
		nstest.ErrorIf(t, err != nil || p.DstMAC != mac(bn.MAC), "to %v: %+v, %v", host, p, err)
	}
}

// The interface's MTU for IPv6, which a router may advertise, counts for IPv6 where a route has none.
func TestPathMTU6(t *testing.T) {
	t.Parallel()
	an, bn := nstest.Pair(t, nstest.Options{MTU: 3000})
	r := watchOn(t, an).router
	defer r.Close()
	await.Until(t, "the interface is up, which sets the MTU for IPv6", func() bool {
		link, err := r.Link()
		return err == nil && link.Up
	})
	nstest.Must(t, an.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/"+an.Name+"/mtu", []byte("1400"), 0)
	}))
	_, dst, err := net.ParseCIDR("2001:db8::/32")
	nstest.Must(t, err)
	nstest.Must(t, an.Netlink().RouteAdd(&netlink.Route{LinkIndex: an.Index, Dst: dst, Gw: bn.IPv6.AsSlice(), MTU: 2000}))
	for peer, want := range map[netip.Addr]int{bn.IPv4: 3000, bn.IPv6: 1400, netip.MustParseAddr("2001:db8::1"): 2000} {
		p, err := r.Path(deadline(t, waitLimit), netip.Addr{}, peer)
		nstest.Must(t, err)
		nstest.Equal(t, "MTU to "+peer.String(), p.MTU, want)
	}
}

// A neighbour entry that is deleted while the kernel resolves it, as by "ip neigh flush" or a new address of the NIC, is
// resolved again: the host may be there.
func TestPathWhileFlushed(t *testing.T) {
	an, bn := nstest.Pair(t, nstest.Options{})
	r := New(an.Netlink(), an.Name, an.Index, testPort)
	late := netip.MustParseAddr("10.99.0.77")
	found := make(chan error, 1)
	go func() {
		p, err := r.Path(deadline(t, waitLimit), netip.Addr{}, late)
		if err == nil && p.DstMAC != mac(bn.MAC) {
			err = fmt.Errorf("at %x", p.DstMAC)
		}
		found <- err
	}()
	entry := func() (n *netlink.Neigh) {
		n, err := r.lookup(late)
		nstest.Check(t, err)
		return n
	}
	await.Until(t, "the kernel asks for the host", func() bool { return entry() != nil })
	time.Sleep(2 * lastLook) // Path has seen it
	nstest.Must(t, an.Netlink().NeighDel(entry()))
	await.Until(t, "the kernel asks again", func() bool { return entry() != nil || len(found) > 0 })
	link := bn.Link(t)
	nstest.Must(t, bn.Netlink().AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: late.AsSlice(), Mask: net.CIDRMask(24, 32)}}))
	nstest.Must(t, <-found)
}

// Many calls for a host that does not answer have the kernel ask for it once, and all hear that it is not there. A call whose
// context ends leaves this to another.
func TestPathTogether(t *testing.T) {
	t.Parallel()
	an, _ := nstest.Pair(t, nstest.Options{})
	r := New(an.Netlink(), an.Name, an.Index, testPort)
	var asked atomic.Int32
	r.Nudge = func(netip.Addr, netip.Addr) error {
		asked.Add(1)
		return errors.New("by netlink")
	}
	absent := netip.MustParseAddr("10.99.0.77")
	nstest.WantErr(t, "short of time", nstest.Err(r.Path(deadline(t, time.Millisecond), netip.Addr{}, absent)), kagent.ErrTimeout)
	first, leave := context.WithCancel(context.Background())
	left := make(chan error, 1)
	go func() { left <- nstest.Err(r.Path(first, netip.Addr{}, absent)) }()
	await.Until(t, "the kernel is asked again", func() bool { return asked.Load() == 2 })
	const many = 100
	looked := r.neighbours[0].asked.Load()
	var all sync.WaitGroup
	for range many {
		all.Go(func() {
			nstest.WantErr(t, "one of many", nstest.Err(r.Path(deadline(t, waitLimit), netip.Addr{}, absent)), kagent.ErrUnreachable)
		})
	}
	await.Until(t, "all have looked", func() bool { return r.neighbours[0].asked.Load() >= looked+many })
	leave()
	nstest.WantErr(t, "the first one", <-left, context.Canceled)
	all.Wait()
	if n := asked.Load(); n > many/2 { // 3, and some more for calls that come when the kernel has given up
		t.Errorf("%d calls had the kernel ask %d times", 2+many, n)
	}
}

// Calls during a request to the kernel share the next answer, which is newer than their calls. An error is
// returned to one call only.
func TestShared(t *testing.T) {
	var s shared[int]
	asks := 0
	asking, goOn := make(chan struct{}), make(chan struct{})
	first := make(chan int, 1)
	go func() {
		v, _ := s.get(func() (int, error) {
			asks++
			close(asking)
			<-goOn
			return asks, nil
		})
		first <- v
	}()
	<-asking
	const many = 100
	got := make(chan int, many)
	var all sync.WaitGroup
	for range many {
		all.Go(func() {
			v, err := s.get(func() (int, error) { asks++; return asks, nil })
			nstest.Check(t, err)
			got <- v
		})
	}
	await.Until(t, "all have asked", func() bool { return s.asked.Load() >= 1+many })
	close(goOn)
	all.Wait()
	if v := <-first; v != 1 || asks != 2 {
		t.Errorf("the first got %d; the kernel was asked %d times, want 2", v, asks)
	}
	for range many {
		nstest.Equal(t, "one got", <-got, 2)
	}
	failure := errors.New("interrupted")
	nstest.WantErr(t, "one that fails", nstest.Err(s.get(func() (int, error) { return 0, failure })), failure)
	if v, err := s.get(func() (int, error) { return 7, nil }); v != 7 || err != nil {
		t.Errorf("after it: %d, %v", v, err)
	}
}

// A timer may still send when its agent closes. Then the router asks no netlink socket that is closed, nor one of another
// namespace, where the interface's number is another interface's.
func TestCloseWhileAsked(t *testing.T) {
	an, bn := nstest.Pair(t, nstest.Options{})
	for range 20 {
		nl := nstest.In(t, an, func() (*netlink.Handle, error) { return netlink.NewHandle(unix.NETLINK_ROUTE) })
		r := New(nl, an.Name, an.Index, testPort)
		var asking, begun sync.WaitGroup
		for _, ask := range []func() error{
			func() error { _, err := r.Link(); return err },
			func() error { _, err := r.lookup(bn.IPv4); return err },
			func() error { r.isGateway(bn.IPv4); _, err := r.Link(); return err },
			func() error {
				_, err := r.route(&kagent.Path{Link: wire.Link{Src: an.IPv4, Dst: bn.IPv4}}, &kagent.Link{MTU: 1500})
				return err
			},
		} {
			begun.Add(1)
			asking.Go(func() {
				err := ask()
				begun.Done()
				for err == nil && !t.Failed() {
					err = ask()
				}
				if !errors.Is(err, kagent.ErrClosed) {
					t.Error(err)
				}
			})
		}
		begun.Wait()
		r.Close()
		nstest.WantErr(t, "Link", nstest.Err(r.Link()), kagent.ErrClosed)
		asking.Wait()
		r.Close() // twice does no harm
		if t.Failed() {
			return
		}
	}
}
