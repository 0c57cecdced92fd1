package route

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
)

var errNotCached = errors.New("not cached")

// A path is found once until something changes, and a change is seen by the first Path after it.
func TestPathCache(t *testing.T) {
	an, bn := nstest.Pair(t, nstest.Options{})
	nl := an.Netlink()
	r := New(nl, an.Name, an.Index, testPort)
	defer r.paths.close()
	nstest.Must(t, an.Do(func() error { return r.paths.subscribe(pathGroups) }))
	path := func(peer netip.Addr) (kagent.Path, error) { return r.Path(deadline(t, waitLimit), netip.Addr{}, peer) }
	cached := func() bool {
		_, err := r.paths.get(pathEnds{peer: bn.IPv4}, func() (kagent.Path, error) { return kagent.Path{}, errNotCached })
		return err == nil
	}
	settle := func() { // notices of the pair's own set-up, and of the neighbour that is resolved, may still come
		t.Helper()
		await.Until(t, "a path is cached", func() bool {
			nstest.Must(t, nstest.Err(path(bn.IPv4)))
			return cached()
		})
	}
	link := an.Link(t)
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
	aged := r.paths.known[pathEnds{peer: bn.IPv4}]
	aged.at = aged.at.Add(-pathAge)
	r.paths.known[pathEnds{peer: bn.IPv4}] = aged
	nstest.ErrorIf(t, cached(), "a path is used for more than its time")
}

// A change while a path is found keeps it out of the cache, even if another call has taken the notice. The number
// of paths is bounded, and errors are not kept.
func TestPathCacheKeeps(t *testing.T) {
	an, _ := nstest.Pair(t, nstest.Options{})
	var c cache[pathEnds, kagent.Path]
	nstest.Must(t, an.Do(func() error { return c.subscribe(pathGroups) }))
	defer c.close()
	link := an.Link(t)
	ends := func(i int) pathEnds { return pathEnds{peer: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})} }
	found := kagent.Path{MTU: 1}
	_, err := c.get(ends(1), func() (kagent.Path, error) {
		nstest.Must(t, an.Netlink().LinkSetMTU(link, 1400))
		_, _ = c.get(ends(2), func() (kagent.Path, error) { return found, fmt.Errorf("no path") })
		return found, nil
	})
	nstest.Must(t, err)
	nstest.ErrorIf(t, len(c.known) != 0, "cached %v", c.known)
	for i := range 3 * maxKnown {
		_, err := c.get(ends(i), func() (kagent.Path, error) { return found, nil })
		nstest.FatalIf(t, err != nil || len(c.known) > maxKnown, "%d paths, %v", len(c.known), err)
	}
}

// The interface is read once until something changes, and a change is seen by the first Link after it.
func TestLinkCache(t *testing.T) {
	n, _ := nstest.Pair(t, nstest.Options{})
	nl := n.Netlink()
	r := New(nl, n.Name, n.Index, 0)
	nstest.Must(t, n.Do(func() error { return r.links.subscribe(linkGroups) }))
	get := func() kagent.Link {
		t.Helper()
		l, err := r.Link()
		nstest.Must(t, err)
		return l
	}
	cached := func() bool {
		return nstest.Err(r.links.get(struct{}{}, func() (kagent.Link, error) { return kagent.Link{}, errNotCached })) == nil
	}
	settle := func() { // notices of the pair's own set-up may still come
		t.Helper()
		await.Until(t, "the interface is cached", func() bool { get(); return cached() })
	}
	link := n.Link(t)
	addr, err := netlink.ParseAddr("192.0.2.77/32")
	nstest.Must(t, err)
	for _, change := range []struct {
		name string
		do   func() error
		seen func(kagent.Link) bool
	}{
		{"nothing", func() error { return nil }, func(l kagent.Link) bool {
			return l.Name == n.Name && l.Has(n.IPv4) && cached()
		}},
		{"an address is added", func() error { return nl.AddrAdd(link, addr) }, func(l kagent.Link) bool { return len(l.IPv4) == 2 }},
		{"it is removed", func() error { return nl.AddrDel(link, addr) }, func(l kagent.Link) bool { return len(l.IPv4) == 1 }},
		{"the MTU changes", func() error { return nl.LinkSetMTU(link, 1400) }, func(l kagent.Link) bool { return l.MTU == 1400 }},
		{"it goes down", func() error { return nl.LinkSetDown(link) }, func(l kagent.Link) bool { return !l.Up }},
	} {
		settle()
		nstest.Must(t, change.do())
		if l := get(); !change.seen(l) {
			t.Errorf("%s, and the next Link is %+v", change.name, l)
		}
	}
	r.links.close()
	get()
	nstest.ErrorIf(t, cached(), "cached without a subscription")
}
