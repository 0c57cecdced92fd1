package vipl_test

import (
	"testing"
	"time"

	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
)

// Long messages over a veth pair, with what may be on the way of a GSO packet, and what may change while they are under way.
func TestGSOOverVeth(t *testing.T) {
	native := vipl.WithMode(xdpnic.ModeNative, true)
	for _, c := range []struct {
		name      string
		mtu       int
		v6        bool
		off       bool // the sender's interface divides packets
		a, b      []vipl.Option
		none      bool // no packet leaves
		whole     bool // packets arrive undivided
		meanwhile func(t *testing.T, a, b *nstest.NS)
	}{
		{name: "IPv4", whole: true},
		{name: "IPv6", v6: true, whole: true},
		{name: "MTU 9000", mtu: 9000, whole: true},
		{name: "MTU 576", mtu: 576, whole: true},
		{name: "sealed", a: []vipl.Option{vipl.WithPSK(testPSK(t, 1))}, b: []vipl.Option{vipl.WithPSK(testPSK(t, 1))}, whole: true},
		{name: "divided by the sender", off: true},
		{name: "native receiver", b: []vipl.Option{native}, none: true},
		{name: "native sender", a: []vipl.Option{native}, none: true},
		{name: "switched off at the sender", a: []vipl.Option{vipl.WithSegmentation(false)}, none: true},
		{name: "switched off at the receiver", b: []vipl.Option{vipl.WithSegmentation(false)}, none: true},
		{name: "receiver without chains", b: []vipl.Option{vipl.WithMultiBuffer(false)}, none: true},
		{name: "divided from now on", whole: true, meanwhile: divide},
		{name: "flapping link", whole: true, meanwhile: func(t *testing.T, a, _ *nstest.NS) {
			link, err := a.Netlink().LinkByName(a.Name)
			nstest.Must(t, err)
			nstest.Must(t, a.Netlink().LinkSetDown(link))
			time.Sleep(20 * time.Millisecond)
			nstest.Must(t, a.Netlink().LinkSetUp(link))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			na, nb := nstest.Pair(t, nstest.Options{MTU: c.mtu})
			if c.off {
				divide(t, na, nb)
			}
			open := func(ns *nstest.NS, opts []vipl.Option) (n *vipl.NIC) {
				nstest.Must(t, ns.Do(func() (err error) {
					n, err = vipl.OpenNIC(ns.Name, append([]vipl.Option{vipl.WithSilence(time.Minute)}, opts...)...)
					return err
				}))
				t.Cleanup(func() { noError(t, n.Close()) })
				return n
			}
			a, b := open(na, c.a), open(nb, c.b)
			host := nb.IPv4
			if c.v6 {
				host = nb.IPv6
			}
			const most = 300_000
			va, vb := newVI(t, a, vipl.ReliableDelivery), newVI(t, b, vipl.ReliableDelivery)
			accepted := accepts(b, vipl.NetAddress{Discriminator: []byte("gso")}, vb)
			if !comes(func() bool {
				_, err := va.ConnectRequest(vipl.NetAddress{}, vipl.NetAddress{Host: host, Discriminator: []byte("gso")}, ackDelay)
				return err == nil
			}) {
				t.Fatal("no connection")
			}
			nstest.Must(t, <-accepted)
			xa, xb := newBox(t, a, 8, most), newBox(t, b, 8, most)
			exchange(t, va, vb, xa, xb, 30, most, 1)
			sent, came := a.Counters(), b.Counters()
			errorIf(t, (sent.GSOSent == 0) != c.none, "%d packets left", sent.GSOSent)
			errorIf(t, (came.GSOReceived == 0) == c.whole, "%d packets arrived whole", came.GSOReceived)
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

// again disconnects two VIs and returns two others that are connected.
func again(t *testing.T, a, b *vipl.NIC, va, vb *vipl.VI) (_, _ *vipl.VI) {
	t.Helper()
	nstest.Must(t, va.Disconnect())
	_ = vb.Disconnect()
	return connect(t, a, b, vipl.ReliableReception)
}

// divide has the interface of a divide what it sends, as one without segmentation offload does.
func divide(t *testing.T, a, _ *nstest.NS) {
	link, err := a.Netlink().LinkByName(a.Name)
	nstest.Must(t, err)
	nstest.Must(t, a.Netlink().LinkSetGSOMaxSegs(link, 1))
}
