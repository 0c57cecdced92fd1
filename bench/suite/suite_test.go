package suite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"viaxdp/bench"
	"viaxdp/bench/report"
	"viaxdp/internal/agent/agentd"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/testbed"
)

// The test program is its own worker, guard and agent, and a rank.
const (
	asWorker = "suite-worker"
	asGuard  = "suite-guard"
	asAgent  = "suite-agent"
	asRank   = "suite-rank"
	asProxy  = "suite-proxy"
)

func TestMain(m *testing.M) {
	nstest.Main(m, map[string]func() error{
		asWorker: bench.WorkerMain, asGuard: testbed.GuardMain, asAgent: agentMain, asRank: benchRank, asProxy: proxyMain,
	})
}

// agentMain is an agent at the socket of its last argument, until SIGTERM.
func agentMain() error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	return (&agentd.Daemon{Socket: os.Args[len(os.Args)-1]}).Run(ctx)
}

// shortly is a run as short as can be.
func shortly(groups ...string) Config {
	return Config{
		Groups: groups, Quick: true, Duration: time.Millisecond, Mode: "generic",
		WorkerArgs: []string{asWorker}, GuardArgs: []string{asGuard}, AgentArgs: []string{asAgent}, Stderr: os.Stderr, Command: "again",
	}
}

// measure runs the groups of cfg.
func measure(t *testing.T, cfg Config) *report.Report {
	t.Helper()
	nstest.Require(t)
	r, err := Run(t.Context(), cfg)
	nstest.Must(t, err)
	return r
}

// Every group of plans has what can be run, in full and quick, each point once, and what the
// others are compared with.
func TestPlans(t *testing.T) {
	s := newSession(t.Context(), Config{})
	for _, g := range slices.Concat(basicGroups, vibeGroups, ablationGroups) {
		name, e := g.name, g.plans
		for _, quick := range []bool{false, true} {
			parts := e.parts(quick)
			sheet, points := newSheet(parts), 0
			for _, p := range parts {
				plan := bench.Plan{Sizes: p.sizes, Duration: s.duration(), Latency: p.latency, Bandwidth: p.bandwidth}
				for _, r := range p.rows {
					plan.Rows = append(plan.Rows, r.Row)
				}
				nstest.WantErr(t, name, plan.Validate(), nil)
				points += len(p.rows) * len(p.sizes)
				if p.apart && p.latency && p.bandwidth {
					points += len(p.rows) * len(p.sizes)
				}
			}
			n := 0
			for _, series := range sheet.points {
				n += len(series)
			}
			if _, ok := sheet.points[e.base]; n != points || !ok && e.base != "" {
				t.Errorf("%s, quick %v: %d points of %d, base %q", name, quick, n, points, e.base)
			}
		}
	}
}

// Without segmentation each row of a VI leaves it out, and no other.
func TestNoSegmentation(t *testing.T) {
	p := exchange(plain(rawRings, delivery, unreliable, tcpSpin), []int{64})
	for _, off := range []bool{false, true} {
		for _, plain := range p.rows {
			r := newSession(t.Context(), Config{NoSegmentation: off}).asSet(plain.Row)
			nstest.ErrorIf(t, r.VI.NoSegmentation != (off && (r.Name == delivery || r.Name == unreliable)),
				"off %v: %+v", off, r)
		}
	}
}

