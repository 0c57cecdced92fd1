package report

import (
	"cmp"
	"errors"
	"image/color"
	"io/fs"
	"math"
	"slices"
	"strconv"

	"github.com/HdrHistogram/hdrhistogram-go"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// pingpongGroup has the percentiles of a small message.
const (
	pingpongGroup = "pingpong"
	smallMessage  = 64
)

// curve is one point's distribution of latencies.
type curve struct {
	name   string
	line   draw.LineStyle
	series *Series
	point  *Point
}

// percentilePictures are those of a group that has histograms to show: for
// pingpong all series at 64 bytes, for load each series at all its rates, the darker the more.
func (g *Group) percentilePictures() []picture {
	var list []picture
	add := func(name, title string, curves []curve) {
		if len(curves) > 0 {
			list = append(list, picture{g.plotFile(name), title, func(dir fs.FS) (*chart, error) { return g.percentiles(dir, title, curves) }})
		}
	}
	switch g.Name {
	case pingpongGroup:
		var curves []curve
		for i := range g.Series {
			s := &g.Series[i]
			if at := s.At(smallMessage); at != nil && at.Histogram != "" {
				stroke, _ := styleOf(i)
				curves = append(curves, curve{lineName(s.Name, P50), stroke, s, at})
			}
		}
		add("percentiles", "Latency of 64 bytes by percentile", curves)
	case loadGroup:
		for s := range each(g.Series) {
			var curves []curve
			for at := range each(s.Points) {
				if at.Histogram != "" {
					curves = append(curves, curve{tickLabel(at.X) + " " + oneLine(g.Axis.Unit), draw.LineStyle{Width: vg.Points(1.5)}, s, at})
				}
			}
			slices.SortFunc(curves, func(a, b curve) int { return cmp.Compare(a.point.X, b.point.X) })
			for j := range curves {
				curves[j].line.Color = ramp(j, len(curves))
			}
			add("percentiles-"+slug(s.Name), "Latency by percentile and "+oneLine(g.Axis.Name)+", "+oneLine(s.Name), curves)
		}
	}
	return list
}

// ramp is the colour of one of n lines that have an order, from light to dark:
// a blue that grows, readable in grey.
func ramp(i, n int) color.RGBA {
	t := 1.0
	if n > 1 {
		t = float64(i) / float64(n-1)
	}
	mix := func(from, to float64) uint8 { return uint8(from + t*(to-from)) }
	return color.RGBA{mix(107, 8), mix(174, 29), mix(214, 88), 255}
}

// percentiles draws the distribution of latencies as HdrHistogram shows it: the share of
// messages along the X axis, on which each nine has the same width, and their highest latency.
func (g *Group) percentiles(dir fs.FS, title string, curves []curve) (*chart, error) {
	p := g.newChart(title)
	p.X.Label.Text, p.Y.Label.Text = "share of messages", "us"
	widest, ys := 0.9, []float64(nil)
	for _, c := range curves {
		h, err := c.point.LoadHistogram(dir)
		if err != nil {
			return nil, err
		}
		// Histograms are of whole round trips. The report has half of them, except for series that
		// say so and those under load.
		per := 1. / 2000
		if g.Name == loadGroup || roundTrip(c.series.Name) {
			per = 1. / 1000
		}
		xys := distribution(h, per)
		if len(xys) == 0 {
			continue
		}
		line := &plotter.Line{XYs: xys, LineStyle: c.line}
		p.Add(line)
		p.legend.Add(c.name, line)
		end := xys[len(xys)-1]
		widest = max(widest, end.X)
		ys = append(ys, xys[0].Y, end.Y)
	}
	if len(ys) == 0 {
		return nil, errors.New("the histograms are empty")
	}
	setAxis(&p.Y, ys, true, true)
	p.X.Scale, p.X.Tick.Marker = nines{}, nines{}
	p.X.Min, p.X.Max = 0, widest
	return p, nil
}

// distribution gives, for each share of the messages, the highest latency in us. It ends
// before the share of 1, which a scale of nines cannot show.
func distribution(h *hdrhistogram.Histogram, perNanosecond float64) plotter.XYs {
	var xys plotter.XYs
	for _, b := range h.CumulativeDistributionWithTicks(5) {
		share := float64(b.Count) / float64(h.TotalCount())
		y := float64(b.ValueAt) * perNanosecond
		if y > 0 && share <= 1-math.Pow(10, -maxNines) {
			xys = append(xys, plotter.XY{X: share, Y: y})
		}
	}
	return xys
}

// nines is a scale of shares below 1 on which 90 %, 99 % and 99.9 % are equally
// far apart.
type nines struct{}

// maxNines is how far the scale goes: 99.99999 %.
const maxNines = 7

func (nines) Normalize(lo, hi, x float64) float64 {
	n := func(share float64) float64 { return -math.Log10(1 - share) }
	return (n(x) - n(lo)) / (n(hi) - n(lo))
}

func (nines) Ticks(lo, hi float64) []plot.Tick {
	ticks := []plot.Tick{{Value: 0, Label: "0"}, {Value: 0.5, Label: "50%"}}
	for n := 1; n <= maxNines; n++ {
		share := 1 - math.Pow(10, -float64(n))
		if share > hi {
			break
		}
		ticks = append(ticks, plot.Tick{Value: share, Label: strconv.FormatFloat(100*share, 'f', max(n-2, 0), 64) + "%"})
	}
	return ticks
}
