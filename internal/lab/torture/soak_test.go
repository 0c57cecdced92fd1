package torture

import (
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/schedlat"
	"viaxdp/vipl"
)

// shortSilence is for tests that wait for deaths.
const shortSilence = 800 * time.Millisecond

// soaked is the report of a soak that keeps every promise.
func soaked(t *testing.T, cfg SoakConfig) SoakReport {
	t.Helper()
	if cfg.Attack != "peer" { // which is in memory
		nstest.Require(t)
	}
	cfg.Args, cfg.Stderr = []string{asWorker}, os.Stderr
	r, err := Soak(context.Background(), cfg)
	nstest.ErrorIf(t, err != nil, "%v: %q", err, r.Violations)
	t.Logf("%+v, %+v", r, r.Flood)
	return r
}

// A soak of some acts keeps every promise, and its report has what it did.
func TestSoak(t *testing.T) {
	t.Parallel()
	told := 0
	r := soaked(t, SoakConfig{
		For: 10 * share(t), Act: 5 * share(t), Flows: 2, Seed: 3, Silence: shortSilence, Progress: func(SoakReport) { told++ },
	})
	events := 0
	for _, n := range r.Events {
		events += n
	}
	if r.Acts == 0 || events == 0 || r.Messages == 0 || r.Connections == 0 || r.Writes == 0 || r.Reads == 0 || told < r.Acts+events ||
		r.Events["quiet"] < r.Acts || r.Audits != r.Events["quiet"]+r.Acts || r.Accounted == 0 {
		t.Errorf("%d reports, the last %+v", told, r)
	}
}

// A soak with an attacker keeps every promise, too; without a seal, with an attacker that guesses.
func TestHostileSoak(t *testing.T) {
	for _, plain := range []bool{false, true} {
		if plain && !every() {
			continue
		}
		t.Run(map[bool]string{false: "sealed", true: "plain"}[plain], func(t *testing.T) {
			r := soaked(t, SoakConfig{
				For: 5 * share(t), Act: 5 * share(t), Flows: 1, Seed: 4, Hostile: true, Plain: plain,
				Silence: 4 * shortSilence, // a flood takes its share of the CPUs: slow is not dead
			})
			f := r.Flood
			if r.Acts == 0 || f.Forged == 0 || f.Rate == 0 || f.Calm.Rate == 0 || f.Spared.Rate == 0 || f.Beside == 0 || f.Kept == 0 || r.Audits == 0 {
				t.Errorf("%+v, %+v", r, f)
			}
		})
	}
}

// A good peer keeps half of its rate under a flood, or a promise is broken. Time in which the machine was busier than
// before does not count.
func TestJudgeFlood(t *testing.T) {
	const sec = time.Second
	for _, c := range []struct {
		name            string
		spared, flooded uint64
		late            [2]time.Duration
		kept            float64
		ok              bool
	}{
		{"as before", 1000, 1000, [2]time.Duration{}, 1, true},
		{"half", 1000, 500, [2]time.Duration{}, 0.5, true},
		{"less", 1000, 499, [2]time.Duration{}, 0.499, false},
		{"nothing", 1000, 0, [2]time.Duration{}, 0, false},
		{"kept away for half the time", 1000, 300, [2]time.Duration{0, sec}, 0.6, true},
		{"and too little for that", 1000, 200, [2]time.Duration{0, sec}, 0.4, false},
		{"as late as before", 1000, 300, [2]time.Duration{sec, sec}, 0.3, false},
		{"later before", 1000, 300, [2]time.Duration{sec, 0}, 0.3, false},
		{"kept away all the time", 1000, 0, [2]time.Duration{0, 2 * sec}, 0, true},
		{"not counted", 0, 0, [2]time.Duration{}, 0, true},
	} {
		f := &Flood{Beside: 10_000}
		f.Spared.add(Passed{Messages: c.spared, Time: 2 * sec, Late: c.late[0]})
		f.Flooded.add(Passed{Messages: c.flooded, Time: 2 * sec, Late: c.late[1]})
		s := &soak{report: SoakReport{Flood: f}}
		s.judgeFlood()
		nstest.ErrorIf(t, f.Kept != c.kept || (len(s.report.Violations) == 0) != c.ok, "%s: kept %v, %q", c.name, f.Kept, s.report.Violations)
	}
}

