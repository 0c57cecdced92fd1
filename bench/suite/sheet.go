package suite

import (
	"fmt"
	"maps"
	"slices"

	"github.com/HdrHistogram/hdrhistogram-go"

	"viaxdp/bench"
	"viaxdp/bench/report"
	"viaxdp/internal/lab/fail"
)

// sheet gathers the turns of each point.
type sheet struct {
	order  []string // series
	points map[string][]*gathered
	turn   int             // that is measured, from 1
	left   map[string]bool // places of other people's programs that have failed
}

// gathered is what the turns of a point have given.
type gathered struct {
	sheet      *sheet
	x          float64
	label      string
	values     map[report.Metric][]float64
	n          int64
	histograms []*hdrhistogram.Histogram
	disturbed  map[string]map[int]bool // turns by reason
	turns      map[int]bool
}

// newSheet lays out the series and points in the order of the parts.
func newSheet(parts []part) *sheet {
	t := &sheet{points: map[string][]*gathered{}, left: map[string]bool{}}
	for _, p := range parts {
		for _, r := range p.rows {
			for _, bytes := range p.sizes {
				for _, stream := range []bool{false, true} {
					if stream && p.bandwidth || !stream && p.latency {
						t.at(p.series(r, bytes, stream))
					}
				}
			}
		}
	}
	return t
}

// gather measures in a number of turns, and fills the group with the results: the series
// of parts first.
func (s *session) gather(g *report.Group, turns int, turn func(t *sheet), parts ...part) *report.Group {
	t := newSheet(parts)
	for t.turn = 1; t.turn <= turns; t.turn++ {
		s.turn = fmt.Sprintf(" (turn %d of %d)", t.turn, turns)
		turn(t)
	}
	s.turn = ""
	t.fill(g, s.at.Group, s.Out)
	return g
}

// at finds or makes a point.
func (t *sheet) at(series string, x float64) *gathered {
	points, known := t.points[series]
	if !known {
		t.order = append(t.order, series)
	}
	for _, p := range points {
		if p.x == x {
			return p
		}
	}
	p := &gathered{
		sheet: t, x: x, values: map[report.Metric][]float64{},
		disturbed: map[string]map[int]bool{}, turns: map[int]bool{},
	}
	t.points[series] = append(points, p)
	return p
}

// pingPong takes the figures of one turn of a row of a part.
func (t *sheet) pingPong(p part, r row, bytes int, x *bench.ExchangeResult) {
	g, us := t.at(p.series(r, bytes, false)), oneWay
	if bench.RoundTrip(r.Name) {
		us = micro
	}
	g.times(x.RoundTrips, us)
	if p.apart {
		g.put(report.CPUTx, x.CPUTx/2)
	}
	g.disturb(x.Disturbed)
}

// oneWay is half of a time in nanoseconds, in microseconds.
func oneWay(ns int64) float64 { return micro(ns) / 2 }

// stream takes the figures of one turn of a row of a part.
func (t *sheet) stream(p part, r row, bytes int, x *bench.ExchangeResult) {
	g := t.at(p.series(r, bytes, true))
	g.put(report.Peak, x.Peak)
	g.put(report.Bandwidth, x.MBps)
	g.put(report.Rate, x.PerSecond)
	g.put(report.CPUTx, x.CPUTx)
	g.put(report.CPURx, x.CPURx)
	g.n += x.N
	g.disturb(x.Disturbed)
}

func (g *gathered) put(m report.Metric, v float64) { g.values[m] = append(g.values[m], v) }

// disturb records why the current turn of the point is doubtful, if it is.
func (g *gathered) disturb(reasons []string) {
	turn := g.sheet.turn
	g.turns[turn] = true
	for _, r := range reasons {
		if g.disturbed[r] == nil {
			g.disturbed[r] = map[int]bool{}
		}
		g.disturbed[r][turn] = true
	}
}

// fill puts everything into the report's group, and the histograms into a
// directory unless its name is empty.
func (t *sheet) fill(g *report.Group, name, dir string) {
	for _, series := range t.order {
		s := report.Series{Name: series}
		for _, at := range t.points[series] {
			p := report.Point{X: at.x, Label: at.label, Values: map[report.Metric]report.Value{}, N: at.n}
			for m, turns := range at.values {
				p.Values[m] = report.ValueOf(turns)
			}
			for _, reason := range slices.Sorted(maps.Keys(at.disturbed)) {
				p.Disturbed = append(p.Disturbed, fmt.Sprintf("%s (%d of %d turns)", reason, len(at.disturbed[reason]), len(at.turns)))
			}
			if dir != "" && len(at.histograms) > 0 {
				fail.If(p.SaveHistograms(dir, name, series, at.histograms...))
			}
			s.Points = append(s.Points, p)
		}
		g.Series = append(g.Series, s)
	}
}