// A group of each kind runs, and every one of its points has figures. What transports and
// options do is tested in package bench.
func TestExperiments(t *testing.T) {
	names := []string{"pingpong", "abl-multibuffer", "abl-agent"}
	if !testing.Short() {
		names = append(names, "vibe-base", "vibe-vis")
	}
	cfg := shortly(names...)
	cfg.Out = t.TempDir()
	steps := map[string]int{}
	cfg.Progress = func(p Progress) { steps[p.Group]++ }
	r := measure(t, cfg)
	if len(r.Groups) != len(names) || r.Turns != 1 || r.Command != "again" || r.Took <= 0 {
		t.Errorf("%d groups of %d, %+v", len(r.Groups), len(names), r)
	}
	for _, g := range r.Groups {
		if g.Title == "" || g.Conditions.Kernel == "" || steps[g.Name] < 2 {
			t.Errorf("%s: title %q, %+v, %d steps", g.Name, g.Title, g.Conditions, steps[g.Name])
		}
		if g.Base != "" && g.Row(g.Base) == nil {
			t.Errorf("%s: no series %q to compare with", g.Name, g.Base)
		}
		for _, s := range g.Series {
			for _, p := range s.Points {
				nstest.ErrorIf(t, p.N == 0 || len(p.Values) == 0, "%s, %s, %v: %+v", g.Name, s.Name, p.X, p)
				for m, v := range p.Values {
					nstest.ErrorIf(t, !(v.Median >= 0) || len(v.Turns) != 1 || v.Median == 0 && !m.Lower(),
						"%s, %s, %v: %s %+v", g.Name, s.Name, p.X, m, v)
				}
			}
		}
	}
	// What is not said in MTU 1500 says so.
	for name, mtu := range map[string]int{"pingpong": 1500, "abl-multibuffer": 9000} {
		nstest.Equal(t, name+": MTU", r.Group(name).Conditions.MTU, mtu)
	}
	p := r.Group("pingpong").Row(delivery).At(64)
	h, err := p.LoadHistogram(os.DirFS(cfg.Out))
	if err != nil || h.TotalCount() != p.N || p.N < 1000 {
		t.Errorf("histogram %q of %d values: %v", p.Histogram, p.N, err)
	}
	nstest.ErrorIf(t, nstest.Err(r.WritePlots(filepath.Join(cfg.Out, "plots"))) == nil, "plots without their histograms")
	if files, err := r.WritePlots(cfg.Out); err != nil || len(files) < len(names) {
		t.Errorf("%d plots of %d groups: %v", len(files), len(names), err)
	}
	nstest.Check(t, r.Write(new(strings.Builder)))
}

// Turns go through all rows, and through all parts; each has its value.
func TestTurns(t *testing.T) {
	nstest.Require(t)
	s := newSession(t.Context(), shortly())
	s.Turns = 3
	var order []string
	s.Progress = func(p Progress) { order = append(order, p.Doing) }
	e := experiment{
		axis: alongSizes,
		parts: func(bool) []part {
			a, b := exchange(plain("tcp-spin", "udp-spin"), []int{64}), exchange(plain("tcp-block"), []int{64})
			b.bandwidth, b.mtu = false, 2000
			return []part{a, b}
		},
	}
	g := s.measure(e)
	nstest.Must(t, s.close())
	var want []string
	for turn := range 3 {
		for _, name := range []string{"tcp-spin", "udp-spin", "tcp-block"} {
			want = append(want, fmt.Sprintf("%s, 64 B (turn %d of 3)", name, turn+1))
		}
	}
	nstest.Same(t, "order", order, want)
	if len(g.Series) != 3 {
		t.Fatalf("%d series", len(g.Series))
	}
	for _, s := range g.Series {
		v := s.Points[0].Values
		if n := len(v[report.P50].Turns); len(s.Points) != 1 || n != 3 {
			t.Errorf("%s: %d points, %d turns", s.Name, len(s.Points), n)
		}
		if _, ok := v[report.Bandwidth]; ok == (s.Name == "tcp-block") {
			t.Errorf("%s: %v", s.Name, v)
		}
	}
}

// A disturbed turn is counted, once for each reason.
func TestDisturbed(t *testing.T) {
	p := exchange(plain("tcp-spin"), []int{64})
	sheet := newSheet([]part{p})
	for turn, reasons := range [][]string{{"noise"}, nil, {"noise", "steal"}} {
		sheet.turn = turn + 1
		trips := hdrhistogram.New(1, 1e9, 3)
		trips.RecordValues(int64(2000*turn), 10)
		sheet.pingPong(p, p.rows[0], 64, &bench.ExchangeResult{RoundTrips: trips, Disturbed: reasons})
		sheet.stream(p, p.rows[0], 64, &bench.ExchangeResult{N: 5, CPUTx: 0.5, Disturbed: reasons})
	}
	var g report.Group
	sheet.fill(&g, "test", "")
	got := g.Series[0].Points[0]
	nstest.Same(t, "reasons", got.Disturbed, []string{"noise (2 of 3 turns)", "steal (1 of 3 turns)"})
	nstest.ErrorIf(t, got.N != 45 || int(got.Values[report.P50].Median) != 1 || got.Values[report.CPUTx].Median != 0.5,
		"%+v", got)
}

// A group that fails is named; the others go on.
func TestGroupFails(t *testing.T) {
	nstest.Require(t)
	cfg := shortly("vibe-mts", "vibe-level")
	cfg.MTU = 99999
	r, err := Run(t.Context(), cfg)
	if err == nil || len(r.Groups) > 0 || !strings.Contains(err.Error(), "vibe-mts: ") || !strings.Contains(err.Error(), "vibe-level: ") {
		t.Errorf("got %v and %+v", err, r)
	}
	if err != nil && strings.Contains(err.Error(), ": : ") { // nothing was being done yet
		t.Errorf("%v", err)
	}
}

