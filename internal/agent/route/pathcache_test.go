package route

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/nstest"
)

// A path is found once until something changes, and a change is seen by the first Path after it.
func TestPathCache(t *testing.T) {
	an, bn := nstest.Pair(t, nstest.Options{})
	nl := an.Netlink()
	r := New(nl, an.Name, an.Index, testPort)
	defer r.paths.close()
	nstest.Must(t, an.Do(r.paths.subscribe))
	path := func(peer netip.Addr) (kagent.Path, error) { return r.Path(deadline(t, waitLimit), netip.Addr{}, peer) }
	finds := func() int {
		t.Helper()
		cached, finds := 0, 0
		ends := pathEnds{peer: bn.IPv4}
		if _, err := r.paths.get(ends, func() (kagent.Path, error) { finds++; return kagent.Path{}, errors.New("not cached") }); err == nil {
			cached++
		}
		nstest.ErrorIf(t, cached+finds != 1, "%d times from the cache, %d times not", cached, finds)
		return finds
	}
	settle := func() { // notices of the pair's own set-up, and of the neighbour that is resolved, may still come
		t.Helper()
		for end := time.Now().Add(waitLimit); ; {
			_, err := path(bn.IPv4)
			nstest.Must(t, err)
			if finds() == 0 {
				return
			}
			nstest.FatalIf(t, time.Now().After(end), "a path is never cached")
		}
	}
	link, err := nl.LinkByIndex(an.Index)
	nstest.Must(t, err)
	to := netip.MustParseAddr("198.51.100.7")
	_, dst, err := net.ParseCIDR("198.51.100.0/24")
	nstest.Must(t, err)
	route := &netlink.Route{LinkIndex: an.Index, Dst: dst, Gw: bn.IPv4.AsSlice(), MTU: 1400}
	rule := netlink.NewRule()
	rule.Dst, rule.Type, rule.Priority, rule.Family = dst, unix.FR_ACT_UNREACHABLE, 7, netlink.FAMILY_V4
	neighbour := &netlink.Neigh{
		LinkIndex: an.Index, IP: bn.IPv4.AsSlice(), HardwareAddr: []byte{2, 0, 0, 0, 0, 9}, State: netlink.NUD_PERMANENT,
	}
	for _, change := range []struct {
		name string
		do   func() error
		peer netip.Addr
		seen func(kagent.Path, error) bool
	}{
		{"a route is added", func() error { return nl.RouteAdd(route) }, to,
			func(p kagent.Path, err error) bool { return err == nil && p.MTU == 1400 }},
		{"its MTU changes", func() error { route.MTU = 1300; return nl.RouteReplace(route) }, to,
			func(p kagent.Path, err error) bool { return err == nil && p.MTU == 1300 }},
		{"a rule is added", func() error { return nl.RuleAdd(rule) }, to,
			func(_ kagent.Path, err error) bool { return errors.Is(err, kagent.ErrUnreachable) }},
		{"it is removed", func() error { return nl.RuleDel(rule) }, to,
			func(p kagent.Path, err error) bool { return err == nil && p.MTU == 1300 }},
		{"the route is removed", func() error { return nl.RouteDel(route) }, to,
			func(_ kagent.Path, err error) bool { return errors.Is(err, kagent.ErrUnreachable) }},
		{"the interface's MTU changes", func() error { return nl.LinkSetMTU(link, 1450) }, bn.IPv4,
			func(p kagent.Path, err error) bool { return err == nil && p.MTU == 1450 }},
		{"the peer has another address", func() error { return nl.NeighSet(neighbour) }, bn.IPv4,
			func(p kagent.Path, err error) bool { return err == nil && p.DstMAC == [6]byte(neighbour.HardwareAddr) }},
		{"it has its own again", func() error { neighbour.HardwareAddr = bn.MAC; return nl.NeighSet(neighbour) }, bn.IPv4,
			func(p kagent.Path, err error) bool { return err == nil && p.DstMAC == mac(bn.MAC) }},
	} {
		settle()
		_, _ = path(change.peer)
		nstest.Must(t, change.do())
		if p, err := path(change.peer); !change.seen(p, err) {
			t.Errorf("%s, and the next Path says %+v, %v", change.name, p, err)
		}
	}

	settle()
	aged := r.paths.paths[pathEnds{peer: bn.IPv4}]
	aged.found = aged.found.Add(-pathAge)
	r.paths.paths[pathEnds{peer: bn.IPv4}] = aged
	nstest.ErrorIf(t, finds() == 0, "a path is used for more than its time")
}

// A change while a path is found keeps it out of the cache, even if another call has taken the notice. The number
// of paths is bounded, and errors are not kept.
func TestPathCacheKeeps(t *testing.T) {
	an, _ := nstest.Pair(t, nstest.Options{})
	var c pathCache
	nstest.Must(t, an.Do(c.subscribe))
	defer c.close()
	link, err := an.Netlink().LinkByIndex(an.Index)
	nstest.Must(t, err)
	ends := func(i int) pathEnds { return pathEnds{peer: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})} }
	found := kagent.Path{MTU: 1}
	_, err = c.get(ends(1), func() (kagent.Path, error) {
		nstest.Must(t, an.Netlink().LinkSetMTU(link, 1400))
		_, _ = c.get(ends(2), func() (kagent.Path, error) { return found, fmt.Errorf("no path") })
		return found, nil
	})
	nstest.Must(t, err)
	nstest.ErrorIf(t, len(c.paths) != 0, "cached %v", c.paths)
	for i := range 3 * maxPaths {
		if _, err := c.get(ends(i), func() (kagent.Path, error) { return found, nil }); err != nil || len(c.paths) > maxPaths {
			t.Fatalf("%d paths, %v", len(c.paths), err)
		}
	}
}
