// Package route knows one interface as the kernel does: its addresses, the ways to peers, with the
// neighbours on them (Router), and when that changes (Watch). It asks by netlink, and changes nothing but
// neighbour entries that may be wrong (Router.Reprobe).
package route

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/wire"
)

// Neighbour states in which the kernel itself would send (NUD_VALID of
// include/net/neighbour.h).
const usable = netlink.NUD_PERMANENT | netlink.NUD_NOARP | netlink.NUD_REACHABLE |
	netlink.NUD_PROBE | netlink.NUD_STALE | netlink.NUD_DELAY

// Pauses between two looks at a neighbour that is being resolved.
const (
	firstLook = 200 * time.Microsecond
	lastLook  = 20 * time.Millisecond
)

// Router finds ways out of one interface. All methods may be called
// concurrently.
type Router struct {
	closing    sync.RWMutex     // guards nl and closed
	nl         *netlink.Handle  // of the interface's namespace; see kernel
	inet6      *nl.SocketHandle // of that, too; see openMTU6; nil: NewWatch was not called
	closed     bool
	name       string
	index      int
	port       uint16
	gone       atomic.Bool // the interface, though another one may have its number
	links      cache[struct{}, kagent.Link]
	paths      cache[pathEnds, kagent.Path]
	neighbours [2]shared[map[netip.Addr]*netlink.Neigh] // of IPv4 and IPv6
	reprobes   reprobes
	probes     sync.Map // chan struct{} of each host that is being reprobed; closed when that is over
	resolving  sync.Map // *resolution of each host whose hardware address is being resolved
	// Nudge sends a datagram without meaning, so that the kernel resolves
	// the next hop; nil: by netlink alone.
	Nudge func(from, to netip.Addr) error
}

// New makes a router for the interface of that number in nl's namespace, which it closes. Frames
// for peers go to the given UDP port.
func New(nl *netlink.Handle, name string, index int, port uint16) *Router {
	return &Router{nl: nl, name: name, index: index, port: port, paths: cache[pathEnds, kagent.Path]{age: pathAge}}
}

// Name is the interface's name when the router was made.
func (r *Router) Name() string { return r.name }

// Close closes the router's netlink sockets, when the kernel has answered what is under way. Later calls fail.
func (r *Router) Close() {
	r.closing.Lock()
	r.closed = true
	r.nl.Close()
	if r.inet6 != nil {
		r.inet6.Close()
	}
	r.closing.Unlock()
	r.links.close()
	r.paths.close()
}

// kernel calls ask with the netlink handle, which is open until it returns. A closed handle would open a socket in the
// namespace of the calling thread. ask must not call kernel.
func (r *Router) kernel(ask func(nl *netlink.Handle) error) error {
	r.closing.RLock()
	defer r.closing.RUnlock()
	if r.closed {
		return kagent.ErrClosed
	}
	return ask(r.nl)
}

// Removed reports whether the kernel has reported the removal of the interface.
func (r *Router) Removed() bool { return r.gone.Load() }

// Link reads the interface, with the addresses that programs can use.
func (r *Router) Link() (kagent.Link, error) {
	if r.gone.Load() {
		return kagent.Link{}, kagent.ErrGone
	}
	l, err := r.links.get(struct{}{}, func() (kagent.Link, error) {
		return r.read(unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED)
	})
	l.IPv4, l.IPv6 = slices.Clone(l.IPv4), slices.Clone(l.IPv6)
	return l, err
}

