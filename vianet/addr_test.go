package vianet_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/vishvananda/netlink"

	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/lab/memorynic"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vianet"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// A listener for all addresses is reachable at each address that it is for, and its Addr can be dialed.
func TestListenAnywhere(t *testing.T) { synctest.Test(t, listenAnywhere) }

func listenAnywhere(t *testing.T) {
	h := inMemory(t, asleep)
	h.b, h.nicB = h.a, h.nicA // the own address is asked, too
	for _, test := range []struct {
		network, host, said string
		four, six           bool
	}{
		{"via", "", "[::]:", true, true},
		{"tcp", "[::]", "[::]:", true, true},
		{"tcp", "0.0.0.0", "0.0.0.0:", true, false},
		{"tcp4", "", "0.0.0.0:", true, false},
		{"via6", "[::]", "[::]:", false, true},
		{"via", "10.0.0.1", "10.0.0.1:", true, false},
		{"via", "[fd00::1]", "[fd00::1]:", false, true},
	} {
		name := test.network + " " + test.host
		l, err := h.a.Listen(test.network, test.host+":0")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		nstest.ErrorIf(t, !strings.HasPrefix(l.Addr().String(), test.said), "%s: says that it is %v", name, l.Addr())
		_, port, err := net.SplitHostPort(l.Addr().String())
		must(t, err)
		for host, hears := range map[string]bool{
			"10.0.0.1": test.four, "fd00::1": test.six, "::ffff:10.0.0.1": test.four, "": test.four, "0.0.0.0": test.four,
		} {
			c, err := h.a.Dial("via", net.JoinHostPort(host, port))
			switch {
			case hears && err != nil:
				t.Errorf("%s: dialed by %q: %v", name, host, err)
			case !hears && !errors.Is(err, syscall.ECONNREFUSED):
				t.Errorf("%s: dialed by %q: %T, %v", name, host, c, err)
			case hears:
				a := accept(t, l.(*vianet.Listener))
				if a.LocalAddr().String() != c.RemoteAddr().String() || a.RemoteAddr().String() != c.LocalAddr().String() {
					t.Errorf("%s: %v-%v and %v-%v", name, c.LocalAddr(), c.RemoteAddr(), a.LocalAddr(), a.RemoteAddr())
				}
				a.Close()
				c.Close()
			}
		}
		check(t, l.Close())
	}
}

// The first and last port work as any other. Port 0 is never assigned.
func TestPortRange(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	host := h.nicB.Query().Address.String()
	for _, port := range []string{"1", "65535", "http"} {
		l, err := h.b.Listen("via", net.JoinHostPort(host, port))
		must(t, err)
		c, err := h.a.Dial("via", net.JoinHostPort(host, port))
		nstest.FatalIf(t, err != nil, "port %s: %v", port, err)
		of := c.RemoteAddr().String()
		nstest.ErrorIf(t, port != "http" && !strings.HasSuffix(of, ":"+port), "port %s is that of %s", port, of)
		c.Close()
		l.Close()
	}
	isErr(t, "port 0", nstest.Err(h.a.Dial("via", net.JoinHostPort(host, "0"))), syscall.ECONNREFUSED)
	for _, port := range []string{"-1", "65536", "no-such-service"} {
		if l, err := h.b.Listen("via", host+":"+port); err == nil {
			t.Errorf("port %q: %v", port, l.Addr())
			l.Close()
		}
	}
}

// A link-local address may name the NIC's interface, and no other.
func TestZone(t *testing.T) {
	fabric := kagenttest.NewFabric(kagenttest.Faults{})
	noLeaks(t)
	wire := xdpnictest.NewWire()
	t.Cleanup(wire.Close)
	local := [2]netip.Addr{netip.MustParseAddr("fe80::1"), netip.MustParseAddr("fe80::2")}
	open := func(name string, at netip.Addr) (*vipl.NIC, *vianet.Stack) {
		nic := memorynic.Open(t, wire, fabric.Agent(name, at), memorynic.Config{}).NIC
		return nic, newStack(t, nic, vianet.Options{})
	}
	nicA, a := open("via0", local[0])
	_, b := open("via1", local[1])
	l, err := b.Listen("via", "[fe80::2%via1]:80")
	must(t, err)
	index := nicA.Info().Index
	for zone, want := range map[string]bool{"": true, "%via0": true, fmt.Sprint("%", index): true, "%via1": false, "%77": false} {
		c, err := a.Dial("via", "[fe80::2"+zone+"]:80")
		nstest.ErrorIf(t, want != (err == nil), "zone %q: %v", zone, err)
		if err == nil {
			exchange(t, c, accept(t, l.(*vianet.Listener)), 1000)
			c.Close()
		}
	}
	nstest.ErrorIf(t, nstest.Err(b.Listen("via", "[fe80::2%via0]:81")) == nil, "listens on the zone of another interface")
}

// Listen takes any address, also one that the NIC gets later.
func TestListenBeforeAddress(t *testing.T) {
	h := overVeth(t, 0, vianet.Options{})
	late := netip.MustParseAddr("10.99.0.77")
	l, err := h.b.Listen("via", netip.AddrPortFrom(late, 0).String())
	must(t, err)
	defer l.Close()
	link, err := h.nsB.Netlink().LinkByName(h.nsB.Name)
	must(t, err)
	must(t, h.nsB.Netlink().AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: late.AsSlice(), Mask: net.CIDRMask(24, 32)}}))
	c := h.dial(t, l.Addr())
	defer c.Close()
	accept(t, l.(*vianet.Listener)).Close()
}
