package main

import (
	"net"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
)

// An address that is valid on one interface only names it.
func TestPingLinkLocal(t *testing.T) {
	a, b := nstest.Pair(t, nstest.Options{})
	for ns, address := range map[*nstest.NS]string{a: "fe80::98", b: "fe80::99"} {
		link := ns.Link(t)
		nstest.Must(t, ns.Netlink().AddrAdd(link, &netlink.Addr{
			IPNet: &net.IPNet{IP: net.ParseIP(address), Mask: net.CIDRMask(64, 128)}, Flags: unix.IFA_F_NODAD,
		}))
	}
	// The kernel joins the group of a new address later, so that the first neighbor solicitation may be
	// lost. It sends the next one after 1 s.
	_, out, errs := produceIn(t, a, "ping", "-c", "1", "-W", "30s", "fe80::99%"+a.Name)
	nstest.ErrorIf(t, !strings.Contains(out+errs, "the host is there"), "of a host without VIA it says: %s", out+errs)
}
