package report

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"image/color"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// picture is one plot of a group.
type picture struct {
	file string // its name in the directory of plots
	alt  string // what it shows, in a line
	// draw makes it; histograms is where the report lies.
	draw func(histograms fs.FS) (*chart, error)
}

// WritePlots writes the plots of a report as SVG into a directory, which it
// makes if need be: for each group one for each family of figures, each figure of
// OSU's, and the percentiles of latencies for pingpong at 64 bytes and for load. The
// report's histograms lie in the same directory. It returns the files written.
// A plot whose histograms cannot be read is left out; the others are written,
// and the error says which files are missing.
func (r *Report) WritePlots(dir string) ([]string, error) {
	return r.writePlots(dir, dir, (*Group).pictures)
}

// WriteDocumentPlots writes the plots that WriteMarkdown embeds, as WritePlots does.
// from is the directory of the histograms.
func (r *Report) WriteDocumentPlots(from, dir string) ([]string, error) {
	brief := r.brief()
	return r.writePlots(from, dir, func(g *Group) []picture { return g.documentPictures(brief) })
}

func (r *Report) writePlots(from, dir string, pictures func(*Group) []picture) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	histograms := os.DirFS(from)
	var files []string
	var errs []error
	for g := range each(r.Groups) {
		for _, pic := range pictures(g) {
			path := filepath.Join(dir, pic.file)
			c, err := pic.draw(histograms)
			if err == nil {
				var svg []byte
				if svg, err = c.render(); err == nil {
					err = os.WriteFile(path, svg, 0o644)
				}
			}
			if errors.Is(err, fs.ErrNotExist) {
				err = fmt.Errorf("%w: keep the report's *.hdr beside it", err)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("plot %s: %w", pic.file, err))
				continue
			}
			files = append(files, path)
		}
	}
	return files, errors.Join(errs...)
}

// pictures are the plots of a group. They follow from the report alone.
func (g *Group) pictures() []picture {
	var list []picture
	for _, f := range families {
		for _, m := range f.drawn(g) {
			q := quantityOf(m)
			if l := g.lines(q); len(l) > 0 {
				list = append(list, picture{g.plotFile(f.nameOf(m)), g.Title + ": " + q.heading(), func(fs.FS) (*chart, error) { return g.chart(q, l) }})
			}
		}
	}
	return append(list, g.percentilePictures()...)
}

// plotFile is the name of a group's plot; a group without a name has none before it.
func (g *Group) plotFile(name string) string {
	return strings.TrimPrefix(slug(g.Name)+"-", "_-") + slug(name) + ".svg"
}

// single reports whether the points of a group do not lie along an axis.
func (g *Group) single() bool {
	for c := range g.cells() {
		if c.Label != "" {
			return true
		}
	}
	return g.Axis.Name == "" || len(g.xs()) < 2
}

// loadGroup is the one whose question is how latency grows with load.
const loadGroup = "load"

// line is a series, in ascending order of X, with 99 % latencies for the load group.
type line struct {
	name     string
	at, tail []spot
}

// spot is a median and the range of the turns at a place.
type spot struct{ x, y, lo, hi float64 }

// lines are those of a metric, one for each series; none where there is nothing to
// draw. Points that do not lie along an axis stand beside each other.
func (g *Group) lines(q quantity) []line {
	logX, logY := g.Axis.Log && !g.single(), g.logarithmic(q)
	var list []line
	for s := range each(g.Series) {
		if g.single() {
			s = &Series{Name: s.Name, Points: slices.Clone(s.Points)}
			for j := range s.Points {
				s.Points[j].X = float64(slices.Index(g.xs(), s.Points[j].X))
			}
		}
		l := line{name: lineName(s.Name, q.metric), at: s.spots(q, logX, logY)}
		if g.Name == loadGroup && q.metric == P50 {
			l.tail = s.spots(quantityOf(P99), logX, logY)
		}
		if len(l.at) > 0 {
			list = append(list, l)
		}
	}
	return list
}

// logarithmic reports whether figures differ so much that a linear axis shows less: by a
// factor of 3 where the axis of the places is logarithmic, too, or else of 20.
func (g *Group) logarithmic(q quantity) bool {
	lo, hi := math.Inf(1), 0.
	for c := range g.cells() {
		if v := c.median(q.metric); plottable(v, true) {
			lo, hi = min(lo, v), max(hi, v)
		}
	}
	return hi > 20*lo || g.Axis.Log && hi > 3*lo
}

