package report

import (
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// lines is a plot of a metric along the group's axis, a line for each series,
// with bars from the least to the greatest of the turns.
type lines struct {
	group *Group
	quantity
	log   bool // the Y axis
	lines []line
}

// line is a series, in ascending order of X.
type line struct {
	name string
	look look
	at   []spot
	tail []spot // 99 % latencies, of the load group
}

// spot is a median and the range of the turns at a place.
type spot struct{ x, y, lo, hi float64 }

func (s spot) ends() []float64 { return []float64{s.y, s.lo, s.hi} }

// loadGroup is the one whose question is how latency grows with load.
const loadGroup = "load"

// lines has no lines where there is nothing to draw.
func (g *Group) lines(q quantity) lines {
	l := lines{group: g, quantity: q, log: g.spans(q.metric, wideLinear) || g.Axis.Log && g.spans(q.metric, wideLog)}
	look := looks(g.names())
	for i := range g.Series {
		s := &g.Series[i]
		n := line{name: lineName(s.Name, q.metric), look: look[s.Name], at: s.spots(q, g.Axis.Log, l.log)}
		if g.Name == loadGroup && q.metric == P50 {
			n.tail = s.spots(quantityOf(P99), g.Axis.Log, l.log)
		}
		if len(n.at) > 0 {
			l.lines = append(l.lines, n)
		}
	}
	return l
}

func (g *Group) names() []string {
	var names []string
	for _, s := range g.Series {
		names = append(names, s.Name)
	}
	return names
}

// spans reports whether the figures of a group differ by more than a factor.
func (g *Group) spans(m Metric, factor float64) bool {
	var all []float64
	for i := range g.Series {
		for j := range g.Series[i].Points {
			if v := g.Series[i].Points[j].median(m); plottable(v, true) {
				all = append(all, v)
			}
		}
	}
	return len(all) > 0 && slices.Max(all) > factor*slices.Min(all)
}

// spots are the points of a series that have a place on the axes.
func (s *Series) spots(q quantity, logX, logY bool) []spot {
	var at []spot
	for i := range s.Points {
		p := &s.Points[i]
		y := p.median(q.metric) / q.per
		if !plottable(p.X, logX) || !plottable(y, logY) {
			continue
		}
		lo, hi := p.Values[q.metric].Range()
		lo, hi = min(lo/q.per, y), max(hi/q.per, y)
		if logY {
			lo = max(lo, y/1e9) // not lost in y-(y-lo)
		}
		if !plottable(lo, logY) {
			lo = y
		}
		if !plottable(hi, logY) {
			hi = y
		}
		at = append(at, spot{p.X, y, lo, hi})
	}
	slices.SortFunc(at, func(a, b spot) int { return compareX(a.x, b.x) })
	return at
}

func (l lines) plot() (*plot.Plot, error) {
	g := l.group
	title := g.title(l.title)
	if g.Name == loadGroup && l.metric == P50 && g.has(P99) {
		title = g.title(l.title + ", and 99 % dotted")
	}
	p := g.newPlot(title)
	p.X.Label.Text, p.Y.Label.Text = oneLine(g.Axis.Name), l.unit
	if g.Axis.Unit != "" && g.Axis.Unit != "bytes" {
		p.X.Label.Text += ", " + oneLine(g.Axis.Unit)
	}
	var xs, ys []float64
	labels := endLabels{style: text.Style{Font: sans(9), Handler: p.Title.TextStyle.Handler}}
	for _, n := range l.lines {
		if err := n.add(p); err != nil {
			return nil, err
		}
		for _, s := range n.at {
			xs, ys = append(xs, s.x), append(ys, s.ends()...)
		}
		for _, s := range n.tail {
			ys = append(ys, s.y)
		}
		end := n.at[len(n.at)-1]
		labels.labels = append(labels.labels, endLabel{end.x, end.y, n.name, n.look.color()})
	}
	p.Add(labels)
	slices.Sort(xs)
	setAxis(&p.X, xs, g.Axis.Log, false)
	setAxis(&p.Y, ys, l.log, true)
	p.X.Tick.Marker = g.places(slices.Compact(xs))
	return p, nil
}

// add draws a line, its points and their bars.
func (n line) add(p *plot.Plot) error {
	draws, points, err := plotter.NewLinePoints(xysOf(n.at))
	if err != nil {
		return err
	}
	draws.LineStyle, points.GlyphStyle = n.look.line(), n.look.glyph()
	bars := make(plotter.YErrors, len(n.at))
	for i, s := range n.at {
		bars[i].Low, bars[i].High = s.y-s.lo, s.hi-s.y
	}
	p.Add(&plotter.YErrorBars{
		XYs: xysOf(n.at), YErrors: bars, CapWidth: vg.Points(5),
		LineStyle: draw.LineStyle{Color: n.look.color(), Width: vg.Points(0.8)},
	}, draws, points)
	if len(n.tail) > 0 {
		tail, err := plotter.NewLine(xysOf(n.tail))
		if err != nil {
			return err
		}
		tail.LineStyle = draw.LineStyle{Color: n.look.color(), Width: vg.Points(1.3), Dashes: strokes[2]}
		p.Add(tail)
	}
	return nil
}

func xysOf(at []spot) plotter.XYs {
	xys := make(plotter.XYs, len(at))
	for i, s := range at {
		xys[i] = plotter.XY{X: s.x, Y: s.y}
	}
	return xys
}

// setAxis gives an axis the extent of some values, with room around them where
// roomy; linear ones that are roomy begin at 0.
func setAxis(a *plot.Axis, values []float64, log, roomy bool) {
	lo, hi := slices.Min(values), slices.Max(values)
	a.Scale, a.Tick.Marker = plot.LinearScale{}, linear{}
	switch {
	case log:
		a.Scale, a.Tick.Marker = plot.LogScale{}, decades{}
		if roomy || lo == hi {
			lo, hi = lo/1.3, hi*1.3
		}
	case roomy:
		lo, hi = 0, 1.08*hi
	}
	if lo == hi {
		hi = lo + 1
	}
	a.Min, a.Max = lo, hi
}
