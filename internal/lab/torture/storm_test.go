package torture

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/testbed"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
)

var storms = []struct {
	name   string
	faults testbed.Faults
	took   func(n testbed.EmulatorCounters) bool
}{
	{"none", testbed.Faults{}, func(n testbed.EmulatorCounters) bool { return n.Passed > 0 }},
	{"loss-1%", testbed.Faults{Loss: 0.01}, func(n testbed.EmulatorCounters) bool { return n.Lost > 0 }},
	{"loss-10%", testbed.Faults{Loss: 0.1}, func(n testbed.EmulatorCounters) bool { return n.Lost > 0 }},
	{"bursts", testbed.Faults{Burst: 0.002, BurstLen: 16}, func(n testbed.EmulatorCounters) bool { return n.LostInBurst > 0 }},
	{"jitter", testbed.Faults{Delay: time.Millisecond, Jitter: 2 * time.Millisecond}, func(n testbed.EmulatorCounters) bool { return n.Delayed > 0 }},
	{"reordering", testbed.Faults{Reorder: 0.05}, func(n testbed.EmulatorCounters) bool { return n.Reordered > 0 }},
	{"duplicates", testbed.Faults{Duplicate: 0.1}, func(n testbed.EmulatorCounters) bool { return n.Duplicated > 0 }},
	{"corruption", testbed.Faults{Corrupt: 0.05}, func(n testbed.EmulatorCounters) bool { return n.Corrupted > 0 }},
	// Less room than a flow sends before its first acknowledgement.
	{"rate", testbed.Faults{Rate: 50_000_000, Queue: 8}, func(n testbed.EmulatorCounters) bool { return n.Limited > 0 }},
	{"all", testbed.Faults{
		Loss: 0.02, Burst: 0.001, Duplicate: 0.03, Corrupt: 0.02, Reorder: 0.03, Jitter: 300 * time.Microsecond,
	}, func(n testbed.EmulatorCounters) bool {
		return n.Lost > 0 && n.LostInBurst > 0 && n.Duplicated > 0 && n.Corrupted > 0 && n.Reordered > 0
	}},
}

// Through each storm, at each level, every promise holds; the storm's counters prove that
// it took place.
func TestStorms(t *testing.T) {
	for i, level := range levels {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			throughStorms(t, BedConfig{}, mixed("storm", level, 3), uint64(100*i))
		})
	}
}

func throughStorms(t *testing.T, bed BedConfig, cfg FlowConfig, seed uint64) {
	b := newBed(t, bed)
	l := watch(b)
	must(t, b.Open(NICConfig{Silence: unhurried})) // longer than any burst, too
	name := cfg.Name
	for k, storm := range storms {
		storm.faults.Seed, cfg.Name = seed+uint64(k), fmt.Sprintf("%s-%d", name, k)
		if !t.Run(storm.name, func(t *testing.T) { weather(t, l, cfg, storm.faults, storm.took) }) {
			return // the bed is not as it was
		}
	}
	r := asked(t, b, doClose)
	accounted(t, r)
	nstest.ErrorIf(t, cfg.Level != vipl.UnreliableDelivery && r[0].Engine.GSOSentFrames+r[1].Engine.GSOSentFrames == 0, "no frame left in a GSO packet")
}

// weather runs flows for a share of time under faults, and until the storm was seen.
func weather(t *testing.T, l *ledger, cfg FlowConfig, f testbed.Faults, took func(testbed.EmulatorCounters) bool) {
	b, opened := l.bed, balance(t, l)
	before, unwanted := calm(b), unwantedOf(t, b)
	must(t, b.Start(cfg))
	connected := talking(t, b, cfg.Flows)
	taken := connected[0].Taken + connected[1].Taken
	b.Site.Middle.SetBoth(f)
	time.Sleep(share(t))
	middle, err := b.Until(waitLimit, func(r [2]*Report) bool {
		return r[0].Taken+r[1].Taken > taken && took(b.crossed().Since(before))
	})
	if !errors.Is(err, errTooLate) { // what did not occur is reported below
		must(t, err)
	}
	n := calm(b).Since(before)
	r := asked(t, b, doStop)
	for side := range r {
		for _, br := range r[side].Breaks {
			if cfg.Level != vipl.UnreliableDelivery {
				t.Errorf("side %d: flow %s broke (%s) after %d sent, %d taken; seed %d", side, br.Flow, br.Cause, br.Sent, br.Taken, f.Seed)
			}
		}
	}
	if got := middle[0].Taken + middle[1].Taken - taken; got == 0 {
		t.Errorf("no message came through the storm")
	} else {
		t.Logf("%d messages came through, %d were missing; %d frames sent again; %+v", got,
			r[0].Missing+r[1].Missing, r[0].Engine.Resent+r[1].Engine.Resent, n)
	}
	if f.Corrupt == 0 { // a changed frame may have any destination
		unanswered(t, b, unwanted)
	}
	nstest.ErrorIf(t, !took(n), "the storm did not take place: %+v", n)
	for side, r := range asked(t, b, doFree) {
		nstest.ErrorIf(t, r.Kept > 0, "side %d: %d receives are left", side, r.Kept)
	}
	balanced(t, l, opened)
}

