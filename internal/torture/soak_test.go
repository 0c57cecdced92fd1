package torture

import (
	"context"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"viaxdp/internal/nstest"
)

// A soak of some acts keeps every promise, and its report tells of what it did.
func TestSoak(t *testing.T) {
	t.Parallel()
	nstest.Require(t)
	told := 0
	r, err := Soak(context.Background(), SoakConfig{
		For: 10 * share(t), Act: 5 * share(t), Flows: 2, Seed: 3, Args: []string{asParty}, Stderr: os.Stderr,
		Progress: func(SoakReport) { told++ },
	})
	if err != nil {
		t.Errorf("%v: %q", err, r.Violations)
	}
	t.Logf("%+v", r)
	events := 0
	for _, n := range r.Events {
		events += n
	}
	if r.Acts == 0 || events == 0 || r.Messages == 0 || r.Connections == 0 || r.Writes == 0 || r.Reads == 0 || told < r.Acts+events {
		t.Errorf("%d reports, the last %+v", told, r)
	}
}

// A soak beside an attacker keeps every promise, too.
func TestHostileSoak(t *testing.T) {
	nstest.Require(t)
	r, err := Soak(context.Background(), SoakConfig{
		For: 5 * share(t), Act: 5 * share(t), Flows: 1, Seed: 4, Args: []string{asParty}, Stderr: os.Stderr, Hostile: true,
	})
	if err != nil {
		t.Errorf("%v: %q", err, r.Violations)
	}
	t.Logf("%+v", r)
	if r.Acts == 0 || r.Forged == 0 || r.Calm == 0 || r.Flooded == 0 {
		t.Errorf("%+v", r)
	}
}

// Each event leaves all flows talking, in an act of its own.
func TestEvents(t *testing.T) {
	t.Parallel()
	nstest.Require(t)
	bed := newBed(t, BedConfig{})
	s := &soak{
		cfg: SoakConfig{Flows: 1}, ctx: context.Background(), bed: bed, start: time.Now(), rng: rand.New(rand.NewPCG(5, 0)),
		report: SoakReport{Events: map[string]int{}}, silence: soakSilence,
	}
	must(t, s.bed.Open(NICConfig{Silence: soakSilence}))
	for side := range 2 {
		must(t, s.startFlows(side))
	}
	must(t, s.settle("start"))
	for i, e := range events {
		if i > 0 && e.name == events[i-1].name {
			continue
		}
		start := time.Now()
		must(t, s.undergo(e))
		t.Logf("%s: %v", e.name, time.Since(start))
		if s.report.Events[e.name] != 1 {
			t.Errorf("%s is not in the report: %v", e.name, s.report.Events)
		}
	}
	must(t, s.close())
	for _, v := range s.report.Violations {
		t.Error(v)
	}
}

// Some deaths in a row: every survivor was told in time, or it were a violation, nothing was left of the dead,
// and the report says how long it took.
func TestSoakKills(t *testing.T) {
	t.Parallel()
	nstest.Require(t)
	r, err := Soak(context.Background(), SoakConfig{Kills: 3, Flows: 1, Seed: 4, Args: []string{asParty}, Stderr: os.Stderr})
	if err != nil {
		t.Errorf("%v: %q", err, r.Violations)
	}
	if r.Kills != 3 || r.Events["kill"] != 3 || r.Breaks < 3*3 || r.MedianTold <= 0 || r.SlowestTold < r.MedianTold {
		t.Errorf("%+v", r)
	}
}

// Bytes through faults are all checked, and the faults took place.
func TestSoakBytes(t *testing.T) {
	t.Parallel()
	nstest.Require(t)
	const bytes = 20_000_000
	r, err := Soak(context.Background(), SoakConfig{Bytes: bytes, Flows: 2, Seed: 5, Args: []string{asParty}, Stderr: os.Stderr})
	if err != nil {
		t.Errorf("%v: %q", err, r.Violations)
	}
	if r.Bytes < bytes || r.Messages < bytes/bytesMessage || r.Way.Lost == 0 || r.Way.Duplicated == 0 || r.Way.Reordered == 0 || r.Resent == 0 {
		t.Errorf("%+v", r)
	}
}

// Full messages are as long as they may be.
func TestFullMessages(t *testing.T) {
	f := flow{cfg: FlowConfig{Full: true, MaxBytes: 4000}}
	if n := f.size(); n != 4000 {
		t.Errorf("a full message has %d bytes", n)
	}
}
