package report

import (
	"image/color"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// dots is a plot of a group whose points are no line: one under the other, with
// bars from the least to the greatest of the turns, and the median in figures.
type dots struct {
	group *Group
	quantity
	log  bool
	dots []dot
}

// dot is one point, from left to right.
type dot struct {
	spot
	name string
	look look
}

// dots has no dots where there is nothing to draw.
func (g *Group) dots(q quantity) dots {
	d := dots{group: g, quantity: q, log: g.spans(q.metric, wideLinear)}
	look := looks(g.names())
	for _, block := range g.blocks() {
		for _, c := range block {
			// Nothing but the figure has to be plottable.
			one := Series{Points: []Point{{Values: c.Values}}}
			for _, s := range one.spots(q, false, d.log) {
				d.dots = append(d.dots, dot{s, g.dotName(c, q.metric), look[c.Name]})
			}
		}
	}
	return d
}

func (g *Group) dotName(c cell, m Metric) string {
	name := lineName(c.Name, m)
	at := oneLine(g.at(c.Point))
	if at == "" || len(c.Points) == 1 && c.Label == "" {
		return name
	}
	if at == name {
		return at
	}
	return name + ", " + at
}

func (d dots) height() vg.Length { return vg.Points(80 + 17*float64(len(d.dots))) }

func (d dots) plot() (*plot.Plot, error) {
	p := d.group.newPlot(d.group.title(d.title))
	p.X.Label.Text = d.unit
	style := text.Style{Font: sans(8), Color: color.Black, YAlign: draw.YCenter, Handler: p.Title.TextStyle.Handler}
	figures := &plotter.Labels{Offset: vg.Point{X: vg.Points(7)}}
	var names plot.ConstantTicks
	var xs []float64
	for i, o := range d.dots {
		y := float64(len(d.dots) - 1 - i) // from the top
		at := plotter.XYs{{X: o.y, Y: y}}
		point, err := plotter.NewScatter(at)
		if err != nil {
			return nil, err
		}
		point.GlyphStyle = o.look.glyph()
		bar := draw.LineStyle{Color: o.look.color(), Width: vg.Points(1)}
		p.Add(&plotter.XErrorBars{
			XYs: at, XErrors: plotter.XErrors{{Low: o.y - o.lo, High: o.hi - o.y}},
			LineStyle: bar, CapWidth: vg.Points(5),
		}, point)
		names = append(names, plot.Tick{Value: y, Label: o.name})
		figures.XYs = append(figures.XYs, plotter.XY{X: o.hi, Y: y})
		figures.Labels = append(figures.Labels, round(o.y))
		figures.TextStyle = append(figures.TextStyle, style)
		xs = append(xs, o.ends()...)
	}
	p.Add(figures)
	setAxis(&p.X, xs, d.log, true)
	p.Y.Min, p.Y.Max = -0.5, float64(len(d.dots))-0.5
	p.Y.Tick.Marker = names
	p.Y.Tick.Length = 0
	slices.Reverse(names)
	return p, nil
}