// balance are the accounts of a bed at rest.
func balance(t *testing.T, l *ledger) (a [2]frameCounts) {
	t.Helper()
	must(t, fail.Try(func() { a = l.counts(fail.Must(l.bed.both(doCount))) }))
	return a
}

// balanced waits until all that was sent since before has arrived or is counted as dropped.
func balanced(t *testing.T, l *ledger, before [2]frameCounts) {
	t.Helper()
	for end := l.bed.lag.Mark(); ; time.Sleep(10 * time.Millisecond) { // what is under way takes a while
		var errs [2]error
		for side, a := range balance(t, l) {
			errs[side] = errors.Join(a.since(before[side]).underWay(), a.atReceiver())
		}
		if errors.Join(errs[:]...) == nil {
			return
		}
		if end.Over(waitLimit) {
			t.Errorf("from side 0: %v; from side 1: %v", errs[0], errs[1])
			return
		}
	}
}

// promised are the counters that docs/counters.md says TestCountersMove moves,
// by section and name.
func promised(t *testing.T) (names []string) {
	t.Helper()
	text, err := os.ReadFile("../../../docs/counters.md")
	must(t, err)
	section := ""
	for line := range strings.Lines(string(text)) {
		if head, ok := strings.CutPrefix(line, "## "); ok {
			section = strings.TrimSpace(head)
		}
		if strings.HasPrefix(line, "| `") && strings.Contains(line, ".TestCountersMove`") {
			name, _, _ := strings.Cut(line[len("| `"):], "`")
			names = append(names, section+" "+name)
		}
	}
	nstest.FatalIf(t, len(names) < 20, "docs/counters.md names only %v", names)
	return names
}

// moved are the counters that are not 0 in a report, named as promised does.
func moved(r *Report) (names []string) {
	engine := reflect.ValueOf(r.Engine)
	for _, f := range reflect.VisibleFields(engine.Type()) {
		if engine.FieldByIndex(f.Index).Uint() > 0 {
			names = append(names, "Engine "+f.Name)
		}
	}
	r.Program.Each(func(name string, v uint64) {
		if v > 0 {
			names = append(names, "Demux program "+name)
		}
	})
	r.Queue.Each(func(c xdpnic.Counter) {
		if c.Value > 0 {
			names = append(names, "Queue "+c.Name)
		}
	})
	return names
}

// A mix of faults moves all counters that can be moved from outside.
func TestCountersMove(t *testing.T) {
	t.Parallel()
	b := newBed(t, BedConfig{MTU: 9000})
	must(t, b.Open(NICConfig{Silence: silence, RxChunks: 256}))
	for _, level := range levels {
		cfg := mortal("rough-"+level.String(), level)
		cfg.MaxBytes = 40_000
		must(t, b.Start(cfg))
	}
	flows := 3 * len(levels)
	talking(t, b, flows)
	missing := promised(t)
	strike := func(r *Report) {
		names := moved(r)
		missing = slices.DeleteFunc(missing, func(name string) bool { return slices.Contains(names, name) })
	}
	rough := testbed.Faults{Seed: 11, Loss: 0.02, Duplicate: 0.1, Reorder: 0.05, Corrupt: 0.2}
	waits := func() bool { // for counters other than the queue's, whose turn comes last
		return slices.ContainsFunc(missing, func(name string) bool { return !strings.HasPrefix(name, "Queue ") })
	}
	for end := time.Now().Add(waitLimit); waits() && time.Now().Before(end); {
		rough.Seed++
		b.Site.Middle.SetBoth(rough)
		time.Sleep(700 * time.Millisecond)
		must(t, b.Link(0, netlink.LinkSetDown))
		time.Sleep(silence * 5 / 4)
		must(t, b.Link(0, netlink.LinkSetUp))
		calm(b)
		for side, r := range talking(t, b, flows) {
			promises(t, side, r)
			strike(r)
		}
	}
	asked(t, b, doStop)
	for _, r := range asked(t, b, doClose) {
		strike(r)
	}
	nstest.ErrorIf(t, len(missing) > 0, "did not move: %q", missing)
}