// Each event leaves all flows talking, in an act of its own.
func TestEvents(t *testing.T) {
	for name, part := range map[string][]event{"moves": moves, "others": events[len(moves):]} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			undergo(t, BedConfig{}, part)
		})
	}
}

// Workers whose interfaces an agent opens keep every promise, too, when they are killed, when the agent's program is
// taken off, and when an interface moves.
func TestEventsThroughAgents(t *testing.T) {
	t.Parallel()
	undergo(t, BedConfig{Agents: true}, some(events, "kill", "detach", "hardware address moves"))
}

// The loss of what an interface needs has the same consequences over IPv6 and with frames of several chunks. A link
// that is down for a while keeps its address.
func TestMovesOverIPv6(t *testing.T) {
	t.Parallel()
	flaps := slices.DeleteFunc(slices.Clone(events), func(e event) bool { return !strings.HasPrefix(e.name, "link ") })
	undergo(t, BedConfig{IPv6: true, MTU: 9000}, some(append(flaps, moves...), "link down", "address moves", "address blinks", "MTU blinks"))
}

// A side comes back in the other XDP mode, with agents and with frames of several chunks, too. What takes the program or
// the link away has the same consequences in either mode.
func TestModeChanges(t *testing.T) {
	t.Parallel()
	const change = "XDP mode changes"
	cases := map[string]BedConfig{"agents": {Agents: true}, "IPv6, MTU 9000": {IPv6: true, MTU: 9000}}
	if thorough() { // else the same code runs in the other two
		cases["plain"], cases["direct"] = BedConfig{}, BedConfig{Direct: true}
	}
	for name, cfg := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var list []event
			for _, name := range []string{change, "calm", change, "detach", change, "link blinks"} {
				list = append(list, named(events, name)[0])
			}
			undergo(t, cfg, list)
		})
	}
}

// Bytes over one veth pair are all checked, and with losses, too. Packets arrive whole.
func TestSoakDirect(t *testing.T) {
	t.Parallel()
	const bytes = 20_000_000
	for _, loss := range []float64{0, 0.01} {
		r := soaked(t, SoakConfig{Bytes: bytes, Direct: true, Loss: loss, Flows: 2, Seed: 5, Silence: 10 * time.Second})
		if r.Bytes < bytes || r.Packets == 0 || r.InPackets < r.Packets || (r.Discarded > 0) != (loss > 0) || r.Audits != 1 || r.Accounted == 0 {
			t.Errorf("loss %v: %+v", loss, r)
		}
	}
}

// An event that ends all connections does so again, whatever its first outcome was.
func TestMovesAgain(t *testing.T) {
	t.Parallel()
	var list []event
	for i := 0; i < len(moves) && (i == 0 || every()); i += 2 {
		list = append(list, moves[i], moves[i+1], moves[i]) // the one between ends nothing
	}
	undergo(t, BedConfig{}, list)
}

// some are the events of those names, or all.
func some(events []event, names ...string) []event {
	if every() {
		return events
	}
	return named(events, names...)
}

func named(events []event, names ...string) []event {
	return slices.DeleteFunc(slices.Clone(events), func(e event) bool { return !slices.Contains(names, e.name) })
}

// undergo runs a soak of these events.
func undergo(t *testing.T, cfg BedConfig, events []event) {
	newSoak(t, cfg, shortSilence).live(t, events)
}

// newSoak is a soak of one flow at each level.
func newSoak(t *testing.T, cfg BedConfig, silence time.Duration) *soak {
	bed := newBed(t, cfg)
	return &soak{
		cfg: SoakConfig{Flows: 1, Silence: silence}, ctx: context.Background(), bed: bed, ledger: watch(bed), start: time.Now(),
		rng: rand.New(rand.NewPCG(5, 0)), report: SoakReport{Events: map[string]int{}},
	}
}

