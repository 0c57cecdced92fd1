package testbed

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// A Pair is a veth pair to be made, one end in each of two namespaces.
type Pair struct {
	Names  [2]string    // interface names, at most 15 bytes; they may be equal
	Net4   netip.Prefix // IPv4 network: the ends get host numbers 1 and 2
	Net6   netip.Prefix // IPv6 network, likewise
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

// check sets the defaults, and refuses what the kernel would refuse with a number only.
func (p *Pair) check() error {
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

// nth is the address number i of a network, with the network's length.
func nth(network netip.Prefix, i int) netip.Prefix {
	addr := network.Masked().Addr()
	for ; i > 0; i-- {
		addr = addr.Next()
	}
	return netip.PrefixFrom(addr, network.Bits())
}

// join makes the pair directly inside the two namespaces, so that no interface
// of ours appears in the caller's, and brings it up.
func join(ns [2]netns.NsHandle, p Pair) (ends [2]End, err error) {
	if err := p.check(); err != nil {
		return ends, err
	}
	var handles [2]*netlink.Handle
	for i := range ns {
		if handles[i], err = netlink.NewHandleAt(ns[i], unix.NETLINK_ROUTE); err != nil {
			return ends, fmt.Errorf("netlink in namespace %d: %w", i, err)
		}
		defer handles[i].Close()
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = p.Names[0], p.MTU
	attrs.NumTxQueues, attrs.NumRxQueues = p.Queues, p.Queues
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNamespace = p.Names[1], netlink.NsFd(ns[1])
	veth.PeerNumTxQueues, veth.PeerNumRxQueues = uint32(p.Queues), uint32(p.Queues)
	veth.PeerMTU = uint32(p.MTU)
	if err := handles[0].LinkAdd(veth); err != nil {
		return ends, explain(err, "veth pair")
	}
	for i, h := range handles {
		ends[i], err = bringUp(h, p.Names[i], nth(p.Net4, i+1), nth(p.Net6, i+1))
		if err != nil {
			return ends, fmt.Errorf("interface %s of side %d: %w", p.Names[i], i, err)
		}
	}
	return ends, nil
}

func bringUp(h *netlink.Handle, name string, v4, v6 netip.Prefix) (End, error) {
	if lo, err := h.LinkByName("lo"); err == nil {
		if err := h.LinkSetUp(lo); err != nil {
			return End{}, fmt.Errorf("lo: %w", err)
		}
	}
	l, err := h.LinkByName(name)
	if err != nil {
		return End{}, err
	}
	// An IPv6 address is usable at once only without duplicate address
	// detection; there is nobody to collide with.
	addrs := []*netlink.Addr{{IPNet: ipNet(v4)}}
	if l.Attrs().MTU >= 1280 { // below, the interface has no IPv6, RFC 8200
		addrs = append(addrs, &netlink.Addr{IPNet: ipNet(v6), Flags: unix.IFA_F_NODAD})
	} else {
		v6 = netip.Prefix{}
	}
	for _, a := range addrs {
		if err := h.AddrAdd(l, a); err != nil {
			if a.Flags&unix.IFA_F_NODAD != 0 { // a kernel without IPv6
				v6 = netip.Prefix{}
				continue
			}
			return End{}, fmt.Errorf("address %v: %w", a, err)
		}
	}
	if err := h.LinkSetUp(l); err != nil {
		return End{}, err
	}
	return End{
		Name: name, Index: l.Attrs().Index, MAC: l.Attrs().HardwareAddr.String(),
		IPv4: v4, IPv6: v6, MTU: l.Attrs().MTU,
	}, nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{
		IP:   p.Addr().AsSlice(),
		Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()),
	}
}
