package vipl_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/schedlat"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
	"viaxdp/xdpnic/xdpnictest"
)

// Changes of the interface of host a, after which frames of its connections have a foreign source or are too
// long; how each is undone; the counter of the connections that it ends; and their cause.
var moves = []struct {
	name       string
	away, back func(l *kagent.Link)
	lost       func(c vipl.Counters) uint64
	cause      string
}{
	{
		"address",
		func(l *kagent.Link) { l.IPv4 = []netip.Addr{netip.MustParseAddr("10.0.0.77")} },
		func(l *kagent.Link) { l.IPv4 = []netip.Addr{netip.MustParseAddr("10.0.0.1")} },
		func(c vipl.Counters) uint64 { return c.SourcesLost }, "",
	},
	{
		"hardware address",
		func(l *kagent.Link) { l.MAC[5] ^= 0x77 },
		func(l *kagent.Link) { l.MAC[5] ^= 0x77 },
		func(c vipl.Counters) uint64 { return c.SourcesLost }, "",
	},
	{
		"MTU",
		func(l *kagent.Link) { l.MTU = 1499 },
		func(l *kagent.Link) { l.MTU = 1500 },
		func(c vipl.Counters) uint64 { return c.PathsLost }, "the interface's MTU",
	},
}

// A connection whose address the interface has lost, or whose longest frames exceed its MTU, breaks by the
// rules within half a second, on both sides, whether or not anything is sent, and the VIs can connect again.
func TestInterfaceChanges(t *testing.T) {
	for _, m := range moves {
		t.Run(m.name, func(t *testing.T) {
			eachLevelInBubble(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
				n, va, vb, xa, xb := connectedBoxes(t, memoryConfig{bubble: true, silence: time.Minute}, level, 2, 1, 64)
				postRecv(t, va, xa, 0, 64)
				postRecv(t, vb, xb, 0, 64)
				start := time.Now()
				n.a.agent.Change(m.away)
				received(t, va, vipl.StatusFlushed) // waits
				equal(t, "noticed after", time.Since(start), 500*time.Millisecond)
				received(t, vb, vipl.StatusFlushed)
				d := time.Since(start)
				errorIf(t, d > 502*time.Millisecond, "the peer noticed after %v", d)
				s := stateIs(t, va, vipl.Error)
				errorIf(t, s.Cause == nil || !strings.Contains(s.Cause.Error(), m.cause), "cause: %v", s.Cause)
				stateIs(t, vb, vipl.Error)
				n.a.errs.are(t, vipl.ErrorConnLost)
				n.b.errs.are(t, vipl.ErrorConnLost)
				a, b := n.a.Counters(), n.b.Counters()
				lost := a.PathsLost + b.PathsLost + a.PeersLost + b.PeersLost + a.SourcesLost + b.SourcesLost
				errorIf(t, m.lost(a) != 1 || lost != 1, "%+v, %+v", a, b)
				disconnect(t, va, vb)
				n.a.agent.Change(m.back)
				join(t, n.a.NIC, va, n.b.NIC, vb)
			})
		})
	}
}