// read reads the interface, with the addresses that have none of the flags in
// without.
func (r *Router) read(without int) (kagent.Link, error) {
	if r.gone.Load() {
		return kagent.Link{}, kagent.ErrGone
	}
	var nic netlink.Link
	err := r.kernel(func(nl *netlink.Handle) (err error) { nic, err = nl.LinkByIndex(r.index); return })
	if IsGone(err) { // before the kernel's message about it has been read
		return kagent.Link{}, kagent.ErrGone
	}
	if err != nil {
		return kagent.Link{}, err
	}
	a := nic.Attrs()
	l := kagent.Link{Name: a.Name, Index: a.Index, MTU: a.MTU, MAC: mac(a.HardwareAddr)}
	// The carrier is known at once, what follows from it a moment later.
	l.Up = a.Flags&net.FlagUp != 0 && a.Flags&net.FlagRunning != 0 && a.RawFlags&unix.IFF_LOWER_UP != 0
	addrs, err := dump(r, func(nl *netlink.Handle) ([]netlink.Addr, error) { return nl.AddrList(nic, netlink.FAMILY_ALL) })
	if err != nil {
		return l, err
	}
	var local []netip.Addr
	for _, x := range addrs {
		addr, ok := netip.AddrFromSlice(x.IP)
		if addr = kagent.Plain(addr); !ok || x.Flags&without != 0 {
			continue
		}
		switch {
		case addr.Is4():
			l.IPv4 = append(l.IPv4, addr)
		case addr.IsLinkLocalUnicast():
			local = append(local, addr)
		default:
			l.IPv6 = append(l.IPv6, addr)
		}
	}
	l.IPv6 = append(l.IPv6, local...)
	return l, nil
}

// IsGone looks whether the interface is gone.
func (r *Router) IsGone() bool {
	_, err := r.Link()
	return IsGone(err)
}

// Own reports whether a is one of the interface's addresses.
func (r *Router) Own(a netip.Addr) bool {
	l, err := r.Link()
	return err == nil && l.Has(a)
}

// Path finds the way to peer, as the kernel would send a datagram to it.
func (r *Router) Path(ctx context.Context, local, peer netip.Addr) (kagent.Path, error) {
	peer, local = kagent.Plain(peer), kagent.Plain(local)
	if !peer.IsValid() || peer.IsUnspecified() || peer.IsMulticast() {
		return kagent.Path{}, fmt.Errorf("%w: %v is no host's address", kagent.ErrUnreachable, peer)
	}
	return r.paths.get(pathEnds{local, peer}, func() (kagent.Path, error) { return r.find(ctx, local, peer) })
}

// find is Path without the cache.
func (r *Router) find(ctx context.Context, local, peer netip.Addr) (kagent.Path, error) {
	link, err := r.Link()
	if err != nil {
		return kagent.Path{}, err
	}
	p := kagent.Path{
		Link: wire.Link{SrcMAC: link.MAC, Src: local, Dst: peer, Port: r.port},
		MTU:  link.MTU,
	}
	if link.Has(peer) {
		p.Loopback, p.DstMAC = true, link.MAC
		if !p.Src.IsValid() {
			p.Src = peer
		}
		if p.Src.Is4() != peer.Is4() {
			return kagent.Path{}, fmt.Errorf("%w: %v and %v are of different families", kagent.ErrUnreachable, p.Src, peer)
		}
		p.Elsewhere = !link.Has(p.Src)
		return p, nil
	}
	hop, err := r.route(&p, &link)
	if err != nil {
		return kagent.Path{}, err
	}
	p.DstMAC, err = r.neighbour(ctx, hop, func() error { return r.resolve(&p, hop) })
	return p, err
}