// plottable reports whether a value has a place on an axis.
func plottable(v float64, log bool) bool {
	return finite(v) && v < 1e30 && (v > 1e-30 || !log && v >= 0)
}

// spots are the points of a series that have a place on the axes.
func (s *Series) spots(q quantity, logX, logY bool) []spot {
	var at []spot
	for p := range each(s.Points) {
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
	slices.SortFunc(at, func(a, b spot) int { return cmp.Compare(a.x, b.x) })
	return at
}

// chart is a plot and its legend, which stands to the right of it.
type chart struct {
	*plot.Plot
	legend plot.Legend
}

// palette is that of Okabe and Ito, which is safe for colour-blind readers; its yellow,
// too faint for a line on white, is a grey here.
var palette = []color.Color{
	color.RGBA{0, 114, 178, 255}, color.RGBA{213, 94, 0, 255}, color.RGBA{0, 158, 115, 255}, color.RGBA{230, 159, 0, 255},
	color.RGBA{204, 121, 167, 255}, color.RGBA{86, 180, 233, 255}, color.RGBA{0, 0, 0, 255}, color.RGBA{130, 130, 130, 255},
}

// styleOf gives line i of a plot a colour, dashes where all colours are taken, and points.
func styleOf(i int) (draw.LineStyle, draw.GlyphStyle) {
	c := palette[i%len(palette)]
	return draw.LineStyle{Color: c, Width: vg.Points(1.5), Dashes: plotutil.Dashes(i / len(palette))},
		draw.GlyphStyle{Color: c, Radius: vg.Points(2.8), Shape: plotutil.Shape(i)}
}

// newChart is an empty plot of a group; its title says what it shows, and under which conditions.
func (g *Group) newChart(what string) *chart {
	p := plot.New()
	under := fmt.Sprintf("MTU %d", g.Conditions.MTU)
	if m := g.Conditions.Mode; m != "" {
		under += ", XDP mode " + m
	}
	if m := g.Conditions.CPUModel; m != "" {
		under += ", " + m
	}
	p.Title.Text = oneLine(strings.TrimPrefix(fmt.Sprintf("%s: %s (%s)", g.Name, strings.ToLower(what[:1])+what[1:], under), ": "))
	p.Title.TextStyle.Font = sans(12)
	p.Title.Padding = vg.Points(8)
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Label.TextStyle.Font, a.Tick.Label.Font = sans(10), sans(9)
		a.Label.Padding = vg.Points(4)
	}
	grid := plotter.NewGrid()
	grid.Horizontal = draw.LineStyle{Color: color.Gray{225}, Width: vg.Points(0.5)}
	grid.Vertical = grid.Horizontal
	p.Add(grid)
	c := &chart{p, plot.NewLegend()}
	c.legend.Top, c.legend.ThumbnailWidth, c.legend.Padding = true, vg.Points(18), vg.Points(2)
	c.legend.TextStyle.Font = sans(9)
	return c
}

func sans(points float64) font.Font {
	return font.Font{Typeface: "Liberation", Variant: "Sans", Size: vg.Points(points)}
}

// chart draws a metric along the group's axis, with bars from the least to the greatest
// of the turns.
func (g *Group) chart(q quantity, lines []line) (*chart, error) {
	what := q.title
	if lines[0].tail != nil {
		what += ", and 99 % dotted"
	}
	c := g.newChart(what)
	c.X.Label.Text, c.Y.Label.Text = oneLine(g.Axis.Name), q.unit
	if g.Axis.Unit != "" && g.Axis.Unit != "bytes" {
		c.X.Label.Text += ", " + oneLine(g.Axis.Unit)
	}
	var xs, ys []float64
	for i, l := range lines {
		stroke, glyph := styleOf(i)
		xys, bars := plotter.XYs{}, plotter.YErrors{}
		for _, s := range l.at {
			xys, xs, ys = append(xys, plotter.XY{X: s.x, Y: s.y}), append(xs, s.x), append(ys, s.lo, s.y, s.hi)
			bars = append(bars, struct{ Low, High float64 }{s.y - s.lo, s.hi - s.y})
		}
		joined, points, err := plotter.NewLinePoints(xys)
		if err != nil {
			return nil, err
		}
		joined.LineStyle, points.GlyphStyle = stroke, glyph
		c.Add(&plotter.YErrorBars{XYs: xys, YErrors: bars, CapWidth: vg.Points(5), LineStyle: draw.LineStyle{Color: stroke.Color, Width: vg.Points(0.8)}}, points)
		c.legend.Add(l.name, joined, points)
		if !g.single() {
			c.Add(joined)
		}
		tail := plotter.XYs{}
		for _, s := range l.tail {
			tail, ys = append(tail, plotter.XY{X: s.x, Y: s.y}), append(ys, s.y)
		}
		if len(tail) > 0 {
			c.Add(&plotter.Line{XYs: tail, LineStyle: draw.LineStyle{Color: stroke.Color, Width: vg.Points(1.3), Dashes: []vg.Length{vg.Points(1.5), vg.Points(2)}}})
		}
	}
	setAxis(&c.Y, ys, g.logarithmic(q), true)
	setAxis(&c.X, xs, g.Axis.Log && !g.single(), false)
	g.markPlaces(&c.X)
	return c, nil
}

