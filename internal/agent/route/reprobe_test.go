package route

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
)

// Requests that have the same silent peer probed at the same time take away what the kernel knew,
// which is wrong, but not what it is asking for on behalf of one of them: their datagrams wait for the
// answer, and would be refused as to a host that is not there.
func TestReprobeTogether(t *testing.T) {
	reprobeTime = 10 * time.Millisecond
	defer func() { reprobeTime = 100 * time.Millisecond }()
	an, bn := nstest.Pair(t, nstest.Options{})
	r := &Router{nl: an.Netlink(), name: an.Name, index: an.Index, port: testPort}
	awaitProbes(t, r)
	wrong := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	for _, ends := range [][2]netip.Addr{{an.IPv4, bn.IPv4}, {an.IPv6, bn.IPv6}} {
		var silent, c *net.UDPConn
		nstest.Must(t, errors.Join(
			bn.Do(func() (err error) {
				silent, err = net.ListenUDP("udp", &net.UDPAddr{IP: ends[1].AsSlice(), Port: testPort})
				return err
			}),
			an.Do(func() (err error) {
				c, err = net.DialUDP("udp", nil, &net.UDPAddr{IP: ends[1].AsSlice(), Port: testPort})
				return err
			}),
		))
		defer silent.Close()
		defer c.Close()
		hearErrors(t, c, ends[1])
		ask := func() error { _, err := c.Write([]byte("?")); return err }
		for round := range 100 {
			nstest.Must(t, an.Netlink().NeighSet(&netlink.Neigh{
				LinkIndex: an.Index, Family: family(ends[1]), IP: ends[1].AsSlice(),
				State: netlink.NUD_REACHABLE, HardwareAddr: wrong,
			}))
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					r.reprobeNeighbour(t.Context(), ends[0], ends[1])
					if err := ask(); err != nil {
						t.Errorf("%v, round %d: %v", ends[1], round, err)
					}
				})
			}
			if all.Wait(); t.Failed() {
				return
			}
			hw, err := r.neighbour(deadline(t, waitLimit), ends[1], ask)
			nstest.FatalIf(t, err != nil || hw == mac(wrong),
				"%v, round %d: asked again, it is at %x: %v", ends[1], round, hw, err)
		}
	}
}

// awaitProbes waits until the kernel can probe addresses of IPv6, too.
func awaitProbes(t *testing.T, r *Router) {
	t.Helper()
	await.Until(t, "the link-local address can be used", func() bool { return r.probesFrom(netip.IPv6Loopback()) })
}

// hearErrors has writes to peer fail after an ICMP message that it cannot be reached.
func hearErrors(t *testing.T, c *net.UDPConn, peer netip.Addr) {
	t.Helper()
	level, option := unix.IPPROTO_IP, unix.IP_RECVERR
	if peer.Is6() {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVERR
	}
	raw, err := c.SyscallConn()
	nstest.Must(t, err)
	if bad := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, 1) }); bad != nil || err != nil {
		t.Fatal(bad, err)
	}
}

// The entry of a host that answers stays usable while the kernel probes it, and so does that of a
// gateway that does not answer.
func TestReprobeKeepsEntry(t *testing.T) {
	an, bn := nstest.Pair(t, nstest.Options{})
	r := &Router{nl: an.Netlink(), name: an.Name, index: an.Index, port: testPort}
	if n := (&netlink.Neigh{
		LinkIndex: an.Index, Family: netlink.FAMILY_V6, IP: bn.IPv6.AsSlice(), State: netlink.NUD_STALE, HardwareAddr: bn.MAC,
	}); !r.probesFrom(bn.IPv6) { // it has just come up
		nstest.Must(t, an.Netlink().NeighSet(n))
		r.reprobeNeighbour(t.Context(), an.IPv6, bn.IPv6)
		if n, err := r.lookup(bn.IPv6); err != nil || n == nil || n.State != netlink.NUD_STALE {
			t.Errorf("what the kernel could not probe is %+v, %v", n, err)
		}
	}
	awaitProbes(t, r)
	wrong := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	for _, ends := range [][2]netip.Addr{{an.IPv4, bn.IPv4}, {an.IPv6, bn.IPv6}} {
		set := func(hw net.HardwareAddr) {
			t.Helper()
			nstest.Must(t, an.Netlink().NeighSet(&netlink.Neigh{
				LinkIndex: an.Index, Family: family(ends[1]), IP: ends[1].AsSlice(), State: netlink.NUD_STALE, HardwareAddr: hw,
			}))
		}
		// gone reports whether the entry is unusable after a probe, or was while it took place.
		gone := func() bool {
			t.Helper()
			over, gone := make(chan struct{}), false
			go func() {
				defer close(over)
				r.reprobeNeighbour(t.Context(), ends[0], ends[1])
			}()
			for last := false; !last; {
				select {
				case <-over:
					last = true
				default:
				}
				n, err := r.lookup(ends[1])
				nstest.Must(t, err)
				gone = gone || n == nil || n.State&usable == 0
			}
			return gone
		}
		for round := range 20 {
			if set(bn.MAC); gone() {
				t.Errorf("%v, round %d: the entry of a host that answers is gone", ends[1], round)
			}
			n, err := r.lookup(ends[1])
			nstest.ErrorIf(t, err != nil || n == nil || n.State != netlink.NUD_REACHABLE || mac(n.HardwareAddr) != mac(bn.MAC),
				"%v, round %d: %+v, %v; want that it has answered", ends[1], round, n, err)
		}
		if set(wrong); !gone() {
			t.Errorf("%v: the entry of a host that is not there stays", ends[1])
		}
		bits := ends[1].BitLen()
		dst := &net.IPNet{IP: make(net.IP, bits/8), Mask: net.CIDRMask(0, bits)}
		for name, route := range map[string]*netlink.Route{
			"gateway":         {LinkIndex: an.Index, Dst: dst, Gw: ends[1].AsSlice()},
			"another table's": {LinkIndex: an.Index, Dst: dst, Gw: ends[1].AsSlice(), Table: 77},
			"one of several":  {Dst: dst, MultiPath: []*netlink.NexthopInfo{{LinkIndex: an.Index, Gw: ends[1].AsSlice()}}},
		} {
			nstest.Must(t, an.Netlink().RouteAdd(route))
			if set(wrong); gone() {
				t.Errorf("%v, %s: its entry is gone", ends[1], name)
			}
			nstest.Must(t, an.Netlink().RouteDel(route))
		}
	}
}

// A user that has addresses probed again and again gets few probes, and leaves some for others.
func TestReprobeRarely(t *testing.T) {
	var p reprobes
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }
	now := time.Unix(1000, 0)
	flood := func(users int) (got int) {
		for i := range 4000 {
			if p.take(uint32(1+i%users), addr(i), now.Add(time.Duration(i)*time.Millisecond)) {
				got++
			}
		}
		return got
	}
	nstest.Equal(t, "what one user gets in 4 s", flood(1), maxUserReprobes)
	nstest.ErrorIf(t, !p.take(2, addr(5000), now.Add(4*time.Second)), "another user gets none")
	nstest.ErrorIf(t, p.take(3, addr(5000), now.Add(4*time.Second+reprobeAgain/2)), "an address is probed again at once")
	now = now.Add(2 * reprobeWindow)
	nstest.Equal(t, "what 100 users get in 4 s", flood(100), maxReprobes)
	now = now.Add(2 * reprobeWindow)
	nstest.ErrorIf(t, !p.take(1, addr(0), now) || len(p.users) != 1 || len(p.recent) != 1, "later: %d users and %d addresses are remembered", len(p.users), len(p.recent))
}
