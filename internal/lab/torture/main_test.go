package torture

import (
	"flag"
	"os"
	"testing"
	"time"

	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/testbed"
	"viaxdp/internal/lab/testsize"
	"viaxdp/vipl"
)

// asWorker is how the test program becomes a worker.
const asWorker = "torture-worker"

func TestMain(m *testing.M) {
	if !thorough() {
		flag.Set("test.parallel", "3") // on few CPUs, too: tests wait most of the time
	}
	nstest.Main(m, map[string]func() error{asWorker: Main, asVictim: live})
}

// variable is set by CI, to how long each storm lasts: then nothing is left out.
const variable = "VIA_TORTURE"

// share is how long each storm lasts.
func share(t *testing.T) time.Duration {
	t.Helper()
	return testsize.Duration(t, variable, 150*time.Millisecond, 150*time.Millisecond)
}

func thorough() bool { return os.Getenv(variable) != "" }

// every reports whether to test every case, and not only representative ones: if CI asks for it, and in its run with
// the race detector.
func every() bool { return thorough() || testing.Short() }

// waitLimit is how long anything may take that has no limit of its own.
const waitLimit = 2 * time.Minute

// unhurried is a silence that is longer than workers wait for a CPU. It is for tests in which no worker dies and no
// connection may end.
const unhurried = 30 * time.Second

func newBed(t *testing.T, cfg BedConfig) *Bed {
	t.Helper()
	nstest.Require(t)
	cfg.Args, cfg.Stderr = []string{asWorker}, os.Stderr
	b, err := NewBed(cfg)
	must(t, err)
	t.Cleanup(func() { nstest.Check(t, b.Close()) })
	return b
}

var must = nstest.Must

// mixed is everything that a reliable VI can do.
func mixed(name string, level vipl.ReliabilityLevel, flows int) FlowConfig {
	cfg := FlowConfig{Name: name, Flows: flows, Level: level, MaxBytes: 9000, Depth: 16, RDMA: true, Seed: 1}
	if level == vipl.UnreliableDelivery {
		cfg.RDMA, cfg.Gap = false, time.Millisecond // without flow control they would use all CPU time
	}
	return cfg
}

// unbroken checks the reports of both sides after an orderly stop: no connection was lost, and everything that one
// side sent was taken by the other.
func unbroken(t *testing.T, r [2]*Report) {
	t.Helper()
	for i := range r {
		for _, b := range r[i].Breaks {
			t.Errorf("side %d: flow %s broke (%s) after %d sent, %d taken", i, b.Flow, b.Cause, b.Sent, b.Taken)
		}
		if r[i].Orderly != r[i].Connections || r[i].Taken == 0 {
			t.Errorf("side %d: %d of %d connections ended in order, %d messages came; refused %d (%s)",
				i, r[i].Orderly, r[i].Connections, r[i].Taken, r[i].Refused, r[i].LastRefusal)
		}
	}
}

// talking waits until both sides have n connections, and each flow has received a message.
func talking(t *testing.T, b *Bed, flows int) [2]*Report {
	t.Helper()
	r, err := b.Until(waitLimit, func(r [2]*Report) bool {
		return r[0].Open == flows && r[1].Open == flows && eachFlow(r, func(f *Tally) bool { return f.Taken > 0 })
	})
	nstest.FatalIf(t, err != nil, "%v: %+v; %+v", err, r[0], r[1])
	return r
}

// eachFlow reports whether all flows of both sides are as wanted.
func eachFlow(r [2]*Report, ok func(f *Tally) bool) bool {
	for side := range r {
		for i := range r[side].Flows {
			if !ok(&r[side].Flows[i]) {
				return false
			}
		}
	}
	return true
}

// asked are the reports of both workers when they have executed a command. They have broken no promise.
func asked(t *testing.T, b *Bed, do string) [2]*Report {
	t.Helper()
	r, err := b.both(do)
	must(t, err)
	for side := range r {
		promises(t, side, r[side])
	}
	return r
}

func promises(t *testing.T, side int, r *Report) {
	t.Helper()
	for _, v := range append(r.Violations, r.Lacking...) {
		t.Errorf("side %d: %s", side, v)
	}
	if more := r.Violated - len(r.Violations); more > 0 {
		t.Errorf("side %d: and %d more", side, more)
	}
}

// calm ends the faults, and says what they did so far in both directions together.
func calm(b *Bed) testbed.EmulatorCounters {
	b.Site.Middle.SetBoth(testbed.Faults{})
	return b.crossed()
}

// unwantedOf is what both kernels have counted for frames without a receiver.
func unwantedOf(t *testing.T, b *Bed) (u [2]Unwanted) {
	t.Helper()
	for side := range u {
		var err error
		u[side], err = b.Unwanted(side)
		must(t, err)
	}
	return u
}

// unanswered checks that since u no kernel has received a frame without a receiver, or reported one to its sender by
// ICMP.
func unanswered(t *testing.T, b *Bed, u [2]Unwanted) {
	t.Helper()
	if now := unwantedOf(t, b); now != u {
		t.Errorf("frames of ours met no receiver, or were answered by ICMP: %+v before, %+v now", u, now)
	}
}