// live is an act of these events.
func (s *soak) live(t *testing.T, events []event) {
	must(t, fail.Try(s.open))
	for side, agent := range s.bed.agents {
		if r := s.known[side]; agent != nil && r.Program.Redirected == 0 {
			t.Errorf("side %d: nothing came by the agent's program: %+v", side, r.Program)
		}
		if _, err := linkID(s.bed.Workers[side].Pid); (err == nil) != (agent == nil) {
			t.Errorf("side %d: has the worker itself attached a program? %v", side, err)
		}
	}
	times := map[string]int{}
	for i, e := range events {
		if i > 0 && e.name == events[i-1].name {
			continue
		}
		start := time.Now()
		must(t, fail.Try(func() { s.undergo(e) }))
		t.Logf("%s: %v", e.name, time.Since(start))
		if times[e.name]++; s.report.Events[e.name] != times[e.name] {
			t.Errorf("%s is not in the report: %v", e.name, s.report.Events)
		}
	}
	must(t, fail.Try(s.close))
	for _, v := range s.report.Violations {
		t.Error(v)
	}
	t.Logf("%d breaks are excused", s.report.Excused)
}

// A soak of random events is over IPv4 or IPv6 and with small or jumbo frames, as its seed chooses. Explicit settings
// stay, and other soaks always use the same defaults.
func TestSoakChooses(t *testing.T) {
	chosen := func(c SoakConfig) [2]int { c.choose(); return [2]int{c.IP, c.MTU} }
	seen := map[[2]int]bool{}
	for seed := range uint64(100) {
		got := chosen(SoakConfig{Seed: seed})
		nstest.ErrorIf(t, got != chosen(SoakConfig{Seed: seed}), "seed %d: not always the same", seed)
		seen[got] = true
		if got := chosen(SoakConfig{Seed: seed, IP: 6, MTU: 4000}); got != [2]int{6, 4000} {
			t.Errorf("seed %d: %d, and 6 and 4000 were asked for", seed, got)
		}
		for _, c := range []SoakConfig{{Kills: 1}, {Bytes: 1}, {Hostile: true}} {
			if c.Seed = seed; chosen(c) != [2]int{4, 1500} {
				t.Errorf("%+v: %d", c, chosen(c))
			}
		}
	}
	for _, want := range [][2]int{{4, 1500}, {4, 9000}, {6, 1500}, {6, 9000}} {
		nstest.ErrorIf(t, !seen[want], "no seed has %d", want)
	}
}

// Several deaths in a row: every survivor learns of them in time, or the soak reports a violation. Nothing is left of
// the dead, and the report says how long it took. The silence applies to the NICs and to the promise.
func TestSoakKills(t *testing.T) {
	t.Parallel()
	for silence, kills := range map[time.Duration]int{400 * time.Millisecond: 3, 3 * time.Second: 1} {
		r := soaked(t, SoakConfig{Kills: kills, Flows: 1, Seed: 4, Silence: silence})
		if r.Silence != silence || r.Kills != kills || r.Events["kill"] != kills || r.Breaks < 3*kills || r.MedianTold <= 0 ||
			r.SlowestTold < max(r.MedianTold, silence-time.Second) || r.Audits == 0 { // its last word came before its death
			t.Errorf("%+v", r)
		}
	}
}

// With the default silence, a survivor learns of a death within 2 s; a longer silence takes a quarter more.
func TestToldWithin(t *testing.T) {
	for silence, want := range map[time.Duration]time.Duration{
		400 * time.Millisecond: 2 * time.Second, vipl.DefaultSilence: 2 * time.Second, 4 * time.Second: 5 * time.Second,
	} {
		s := &soak{cfg: SoakConfig{Silence: silence}}
		if got := s.toldWithin(); got != want {
			t.Errorf("at a silence of %v within %v, not %v", silence, got, want)
		}
	}
}

// Bytes through faults are all checked, and the faults took place.
func TestSoakBytes(t *testing.T) {
	t.Parallel()
	const bytes = 20_000_000
	r := soaked(t, SoakConfig{Bytes: bytes, Flows: 2, Seed: 5, Silence: 10 * time.Second})
	if r.Bytes < bytes || r.Messages < bytes/bytesMessage || r.Emulator.Lost == 0 || r.Emulator.Duplicated == 0 || r.Emulator.Reordered == 0 || r.Resent == 0 || r.InPackets == 0 ||
		r.Audits != 1 || r.Accounted < bytes/bytesMessage {
		t.Errorf("%+v", r)
	}
}

