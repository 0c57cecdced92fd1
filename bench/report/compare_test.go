package report

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"viaxdp/internal/lab/nstest"
)

// later is a run after the sample: some things changed, some were not measured.
func later() *Report {
	b := sample()
	pingpong := b.Group("pingpong")
	pingpong.Conditions.Kernel, pingpong.Conditions.CPUModel, pingpong.Conditions.Hypervisor = "6.19.1", "Other CPU", false
	scale := func(series string, x float64, m Metric, factor float64) {
		p := pingpong.Row(series).At(x)
		p.Values[m] = turnsAround(factor*p.Values[m].Median, 0.05)
	}
	scale("vi-reliable-delivery", 64, P50, 0.9)          // better
	scale("vi-reliable-delivery", 64, P99, 1.02)         // within the spread
	scale("vi-reliable-delivery", 4096, P50, 1.25)       // worse
	scale("vi-rdma-write", 65536, Bandwidth, 0.8)        // worse
	scale("vi-rdma-write", 65536, CPURx, 0.5)            // better
	delete(pingpong.Row("tcp-spin").At(64).Values, P999) // a figure less
	pingpong.Row("udp-spin").Points = pingpong.Row("udp-spin").Points[1:]
	pingpong.Series = append(pingpong.Series, Series{Name: "udp-net"})
	b.Groups = append(slices.DeleteFunc(b.Groups, func(g Group) bool { return g.Name == "load" }), Group{Name: "peers"})
	return b
}

func TestCompareGolden(t *testing.T) {
	a, b := sample(), later()
	for _, r := range []*Report{a, b} { // less to look at
		r.Groups = slices.DeleteFunc(r.Groups, func(g Group) bool { return g.Name == "vibe-vis" })
	}
	golden(t, "compare.txt", text(t, Compare(a, b).WriteTable))
}

// What is worse by some percent, and marked, makes a comparison fail.
func TestWorseThan(t *testing.T) {
	c := Compare(sample(), later())
	for percent, want := range map[float64]bool{0: true, 24: true, 26: false} {
		nstest.ErrorIf(t, c.WorseThan(percent) != want, "worse than %v %%: %v", percent, !want)
	}
}

// JSON has what the table has.
func TestCompareJSON(t *testing.T) {
	c := Compare(sample(), later())
	c.Differences[0].A.Median = 0 // and no ratio
	type difference struct {
		Difference
		Ratio  *float64
		Worse  *float64 `json:"worse_percent"`
		Marked bool
	}
	type comparison struct {
		Differences []difference
		OnlyA       []string `json:"only_a"`
		OnlyB       []string `json:"only_b"`
		Conditions  []string
		Summary     string
	}
	var got comparison
	nstest.Must(t, json.Unmarshal([]byte(text(t, c.WriteJSON)), &got))
	want := comparison{OnlyA: c.OnlyA, OnlyB: c.OnlyB, Conditions: c.Conditions, Summary: c.summary()}
	for i, d := range c.Differences {
		ratio, worse := d.Ratio(), d.Worse()
		want.Differences = append(want.Differences, difference{d, &ratio, &worse, d.Marked()})
		if i == 0 {
			want.Differences[0].Ratio, want.Differences[0].Worse = nil, nil
		}
	}
	nstest.Same(t, "comparison", got, want, same)
	s := text(t, Compare(sample(), sample()).WriteJSON)
	nstest.ErrorIf(t, strings.Contains(s, "null"), "%s", s)
}

// Figures of single messages or rounds are shown, but do not count.
func TestCompareAside(t *testing.T) {
	b := sample()
	p := b.Group("pingpong").Row("vi-reliable-delivery").At(64)
	for _, m := range aside {
		factor := 3.0
		if !m.Lower() {
			factor = 0.3
		}
		p.Values[m] = turnsAround(factor*p.Values[m].Median, 0.05)
	}
	c := Compare(sample(), b)
	has(t, c.summary(), "4 are worse in B, 0 better.")
	nstest.ErrorIf(t, c.WorseThan(0), "worse")
	p.Values[P50] = turnsAround(1.5*p.Values[P50].Median, 0.05)
	c = Compare(sample(), b)
	has(t, c.summary(), "5 are worse in B, 0 better; most of all pingpong, vi-reliable-delivery, 64 B, p50_us by 50.0%")
	nstest.ErrorIf(t, !c.WorseThan(49), "not worse")
}

// How many frames met a fault is what the forwarder did to both runs: B is not worse by it.
func TestCompareFault(t *testing.T) {
	loss := func(hit, resent float64) *Report {
		return of(LossGroup, delivery, Point{
			X: 1, Label: "loss-0.1%", Values: map[Metric]Value{FaultRatio: turnsAround(hit, 0.05), ResentRatio: turnsAround(resent, 0.05)},
		})
	}
	c := Compare(loss(0.001, 0.002), loss(0.0014, 0.0024))
	has(t, c.summary(), "most of all loss, vi-reliable-delivery, loss-0.1%, resent_ratio by 20.0%")
	if c.WorseThan(21) || !c.WorseThan(19) {
		t.Errorf("worse by more than 21 %%: %v, 19 %%: %v", c.WorseThan(21), c.WorseThan(19))
	}
}

