package report

import (
	"bytes"
	"errors"
	"fmt"
	"image/color"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// picture is one plot of a group.
type picture struct {
	file string // its name in the directory of plots
	alt  string // what it shows, in a line
	// draw makes it; histograms is where the report lies.
	draw func(histograms fs.FS) (*plot.Plot, error)
	// height is that of the canvas.
	height vg.Length
}

const (
	plotWidth  = 9 * vg.Inch
	plotHeight = 5.2 * vg.Inch
	plotMargin = vg.Length(10)
)

// WritePlots writes the plots of a report, whose histograms lie in the same
// directory, as WritePlotsFrom does.
func (r *Report) WritePlots(dir string) ([]string, error) { return r.WritePlotsFrom(dir, dir) }

// WritePlotsFrom writes the plots of a report as SVG into a directory, which it
// makes if need be: for each group latency and bandwidth, or what it has
// instead, each figure of OSU's, and the percentiles of latencies for pingpong at 64 bytes and for
// load. from is the directory of the histograms. It returns the files written.
// A plot whose histograms cannot be read is left out; the others are written,
// and the error says which files are missing.
func (r *Report) WritePlotsFrom(from, dir string) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	histograms := os.DirFS(from)
	var files []string
	var errs []error
	for i := range r.Groups {
		for _, pic := range r.Groups[i].pictures() {
			path := filepath.Join(dir, pic.file)
			if err := pic.write(path, histograms); err != nil {
				if errors.Is(err, fs.ErrNotExist) {
					err = fmt.Errorf("%w: keep the report's *.hdr beside it", err)
				}
				errs = append(errs, fmt.Errorf("plot %s: %w", pic.file, err))
				continue
			}
			files = append(files, path)
		}
	}
	return files, errors.Join(errs...)
}

func (pic picture) write(path string, histograms fs.FS) error {
	p, err := pic.draw(histograms)
	if err != nil {
		return err
	}
	svg, err := render(p, pic.height)
	if err != nil {
		return err
	}
	return os.WriteFile(path, svg, 0o644)
}

// render makes SVG of a plot. Text is set in the fonts of whoever looks at it.
func render(p *plot.Plot, height vg.Length) ([]byte, error) {
	canvas := vgsvg.New(plotWidth, height)
	all := draw.New(canvas)
	all.SetColor(color.White)
	all.Fill(all.Rectangle.Path())
	p.Draw(draw.Crop(all, plotMargin, -plotMargin, plotMargin, -plotMargin))
	var svg bytes.Buffer
	if _, err := canvas.WriteTo(&svg); err != nil {
		return nil, err
	}
	return bytes.ReplaceAll(svg.Bytes(), []byte("font-family:Liberation Sans;"),
		[]byte("font-family:'Liberation Sans',Arial,Helvetica,sans-serif;")), nil
}

// pictures are the plots of a group. They follow from the report alone.
func (g *Group) pictures() []picture {
	var list []picture
	for _, f := range families {
		for _, m := range f.drawn(g) {
			q := quantityOf(m)
			name := f.name
			if f.peers {
				name = string(m)
			}
			pic := picture{file: slug(g.Name) + "-" + slug(name) + ".svg", alt: g.Title + ": " + q.heading()}
			if g.single() {
				if d := g.dots(q); len(d.dots) > 0 {
					pic.height = d.height()
					pic.draw = func(fs.FS) (*plot.Plot, error) { return d.plot() }
					list = append(list, pic)
				}
			} else if l := g.lines(q); len(l.lines) > 0 {
				pic.height = plotHeight
				pic.draw = func(fs.FS) (*plot.Plot, error) { return l.plot() }
				list = append(list, pic)
			}
		}
	}
	return append(list, g.percentilePictures()...)
}

// drawn are the metrics of a family that a group has a plot of each.
func (f family) drawn(g *Group) []Metric {
	if f.peers {
		return slices.DeleteFunc(slices.Clone(f.metrics), func(m Metric) bool { return !g.has(m) })
	}
	if lead, ok := f.lead(g); ok {
		return []Metric{lead}
	}
	return nil
}

// single reports whether the points of a group do not lie along an axis.
func (g *Group) single() bool {
	for i := range g.Series {
		for j := range g.Series[i].Points {
			if g.Series[i].Points[j].Label != "" {
				return true
			}
		}
	}
	return g.Axis.Name == "" || len(g.xs()) < 2
}

// plottable reports whether a value has a place on an axis.
func plottable(v float64, log bool) bool {
	return finite(v) && v < 1e30 && (v > 1e-30 || !log && v >= 0)
}

// Ratios of figures from which on their axis is logarithmic, where that of the
// places is and where it is not. Within less a logarithm shows nothing better.
const (
	wideLog    = 3
	wideLinear = 20
)

// newPlot is an empty plot of a group.
func (g *Group) newPlot(title string) *plot.Plot {
	p := plot.New()
	p.Title.Text = oneLine(title)
	p.Title.TextStyle.Font = sans(12)
	p.Title.Padding = vg.Points(8)
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Label.TextStyle.Font, a.Tick.Label.Font = sans(10), sans(9)
		a.Label.Padding = vg.Points(4)
		a.Tick.Length = vg.Points(4)
		a.LineStyle.Color, a.Tick.LineStyle.Color = color.Gray{90}, color.Gray{90}
	}
	grid := plotter.NewGrid()
	grid.Horizontal = draw.LineStyle{Color: color.Gray{225}, Width: vg.Points(0.5)}
	grid.Vertical = draw.LineStyle{Color: color.Gray{238}, Width: vg.Points(0.5)}
	p.Add(grid)
	return p
}

// title says what a plot shows and under which conditions.
func (g *Group) title(what string) string {
	on := ""
	if m := g.Conditions.CPUModel; m != "" {
		on = ", " + m
	}
	return fmt.Sprintf("%s: %s (MTU %d, XDP mode %s%s)", g.Name, strings.ToLower(what[:1])+what[1:],
		g.Conditions.MTU, orNone(g.Conditions.Mode), on)
}

func sans(points float64) font.Font {
	return font.Font{Typeface: "Liberation", Variant: "Sans", Size: vg.Points(points)}
}

// lineName is a series in a plot.
func lineName(series string, m Metric) string {
	if m.latency() && roundTrip(series) && !strings.Contains(series, "round trip") {
		return series + " (round trip)"
	}
	return oneLine(series)
}
