package route

import (
	"encoding/binary"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Of the attributes of an interface (include/uapi/linux/if_link.h, ipv6.h).
const (
	inet6Conf   = 2 // IFLA_INET6_CONF, in the AF_INET6 part of IFLA_AF_SPEC
	devconfMTU6 = 2 // DEVCONF_MTU6: index of a 32-bit number there
	typeMask    = 0x3fff
)

// openMTU6 opens the socket for mtu6, in the namespace of the calling thread: package netlink does not read that attribute.
func (r *Router) openMTU6() error {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	r.inet6 = &nl.SocketHandle{Socket: s}
	return nil
}

// mtu6 returns the interface's MTU for IPv6 where a route has none (ip6_mtu, net/ipv6/route.c). A router advertisement may make
// it less than that of the interface (RFC 4861, 6.3.4), and so may net.ipv6.conf.IFACE.mtu. 0: it is not known.
func (r *Router) mtu6() int {
	r.closing.RLock()
	defer r.closing.RUnlock()
	if r.inet6 == nil || r.closed {
		return 0
	}
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: r.inet6}
	head := nl.NewIfInfomsg(unix.AF_UNSPEC)
	head.Index = int32(r.index)
	req.AddData(head)
	messages, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil || len(messages) == 0 || len(messages[0]) < head.Len() {
		return 0
	}
	b := messages[0][head.Len():]
	for _, kind := range []uint16{unix.IFLA_AF_SPEC, unix.AF_INET6, inet6Conf} {
		b = attribute(b, kind)
	}
	if len(b) < 4*(devconfMTU6+1) {
		return 0
	}
	return int(binary.NativeEndian.Uint32(b[4*devconfMTU6:]))
}

// attribute returns the value of the first attribute of a type; nil: there is none.
func attribute(b []byte, kind uint16) []byte {
	all, err := nl.ParseRouteAttr(b)
	if err != nil {
		return nil
	}
	for _, a := range all {
		if a.Attr.Type&typeMask == kind {
			return a.Value
		}
	}
	return nil
}
