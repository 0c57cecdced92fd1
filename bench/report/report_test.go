package report

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
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

// The median lies within the turns, and as many of them below as above.
func TestMedianWithinTurns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		turns := rapid.SliceOfN(rapid.Float64Range(-1e9, 1e9), 1, 20).Draw(t, "turns")
		v := ValueOf(turns)
		lo, hi := v.Range()
		if v.Median < lo || v.Median > hi || lo != slices.Min(turns) || hi != slices.Max(turns) {
			t.Fatalf("median %v, range %v to %v", v.Median, lo, hi)
		}
		below, above := 0, 0
		for _, x := range turns {
			if x < v.Median {
				below++
			} else if x > v.Median {
				above++
			}
		}
		if below > len(turns)/2 || above > len(turns)/2 {
			t.Fatalf("of %d turns %d are below the median %v, and %d above", len(turns), below, v.Median, above)
		}
	})
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

func TestFind(t *testing.T) {
	r := sample()
	if g := r.Group("load"); g == nil || g.Name != "load" {
		t.Error("the group load is not found")
	} else if s := g.Row("tcp-spin"); s == nil || s.Name != "tcp-spin" {
		t.Error("its series tcp-spin is not found")
	}
	if s := r.Group("pingpong").Row("tcp-spin"); s.At(4096) == nil || s.At(4097) != nil {
		t.Error("points are not found by X")
	}
	if r.Group("loa") != nil || r.Group("load").Row("tcp") != nil {
		t.Error("found by a part of the name")
	}
}

// Groups of a later run of as many turns take the place of those of the same name, or stand
// behind the others, and say when they were measured.
func TestRenew(t *testing.T) {
	r, by := sample(), &Report{Started: time.Unix(7, 0), Groups: []Group{{Name: "load", Title: "later"}, {Name: "new"}}}
	if r.Renewable(r.Turns) != nil || r.Renewable(r.Turns+1) == nil {
		t.Error("groups of another number of turns")
	}
	n := len(r.Groups)
	r.Renew(by)
	if g := r.Group("load"); len(r.Groups) != n+1 || g.Title != "later" || g.Renewed != by.Started || r.Groups[n].Name != "new" {
		t.Errorf("%d groups, %+v", len(r.Groups), g)
	}
}