// What was nothing in A and something in B is worse by no percentage: the summary names what has one, or else says
// from what to what.
func TestCompareFromNothing(t *testing.T) {
	load := func(outstanding, us float64) *Report {
		return of(loadGroup, delivery, Point{
			X: 1000, Values: map[Metric]Value{Outstanding: turnsAround(outstanding, 0.05), P50: turnsAround(us, 0.05)},
		})
	}
	for us, want := range map[float64]string{
		15: "2 are worse in B, 0 better; most of all load, vi-reliable-delivery, p50_us by 50.0%",
		10: "1 are worse in B, 0 better; most of all load, vi-reliable-delivery, outstanding from 0.000 to 40.00",
	} {
		c := Compare(load(0, 10), load(40, us))
		has(t, c.summary(), want)
		nstest.ErrorIf(t, !c.WorseThan(1000), "not worse")
	}
}

// Figures that this program does not know, as those of another version, are compared and judged by nobody; one that only
// one report has is named.
func TestCompareUnknownMetrics(t *testing.T) {
	with := func(values map[Metric]Value) *Report {
		return of("sharing-cubic", "VI and cubic", Point{Values: values})
	}
	c := Compare(with(map[Metric]Value{"our_share": turnsAround(0.4, 0.05), "speedup": turnsAround(2, 0.05)}),
		with(map[Metric]Value{FirstShare: turnsAround(0.4, 0.05), "speedup": turnsAround(3, 0.05)}))
	nstest.Same(t, "only in A", c.OnlyA, []string{"sharing-cubic, VI and cubic, our_share"})
	nstest.Same(t, "only in B", c.OnlyB, []string{"sharing-cubic, VI and cubic, first_share"})
	nstest.FatalIf(t, len(c.Differences) != 1 || c.Differences[0].Metric != "speedup" || c.Differences[0].row()[7] != "",
		"differences: %+v", c.Differences)
	has(t, c.summary(), "1 figures in both: beyond the spread of the turns (*) 0 are worse in B, 0 better.")
	nstest.ErrorIf(t, c.WorseThan(0), "worse")
}

// A label says which point it is, wherever it stands.
func TestCompareByLabel(t *testing.T) {
	a, b := sample(), sample()
	ops := b.Group("vibe-ops")
	for i := range ops.Series {
		ops.Series[i].Points[0].X += 5
	}
	ops.Series[0].Points[0].Label = "make VI"
	c := Compare(a, b)
	nstest.Same(t, "only in A", c.OnlyA, []string{"vibe-ops, create VI, create VI"})
	nstest.Same(t, "only in B", c.OnlyB, []string{"vibe-ops, create VI, make VI"})
}

func TestMarked(t *testing.T) {
	for _, c := range []struct {
		a, b   []float64
		metric Metric
		marked bool
		worse  float64
	}{
		{[]float64{1, 2, 3}, []float64{4, 5, 6}, P50, true, 150},
		{[]float64{1, 2, 3}, []float64{3, 5, 6}, P50, false, 150},
		{[]float64{4, 5, 6}, []float64{1, 2, 3}, P50, true, -60},
		{[]float64{4, 5, 6}, []float64{1, 2, 3}, Bandwidth, true, 60},
		{[]float64{1, 2, 3}, []float64{4, 5, 6}, Rate, true, -150},
		{[]float64{2}, []float64{2.5}, P50, true, 25},
		{[]float64{2}, []float64{2}, P50, false, 0},
	} {
		d := Difference{Metric: c.metric, A: ValueOf(c.a), B: ValueOf(c.b)}
		if d.Marked() != c.marked || math.Abs(d.Worse()-c.worse) > 1e-9 {
			t.Errorf("%v and %v: marked %v, worse by %v %%", c.a, c.b, d.Marked(), d.Worse())
		}
	}
}

// Comparing B with A mirrors comparing A with B.
func TestCompareIsAntisymmetric(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyReport().Draw(t, "a"), anyReport().Draw(t, "b")
		there, back := Compare(a, b), Compare(b, a)
		sorted := func(s []string) []string { return slices.Sorted(slices.Values(s)) }
		if !slices.Equal(sorted(there.OnlyA), sorted(back.OnlyB)) || !slices.Equal(sorted(there.OnlyB), sorted(back.OnlyA)) {
			t.Fatalf("only on one side: %q and %q, %q and %q", there.OnlyA, back.OnlyB, there.OnlyB, back.OnlyA)
		}
		if len(there.Conditions) != len(back.Conditions) || len(there.Differences) != len(back.Differences) {
			t.Fatalf("%d conditions and %d figures, back %d and %d",
				len(there.Conditions), len(there.Differences), len(back.Conditions), len(back.Differences))
		}
		for _, d := range there.Differences {
			i := slices.IndexFunc(back.Differences, func(e Difference) bool {
				return e.Group == d.Group && e.Series == d.Series && e.At == d.At && e.Metric == d.Metric && e.A.Median == d.B.Median && e.B.Median == d.A.Median
			})
			if i < 0 {
				t.Fatalf("%+v has no counterpart", d)
			}
			e := back.Differences[i]
			if e.Marked() != d.Marked() || e.Disturbed != d.Disturbed || (d.Worse() > 0) != (e.Worse() < 0) || math.Abs(d.Ratio()*e.Ratio()-1) > 1e-9 {
				t.Fatalf("%+v and %+v: marked %v and %v, worse by %v and %v", d, e, d.Marked(), e.Marked(), d.Worse(), e.Worse())
			}
		}
	})
}

// With one turn on either side the spread is unknown, and the report says so.
func TestCompareSingleTurns(t *testing.T) {
	r := of("g", "s", single(1, "", map[Metric]float64{P50: 2.5}))
	has(t, Compare(r, r).summary(), "1 have a single turn on both sides")
}
