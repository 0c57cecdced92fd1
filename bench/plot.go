package bench

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// Files that WritePlots makes.
const (
	latencyPlot   = "latency.svg"
	bandwidthPlot = "bandwidth.svg"
)

// WritePlots writes latency.svg (medians) and bandwidth.svg into a directory,
// which it makes if need be: one line for each name over the message size,
// both axes logarithmic. A line of round trips among the latencies says so. It
// returns the files written.
func (r *Result) WritePlots(dir string) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	latency := make(map[string]plotter.XYs)
	for _, l := range r.Latency {
		latency[l.Name] = append(latency[l.Name], plotter.XY{X: float64(l.Bytes), Y: l.P50})
	}
	bandwidth := make(map[string]plotter.XYs)
	for _, b := range r.Bandwidth {
		bandwidth[b.Name] = append(bandwidth[b.Name], plotter.XY{X: float64(b.Bytes), Y: b.MBps})
	}
	var files []string
	for _, f := range []struct {
		name, title, unit string
		lines             map[string]plotter.XYs
		label             func(name string) string
	}{
		{latencyPlot, "Latency one way, median", "microseconds", latency, rowName},
		{bandwidthPlot, "Bandwidth, one direction", "MB/s", bandwidth, func(name string) string { return name }},
	} {
		if len(f.lines) == 0 {
			continue
		}
		path := filepath.Join(dir, f.name)
		if err := r.plot(path, f.title, f.unit, f.lines, f.label); err != nil {
			return files, fmt.Errorf("%s: %w", path, err)
		}
		files = append(files, path)
	}
	return files, nil
}

func (r *Result) plot(path, title, unit string, lines map[string]plotter.XYs, label func(string) string) error {
	p := plot.New()
	p.Title.Text = fmt.Sprintf("%s (MTU %d, XDP mode %s)", title, r.Conditions.MTU, orNone(r.Conditions.Mode))
	if r.Conditions.CPUModel != "" {
		p.Title.Text += "\n" + r.Conditions.CPU()
	}
	p.X.Label.Text, p.Y.Label.Text = "message size, bytes", unit
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.ConstantTicks(sizeTicks(lines)), decades{}
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.TextStyle.Font.Size = vg.Points(8)
	p.Legend.Padding = vg.Points(1.5)
	p.Legend.XOffs = vg.Points(8)
	p.Add(plotter.NewGrid())

	looks := newLooks()
	drawn := 0
	for _, name := range slices.Concat(Names(), ProgramsInC()) {
		look := looks.next(name)
		// A logarithm needs something to show.
		xys := slices.DeleteFunc(lines[name], func(p plotter.XY) bool { return p.X <= 0 || p.Y <= 0 })
		if len(xys) == 0 {
			continue
		}
		slices.SortFunc(xys, func(a, b plotter.XY) int { return int(a.X - b.X) })
		line, points, err := plotter.NewLinePoints(xys)
		if err != nil {
			return err
		}
		line.Color, points.Color = plotutil.Color(look.family), plotutil.Color(look.family)
		line.Dashes, points.Shape = plotutil.Dashes(look.member), plotutil.Shape(look.member)
		points.Radius = vg.Points(2.5)
		p.Add(line, points)
		p.Legend.Add(label(name), line, points)
		drawn++
	}
	if drawn == 0 {
		return errors.New("no values above zero")
	}
	widen(&p.X)
	p.X.Max *= 1.3 // the last label is wide
	widen(&p.Y)
	// Room for the legend above the lines.
	p.Y.Max *= 12
	return save(p, path)
}

// look of a line: a colour for each family, dashes and points for its members.
type look struct{ family, member int }

// looks gives them out.
type looks struct {
	families []string
	members  map[string]int
}

func newLooks() *looks { return &looks{members: map[string]int{}} }

// next is the look of a name: the forms of a transport that poll, copy, sleep and are
// in C are a family, and so are all of TCP and of UDP. RDMA joins the level that it
// runs at: there are seven colours.
func (l *looks) next(name string) look {
	family := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "-c"), "-wait"), "-copy")
	if strings.HasPrefix(name, "vi-rdma-") {
		family = "vi-reliable-delivery"
	}
	for _, kernel := range []string{"tcp", "udp"} {
		if strings.HasPrefix(name, kernel+"-") {
			family = kernel
		}
	}
	if !slices.Contains(l.families, family) {
		l.families = append(l.families, family)
	}
	l.members[family]++
	return look{slices.Index(l.families, family), l.members[family] - 1}
}

func save(p *plot.Plot, path string) error {
	w, err := p.WriterTo(9*vg.Inch, 6*vg.Inch, "svg")
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = w.WriteTo(f)
	return errors.Join(err, f.Close())
}

// widen gives an axis with a single value an extent.
func widen(a *plot.Axis) {
	if a.Max <= a.Min {
		a.Min, a.Max = a.Min/2, a.Max*2
	}
}

// sizeTicks marks the sizes measured.
func sizeTicks(lines map[string]plotter.XYs) []plot.Tick {
	var ticks []plot.Tick
	for _, xys := range lines {
		for _, p := range xys {
			t := plot.Tick{Value: p.X, Label: sizeLabel(int(p.X))}
			if !slices.Contains(ticks, t) {
				ticks = append(ticks, t)
			}
		}
	}
	return ticks
}

func sizeLabel(bytes int) string {
	switch {
	case bytes >= 1<<20 && bytes%(1<<20) == 0:
		return fmt.Sprintf("%d Mi", bytes>>20)
	case bytes >= 1<<10 && bytes%(1<<10) == 0:
		return fmt.Sprintf("%d Ki", bytes>>10)
	}
	return fmt.Sprint(bytes)
}

// decades marks 1, 2 and 5 of each power of ten.
type decades struct{}

// Ticks, see plot.Ticker.
func (decades) Ticks(lo, hi float64) []plot.Tick {
	var ticks []plot.Tick
	for e := math.Floor(math.Log10(lo)); e <= math.Ceil(math.Log10(hi)); e++ {
		for _, m := range []float64{1, 2, 5} {
			v := m * math.Pow(10, e)
			if v >= lo && v <= hi {
				ticks = append(ticks, plot.Tick{Value: v, Label: fmt.Sprintf("%g", round3(v))})
			}
		}
	}
	return ticks
}

var _ plot.Ticker = decades{}
