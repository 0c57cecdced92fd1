package kagent

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/nstest"
)

// Requests that doubt the same silent peer at the same time take away what the kernel knew, which
// is wrong, but not what it is asking for on behalf of one of them: their datagrams wait for the
// answer, and would be refused as to a host that is not there.
func TestDoubtTogether(t *testing.T) {
	an, bn := nstest.Pair(t, nstest.Options{})
	r := &router{nl: an.Netlink(), name: an.Name, index: an.Index, port: testPort}
	wrong := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	for _, ends := range [][2]netip.Addr{{an.IPv4, bn.IPv4}, {an.IPv6, bn.IPv6}} {
		var silent, c *net.UDPConn
		if err := errors.Join(
			bn.Do(func() (err error) {
				silent, err = net.ListenUDP("udp", &net.UDPAddr{IP: ends[1].AsSlice(), Port: testPort})
				return err
			}),
			an.Do(func() (err error) {
				c, err = net.DialUDP("udp", nil, &net.UDPAddr{IP: ends[1].AsSlice(), Port: testPort})
				return err
			}),
		); err != nil {
			t.Fatal(err)
		}
		defer silent.Close()
		defer c.Close()
		hearErrors(t, c, ends[1])
		ask := func() error { _, err := c.Write([]byte("?")); return err }
		for round := range 100 {
			if err := an.Netlink().NeighSet(&netlink.Neigh{
				LinkIndex: an.Index, Family: family(ends[1]), IP: ends[1].AsSlice(),
				State: netlink.NUD_REACHABLE, HardwareAddr: wrong,
			}); err != nil {
				t.Fatal(err)
			}
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					r.doubt(ends[0], ends[1])
					if err := ask(); err != nil {
						t.Errorf("%v, round %d: %v", ends[1], round, err)
					}
				})
			}
			if all.Wait(); t.Failed() {
				return
			}
			hw, err := r.neighbour(deadline(t, patience), ends[1], ask)
			if err != nil || hw == mac(wrong) {
				t.Fatalf("%v, round %d: asked anew, it is at %x: %v", ends[1], round, hw, err)
			}
		}
	}
}

// hearErrors has writes to peer fail when an ICMP message says that it cannot be reached.
func hearErrors(t *testing.T, c *net.UDPConn, peer netip.Addr) {
	t.Helper()
	level, option := unix.IPPROTO_IP, unix.IP_RECVERR
	if peer.Is6() {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVERR
	}
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if bad := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, 1) }); bad != nil || err != nil {
		t.Fatal(bad, err)
	}
}
