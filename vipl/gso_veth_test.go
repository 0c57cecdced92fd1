package vipl_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
)

// Long messages over a veth pair, with what may be on the way of a GSO packet, and what may change while they are under way.
func TestGSOOverVeth(t *testing.T) {
	native := vipl.WithMode(xdpnic.ModeNative, true)
	for _, c := range []struct {
		name       string
		mtu        int
		v6         bool
		off        bool   // the sender's interface divides packets
		noHeadroom string // why packets have no headroom, to the end
		a, b       []vipl.Option
		none       bool                                                   // no packet leaves
		whole      bool                                                   // packets arrive undivided
		join       func(t *testing.T, o nstest.Options) (a, b *nstest.NS) // nil: by a veth pair
		meanwhile  func(t *testing.T, a, b *nstest.NS)
	}{
		{name: "IPv4", whole: true},
		{name: "IPv6", v6: true, whole: true},
		{name: "MTU 9000", mtu: 9000, whole: true},
		{name: "MTU 576", mtu: 576, whole: true},
		{name: "sealed, IPv6", v6: true, a: []vipl.Option{vipl.WithPSK(testPSK(t, 1))}, b: []vipl.Option{vipl.WithPSK(testPSK(t, 1))}, whole: true},
		{name: "sealed, divided by the sender", off: true, a: []vipl.Option{vipl.WithPSK(testPSK(t, 1))}, b: []vipl.Option{vipl.WithPSK(testPSK(t, 1))}},
		{name: "through a bridge", join: bridged, whole: true},
		{name: "through a bridge, IPv6, MTU 9000", v6: true, mtu: 9000, join: bridged, whole: true},
		{name: "through a router", join: routed, whole: true},
		{name: "through a router, divided by the sender", off: true, join: routed},
		{name: "sealed", a: []vipl.Option{vipl.WithPSK(testPSK(t, 1))}, b: []vipl.Option{vipl.WithPSK(testPSK(t, 1))}, whole: true},
		{name: "divided by the sender", off: true},
		{name: "without headroom", noHeadroom: "switched off", a: []vipl.Option{vipl.WithHeadroom(false)}, whole: true},
		{name: "without headroom, IPv6, MTU 9000", noHeadroom: "switched off", v6: true, mtu: 9000, a: []vipl.Option{vipl.WithHeadroom(false)}, whole: true},
		{name: "without headroom, through a router", noHeadroom: "switched off", a: []vipl.Option{vipl.WithHeadroom(false)}, join: routed, whole: true},
		{name: "without headroom, divided by the sender", noHeadroom: "switched off", off: true, a: []vipl.Option{vipl.WithHeadroom(false)}},
		{name: "without headroom, divided from now on", noHeadroom: "switched off", a: []vipl.Option{vipl.WithHeadroom(false)}, whole: true, meanwhile: divide},
		{name: "native receiver", b: []vipl.Option{native}, none: true},
		{name: "native sender", a: []vipl.Option{native}, none: true},
		{name: "switched off at the sender", a: []vipl.Option{vipl.WithSegmentation(false)}, none: true},
		{name: "switched off at the receiver", b: []vipl.Option{vipl.WithSegmentation(false)}, none: true},
		{name: "receiver without chains", b: []vipl.Option{vipl.WithMultiBuffer(false)}, none: true},
		{name: "divided from now on", whole: true, meanwhile: divide},
		{name: "tx-udp-segmentation off and on", whole: true, meanwhile: func(t *testing.T, a, _ *nstest.NS) {
			for i := range 20 {
				offload(t, a, i%2 > 0)
				time.Sleep(time.Millisecond)
			}
		}},
		{name: "MTU blinks", whole: true, meanwhile: func(t *testing.T, a, _ *nstest.NS) {
			link := a.Link(t)
			nstest.Must(t, a.Netlink().LinkSetMTU(link, 1400))
			time.Sleep(20 * time.Millisecond)
			nstest.Must(t, a.Netlink().LinkSetMTU(link, 1500))
		}},
		{name: "flapping link", whole: true, meanwhile: func(t *testing.T, a, _ *nstest.NS) {
			a.SetLink(t, false)
			time.Sleep(20 * time.Millisecond)
			a.SetLink(t, true)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			join := c.join
			if join == nil {
				join = func(t *testing.T, o nstest.Options) (a, b *nstest.NS) { return nstest.Pair(t, o) }
			}
			na, nb := join(t, nstest.Options{MTU: c.mtu})
			if c.off {
				divide(t, na, nb)
			}
			a, b := openNIC(t, na, c.a...), openNIC(t, nb, c.b...)
			host := nb.IPv4
			if c.v6 {
				host = nb.IPv6
			}
			const most = 300_000
			va, vb := connectTo(t, a, b, host)
			xa, xb := newBox(t, a, 8, most), newBox(t, b, 8, most)
			exchange(t, va, vb, xa, xb, 30, most, 1)
			sent, came := a.Counters(), b.Counters()
			errorIf(t, (sent.GSOSent == 0) != c.none, "%d packets left", sent.GSOSent)
			errorIf(t, (came.GSOReceived == 0) == c.whole, "%d packets arrived whole", came.GSOReceived)
			if !c.none {
				await.Until(t, "headroom", func() bool {
					why := a.Status().NoHeadroom
					return c.noHeadroom == "" && why == "" || c.noHeadroom != "" && strings.Contains(why, c.noHeadroom)
				})
				va, vb = again(t, a, b, va, vb)
				exchange(t, va, vb, newBox(t, a, 8, most), newBox(t, b, 8, most), 30, most, 3)
				nstest.Equal(t, "headroom to the end", a.Status().NoHeadroom == "", c.noHeadroom == "")
				sent, came = a.Counters(), b.Counters()
				errorIf(t, (came.GSOReceived*10 < sent.GSOSent*9) == c.whole, "%d packets left, %d arrived whole", sent.GSOSent, came.GSOReceived)
			}
			if c.meanwhile != nil {
				va, vb = again(t, a, b, va, vb)
				over := make(chan struct{})
				go func() {
					defer close(over)
					time.Sleep(time.Millisecond)
					c.meanwhile(t, na, nb)
				}()
				exchange(t, va, vb, newBox(t, a, 8, most), newBox(t, b, 8, most), 200, most, 2)
				<-over
			}
		})
	}
}