// What no frame of a connection depends on, or what is back within the grace, ends no connection.
func TestInterfaceChangesThatDoNotMatter(t *testing.T) {
	other := netip.MustParseAddr("10.0.0.77")
	for name, c := range map[string]struct {
		before  func(l *kagent.Link)
		changes []func(l *kagent.Link)
		then    vipl.State // of the connection with another host, 10 s later; a connection within the host stays
	}{
		"an MTU that has shrunk, and grows": {
			func(l *kagent.Link) { l.MTU = 1499 },
			[]func(l *kagent.Link){func(l *kagent.Link) { l.MTU = 9000 }, func(l *kagent.Link) { l.MTU = 1499 }}, vipl.Connected,
		},
		"other addresses, another name": {nil, []func(l *kagent.Link){func(l *kagent.Link) {
			l.Name, l.IPv6, l.MTU, l.Up = "other", nil, 9000, false
			l.IPv4 = append([]netip.Addr{other}, l.IPv4...)
		}}, vipl.Connected},
		"an address that is another interface's of the host": {
			func(l *kagent.Link) { l.IPv4, l.IPv6 = nil, nil },
			[]func(l *kagent.Link){
				func(l *kagent.Link) { l.IPv4 = []netip.Addr{other} },
				func(l *kagent.Link) { l.IPv4 = []netip.Addr{netip.MustParseAddr("10.0.0.1")} },
				func(l *kagent.Link) { l.IPv4 = nil },
			}, vipl.Connected,
		},
		"a hardware address":            {nil, []func(l *kagent.Link){func(l *kagent.Link) { l.MAC[0] ^= 4 }}, vipl.Error},
		"a smaller MTU":                 {nil, []func(l *kagent.Link){func(l *kagent.Link) { l.MTU = 600 }}, vipl.Error},
		"a smaller MTU and another MAC": {nil, []func(l *kagent.Link){moves[1].away, func(l *kagent.Link) { l.MTU = 600 }}, vipl.Error},
	} {
		inBubble(t, name, func(t *testing.T) {
			n := newMemoryNet(t, memoryConfig{bubble: true})
			if c.before != nil {
				n.a.agent.Change(c.before)
			}
			va, vb := connect(t, n.a.NIC, n.b.NIC, vipl.ReliableDelivery)
			var within []*vipl.VI
			if c.before == nil {
				v1, v2 := connect(t, n.a.NIC, n.a.NIC, vipl.ReliableDelivery)
				within = append(within, v1, v2)
			}
			for _, change := range c.changes {
				n.a.agent.Change(change)
			}
			time.Sleep(10 * time.Second)
			statesAre(t, c.then, va, vb)
			statesAre(t, vipl.Connected, within...)
			a := n.a.Counters()
			errorIf(t, a.SourcesLost+a.PathsLost > 1 || a.SourcesLost+a.PathsLost == 0 && c.then == vipl.Error, "%+v", a)
			n.a.agent.Change(func(l *kagent.Link) { l.IPv4 = nil })
			statesAre(t, vipl.Error, within...)
		})
	}
	for _, m := range moves {
		inBubble(t, "back in time: "+m.name, func(t *testing.T) {
			n, va, vb := connected(t, memoryConfig{bubble: true, silence: 2 * time.Second}, vipl.ReliableDelivery)
			for range 10 {
				n.a.agent.Change(m.away)
				time.Sleep(499 * time.Millisecond)
				n.a.agent.Change(m.back)
				time.Sleep(10 * time.Millisecond)
			}
			time.Sleep(10 * time.Second)
			statesAre(t, vipl.Connected, va, vb)
			a := n.a.Counters()
			errorIf(t, m.lost(a) > 0, "%+v", a)
		})
	}
}

// An interface that is removed is a catastrophe for every handle on it, also one without a VI, and
// each knows at once, although nothing is sent: with the agent of the host, and without one.
func TestInterfaceRemoved(t *testing.T) {
	for name, options := range map[string][]vipl.Option{"agent": nil, "no agent": {vipl.WithAgent("none")}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			na, nb := nstest.Pair(t, nstest.Options{})
			open := func(n *nstest.NS) (nic *vipl.NIC, errs *errorLog) {
				t.Helper()
				nic = nstest.In(t, n, func() (*vipl.NIC, error) {
					return vipl.OpenNIC(n.Name, append(options, vipl.WithSilence(time.Minute))...)
				})
				t.Cleanup(func() {
					if err := nic.Close(); err != nil {
						t.Log(err) // what was attached to the interface went with it
					}
				})
				return nic, watchErrors(nic)
			}
			a, errs := open(na)
			b, _ := open(nb)
			_, idleErrs := open(na)
			va, vb := connect(t, a, b, vipl.ReliableDelivery)
			x := newBox(t, a, 1, 64)
			postRecv(t, va, x, 0, 64)
			l := na.Link(t)
			meter := schedlat.Start()
			defer meter.Close()
			start := meter.Mark()
			must(t, na.Netlink().LinkDel(l))
			received(t, va, vipl.StatusFlushed)
			errorIf(t, start.Over(2*time.Second), "noticed after %v", time.Since(start.At))
			s := stateIs(t, va, vipl.Error)
			list := errs.are(t, vipl.ErrorCatastrophic, vipl.ErrorConnLost)
			if len(list) == 2 && (list[0].Resource != vipl.ResourceNIC || list[0].VI != nil || s.Cause == nil) {
				t.Errorf("%+v, cause %v", list[0], s.Cause)
			}
			idleErrs.are(t, vipl.ErrorCatastrophic)
			stateIs(t, vb, vipl.Error)
		})
	}
}

// trickle is a queue on which each frame appears only at the tenth poll. It counts the sleeps.
type trickle struct {
	*xdpnictest.Queue
	looks, waits atomic.Int64
}

func (q *trickle) Ready() bool { return q.Queue.Ready() && q.looks.Add(1)%10 == 0 }

func (q *trickle) Receive(frames []xdpnic.Frame) int { return q.Queue.Receive(frames[:1]) }

func (q *trickle) Wait(d time.Duration) error {
	q.waits.Add(1)
	return q.Queue.Wait(d)
}

