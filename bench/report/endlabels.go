package report

import (
	"image/color"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// endLabel names a line at its end.
type endLabel struct {
	x, y  float64 // where the line ends
	text  string
	color color.Color
}

// endLabels are the legend of a plot: each line's name beside it, to the right
// of the data, moved up or down where names would overlap.
type endLabels struct {
	labels []endLabel
	style  text.Style
}

const (
	leaderLength = vg.Length(16) // from the data to the names
	leaderGap    = vg.Length(3)  // before a name
)

// Plot is plot.Plotter.
func (e endLabels) Plot(c draw.Canvas, p *plot.Plot) {
	trX, trY := p.Transforms(&c)
	labels := slices.Clone(e.labels)
	slices.SortStableFunc(labels, func(a, b endLabel) int { return compareX(a.y, b.y) })
	want := make([]float64, len(labels))
	for i, l := range labels {
		want[i] = float64(trY(l.y))
	}
	gap := 1.05 * float64(e.style.Height("x"))
	for i, y := range apart(want, gap, float64(c.Min.Y), float64(c.Max.Y)) {
		l := labels[i]
		c.StrokeLine2(draw.LineStyle{Color: l.color, Width: vg.Points(0.4), Dashes: []vg.Length{1, 2}},
			trX(l.x), trY(l.y), c.Max.X+leaderLength-leaderGap, vg.Length(y))
		style := e.style
		style.Color, style.XAlign, style.YAlign = l.color, draw.XLeft, draw.YCenter
		c.FillText(style, vg.Point{X: c.Max.X + leaderLength, Y: vg.Length(y)}, l.text)
	}
}

// GlyphBoxes is plot.GlyphBoxer: the room that the names need.
func (e endLabels) GlyphBoxes(*plot.Plot) []plot.GlyphBox {
	width := vg.Length(0)
	for _, l := range e.labels {
		width = max(width, e.style.Width(l.text))
	}
	return []plot.GlyphBox{{X: 1, Y: 0.5, Rectangle: vg.Rectangle{Max: vg.Point{X: leaderLength + width}}}}
}

// apart moves ascending positions as little as possible so that they are a gap
// apart and from lo to hi; where there is no room for that, the gap is smaller.
func apart(want []float64, gap, lo, hi float64) []float64 {
	n := len(want)
	if n > 1 {
		gap = min(gap, (hi-lo)/float64(n-1))
	}
	// Less their share of the gaps, positions only have to ascend: means over
	// the stretches that do not are nearest to what is wanted.
	type stretch struct {
		sum float64
		n   int
	}
	mean := func(s stretch) float64 { return s.sum / float64(s.n) }
	var all []stretch
	for i, w := range want {
		s := stretch{w - float64(i)*gap, 1}
		for len(all) > 0 && mean(all[len(all)-1]) > mean(s) {
			s.sum, s.n = s.sum+all[len(all)-1].sum, s.n+all[len(all)-1].n
			all = all[:len(all)-1]
		}
		all = append(all, s)
	}
	out := make([]float64, 0, n)
	for _, s := range all {
		at := max(lo, min(mean(s), hi-float64(n-1)*gap))
		for range s.n {
			out = append(out, at+float64(len(out))*gap)
		}
	}
	return out
}