// A receiver closes its NIC in the midst of messages, and opens it in the other XDP mode behind the same address. The sender
// connects again: packets leave while the receiver is in generic mode, and none while it is in native mode.
func TestGSOModeChanges(t *testing.T) {
	na, nb := nstest.Pair(t, nstest.Options{})
	const most, slots = 300_000, 8
	a := openNIC(t, na, vipl.WithSilence(vipl.DefaultSilence))
	packets := uint64(0)
	for turn := range 4 {
		native := turn%2 == 1
		opts := []vipl.Option{vipl.WithSilence(vipl.DefaultSilence)}
		if native {
			opts = append(opts, vipl.WithMode(xdpnic.ModeNative, true))
		}
		b := openNIC(t, nb, opts...)
		va, vb := connectTo(t, a, b, nb.IPv4)
		exchange(t, va, vb, newBox(t, a, slots, most), newBox(t, b, slots, most), 30, most, uint64(turn))
		sent := a.Counters().GSOSent
		errorIf(t, (sent > packets) == native, "turn %d, native %v: %d packets left", turn, native, sent-packets)
		packets = sent

		xa, xb := newBox(t, a, slots, most), newBox(t, b, slots, most)
		for i := range slots {
			postRecv(t, vb, xb, i, most)
			xa.desc[i].SetSegments(segment(xa, i, most))
			nstest.Must(t, va.PostSend(xa.desc[i], xa.region.Handle()))
		}
		nstest.Must(t, b.Close())
		for range slots {
			if d, err := va.SendWait(ackDelay); d == nil {
				t.Fatal(err)
			}
		}
		packets = a.Counters().GSOSent
		nstest.Must(t, va.Disconnect())
	}
}

// connectTo makes a connected pair of VIs, by that address of b.
func connectTo(t *testing.T, a, b *vipl.NIC, host netip.Addr) (va, vb *vipl.VI) {
	t.Helper()
	va, vb = newVI(t, a, vipl.ReliableDelivery), newVI(t, b, vipl.ReliableDelivery)
	to := vipl.NetAddress{Host: host, Discriminator: []byte("gso")}
	accepted := accepts(b, vipl.NetAddress{Discriminator: to.Discriminator}, vb)
	fatalIf(t, !comes(func() bool { return errOf(va.ConnectRequest(vipl.NetAddress{}, to, ackDelay)) == nil }), "no connection")
	must(t, <-accepted)
	return va, vb
}