func TestInterrupted(t *testing.T) {
	nstest.Require(t)
	ctx, cancel := context.WithCancel(t.Context())
	cfg := shortly("vibe-level", "vibe-rdma")
	cfg.Duration = time.Minute
	cfg.Progress = func(p Progress) {
		if p.Doing != "" {
			time.AfterFunc(30*time.Millisecond, cancel)
		}
	}
	r, err := Run(ctx, cfg)
	if !errors.Is(err, context.Canceled) || len(r.Groups) > 0 {
		t.Errorf("got %v and %d groups", err, len(r.Groups))
	}
}

// Names and beginnings of names, each group once, in the order of the report.
func TestChoose(t *testing.T) {
	long := func(name string) bool { return name == "layers-openmpi" || strings.HasPrefix(name, "sharing-") }
	for _, c := range []struct{ words, want []string }{
		{[]string{"window"}, []string{"window"}},
		{[]string{"vibe-c", "pingpong", "vibe-cq"}, []string{"pingpong", "vibe-cq"}},
		{[]string{"abl-m"}, []string{"abl-multibuffer", "abl-mtu"}},
		{[]string{All}, slices.DeleteFunc(namesOf(groups()), long)},
		{[]string{All, "sharing-v", "layers-openmpi"}, slices.DeleteFunc(namesOf(groups()), func(name string) bool {
			return long(name) && name != "sharing-vis" && name != "layers-openmpi"
		})},
		{nil, slices.DeleteFunc(namesOf(groups()), func(name string) bool {
			return long(name) || name == "loss" || name == "peers" || name == "layers-proxy" || name == "layers-osu" || strings.HasPrefix(name, "layers-loss") || strings.HasPrefix(name, "fabric-")
		})},
	} {
		got, err := choose(c.words)
		nstest.Must(t, err)
		nstest.Same(t, fmt.Sprint(c.words), namesOf(got), c.want)
	}
	for _, word := range []string{"", "dance", "vibe-base-2"} {
		nstest.ErrSays(t, word, nstest.Err(choose([]string{word})), "pingpong")
	}
	names := slices.Sorted(slices.Values(namesOf(groups())))
	if n := len(slices.Compact(slices.Clone(names))); n != len(names) {
		t.Errorf("names twice among %v", names)
	}
}

// Estimates stay within limits: a quick run takes at most a minute, a default run 15 minutes,
// and a run with the slow groups 30.
func TestEstimate(t *testing.T) {
	for _, c := range []struct {
		cfg   Config
		least time.Duration
		most  time.Duration
	}{
		{Config{}, 2 * time.Minute, 15 * time.Minute},
		{Config{Groups: []string{All}}, 15 * time.Minute, 30 * time.Minute},
		{Config{Groups: []string{All}, Turns: 1}, 3 * time.Minute, 6 * time.Minute},
		{Config{Groups: []string{"window"}, Duration: time.Second}, 5 * time.Minute, 10 * time.Minute},
		{Config{Quick: true}, 5 * time.Second, time.Minute},
		{Config{Quick: true, Groups: []string{All}}, 30 * time.Second, 2 * time.Minute},
	} {
		d, err := Estimate(c.cfg)
		nstest.Must(t, err)
		t.Logf("quick %v, %v: %v", c.cfg.Quick, c.cfg.Groups, d)
		nstest.ErrorIf(t, d < c.least || d > c.most, "quick %v: %v, want %v to %v", c.cfg.Quick, d, c.least, c.most)
	}
	// A group whose measurements cannot be so long is refused before the others run.
	for name, most := range map[string]time.Duration{
		"load": bench.MaxLoadTime, "incast": time.Minute, "layers-http": time.Minute, "sharing-vis": 55 * time.Second, "window": 0,
	} {
		for _, d := range []time.Duration{time.Minute, 2 * time.Minute} {
			_, err := Estimate(Config{Groups: []string{name}, Duration: d})
			if tooLong := most > 0 && d > most; tooLong != (err != nil) {
				t.Errorf("%s for %v: %v", name, d, err)
			}
		}
	}
	nstest.ErrorIf(t, nstest.Err(Estimate(Config{Groups: []string{"x"}})) == nil, "an estimate of an unknown group")
}

// The groups that docs/benchmarks.md shows are groups of the suite.
func TestFeaturedGroupsExist(t *testing.T) {
	for _, f := range report.Featured() {
		nstest.ErrorIf(t, !slices.ContainsFunc(Groups(), func(g Group) bool { return g.Name == f }), "no group %s", f)
	}
}
