package report

import (
	"bytes"
	"math"
	"strings"
	"testing"
)

// twice has one figure of two series, in so many turns.
func twice(name string, x float64, m Metric, ours, theirs []float64, rows ...string) Group {
	g := Group{Name: name, Axis: Axis{Name: sizes, Unit: "bytes"}, Conditions: conditionsOf(1500)}
	for i, turns := range [][]float64{ours, theirs} {
		g.Series = append(g.Series, Series{Name: rows[i], Points: []Point{{X: x, Values: map[Metric]Value{m: ValueOf(turns)}}}})
	}
	return g
}

// Each target has its answer, from all places where it was measured.
func TestAnswers(t *testing.T) {
	floor := func(name string, p50 ...float64) Group {
		return twice(name, 64, P50, p50, []float64{2, 2, 2}, delivery, raw)
	}
	doubtful := floor("c", 3, 3, 3)
	doubtful.Series[1].Points[0].Disturbed = []string{"noise"}
	for _, c := range []struct {
		title         string
		groups        []Group
		measured, met string
	}{
		{"nothing", nil, "-", "not measured"},
		{"another size", []Group{twice("a", 128, P50, []float64{9}, []float64{1}, delivery, raw)}, "-", "not measured"},
		{"met", []Group{floor("a", 2.2, 2.3, 2.4)}, "1.15 x (a: 2.30 and 2.00 us)", "yes"},
		{"missed", []Group{floor("a", 2.8, 3, 3)}, "1.50 x (a: 3.00 and 2.00 us)", "no"},
		{"missed by little", []Group{floor("a", 2.4, 2.6, 2.7)}, "1.30 x (a: 2.60 and 2.00 us)", "no, by less than the spread of the turns"},
		{"here and there", []Group{floor("a", 2.3, 2.3, 2.3), floor("b", 3, 3, 3), doubtful}, "1.15 to 1.50 x (a: 2.30 and 2.00 us) †", "in 1 of 3 places"},
	} {
		answers := (&Report{Groups: c.groups}).answers()
		if len(answers) != len(targets) {
			t.Fatalf("%s: %d answers to %d targets", c.title, len(answers), len(targets))
		}
		a := answers[4]
		if a.measured() != c.measured || a.met() != c.met {
			t.Errorf("%s: %q, %q; want %q, %q", c.title, a.measured(), a.met(), c.measured, c.met)
		}
	}
	// Of a target for all sizes the place says which.
	every := (&Report{Groups: []Group{twice("vibe-rdma", 256, P50, []float64{2}, []float64{2}, write, delivery)}}).answers()[16]
	if every.measured() != "1.00 x (vibe-rdma, 256 B: 2.00 and 2.00 us)" || every.met() != "yes" {
		t.Errorf("at all sizes: %q, %q", every.measured(), every.met())
	}
	// Of a target that is a figure.
	late := Group{Name: LossGroup, Axis: Axis{Name: faults}, Series: []Series{{Name: delivery, Points: []Point{
		{X: 1, Label: "loss-1%", Values: map[Metric]Value{P99: ValueOf([]float64{900, 1100, 1200}), GoodputRatio: ValueOf([]float64{0.95})}},
	}}}}
	for i, want := range map[int][2]string{2: {"0.950 (loss)", "yes"}, 3: {"1100 us (loss)", "no, by less than the spread of the turns"}, 5: {"-", "not measured"}} {
		a := (&Report{Groups: []Group{late}}).answers()[len(speeds)+i]
		if got := [2]string{a.measured(), a.met()}; got != want {
			t.Errorf("%s: %q, want %q", a.target, got, want)
		}
	}
	// What is better when it is more.
	rate := (&Report{Groups: []Group{twice("window", 64, Rate, []float64{0.9e6}, []float64{1e6}, raw, rawC)}}).answers()[2]
	if rate.measured() != "0.90 x (window: 0.900 and 1.00 million/s)" || rate.met() != "no" {
		t.Errorf("a rate: %q, %q", rate.measured(), rate.met())
	}
}

// The document has a row for each target, before everything else, and counts them.
func TestMarkdownAsks(t *testing.T) {
	r := &Report{Groups: []Group{twice("a", 64, P50, []float64{3}, []float64{2}, delivery, raw), twice("b", 64, P50, []float64{1}, []float64{4}, delivery, tcpSpin)}}
	var buf bytes.Buffer
	if err := r.WriteMarkdown(&buf, ""); err != nil {
		t.Fatal(err)
	}
	head, _, found := strings.Cut(buf.String(), "## Conditions")
	if !found {
		t.Fatal("no conditions")
	}
	for _, target := range targets {
		if want := "| " + escape(target.what()) + " | " + escape(target.asked()) + " | "; strings.Count(head, want) != 1 {
			t.Errorf("%d times %s in\n%s", strings.Count(head, want), want, head)
		}
	}
	for _, want := range []string{"user-space copies", "1 were met, 1 not or not everywhere", "\nNo row of via-xdp was worse"} {
		if !strings.Contains(head, want) {
			t.Errorf("no %q in\n%s", want, head)
		}
	}
}

// What loses to others is named group by group, by the worst place; a target that is
// missed is none of them.
func TestMarkdownBetter(t *testing.T) {
	sizesOf := func(name string, ours, theirs float64) Group {
		g := twice(name, 64, P50, []float64{ours}, []float64{theirs}, delivery, tcpSpin)
		for i, v := range []float64{ours / 2, theirs} {
			g.Series[i].Points = append(g.Series[i].Points, Point{X: 256, Values: map[Metric]Value{P50: ValueOf([]float64{v})}})
		}
		return g
	}
	r := &Report{Groups: []Group{sizesOf("a", 6, 2), sizesOf("b", 1, 2), sizesOf("c", 20, 2)}}
	var buf bytes.Buffer
	if err := r.WriteMarkdown(&buf, ""); err != nil {
		t.Fatal(err)
	}
	head, _, _ := strings.Cut(buf.String(), "## Conditions")
	const want = "| c | 2 | 10.00 \\* | vi-reliable-delivery | 64 B | Median latency, us | 20.00 | 2.00 | tcp-spin |\n" +
		"| a | 2 | 3.00 \\* | vi-reliable-delivery | 64 B | Median latency, us | 6.00 | 2.00 | tcp-spin |\n\n"
	if !strings.Contains(head, want) || strings.Contains(head, "\n| b |") {
		t.Errorf("no\n%s in\n%s", want, head)
	}
}

// Whether a difference is beyond the spread is seen from the limit.
func TestBeyond(t *testing.T) {
	cellOf := func(turns ...float64) cell {
		return cell{&Series{}, &Point{Values: map[Metric]Value{P50: ValueOf(turns)}}}
	}
	for _, c := range []struct {
		row, rival []float64
		factor     float64
		want       bool
	}{
		{[]float64{3, 4}, []float64{1, 2}, 1, true},
		{[]float64{2, 4}, []float64{1, 2}, 1, false},
		{[]float64{3, 4}, []float64{1, 2}, 1.5, false},
		{[]float64{1, 2}, []float64{3, 4}, 1, true},
	} {
		row, rival := cellOf(c.row...), cellOf(c.rival...)
		v := verdict{row, rival, c.factor * rival.median(P50)}
		if v.beyond(P50) != c.want {
			t.Errorf("%v and %v times %v: %v", c.row, c.rival, c.factor, !c.want)
		}
	}
	if (verdict{cellOf(math.NaN()), cellOf(1), 1}).beyond(P50) {
		t.Error("beyond without a figure")
	}
}
