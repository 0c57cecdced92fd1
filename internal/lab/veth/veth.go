// Package veth makes network namespaces of this process, and veth pairs between them. A namespace
// without a name lives as long as a descriptor of it is open, or a process or interface needs it.
package veth

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"viaxdp/internal/base/thread"
)

// A Pair is a veth pair to be made, one end in each of two namespaces.
type Pair struct {
	Names  [2]string    // interface names, at most 15 bytes; they may be equal
	Net4   netip.Prefix // IPv4 network: the ends get host numbers 1 and 2
	Net6   netip.Prefix // IPv6 network: the ends get host numbers 1 and 2
	MTU    int          // bytes; 0: 1500. At most 65535
	Queues int          // RX and TX queues of each end; 0: 1
}

// An End is one interface of a pair that is up and has its addresses.
type End struct {
	Name  string       `json:"name"`
	Index int          `json:"index"` // inside its namespace
	MAC   string       `json:"mac"`
	IPv4  netip.Prefix `json:"ipv4"`
	IPv6  netip.Prefix `json:"ipv6"` // invalid: the kernel has no IPv6, or the MTU is too small for it
	MTU   int          `json:"mtu"`
}

// Limits of a veth interface, drivers/net/veth.c (ETH_MAX_MTU) and RFC 791.
const (
	MinMTU = 576
	MaxMTU = 65535

	MaxQueues = 4096 // of an interface, net/core/rtnetlink.c
)

// Check sets the defaults, and refuses what the kernel would refuse with a number only.
func (p *Pair) Check() error {
	p.MTU, p.Queues = cmp.Or(p.MTU, 1500), cmp.Or(p.Queues, 1)
	if p.MTU < MinMTU || p.MTU > MaxMTU {
		return fmt.Errorf("MTU %d: must be from %d to %d", p.MTU, MinMTU, MaxMTU)
	}
	for _, n := range p.Names {
		if n == "" || len(n) >= unix.IFNAMSIZ {
			return fmt.Errorf("interface name %q: must have 1 to %d bytes", n, unix.IFNAMSIZ-1)
		}
	}
	return nil
}

// Nth is the address number i of a network, with the network's length.
func Nth(network netip.Prefix, i int) netip.Prefix {
	addr := network.Masked().Addr()
	for ; i > 0; i-- {
		addr = addr.Next()
	}
	return netip.PrefixFrom(addr, network.Bits())
}

// NewNamespace makes a namespace without a name.
func NewNamespace() (h netns.NsHandle, err error) {
	thread.Run(func() { h, err = netns.New() })
	return h, err
}

// NewNamed makes a namespace with a name, without changing the caller's.
func NewNamed(name string) (h netns.NsHandle, err error) {
	thread.Run(func() { h, err = netns.NewNamed(name) })
	return h, err
}

// In calls f with a netlink handle of a namespace.
func In(ns netns.NsHandle, f func(*netlink.Handle) error) error {
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	defer h.Close()
	return f(h)
}

// OnLink calls f for an interface of a namespace.
func OnLink(ns netns.NsHandle, name string, f func(*netlink.Handle, netlink.Link) error) error {
	return In(ns, func(h *netlink.Handle) error {
		l, err := h.LinkByName(name)
		if err != nil {
			return err
		}
		return f(h, l)
	})
}

// Make makes a pair directly inside the two namespaces, so that no interface of ours appears in the
// caller's. set, which may be nil, changes what the first end is made of.
func Make(ns [2]netns.NsHandle, p Pair, set func(*netlink.Veth)) error {
	if err := p.Check(); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = p.Names[0], p.MTU
	attrs.NumTxQueues, attrs.NumRxQueues = p.Queues, p.Queues
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNamespace, veth.PeerMTU = p.Names[1], netlink.NsFd(ns[1]), uint32(p.MTU)
	veth.PeerNumTxQueues, veth.PeerNumRxQueues = uint32(p.Queues), uint32(p.Queues)
	if set != nil {
		set(veth)
	}
	return In(ns[0], func(h *netlink.Handle) error { return h.LinkAdd(veth) })
}

// Join makes a pair and brings it up.
func Join(ns [2]netns.NsHandle, p Pair) (ends [2]End, err error) {
	if err := Make(ns, p, nil); err != nil {
		return ends, err
	}
	for i := range ns {
		if ends[i], err = Up(ns[i], p.Names[i], Nth(p.Net4, i+1), Nth(p.Net6, i+1)); err != nil {
			return ends, fmt.Errorf("interface %s of side %d: %w", p.Names[i], i, err)
		}
	}
	return ends, nil
}

// Up brings up an interface with its addresses, and the loopback interface beside it.
func Up(ns netns.NsHandle, name string, v4, v6 netip.Prefix) (end End, err error) {
	err = OnLink(ns, name, func(h *netlink.Handle, l netlink.Link) error {
		if lo, err := h.LinkByName("lo"); err == nil {
			if err := h.LinkSetUp(lo); err != nil {
				return fmt.Errorf("lo: %w", err)
			}
		}
		if err := h.AddrAdd(l, &netlink.Addr{IPNet: IPNet(v4)}); err != nil {
			return fmt.Errorf("address %v: %w", v4, err)
		}
		// An IPv6 address is usable at once only without duplicate address detection; no other host can
		// have the address. Below 1280 bytes the interface has no IPv6, RFC 8200; nor has a kernel
		// without it.
		if l.Attrs().MTU < 1280 || h.AddrAdd(l, &netlink.Addr{IPNet: IPNet(v6), Flags: unix.IFA_F_NODAD}) != nil {
			v6 = netip.Prefix{}
		}
		end = End{
			Name: name, Index: l.Attrs().Index, MAC: l.Attrs().HardwareAddr.String(),
			IPv4: v4, IPv6: v6, MTU: l.Attrs().MTU,
		}
		if err := h.LinkSetUp(l); err != nil {
			return err
		}
		// The kernel may process a carrier up to a second later, or more if many interfaces come up; until then the interface has
		// no IPv6. From Linux 6.8 on, a query of the interface makes the kernel process it first.
		_, err := h.LinkByIndex(l.Attrs().Index)
		return err
	})
	return end, err
}

// IPNet is a prefix as netlink wants it.
func IPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