// A goroutine that is woken by the beginning of a long message polls for the rest of it.
func TestWaiterFollowsMessage(t *testing.T) {
	// In a bubble, in which no goroutine takes too long between two polls.
	synctest.Test(t, func(t *testing.T) {
		const frames, rounds = 40, 20
		q := &trickle{}
		c := memoryConfig{bubble: true, port: over(q, &q.Queue)}
		n, va, vb := connected(t, c, vipl.ReliableDelivery)
		const size = frames * 1400
		xa, xb := newBox(t, n.a.NIC, 1, size), newBox(t, n.b.NIC, 1, size)
		for range 20 { // spinning before sleep has not paid
			postRecv(t, vb, xb, 0, size)
			d, err := vb.RecvWait(100 * time.Microsecond)
			fatalIf(t, d != nil || err != vipl.ErrTimeout, "%v, %v", d, err)
			postSend(t, va, xa, 0, 8)
			sent(t, va, 0)
			received(t, vb, 0)
		}
		before := q.waits.Load()
		for k := range rounds {
			fillPattern(xa.buf[0][:size], k)
			postRecv(t, vb, xb, 0, size)
			time.AfterFunc(200*time.Microsecond, func() { // b sleeps by then
				postSend(t, va, xa, 0, size)
			})
			receivedMessage(t, vb, xb.buf[0][:size], k)
			sent(t, va, 0)
		}
		waits := q.waits.Load() - before
		errorIf(t, waits > rounds*frames/4, "%d messages of %d frames took %d sleeps", rounds, frames, waits)
	})
}

// A host that has another NIC by now, of another hardware address, is found by the request for a connection, and
// the connection goes there, though the kernel is sure for an hour of the address that it knows.
func TestPeerHasAnotherNIC(t *testing.T) {
	t.Parallel()
	na, nb := nstest.Pair(t, nstest.Options{})
	nics := [2]*vipl.NIC{openNIC(t, na, vipl.WithAgent("none")), openNIC(t, nb, vipl.WithAgent("none"))}
	must(t, na.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/neigh/"+na.Name+"/delay_first_probe_time", []byte("3600"), 0)
	}))
	was := &netlink.Neigh{
		LinkIndex: na.Index, Family: netlink.FAMILY_V4, IP: nb.IPv4.AsSlice(), State: netlink.NUD_STALE,
		HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 0x77},
	}
	must(t, na.Netlink().NeighSet(was))
	va, vb := connect(t, nics[0], nics[1], vipl.ReliableReception)
	xa, xb := newBox(t, nics[0], 1, 64), newBox(t, nics[1], 1, 64)
	// A NIC would not take frames for another address, as a veth does before a program of its.
	r, w := io.Pipe()
	ended := starts(func() error { return nics[0].Capture(w, 64, nil) })
	fatalIf(t, !comes(func() bool { return nics[0].Captures() == 1 }), "no capture")
	postRecv(t, vb, xb, 0, 64)
	postSend(t, va, xa, 0, 8)
	received(t, vb, 0)
	for {
		ours, _, frame, err := record(r)
		must(t, err)
		if ours {
			equal(t, "frames go to", net.HardwareAddr(frame[:6]).String(), nb.MAC.String())
			break
		}
	}
	r.Close()
	sent(t, va, 0)
	list, err := na.Netlink().NeighList(na.Index, netlink.FAMILY_V4)
	must(t, err)
	for _, n := range list {
		errorIf(t, n.IP.Equal(was.IP) && n.HardwareAddr.String() != nb.MAC.String(), "the kernel has %v for it, want %v", n.HardwareAddr, nb.MAC)
	}
	postRecv(t, vb, xb, 0, 64)
	postSend(t, va, xa, 0, 8) // the capture has no reader
	sent(t, va, 0)
	if err := <-ended; !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
}

// A hardware address that an administrator has set stays.
func TestPermanentNeighbourStays(t *testing.T) {
	t.Parallel()
	na, nb := nstest.Pair(t, nstest.Options{})
	a := openNIC(t, na, vipl.WithAgent("none"))
	said := &netlink.Neigh{
		LinkIndex: na.Index, Family: netlink.FAMILY_V4, IP: nb.IPv4.AsSlice(), State: netlink.NUD_PERMANENT,
		HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 0x77},
	}
	must(t, na.Netlink().NeighSet(said))
	v := newVI(t, a, vipl.ReliableDelivery)
	if _, err := v.ConnectRequest(vipl.NetAddress{}, vipl.NetAddress{Host: nb.IPv4, Discriminator: []byte("test")}, time.Second); err == nil {
		t.Error("a host answers")
	}
	list, err := na.Netlink().NeighList(na.Index, netlink.FAMILY_V4)
	errorIf(t, err != nil || len(list) != 1 || list[0].State != netlink.NUD_PERMANENT || list[0].HardwareAddr.String() != said.HardwareAddr.String(), "%+v, %v", list, err)
}
