package report

import "slices"

// loss is a point where via-xdp is worse than what it is set against.
type loss struct {
	group   *Group
	point   cell
	metric  Metric
	rival   cell
	other   float64 // the rival's figure, or the target made of it
	against string  // the rival, or the target
	target  bool    // a target was missed
}

// ratio is how many times worse via-xdp is.
func (l loss) ratio() float64 { return worse(l.metric, l.point.median(l.metric), l.other) }

// losses are all points that are worse than one of the kernel's TCP or another
// program at the same place, set against the best of these; and all that miss a
// target. The worst come first.
func (r *Report) losses() []loss {
	var list []loss
	for i := range r.Groups {
		g := &r.Groups[i]
		for j := range g.Series {
			list = append(list, g.beaten(&g.Series[j])...)
		}
		for _, t := range targets {
			for _, v := range t.verdicts(g) {
				if v.missed(t.metric) {
					list = append(list, loss{g, v.row, t.metric, v.rival, v.limit, "target " + t.against(v.rival), true})
				}
			}
		}
	}
	slices.SortStableFunc(list, func(a, b loss) int { return compareX(b.ratio(), a.ratio()) })
	return list
}

// beaten are the figures of a series of via-xdp that another's are better than:
// of latency median and 99 %, of a stream its bandwidth, or its rate where there
// is none, and each of OSU's. The tables have the others.
func (g *Group) beaten(s *Series) []loss {
	if kindOf(s.Name) != via {
		return nil
	}
	var list []loss
	for i := range s.Points {
		p := &s.Points[i]
		for _, q := range quantities {
			m := q.metric
			if !slices.Contains(lossMetrics, m) || m == Rate && finite(p.median(Bandwidth)) {
				continue
			}
			best := loss{group: g, point: cell{s, p}, metric: m, other: p.median(m)}
			for _, r := range g.opponents(s, m) {
				at := r.like(p)
				if at == nil {
					continue
				}
				if w := worse(m, best.other, at.median(m)); finite(w) && w > 1 {
					best.rival, best.other, best.against = cell{r, at}, at.median(m), r.Name
				}
			}
			if best.rival.Series != nil {
				list = append(list, best)
			}
		}
	}
	return list
}

var lossMetrics = slices.Concat([]Metric{P50, P99, Bandwidth, Rate, Operation}, osuMetrics)

// opponents are the series of the kernel's TCP and of other programs whose
// figures mean the same as those of s, over the same MTU.
func (g *Group) opponents(s *Series, m Metric) []*Series {
	_, mtu := g.mtu(s)
	var list []*Series
	for i := range g.Series {
		r := &g.Series[i]
		k := kindOf(r.Name)
		if _, other := g.mtu(r); other == mtu && (k == tcp || k == others) && sameMeasure(m, s.Name, r.Name) {
			list = append(list, r)
		}
	}
	return list
}

// worse is how many times worse a figure is than another.
func worse(m Metric, figure, other float64) float64 {
	if m.Lower() {
		return figure / other
	}
	return other / figure
}
