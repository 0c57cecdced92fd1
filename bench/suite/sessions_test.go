package suite

import (
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"viaxdp/bench"
	"viaxdp/bench/report"
	"viaxdp/internal/lab/nstest"
)

// The groups that measure with sessions run, and every point has its figures.
func TestSessions(t *testing.T) {
	names := slices.Concat(namesOf(opsGroups), namesOf(transactionGroups), namesOf(loadGroups))
	cfg := shortly(names...)
	cfg.Out, cfg.Turns = t.TempDir(), 2
	r := measure(t, cfg)
	want := map[string]struct {
		metrics        []report.Metric
		series, points int // points of each
	}{
		"vibe-ops":          {[]report.Metric{report.Operation}, 10, 1},
		"vibe-register":     {[]report.Metric{report.Operation}, 4, 2},
		"vibe-transactions": {[]report.Metric{report.Min, report.P50, report.P99, report.P999, report.Rate, report.CPUTx, report.CPURx}, 3, 2},
		"load":              {[]report.Metric{report.Min, report.P50, report.P99, report.P999, report.Rate, report.CPUTx, report.CPURx, report.Outstanding}, 3, 2},
	}
	for _, g := range r.Groups {
		w := want[g.Name]
		delete(want, g.Name)
		nstest.ErrorIf(t, g.Conditions.Mode != "generic" || g.Conditions.MTU != 1500 || len(g.Notes) == 0,
			"%s: %+v, notes %q", g.Name, g.Conditions, g.Notes)
		nstest.Equal(t, g.Name+": series", len(g.Series), w.series)
		for _, s := range g.Series {
			// Both rates of a load are the least where the machine reaches hardly any.
			least := g.Name == "load" && len(s.Points) == 1 && s.Points[0].X == offered(leastRate)
			if n := len(s.Points); n != w.points && !least {
				t.Errorf("%s, %s: %d points, want %d", g.Name, s.Name, n, w.points)
			}
			for _, p := range s.Points {
				h, err := p.LoadHistogram(os.DirFS(cfg.Out))
				if err != nil || h.TotalCount() != p.N || p.N == 0 {
					t.Errorf("%s, %s, %v: histogram %q of %d values: %v", g.Name, s.Name, p.X, p.Histogram, p.N, err)
				}
				for _, m := range w.metrics {
					turns := 2
					if m == report.P999 { // a turn of few messages has none
						turns = int(min(p.N/(2*leastP999), 1))
						if rates := p.Values[report.Rate].Turns; len(rates) == 2 &&
							float64(p.N)*slices.Min(rates) > 2*leastP999*(rates[0]+rates[1]) {
							turns = 2 // the smaller one, too, has twice as many as it takes
						}
					}
					if v := p.Values[m]; len(v.Turns) < turns || len(v.Turns) > 2 || !(v.Median >= 0) {
						t.Errorf("%s, %s, %v: %s %+v", g.Name, s.Name, p.X, m, v)
					}
				}
			}
		}
	}
	for name := range want {
		t.Errorf("no group %s", name)
	}
	if p := r.Group("vibe-ops").Row(bench.OpConnect).Points[0]; p.Label != bench.OpConnect || p.N != 40 {
		t.Errorf("connect: %+v", p)
	}
	nstest.Check(t, r.Write(new(strings.Builder)))
	if files, err := r.WritePlots(cfg.Out); err != nil || len(files) < len(names) {
		t.Errorf("%d plots: %v", len(files), err)
	}
	var table strings.Builder
	if err := r.WriteTable(&table); err != nil || !strings.Contains(table.String(), "closed loop") {
		t.Errorf("%v in\n%s", err, table.String())
	}
}

// A run may be too short for a load: that has its least time.
func TestShortestLoad(t *testing.T) {
	cfg := shortly("load")
	cfg.Turns, cfg.Duration = 1, 100*time.Microsecond
	nstest.Equal(t, "series", len(measure(t, cfg).Group("load").Series), len(loaded))
}

// Offered rates are near those that were asked for, in steps that all runs
// share, and those of the shares are different ones.
func TestOfferedRates(t *testing.T) {
	seen := map[float64]bool{}
	for rate := 1000.; rate < 1e7; rate *= 1.003 {
		got := offered(rate)
		nstest.ErrorIf(t, math.Abs(math.Log(got/rate)) > math.Log(1.035), "%v became %v", rate, got)
		nstest.Equal(t, "an offered rate, again", got, offered(got))
		seen[got] = true
	}
	nstest.Equal(t, "rates within four powers of ten", len(seen), 4*rateSteps+1)
	for highest := 2e4; highest < 5e6; highest *= 1.07 {
		if got := rates(highest, shares(false)); len(got) != len(shares(false)) || !slices.IsSorted(got) {
			t.Errorf("rates of %v: %v", highest, got)
		}
	}
	nstest.Same(t, "rates of 1", rates(1, shares(false)), []float64{leastRate})
}

// A rate that was not reached is named. One of random times is reached when everything that was due has its echo.
func TestUnsustained(t *testing.T) {
	const long = 250 * time.Millisecond
	point := func(rate, reached, outstanding float64) report.Point {
		value := func(v float64) report.Value { return report.ValueOf([]float64{v}) }
		return report.Point{X: rate, Values: map[report.Metric]report.Value{
			report.Rate: value(reached), report.Outstanding: value(outstanding),
		}}
	}
	got := unsustained(&report.Group{Series: []report.Series{
		{Name: "quick", Points: []report.Point{point(1000, 999, 0), point(2000, 1990, 3)}},
		{Name: "random times", Points: []report.Point{point(1000, 936, 1), point(50000, 49600, 350)}},
		{Name: "slow", Points: []report.Point{point(1000, 1000, 0), point(2000, 1692, 77)}},
	}}, long)
	want := []string{"random times: 50000 messages/s were not sustained (49600; 350 outstanding at the end).",
		"slow: 2000 messages/s were not sustained (1692; 77 outstanding at the end)."}
	nstest.Same(t, "notes", got, want)
}