// maxPlaces is how many places of points there is room to label.
const maxPlaces = 14

// markPlaces marks the places that the points have, unless they are too many or
// each series has its own.
func (g *Group) markPlaces(a *plot.Axis) {
	xs := g.xs()
	if !g.single() && (len(xs) > maxPlaces || !g.shared()) {
		return
	}
	var ticks plot.ConstantTicks
	for i, x := range xs {
		t := plot.Tick{Value: x, Label: g.column(x)}
		if g.single() {
			t.Value = float64(i)
		} else if !plottable(x, g.Axis.Log) {
			continue
		}
		ticks = append(ticks, t)
	}
	a.Tick.Marker = ticks
	if g.single() {
		a.Min, a.Max = -0.5, float64(len(xs))-0.5
		a.Tick.Label.Rotation, a.Tick.Label.XAlign, a.Tick.Label.YAlign = math.Pi/8, draw.XRight, draw.YTop
	}
}

// setAxis gives an axis the extent of some values, with room around them where
// roomy; linear ones that are roomy begin at 0.
func setAxis(a *plot.Axis, values []float64, log, roomy bool) {
	lo, hi := slices.Min(values), slices.Max(values)
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

// decades marks 1, 2 and 5 of each power of ten, or only those powers that there
// is room for.
type decades struct{}

func (decades) Ticks(lo, hi float64) []plot.Tick {
	first, last := math.Floor(math.Log10(lo)), math.Ceil(math.Log10(hi))
	step, of := 1.0, []float64{1, 2, 5}
	if last-first > 4 {
		step, of = math.Ceil((last-first)/12), []float64{1}
	}
	var ticks []plot.Tick
	for e := first; e <= last; e += step {
		for _, m := range of {
			if v := m * math.Pow(10, e); v >= lo && v <= hi {
				ticks = append(ticks, plot.Tick{Value: v, Label: tickLabel(v)})
			}
		}
	}
	return ticks
}

// tickLabel is a number in a few characters.
func tickLabel(v float64) string {
	short := func(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }
	switch {
	case v >= 1e6 && v < 1e10:
		return short(v/1e6) + "M"
	case v >= 1e4 && v < 1e6:
		return short(v/1e3) + "k"
	}
	return short(v)
}

// render makes SVG of a chart. Text is set in the fonts of the viewer.
func (c *chart) render() ([]byte, error) {
	const margin = vg.Length(10)
	canvas := vgsvg.New(10*vg.Inch, 5.2*vg.Inch)
	all := draw.New(canvas)
	all.SetColor(color.White)
	all.Fill(all.Rectangle.Path())
	all = draw.Crop(all, margin, -margin, margin, -margin)
	legend := c.legend.Rectangle(all)
	c.legend.YOffs = -c.Title.TextStyle.Height(c.Title.Text) - c.Title.Padding
	c.legend.Draw(all)
	c.Draw(draw.Crop(all, 0, -margin-legend.Size().X, 0, 0))
	var svg bytes.Buffer
	if _, err := canvas.WriteTo(&svg); err != nil {
		return nil, err
	}
	return bytes.ReplaceAll(svg.Bytes(), []byte("font-family:Liberation Sans;"),
		[]byte("font-family:'Liberation Sans',Arial,Helvetica,sans-serif;")), nil
}

// lineName is a series in a plot.
func lineName(series string, m Metric) string {
	if m.latency() && roundTrip(series) && !strings.Contains(series, "round trip") {
		return series + " (round trip)"
	}
	return oneLine(series)
}
