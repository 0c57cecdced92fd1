package vipl_test

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/lag"
	"viaxdp/internal/nstest"
	"viaxdp/kagent"
	"viaxdp/vipl"
)

// What may happen to the interface of host a, so that frames of its connections
// are not its own any more, and how it becomes what it was.
var moves = []struct {
	name       string
	away, back func(l *kagent.Link)
}{
	{
		"address",
		func(l *kagent.Link) { l.IPv4 = []netip.Addr{netip.MustParseAddr("10.0.0.77")} },
		func(l *kagent.Link) { l.IPv4 = []netip.Addr{netip.MustParseAddr("10.0.0.1")} },
	},
	{
		"hardware address",
		func(l *kagent.Link) { l.MAC[5] ^= 0x77 },
		func(l *kagent.Link) { l.MAC[5] ^= 0x77 },
	},
}

// A connection whose address the interface does not have any more breaks by the
// rules within half a second, on both sides, and the VIs connect again.
func TestSourceGoes(t *testing.T) {
	for _, m := range moves {
		t.Run(m.name, func(t *testing.T) {
			eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
				synctest.Test(t, func(t *testing.T) {
					n, va, vb := connected(t, memoryConfig{bubble: true, silence: time.Minute}, level)
					xa, xb := newBox(t, n.a.Nic, 2, 64), newBox(t, n.b.Nic, 1, 64)
					postRecv(t, va, xa, 0, 64)
					postRecv(t, vb, xb, 0, 64)
					start := time.Now()
					n.a.agent.Change(m.away)
					received(t, va, vipl.StatusFlushed) // waits
					if d := time.Since(start); d != 500*time.Millisecond {
						t.Errorf("noticed after %v", d)
					}
					received(t, vb, vipl.StatusFlushed)
					if d := time.Since(start); d > 502*time.Millisecond {
						t.Errorf("the peer noticed after %v", d)
					}
					if s := stateIs(t, va, vipl.Error); s.Cause == nil {
						t.Error("no cause")
					}
					stateIs(t, vb, vipl.Error)
					n.a.errs.are(t, vipl.ErrorConnLost)
					n.b.errs.are(t, vipl.ErrorConnLost)
					if a, b := n.a.Counters(), n.b.Counters(); a.SourcesLost != 1 || b.SourcesLost != 0 || a.PeersLost+b.PeersLost > 0 {
						t.Errorf("%+v, %+v", a, b)
					}
					for _, v := range []*vipl.VI{va, vb} {
						if err := v.Disconnect(); err != nil {
							t.Error(err)
						}
					}
					n.a.agent.Change(m.back)
					join(t, n.a.Nic, va, n.b.Nic, vb)
				})
			})
		})
	}
}

// An address that is back within the grace has never been away, and it may go again
// and again.
func TestSourceFlaps(t *testing.T) {
	for _, m := range moves {
		t.Run(m.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, va, vb := connected(t, memoryConfig{bubble: true, silence: 2 * time.Second}, vipl.ReliableDelivery)
				for range 10 {
					n.a.agent.Change(m.away)
					time.Sleep(499 * time.Millisecond)
					n.a.agent.Change(m.back)
					time.Sleep(10 * time.Millisecond)
				}
				time.Sleep(10 * time.Second)
				stateIs(t, va, vipl.Connected)
				stateIs(t, vb, vipl.Connected)
				if a := n.a.Counters(); a.SourcesLost > 0 {
					t.Errorf("%+v", a)
				}
			})
		})
	}
}

// What no frame depends on changes nothing: other addresses, the interface's name,
// the hardware address for connections within the host.
func TestSourceStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newMemoryNet(t, memoryConfig{bubble: true})
		va, vb := connect(t, n.a.Nic, n.b.Nic, vipl.ReliableDelivery)
		v1, v2 := connect(t, n.a.Nic, n.a.Nic, vipl.ReliableDelivery)
		n.a.agent.Change(func(l *kagent.Link) {
			l.Name, l.IPv6, l.MTU, l.Up = "other", nil, 9000, false
			l.IPv4 = append([]netip.Addr{netip.MustParseAddr("10.0.0.77")}, l.IPv4...)
		})
		time.Sleep(10 * time.Second)
		stateIs(t, va, vipl.Connected)
		n.a.agent.Change(func(l *kagent.Link) { l.MAC[0] ^= 4 })
		stateIs(t, va, vipl.Error)
		stateIs(t, vb, vipl.Error)
		time.Sleep(10 * time.Second)
		stateIs(t, v1, vipl.Connected)
		stateIs(t, v2, vipl.Connected)
		n.a.agent.Change(func(l *kagent.Link) { l.IPv4 = nil })
		stateIs(t, v1, vipl.Error)
		stateIs(t, v2, vipl.Error)
	})
}

// An address that the interface did not have when the connection was made, since it
// is another interface's of the host, cannot go from it.
func TestSourceElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newMemoryNet(t, memoryConfig{bubble: true})
		away := n.a.agent.Link()
		n.a.agent.Change(func(l *kagent.Link) { l.IPv4, l.IPv6 = nil, nil })
		va, _ := connect(t, n.a.Nic, n.b.Nic, vipl.ReliableDelivery)
		n.a.agent.Change(func(l *kagent.Link) { l.IPv4 = []netip.Addr{netip.MustParseAddr("10.0.0.77")} })
		n.a.agent.Change(func(l *kagent.Link) { l.IPv4 = away.IPv4 })
		n.a.agent.Change(func(l *kagent.Link) { l.IPv4 = nil })
		time.Sleep(10 * time.Second)
		stateIs(t, va, vipl.Connected)
	})
}

// The owner of an interface that is removed knows at once, although nothing is sent
// on it.
func TestInterfaceRemovedInSilence(t *testing.T) {
	na, nb := nstest.Pair(t, nstest.Options{})
	open := func(n *nstest.NS) (nic *vipl.Nic) {
		t.Helper()
		if err := n.Do(func() (err error) {
			nic, err = vipl.OpenNic(n.Name, vipl.WithAgent("none"), vipl.WithSilence(time.Minute))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := nic.Close(); err != nil {
				t.Error(err)
			}
		})
		return nic
	}
	a, b := open(na), open(nb)
	errs := watchErrors(a)
	b.ErrorCallback(func(vipl.ErrorDescriptor) {})
	va, _ := connect(t, a, b, vipl.ReliableDelivery)
	x := newBox(t, a, 1, 64)
	postRecv(t, va, x, 0, 64)
	l, err := na.Netlink().LinkByIndex(na.Index)
	if err != nil {
		t.Fatal(err)
	}
	meter := lag.Start()
	defer meter.Close()
	start := meter.Mark()
	if err := na.Netlink().LinkDel(l); err != nil {
		t.Fatal(err)
	}
	received(t, va, vipl.StatusFlushed)
	if start.Over(2 * time.Second) {
		t.Errorf("noticed after %v", time.Since(start.At))
	}
	stateIs(t, va, vipl.Error)
	errs.are(t, vipl.ErrorCatastrophic, vipl.ErrorConnLost)
}
