package report

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"testing"
	"time"

	"viaxdp/internal/lab/nstest"
)

func TestValueOf(t *testing.T) {
	for _, c := range []struct {
		turns          []float64
		median, spread float64
	}{
		{[]float64{3}, 3, 0},
		{[]float64{4, 2}, 3, 2. / 3},
		{[]float64{9, 2, 4}, 4, 7. / 4},
		{[]float64{10, 1, 3, 2}, 2.5, 9 / 2.5},
		{[]float64{0, 0, 5}, 0, 0},
	} {
		v := ValueOf(c.turns)
		if v.Median != c.median || v.Spread() != c.spread || !slices.Equal(v.Turns, c.turns) {
			t.Errorf("%v: %+v, spread %v; want median %v, spread %v", c.turns, v, v.Spread(), c.median, c.spread)
		}
	}
	if v := ValueOf(nil); !math.IsNaN(v.Median) || v.Spread() != 0 {
		t.Errorf("of no turns: %+v, spread %v", v, v.Spread())
	}
}

func TestRange(t *testing.T) {
	nan := math.NaN()
	for _, c := range []struct {
		v      Value
		lo, hi float64
	}{
		{Value{Median: 2, Turns: []float64{3, 1, 2}}, 1, 3},
		{Value{Median: 2, Turns: []float64{nan, 4, math.Inf(1)}}, 4, 4},
		{Value{Median: 2}, 2, 2},
	} {
		if lo, hi := c.v.Range(); lo != c.lo || hi != c.hi {
			t.Errorf("%+v: %v to %v", c.v, lo, hi)
		}
	}
	if lo, hi := ValueOf(nil).Range(); !math.IsNaN(lo) || !math.IsNaN(hi) {
		t.Errorf("of nothing: %v to %v", lo, hi)
	}
}

// Groups of a later run of as many turns take the place of those of the same name, or stand
// behind the others, and say when they were measured.
func TestRenew(t *testing.T) {
	r, by := sample(), &Report{Started: time.Unix(7, 0), Groups: []Group{{Name: "load", Title: "later"}, {Name: "new"}}}
	nstest.ErrorIf(t, r.Renewable(r.Turns) != nil || r.Renewable(r.Turns+1) == nil, "groups of another number of turns")
	n := len(r.Groups)
	r.Renew(by)
	if g := r.Group("load"); len(r.Groups) != n+1 || g.Title != "later" || g.Renewed != by.Started || r.Groups[n].Name != "new" {
		t.Errorf("%d groups, %+v", len(r.Groups), g)
	}
}

// single is a point with a figure of one turn for each metric.
func single(x float64, label string, figures map[Metric]float64) Point {
	p := Point{X: x, Label: label, N: 1, Values: map[Metric]Value{}}
	for m, v := range figures {
		p.Values[m] = ValueOf([]float64{v})
	}
	return p
}

// arraysIn are the arrays of a written report, which is read and written again with the same ones.
func arraysIn(t *testing.T, r *Report) (got struct{ Loss, Incast any }) {
	t.Helper()
	b := written(t, r)
	nstest.Must(t, json.Unmarshal(b, &got))
	again, err := Read(bytes.NewReader(b))
	nstest.Must(t, err)
	nstest.Same(t, "written again", written(t, again), b)
	return got
}

// The arrays have exactly the agreed names: one element for each fault, without the lossless
// point, and for each number of senders; a figure that is missing is null. A report without the
// groups has no such arrays.
func TestArrays(t *testing.T) {
	fault := func(x float64, label string, goodput, p99, spurious float64) Point {
		return single(x, label, map[Metric]float64{GoodputRatio: goodput, P99: p99, SpuriousRatio: spurious})
	}
	loss := Group{Name: LossGroup, Series: []Series{
		{Name: delivery, Points: []Point{fault(0, "lossless", 1, 50, 0), fault(1, "loss-1%", 0.95, 300, 0.001)}},
		{Name: LossTCP, Points: []Point{fault(0, "lossless", 1, 60, 0)}},
		{Name: LossBBR, Points: []Point{fault(1, "loss-1%", 0.5, 2e5, 0.002)}},
	}}
	incast := Group{Name: IncastGroup, Series: []Series{
		{Name: "vianet", Points: []Point{
			single(1, "", map[Metric]float64{SendersRatio: 1, Fairness: 1}),
			single(2, "", map[Metric]float64{SendersRatio: 0.75, Fairness: 0.9, LeastShare: 0.5, ResentRatio: 0.25, DroppedRatio: 0.125, Unnamed: 3}),
		}},
		{Name: "tcp-net", Points: []Point{single(2, "", map[Metric]float64{SendersRatio: 1.5, Fairness: 0.8, LeastShare: 0.3})}},
	}}
	r := &Report{Turns: 5, Groups: []Group{loss, incast}}
	got := arraysIn(t, r)
	has(t, page(t, r), "\nGoodput by that of one sender\n")
	want := any([]any{map[string]any{
		"fault": "loss-1%", "goodput_ratio": 0.95, "pingpong_p99_us": 300., "spurious_ratio": 0.001,
		"tcp":     map[string]any{"goodput_ratio": nil, "pingpong_p99_us": nil, "spurious_ratio": nil},
		"tcp_bbr": map[string]any{"goodput_ratio": 0.5, "pingpong_p99_us": 2e5, "spurious_ratio": 0.002},
	}})
	nstest.Same(t, "loss", got.Loss, want)
	figures := func(goodput, fairness, least, resent, dropped, unnamed any) map[string]any {
		return map[string]any{
			"goodput_ratio": goodput, "fairness": fairness, "least_share": least,
			"resent_ratio": resent, "dropped_ratio": dropped, "unnamed_frames": unnamed,
		}
	}
	one, two := figures(1., 1., nil, nil, nil, nil), figures(0.75, 0.9, 0.5, 0.25, 0.125, 3.)
	one["senders"], one["tcp"] = 1., figures(nil, nil, nil, nil, nil, nil)
	two["senders"], two["tcp"] = 2., figures(1.5, 0.8, 0.3, nil, nil, nil)
	nstest.Same(t, "incast", got.Incast, any([]any{one, two}))
	if got := arraysIn(t, &Report{}); got.Loss != nil || got.Incast != nil {
		t.Errorf("%+v", got)
	}
}