// route fills in source address and MTU, and returns the next hop. link is the
// interface.
func (r *Router) route(p *kagent.Path, link *kagent.Link) (netip.Addr, error) {
	get := func(o *netlink.RouteGetOptions) ([]netlink.Route, error) {
		return dump(r, func(nl *netlink.Handle) ([]netlink.Route, error) { return nl.RouteGetWithOptions(p.Dst.AsSlice(), o) })
	}
	o := &netlink.RouteGetOptions{OifIndex: r.index}
	if p.Src.IsValid() {
		o.SrcAddr = p.Src.AsSlice()
	}
	if p.Dst.Is4() {
		// With a device given and no route, IPv4 treats any address as on the link
		// (ip_route_output_key_hash_rcu). So query the table itself.
		match := *o
		match.FIBMatch = true
		if _, err := get(&match); err != nil {
			return netip.Addr{}, fmt.Errorf("%w: no route to %v through %s: %w", kagent.ErrUnreachable, p.Dst, r.name, err)
		}
	}
	routes, err := get(o)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%w: no route to %v through %s: %w", kagent.ErrUnreachable, p.Dst, r.name, err)
	}
	if len(routes) == 0 || routes[0].LinkIndex != r.index || routes[0].Type != unix.RTN_UNICAST {
		return netip.Addr{}, fmt.Errorf("%w: the route to %v does not lead through %s", kagent.ErrUnreachable, p.Dst, r.name)
	}
	route := routes[0]
	if src, ok := netip.AddrFromSlice(route.Src); ok && !p.Src.IsValid() {
		p.Src = kagent.Plain(src)
	}
	p.Elsewhere = !link.Has(p.Src)
	if p.Src.Is4() != p.Dst.Is4() {
		return netip.Addr{}, fmt.Errorf("%w: %s has no address to reach %v from", kagent.ErrUnreachable, r.name, p.Dst)
	}
	mtu := route.MTU
	if mtu == 0 && p.Dst.Is6() {
		mtu = r.mtu6()
	}
	if mtu > 0 && mtu < p.MTU {
		p.MTU = mtu
	}
	hop := p.Dst
	if gw, ok := netip.AddrFromSlice(route.Gw); ok && !gw.IsUnspecified() {
		hop = kagent.Plain(gw)
	} else if via, ok := route.Via.(*netlink.Via); ok {
		if gw, ok := netip.AddrFromSlice(via.Addr); ok {
			hop = kagent.Plain(gw)
		}
	}
	return hop, nil
}

// resolution is the call of neighbour that has the kernel resolve a hardware address. Others share its result.
type resolution struct {
	over chan struct{} // closed when the fields below are valid
	hw   [6]byte
	err  error
	left bool // its context ended
}

// neighbour finds the hardware address of a host on the link. When the kernel does not know it yet, resolve makes it ask, and it
// is waited for. Concurrent calls share a resolution: if each had the kernel ask, one that tries again would hide from the others
// that the kernel has given up.
func (r *Router) neighbour(ctx context.Context, hop netip.Addr, resolve func() error) (hw [6]byte, err error) {
	for {
		n, err := r.lookup(hop)
		switch {
		case err != nil:
			return hw, err
		case n != nil && n.State&usable != 0:
			return mac(n.HardwareAddr), nil
		}
		of := &resolution{over: make(chan struct{})}
		other, joined := r.resolving.LoadOrStore(hop, of)
		if !joined {
			of.hw, of.err = r.resolved(ctx, hop, resolve)
			of.left = ctx.Err() != nil
			r.resolving.Delete(hop)
			close(of.over)
			return of.hw, of.err
		}
		select {
		case <-other.(*resolution).over:
			if of = other.(*resolution); !of.left {
				return of.hw, of.err
			}
		case <-ctx.Done():
			return hw, r.noAnswer(ctx, hop)
		}
	}
}

func (r *Router) noAnswer(ctx context.Context, hop netip.Addr) error {
	return fmt.Errorf("%w (%v does not answer on %s)", kagent.ContextError(ctx), hop, r.name)
}

// resolved is neighbour without regard to concurrent calls.
func (r *Router) resolved(ctx context.Context, hop netip.Addr, resolve func() error) (hw [6]byte, err error) {
	look := firstLook
	for asked, seen := false, false; ; {
		n, err := r.lookup(hop)
		if err != nil {
			return hw, err
		}
		switch {
		case n != nil && n.State&usable != 0:
			return mac(n.HardwareAddr), nil
		// The entry vanishes if the link or its address changes, or an administrator flushes the table.
		case !asked, n == nil && seen:
			if err := resolve(); err != nil {
				return hw, err
			}
			asked, seen = true, false
		case n == nil || n.State&netlink.NUD_FAILED != 0:
			return hw, fmt.Errorf("%w: %v does not answer on %s", kagent.ErrUnreachable, hop, r.name)
		default:
			seen = true
		}
		select {
		case <-time.After(look):
		case <-ctx.Done():
			return hw, r.noAnswer(ctx, hop)
		}
		look = min(2*look, lastLook)
	}
}