// A reliable flow that breaks in an event that ends no connection is a broken promise. If a process got no CPU, it is
// excused and counted; lateness that only adds up is no excuse.
func TestBlame(t *testing.T) {
	reports := func(breaks ...int) (r [2]*Report) {
		for side := range r {
			r[side] = &Report{Flows: make([]Tally, 2)}
			for i := range r[side].Flows {
				r[side].Flows[i].Breaks = make([]Break, breaks[2*side+i])
			}
		}
		return r
	}
	start, still := time.Now(), &schedlat.Meter{} // what this process is late by is no part of it
	for _, c := range []struct {
		name             string
		after            [2]*Report
		spells           []schedlat.Spell
		violated, excuse int
	}{
		{"nobody", reports(1, 1, 1, 1), nil, 0, 0},
		{"an unreliable one", reports(2, 1, 3, 1), nil, 0, 0},
		{"a reliable one", reports(1, 1, 1, 2), nil, 1, 0},
		{"both, starved", reports(1, 3, 1, 2), []schedlat.Spell{{At: start.Add(time.Second), Late: 400 * time.Millisecond}}, 0, 3},
		{"one, starved before", reports(1, 2, 1, 1), []schedlat.Spell{{At: start.Add(-time.Second), Late: time.Second}}, 1, 0},
		{"one, late now and then", reports(1, 2, 1, 1), []schedlat.Spell{{At: start.Add(time.Second), Late: 150 * time.Millisecond}}, 1, 0},
	} {
		c.after[1].Late, c.after[1].Spells = time.Minute, c.spells
		s := &soak{cfg: SoakConfig{Flows: 1, Silence: shortSilence}, known: c.after, bed: &Bed{lag: still}}
		s.blame("calm", reports(1, 1, 1, 1), s.starved("calm", start))
		nstest.ErrorIf(t, len(s.report.Violations) != c.violated || s.report.Excused != c.excuse, "%s: %q, %d excused", c.name, s.report.Violations, s.report.Excused)
	}
}

// A short loss at an interface ends no connection, unless the loss, or the lateness of a process, lasted about as
// long as the grace.
func TestBlameBlinks(t *testing.T) {
	const grace = shortSilence / 4
	for _, c := range []struct {
		event      string
		away, late time.Duration
		starved    bool
	}{
		{"MTU blinks", time.Millisecond, 0, false}, {"MTU blinks", grace, 0, true}, {"address blinks", time.Millisecond, grace, true},
		{"link blinks", 0, grace * 3 / 4, false}, {"link blinks", 0, grace * 5 / 4, true}, // the silence decides
	} {
		start := time.Now()
		known := [2]*Report{{}, {Spells: []schedlat.Spell{{At: start.Add(time.Second), Late: c.late}}}}
		s := &soak{cfg: SoakConfig{Silence: shortSilence}, known: known, away: c.away, bed: &Bed{lag: &schedlat.Meter{}}}
		if got := s.starved(c.event, start); got != c.starved {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// Complaints in the last report of a worker are broken promises, even if an event has ended the worker.
func TestLastComplaints(t *testing.T) {
	s := &soak{}
	s.add(1, &Report{Tally: Tally{Violations: []string{"flow x: message 8 came, 7 was due"}, Taken: 3}, Lacking: []string{"2 RX chunks are leased still"}})
	want := []string{"side 1: flow x: message 8 came, 7 was due", "side 1: 2 RX chunks are leased still"}
	nstest.ErrorIf(t, !slices.Equal(s.report.Violations, want) || s.report.Messages != 3, "%+v", s.report)
}

func TestPercentile(t *testing.T) {
	for _, c := range []struct {
		of   []time.Duration
		p    float64
		want time.Duration
	}{
		{nil, 50, 0}, {[]time.Duration{3}, 50, 3}, {[]time.Duration{9, 1, 2}, 50, 2}, {[]time.Duration{9, 1, 2}, 100, 9}, {[]time.Duration{9, 1}, 50, 1},
		{append(slices.Repeat([]time.Duration{1}, 99), 9), 99, 1}, {append(slices.Repeat([]time.Duration{1}, 98), 9, 9), 99, 9},
	} {
		if got := percentile(c.of, c.p); got != c.want {
			t.Errorf("%v %% of %v: %v, not %v", c.p, c.of, got, c.want)
		}
	}
}

// Full messages are as long as they may be.
func TestFullMessages(t *testing.T) {
	f := flow{cfg: FlowConfig{Full: true, MaxBytes: 4000}}
	if n := f.size(); n != 4000 {
		t.Errorf("a full message has %d bytes", n)
	}
}
