package torture

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/schedlat"
	"viaxdp/vipl"
)

// silence of the workers here; the default is longer.
const silence = time.Second

// toldIn is how soon after a death a survivor learns of it: with the default silence, 2 s.
const toldIn = silence * 5 / 4

// mortal are flows that connect again. They leave the machine idle time, because the test does not
// measure reports that are late for lack of a CPU.
func mortal(name string, level vipl.ReliabilityLevel) FlowConfig {
	cfg := mixed(name, level, 3)
	cfg.Again, cfg.Gap = true, time.Millisecond
	return cfg
}

// living starts flows of all levels and waits until they talk.
func living(t *testing.T, b *Bed, silence time.Duration) {
	t.Helper()
	must(t, b.Open(NICConfig{Silence: silence}))
	for _, l := range levels {
		must(t, b.Start(mortal("mortal-"+l.String(), l)))
	}
	talking(t, b, [2]*Report{{}, {}})
}

// livingBed is a bed with such flows, for a test beside others, and what they have done.
func livingBed(t *testing.T, cfg BedConfig, silence time.Duration) (*Bed, [2]*Report) {
	t.Helper()
	t.Parallel()
	b := newBed(t, cfg)
	living(t, b, silence)
	return b, reports(t, b)
}

// flowsOf is how many flows living starts on each side.
var flowsOf = 3 * len(levels)

// talking waits until every flow is connected and has taken more than before.
func talking(t *testing.T, b *Bed, before [2]*Report) [2]*Report {
	t.Helper()
	r, err := b.Until(waitLimit, func(r [2]*Report) bool {
		for side := range r {
			if r[side].Open != flowsOf {
				return false
			}
			for i := range r[side].Flows {
				was := uint64(0)
				if i < len(before[side].Flows) {
					was = before[side].Flows[i].Taken
				}
				if r[side].Flows[i].Taken <= was {
					return false
				}
			}
		}
		return true
	})
	if err != nil {
		for side := range r {
			t.Logf("side %d: %+v", side, r[side])
		}
		t.Fatal(err)
	}
	return r
}

// brokenOnce waits until every connection that a side had before a death has ended, and checks the
// time. excuse is added to the limit, beside the scheduling latency of the machine and the worker;
// it may be negative.
func brokenOnce(t *testing.T, b *Bed, side int, death schedlat.Mark, before *Report, excuse time.Duration) *Report {
	t.Helper()
	for ; ; time.Sleep(10 * time.Millisecond) {
		r, err := b.Workers[side].Report()
		must(t, err)
		over, broke, last := 0, 0, time.Duration(0)
		for i, f := range r.Flows {
			if replaced(f, before.Flows[i]) {
				over++
			}
			if breaks := f.Breaks[len(before.Flows[i].Breaks):]; len(breaks) > 0 { // later ones are of later connections
				last = max(last, breaks[0].At.Sub(death.At))
				broke++
			}
		}
		late := max(r.Late-before.Late+excuse, 0) // the worker waits for a CPU as we do, or longer
		if over == flowsOf {
			if allowed := death.Allow(toldIn) + late; last > allowed {
				t.Errorf("side %d knew after %v, %v are allowed", side, last, allowed)
			}
			nstest.ErrorIf(t, broke == 0, "side %d: no connection ended by it", side)
			t.Logf("side %d knew after %v: %s", side, last, r.Breaks[len(r.Breaks)-1].Cause)
			return r
		}
		nstest.FatalIf(t, death.Over(toldIn+waitLimit+late), "side %d: %d of %d flows know of it", side, over, flowsOf)
	}
}

// replaced reports whether a flow's earlier connection is gone. A flow had none if its worker got
// no CPU time.
func replaced(now, before Tally) bool {
	return len(now.Breaks) > len(before.Breaks) || now.Connections > before.Connections || now.Open == 0
}

// rest ends the flows and checks what is left of both sides.
func rest(t *testing.T, b *Bed) {
	t.Helper()
	r := stopped(t, b)
	for side := range r {
		nstest.ErrorIf(t, r[side].Orderly == 0, "side %d: no connection ended in order", side)
	}
	closed(t, b)
}

// reopen opens a side's interface and starts its flows, with another seed each time.
func reopen(t *testing.T, b *Bed, side, round int) {
	t.Helper()
	must(t, b.OpenSide(side, NICConfig{Silence: silence}))
	for _, l := range levels {
		cfg := mortal("mortal-"+l.String(), l)
		cfg.Seed += uint64(round)
		must(t, b.StartSide(side, cfg))
	}
}

// An interface that was removed comes back, the same one to the eye, by another number, and with
// the hardware address that it had or another one. All connections have ended by then, the owner's
// within 2 s. The owner closes its unusable NIC and opens the new one. The survivor, whose own
// interface has stayed, goes on with its handle.
func TestInterfaceReturns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		side int // 1 asks for the connections
		same bool
	}{
		{"who is asked, same hardware address", 0, true}, {"who is asked", 0, false}, {"who asks", 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, BedConfig{})
			for side := range 2 {
				must(t, trusting(b, side))
			}
			living(t, b, silence)
			returning(t, b, c.side, c.same)
			rest(t, b)
		})
	}
}

// trusting makes a side's kernel never re-validate a hardware address by itself; by default it
// does so within a minute.
func trusting(b *Bed, side int) error {
	return b.Site.Do(side, func() error {
		return os.WriteFile("/proc/sys/net/ipv4/neigh/"+Interface+"/delay_first_probe_time", []byte("3600"), 0)
	})
}

// returning has a side's interface go and come back, and waits until all talk as before.
func returning(t *testing.T, b *Bed, side int, same bool) {
	t.Helper()
	before := reports(t, b)
	was := b.Site.Ends[side]
	death := b.Mark()
	must(t, b.Link(side, netlink.LinkDel))
	var after [2]*Report
	for i := range after {
		after[i] = brokenOnce(t, b, i, death, before[i], 0)
	}
	r, err := b.Workers[side].CloseNIC()
	must(t, err)
	r.Lacking = nil // what the interface had when it went does not complete
	promises(t, side, r)

	var mac net.HardwareAddr
	if same {
		mac, err = net.ParseMAC(was.MAC)
		must(t, err)
	}
	must(t, b.Site.Replug(side, mac))
	if now := b.Site.Ends[side]; now.Index == was.Index || (now.MAC == was.MAC) != same || now.Name != was.Name || now.IPv4 != was.IPv4 {
		t.Fatalf("%+v came back, and %+v went", now, was)
	}
	back := time.Now()
	reopen(t, b, side, 0)
	after[side] = &Report{}
	talking(t, b, after)
	t.Logf("all talk %v after the interface was back", time.Since(back))
}

// nobodyBroke checks that no connection has ended since before.
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

// The name of an interface is in no frame: when it gets another one, connections
// stay, and new ones are made by the same NIC handles.
func TestInterfaceRenamed(t *testing.T) {
	b, before := livingBed(t, BedConfig{}, unhurried)
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