// again disconnects two VIs and returns two others that are connected.
func again(t *testing.T, a, b *vipl.NIC, va, vb *vipl.VI) (_, _ *vipl.VI) {
	t.Helper()
	nstest.Must(t, va.Disconnect())
	_ = vb.Disconnect()
	return connect(t, a, b, vipl.ReliableReception)
}

// divide has the kernel divide what a sends, as for an interface without segmentation offload.
func divide(t *testing.T, a, _ *nstest.NS) { offload(t, a, false) }

// offload switches segmentation offload of an interface on or off, as ethtool -K does.
func offload(t *testing.T, n *nstest.NS, on bool) {
	nstest.Must(t, n.Do(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		return e.Change(n.Name, map[string]bool{"tx-udp-segmentation": on})
	}))
}

// halves makes two veth pairs that have an end in a namespace between a and b: the ends x and y there.
func halves(t *testing.T, o nstest.Options) (a, x, y, b *nstest.NS) {
	t.Helper()
	a, x = nstest.Pair(t, o)
	y, b = nstest.Pair(t, o)
	y.SetLink(t, false)
	link := y.Link(t)
	nstest.Must(t, x.Do(func() error {
		h, err := netns.Get()
		if err != nil {
			return err
		}
		defer h.Close()
		return errors.Join(y.Netlink().LinkSetName(link, "half"), y.Netlink().LinkSetNsFd(link, int(h)))
	}))
	return a, x, &nstest.NS{Name: "half"}, b
}

// bridged joins a and b by a bridge.
func bridged(t *testing.T, o nstest.Options) (a, b *nstest.NS) {
	a, x, y, b := halves(t, o)
	nl := x.Netlink()
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "bridge", MTU: o.MTU, TxQLen: 1000}}
	nstest.Must(t, nl.LinkAdd(bridge))
	nstest.Must(t, nl.LinkSetUp(bridge))
	for _, name := range []string{x.Name, y.Name} {
		link, err := nl.LinkByName(name)
		nstest.Must(t, err)
		for _, addr := range addresses(t, nl, link) {
			nstest.Must(t, nl.AddrDel(link, &addr))
		}
		nstest.Must(t, nl.LinkSetMaster(link, bridge))
		nstest.Must(t, nl.LinkSetUp(link))
	}
	return a, b
}

// routed joins a and b by a router. b is in another network then, and has no IPv6.
func routed(t *testing.T, o nstest.Options) (a, b *nstest.NS) {
	a, x, y, b := halves(t, o)
	const ours, theirs = "10.98.0.2/24", "10.98.0.1/24"
	up := func(nl *netlink.Handle, name, addr string) {
		link, err := nl.LinkByName(name)
		nstest.Must(t, err)
		for _, old := range addresses(t, nl, link) {
			nstest.Must(t, nl.AddrDel(link, &old))
		}
		parsed, err := netlink.ParseAddr(addr)
		nstest.Must(t, err)
		nstest.Must(t, nl.AddrAdd(link, parsed))
		nstest.Must(t, nl.LinkSetUp(link))
	}
	route := func(n *nstest.NS, to, through string) {
		_, dst, err := net.ParseCIDR(to)
		nstest.Must(t, err)
		nstest.Must(t, n.Netlink().RouteAdd(&netlink.Route{Dst: dst, Gw: net.ParseIP(through)}))
	}
	up(x.Netlink(), y.Name, theirs)
	up(b.Netlink(), b.Name, ours)
	b.IPv4 = netip.MustParsePrefix(ours).Addr()
	route(a, "10.98.0.0/24", x.IPv4.String())
	route(b, "10.99.0.0/24", netip.MustParsePrefix(theirs).Addr().String())
	nstest.Must(t, x.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) }))
	return a, b
}

// addresses are those of an interface, but for the link's own.
func addresses(t *testing.T, nl *netlink.Handle, link netlink.Link) (list []netlink.Addr) {
	t.Helper()
	all, err := nl.AddrList(link, netlink.FAMILY_ALL)
	nstest.Must(t, err)
	for _, a := range all {
		if a.IP.IsGlobalUnicast() {
			list = append(list, a)
		}
	}
	return list
}
