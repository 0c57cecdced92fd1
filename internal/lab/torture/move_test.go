package torture

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/schedlat"
	"viaxdp/vipl"
)

// What the interface's owner is told at once, and the peer by it: so the silence of
// these tests is much longer than what they wait for.
const (
	patient = 10 * time.Minute
	toldBy  = 2 * time.Second
)

// told waits until every flow of a side has noticed that one of them has moved, and
// looks at when.
func told(t *testing.T, b *Bed, side int, at schedlat.Mark, before *Report) *Report {
	t.Helper()
	for ; ; time.Sleep(10 * time.Millisecond) {
		r, err := b.Workers[side].Report()
		must(t, err)
		if n := len(r.Breaks) - len(before.Breaks); n < flowsOf {
			if at.Over(toldBy + waitLimit) {
				t.Fatalf("side %d: %d of %d flows know of it", side, n, flowsOf)
			}
			continue
		}
		last := time.Duration(0)
		for _, br := range r.Breaks {
			last = max(last, br.At.Sub(at.At))
		}
		if allowed := at.Allow(toldBy) + r.Late - before.Late; last > allowed {
			t.Errorf("side %d knew after %v, %v are allowed", side, last, allowed)
		}
		t.Logf("side %d knew after %v: %s", side, last, r.Breaks[len(r.Breaks)-1].Cause)
		return r
	}
}

// nobodyBroke says that no connection has ended since before.
func nobodyBroke(t *testing.T, before, after [2]*Report) {
	t.Helper()
	for side := range after {
		if n := len(before[side].Breaks); len(after[side].Breaks) > n {
			t.Errorf("side %d: %d connections broke (%s)", side, len(after[side].Breaks)-n, after[side].Breaks[n].Cause)
		}
		if n := after[side].Engine.SourcesLost; n != before[side].Engine.SourcesLost {
			t.Errorf("side %d: SourcesLost is %d", side, n)
		}
	}
}

// movedAway looks at what follows when side 1 is not any more where it was: every
// connection of both sides ends in time, and there are new ones, by the same NIC
// handles.
func movedAway(t *testing.T, b *Bed, change func(netlink.Link) error) {
	t.Helper()
	before := reports(t, b)
	at := b.Mark()
	must(t, b.Link(1, change))
	var after [2]*Report
	for _, side := range []int{1, 0} {
		after[side] = told(t, b, side, at, before[side])
		if n := after[side].Engine.PeersLost; n > 0 {
			t.Errorf("side %d: %d connections ended by silence", side, n)
		}
	}
	if n := after[1].Engine.SourcesLost - before[1].Engine.SourcesLost; n != uint64(flowsOf) {
		t.Errorf("SourcesLost has grown by %d, and there were %d connections", n, flowsOf)
	}
	if n := after[0].Engine.SourcesLost; n > 0 {
		t.Errorf("the side that has not moved has SourcesLost %d", n)
	}
	talking(t, b, after)
}

// When the address of an interface changes, of IPv4, IPv6 or its hardware, which the peer's frames do not have then,
// both sides' connections end in time, and there are new ones.
func TestAddressChanges(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Bed, netlink.Link) error{
		"IPv4": func(b *Bed, l netlink.Link) error { return readdress(l, elsewhere(b.Site.Ends[1].IPv4)) },
		"IPv6": func(b *Bed, l netlink.Link) error { return readdress(l, elsewhere(b.Site.Ends[1].IPv6)) },
		"hardware": func(_ *Bed, l netlink.Link) error {
			return netlink.LinkSetHardwareAddr(l, net.HardwareAddr{2, 0x77, 0, 0, 0, 0x77})
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := livingBed(t, BedConfig{IPv6: name == "IPv6"}, patient)
			movedAway(t, b, func(l netlink.Link) error { return change(b, l) })
			rest(t, b)
		})
	}
}

// An address that is removed and is back at once, however often, costs nothing.
func TestAddressFlaps(t *testing.T) {
	b, _ := livingBed(t, BedConfig{}, patient)
	// At once is not to be had from any machine at any time: where somebody waited
	// for a CPU for as long as an address may be away it says nothing that
	// connections ended.
	const away = 250 * time.Millisecond
	for try := 1; ; try++ {
		before := reports(t, b)
		start, slowest := b.Mark(), time.Duration(0)
		for range 50 {
			must(t, b.Link(1, func(l netlink.Link) error {
				removed := time.Now()
				err := readdress(l, b.Site.Ends[1].IPv4)
				slowest = max(slowest, time.Since(removed))
				return err
			}))
		}
		time.Sleep(time.Second) // what is to end ends within the half of it
		after := talking(t, b, before)
		for side := range after {
			slowest = max(slowest, start.Allow(0), after[side].Late-before[side].Late)
		}
		if len(after[0].Breaks)+len(after[1].Breaks) == len(before[0].Breaks)+len(before[1].Breaks) || slowest < away || try == 20 {
			nobodyBroke(t, before, after)
			break
		}
		t.Logf("somebody was late by up to %v", slowest)
	}
	rest(t, b)
}

// The name of an interface is in no frame: when it gets another one, connections
// stay, and new ones are made by the same NIC handles.
func TestInterfaceRenamed(t *testing.T) {
	b, before := livingBed(t, BedConfig{}, patient)
	rename := func(from, to string) {
		t.Helper()
		must(t, b.Site.Do(1, func() error {
			l, err := netlink.LinkByName(from)
			if err != nil {
				return err
			}
			err = netlink.LinkSetName(l, to)
			if errors.Is(err, unix.EBUSY) { // kernels before 6.2: not while it is up
				err = errors.Join(netlink.LinkSetDown(l), netlink.LinkSetName(l, to), netlink.LinkSetUp(l))
			}
			return err
		}))
	}
	rename(Interface, "another")
	cfg := mortal("after", vipl.ReliableDelivery)
	must(t, b.Start(cfg))
	_, err := b.Until(waitLimit, func(r [2]*Report) bool {
		return eachFlow(r, func(f *Tally) bool { return f.Taken > 0 }) && r[0].Open == flowsOf+cfg.Flows && r[1].Open == flowsOf+cfg.Flows
	})
	must(t, err)
	after := reports(t, b)
	nobodyBroke(t, before, after)
	rename("another", Interface)
	rest(t, b)
}
