package route

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/ration"
	"viaxdp/internal/base/wire"
)

// Another NIC may be in the place of the one that a host on the link had. As long as that one's
// host sends nothing by itself, the kernel takes the old hardware address for good, for up to a
// minute. So a request that hears nothing has the kernel probe the address. The neighbour table is
// the whole host's: what the kernel gets an answer for stays as it is, and usable meanwhile, and
// programs can have it probe rarely.

// reprobeTime is how long the kernel's probe may be unanswered; changed by tests.
var reprobeTime = 100 * time.Millisecond

const (
	reprobeAgain = time.Second // least time between two probes of one address

	reprobeWindow   = 10 * time.Second
	maxReprobes     = 64 // on an interface, in a window
	maxUserReprobes = 16 // for one user
)

// reprobes bounds what programs have the kernel probe on an interface. The zero value is ready.
type reprobes struct {
	mu     sync.Mutex
	all    ration.Ration
	users  map[uint32]*ration.Ration
	recent map[netip.Addr]time.Time // when an address was probed last
}

// take reports whether an address may be probed for a user's program now.
func (p *reprobes) take(user uint32, peer netip.Addr, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for a, at := range p.recent {
		if now.Sub(at) >= reprobeAgain {
			delete(p.recent, a)
		}
	}
	for u, r := range p.users {
		if u != user && now.Sub(r.Since) >= reprobeWindow {
			delete(p.users, u)
		}
	}
	if _, ok := p.recent[peer]; ok {
		return false
	}
	if p.users == nil {
		p.users, p.recent = make(map[uint32]*ration.Ration), make(map[netip.Addr]time.Time)
	}
	of := p.users[user]
	if of == nil {
		of = &ration.Ration{}
		p.users[user] = of
	}
	if !of.Take(now, maxUserReprobes, reprobeWindow) || !p.all.Take(now, maxReprobes, reprobeWindow) {
		return false
	}
	p.recent[peer] = now
	return true
}

// Reprobe is reprobeNeighbour for a user's program, as far as the user may have it.
func (r *Router) Reprobe(ctx context.Context, user uint32, local, peer netip.Addr) {
	if r.stale(local, peer) != nil && r.reprobes.take(user, peer, time.Now()) {
		r.reprobeNeighbour(ctx, local, peer)
	}
}

// stale is the kernel's entry for a host on the link, where it may be wrong: nil for a host behind
// a gateway, for what an administrator or a control plane has entered, and where there is none to be used.
func (r *Router) stale(local, peer netip.Addr) *netlink.Neigh {
	link, err := r.Link()
	if err != nil || link.Has(peer) {
		return nil
	}
	p := kagent.Path{Link: wire.Link{Src: local, Dst: peer}}
	if hop, err := r.route(&p, &link); err != nil || hop != peer {
		return nil
	}
	const theirs = netlink.NTF_ROUTER | netlink.NTF_EXT_LEARNED
	n, err := r.lookup(peer)
	if err != nil || n == nil || n.State&usable == 0 || n.State&(netlink.NUD_PERMANENT|netlink.NUD_NOARP) != 0 ||
		n.Flags&theirs != 0 || n.FlagsExt&netlink.NTF_EXT_MANAGED != 0 {
		return nil
	}
	return n
}

// isGateway reports whether any route leads through the host, or may.
func (r *Router) isGateway(host netip.Addr) bool {
	found := false
	is := func(gw net.IP, via netlink.Destination) bool {
		if v, ok := via.(*netlink.Via); ok {
			gw = v.Addr
		}
		a, ok := netip.AddrFromSlice(gw)
		return ok && kagent.Plain(a) == host
	}
	// IPv4 may be routed through a host of IPv6.
	err := r.kernel(func(nl *netlink.Handle) error {
		return nl.RouteListFilteredIter(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE,
			func(route netlink.Route) bool {
				found = is(route.Gw, route.Via)
				for _, hop := range route.MultiPath {
					found = found || is(hop.Gw, hop.Via)
				}
				return !found
			})
	})
	return found || err != nil
}

// probesFrom reports whether the kernel has an address to probe host from, or will never have
// one. For IPv6, a probe without a datagram is sent from a link-local address (ndisc_send_ns,
// net/ipv6/ndisc.c). There is no probe until duplicate address detection of that address has
// ended.
func (r *Router) probesFrom(host netip.Addr) bool {
	if host.Is4() {
		return true
	}
	has := func(l kagent.Link, err error) bool {
		return err == nil && slices.ContainsFunc(l.IPv6, netip.Addr.IsLinkLocalUnicast)
	}
	return has(r.Link()) || !has(r.read(0))
}

// reprobeNeighbour has the kernel probe the hardware address of a host on the link, and returns
// when the probe is answered or has failed, or ctx ends. The entry stays usable meanwhile. It is
// deleted only if the address does not answer, so that the next datagram makes the kernel ask the
// whole link. Concurrent calls for a host share one probe: to delete the entry while the kernel
// resolves it for the first call would drop the datagrams that wait for the answer, with an error
// as for an absent host (neigh_invalidate, net/core/neighbour.c).
func (r *Router) reprobeNeighbour(ctx context.Context, local, peer netip.Addr) {
	over := make(chan struct{})
	if other, joined := r.probes.LoadOrStore(peer, over); joined {
		select {
		case <-other.(chan struct{}):
		case <-ctx.Done():
		}
		return
	}
	defer close(over)
	defer r.probes.Delete(peer)
	// Every connection through a gateway needs its entry.
	if r.stale(local, peer) == nil || r.isGateway(peer) || !r.probesFrom(peer) {
		return
	}
	// Without a hardware address the entry keeps its own (__neigh_update). The kernel asks that one.
	if err := r.kernel(func(nl *netlink.Handle) error {
		return nl.NeighSet(&netlink.Neigh{
			LinkIndex: r.index, Family: family(peer), IP: peer.AsSlice(), State: netlink.NUD_PROBE,
		})
	}); err != nil {
		return // it has become unusable
	}
	look := time.Millisecond
	for end := time.Now().Add(reprobeTime); ; look *= 2 {
		select {
		case <-time.After(look):
		case <-ctx.Done():
			return // the kernel goes on by itself
		}
		now, err := r.lookup(peer)
		switch {
		case err != nil || now == nil || now.State != netlink.NUD_PROBE:
			return
		case time.Now().After(end):
			_ = r.kernel(func(nl *netlink.Handle) error { return nl.NeighDel(now) })
			return
		}
	}
}