func (r *Router) lookup(hop netip.Addr) (*netlink.Neigh, error) {
	of := &r.neighbours[0]
	if hop.Is6() {
		of = &r.neighbours[1]
	}
	all, err := of.get(func() (map[netip.Addr]*netlink.Neigh, error) {
		list, err := dump(r, func(nl *netlink.Handle) ([]netlink.Neigh, error) { return nl.NeighList(r.index, family(hop)) })
		all := make(map[netip.Addr]*netlink.Neigh, len(list))
		for i := range list {
			if a, ok := netip.AddrFromSlice(list[i].IP); ok {
				all[kagent.Plain(a)] = &list[i]
			}
		}
		return all, err
	})
	if err != nil {
		return nil, fmt.Errorf("neighbours of %s: %w", r.name, err)
	}
	return all[hop], nil
}

// resolve makes the kernel resolve the next hop, by a datagram to the peer. Without Nudge, or if the datagram has taken another
// of several gateways for IPv6, it uses NTF_USE (neigh_add, net/core/neighbour.c). For IPv6 the kernel then asks from the link-local
// address, which it waits for up to 2 s if the interface has just come up.
func (r *Router) resolve(p *kagent.Path, hop netip.Addr) error {
	if r.Nudge != nil && r.Nudge(p.Src, p.Dst) == nil {
		n, err := r.lookup(hop)
		if err != nil || n != nil && n.State&(usable|netlink.NUD_INCOMPLETE) != 0 {
			return err
		}
	}
	err := r.kernel(func(nl *netlink.Handle) error {
		return nl.NeighSet(&netlink.Neigh{
			LinkIndex: r.index, Family: family(hop), IP: hop.AsSlice(),
			State: netlink.NUD_NONE, Flags: netlink.NTF_USE,
		})
	})
	if errors.Is(err, unix.ENETDOWN) {
		return fmt.Errorf("%w: %s is down", kagent.ErrUnreachable, r.name)
	}
	if err != nil {
		return fmt.Errorf("resolve %v on %s: %w", hop, r.name, err)
	}
	return nil
}

// dump is kernel for a list. It asks again if the list has changed while the kernel answered.
func dump[T any](r *Router, ask func(nl *netlink.Handle) ([]T, error)) (all []T, err error) {
	for range 10 {
		err = r.kernel(func(nl *netlink.Handle) (err error) { all, err = ask(nl); return })
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

func family(a netip.Addr) int {
	if a.Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}

// mac makes an array of an Ethernet address; other lengths, as of a tunnel,
// give zeros.
func mac(hw net.HardwareAddr) (m [6]byte) {
	if len(hw) == len(m) {
		copy(m[:], hw)
	}
	return m
}

// shared makes concurrent calls share an answer. An answer serves all calls that began before it
// was requested, so that many calls cost the kernel one request. An error is returned to one call
// only. The zero value is ready. get may be called concurrently; the answer must not be changed.
type shared[T any] struct {
	asked atomic.Uint64

	turn     sync.Mutex // held during a request to the kernel
	answered uint64     // value of asked that last covers; guarded by turn
	last     T          // guarded by turn
}

func (s *shared[T]) get(ask func() (T, error)) (T, error) {
	me := s.asked.Add(1)
	s.turn.Lock()
	defer s.turn.Unlock()
	if s.answered >= me {
		return s.last, nil
	}
	all := s.asked.Load() // this request may miss what later calls ask for
	v, err := ask()
	if err == nil {
		s.answered, s.last = all, v
	}
	return v, err
}
