package report

import (
	"errors"
	"io/fs"
	"math"
	"slices"

	"github.com/HdrHistogram/hdrhistogram-go"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// percentiles is the distribution of latencies as HdrHistogram shows it: the
// share of messages along the X axis, where each nine has the same room, and up
// to which latency they are.
type percentiles struct {
	group  *Group
	title  string
	curves []curve
}

// curve is one point's histogram.
type curve struct {
	name   string
	line   draw.LineStyle
	series *Series
	point  *Point
}

// pingpongGroup has the percentiles of a small message.
const (
	pingpongGroup = "pingpong"
	smallMessage  = 64
)

// percentilePictures are those of a group that has histograms to show: for
// pingpong all series at 64 bytes, for load each series at all its rates.
func (g *Group) percentilePictures() []picture {
	var list []picture
	add := func(file string, p percentiles) {
		if len(p.curves) > 0 {
			list = append(list, picture{file: file, alt: p.title, height: plotHeight, draw: p.plot})
		}
	}
	switch g.Name {
	case pingpongGroup:
		p := percentiles{group: g, title: "Latency of 64 bytes by percentile"}
		look := looks(g.names())
		for i := range g.Series {
			s := &g.Series[i]
			if at := s.At(smallMessage); at != nil && at.Histogram != "" {
				l := look[s.Name]
				p.curves = append(p.curves, curve{lineName(s.Name, P50), l.line(), s, at})
			}
		}
		add(slug(g.Name)+"-percentiles.svg", p)
	case loadGroup:
		for i := range g.Series {
			s := &g.Series[i]
			add(slug(g.Name)+"-percentiles-"+slug(s.Name)+".svg", g.underLoad(s))
		}
	}
	return list
}

// underLoad has a curve for each rate, the darker the more.
func (g *Group) underLoad(s *Series) percentiles {
	p := percentiles{group: g, title: "Latency by percentile and " + oneLine(g.Axis.Name) + ", " + oneLine(s.Name)}
	var kept []*Point
	for i := range s.Points {
		if s.Points[i].Histogram != "" {
			kept = append(kept, &s.Points[i])
		}
	}
	slices.SortFunc(kept, func(a, b *Point) int { return compareX(a.X, b.X) })
	for i, at := range kept {
		line := draw.LineStyle{Color: ramp(i, len(kept)), Width: vg.Points(1.5)}
		p.curves = append(p.curves, curve{tickLabel(at.X) + " " + oneLine(g.Axis.Unit), line, s, at})
	}
	return p
}

func (d percentiles) plot(dir fs.FS) (*plot.Plot, error) {
	histograms := make([]*hdrhistogram.Histogram, len(d.curves))
	ratios := map[*Series][]float64{}
	for i, c := range d.curves {
		h, err := c.point.LoadHistogram(dir)
		if err != nil {
			return nil, err
		}
		histograms[i] = h
		if r := float64(h.ValueAtPercentile(50)) / 1000 / c.point.median(P50); finite(r) {
			ratios[c.series] = append(ratios[c.series], r)
		}
	}
	p := d.group.newPlot(d.group.title(d.title))
	p.X.Label.Text, p.Y.Label.Text = "share of messages", "us"
	labels := endLabels{style: text.Style{Font: sans(9), Handler: p.Title.TextStyle.Handler}}
	widest, ys := 0.9, []float64(nil)
	for i, c := range d.curves {
		xys := distribution(histograms[i], perNanosecond(ratios[c.series]))
		if len(xys) == 0 {
			continue
		}
		line, err := plotter.NewLine(xys)
		if err != nil {
			return nil, err
		}
		line.LineStyle = c.line
		p.Add(line)
		end := xys[len(xys)-1]
		labels.labels = append(labels.labels, endLabel{end.X, end.Y, c.name, c.line.Color})
		widest = max(widest, end.X)
		ys = append(ys, xys[0].Y, end.Y)
	}
	if len(ys) == 0 {
		return nil, errors.New("the histograms are empty")
	}
	p.Add(labels)
	setAxis(&p.Y, ys, true, true)
	p.X.Scale, p.X.Tick.Marker = nines{}, nines{}
	p.X.Min, p.X.Max = 0, widest
	return p, nil
}

// perNanosecond is what is reported, in us, of a nanosecond in the histograms of
// a series: the half of it, but the whole where the medians reported are nearer
// to the whole. ratios are those of the histograms' medians to them.
func perNanosecond(ratios []float64) float64 {
	if ValueOf(ratios).Median < math.Sqrt2 {
		return 1. / 1000
	}
	return 1. / 2000
}

// distribution is up to which latency in us which share of the messages are.
// The last of them has no share above it that a scale of nines could show: a
// curve ends before it.
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
