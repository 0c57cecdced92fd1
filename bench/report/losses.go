package report

import (
	"cmp"
	"fmt"
	"slices"
)

// loss is a point where via-xdp is worse than the kernel's TCP or another program.
type loss struct {
	group  *Group
	point  cell
	metric Metric
	rival  cell
}

// ratio is how many times worse via-xdp is.
func (l loss) ratio() float64 {
	ours, theirs := l.point.median(l.metric), l.rival.median(l.metric)
	if l.metric.Lower() {
		return ours / theirs
	}
	return theirs / ours
}

// marks are those of a line in the document: whether the difference is beyond the spread of
// the turns, and whether one of the two figures is doubtful.
func (l loss) marks() string {
	s := ""
	if disjoint(l.point.Values[l.metric], l.rival.Values[l.metric]) {
		s += " \\*"
	}
	if len(l.point.Disturbed)+len(l.rival.Disturbed) > 0 {
		s += " †"
	}
	return s
}

// losses are all points of via-xdp that are worse than the kernel's TCP or another program at
// the same place, each with the best of these. The worst come first.
func (r *Report) losses() []loss {
	var list []loss
	for g := range each(r.Groups) {
		for c := range g.cells() {
			list = append(list, g.beaten(c)...)
		}
	}
	slices.SortStableFunc(list, func(a, b loss) int { return cmp.Compare(b.ratio(), a.ratio()) })
	return list
}

// lossMetrics are the figures that are set against those of others. The tables have the rest.
var lossMetrics = []Metric{
	P50, P99, Bandwidth, Rate, Operation,
	OSULatency, OSUBandwidth, OSUBothWays, OSUPairs, OSUPairsRate, OSUAllReduce, OSUAllToAll,
}

// beaten are the figures of a point of via-xdp for which another series is better. The rate
// counts where there is no bandwidth.
func (g *Group) beaten(c cell) (list []loss) {
	if !isVIA(c.Name) {
		return nil
	}
	for _, m := range lossMetrics {
		if m == Rate && finite(c.median(Bandwidth)) {
			continue
		}
		worst := loss{group: g, point: c, metric: m}
		for _, r := range g.opponents(c.Series, m) {
			against := worst
			against.rival = cell{r, r.like(c.Point)}
			if against.rival.Point == nil {
				continue
			}
			if w := against.ratio(); finite(w) && w > 1 && (worst.rival.Series == nil || w > worst.ratio()) {
				worst = against
			}
		}
		if worst.rival.Series != nil {
			list = append(list, worst)
		}
	}
	return list
}

// opponents are the series of the kernel's TCP and of other programs whose figures mean the
// same as those of s, over the same MTU.
func (g *Group) opponents(s *Series, m Metric) []*Series {
	var list []*Series
	for r := range each(g.Series) {
		if g.mtu(r) == g.mtu(s) && isRival(r.Name) && sameMeasure(m, s.Name, r.Name) {
			list = append(list, r)
		}
	}
	return list
}

const lossesHeading = "Where others are better"

// losses has a line for each group in which TCP or another program was better somewhere:
// the worst of these places.
func (d document) losses() {
	d.printf("\n## %s\n\n", lossesHeading)
	t := markdown{{"group", "places", "the worst: times worse", "row", "at", "figure", "via-xdp", "other", "set against"}}
	rows, places := map[*Group]int{}, map[*Group]int{}
	for _, l := range d.report.losses() {
		places[l.group]++
		if rows[l.group] == 0 {
			q := quantityOf(l.metric)
			rows[l.group] = len(t)
			t = append(t, []string{l.group.Name, "", fixed(l.ratio(), 2) + l.marks(), l.point.Name, l.group.at(l.point.Point),
				q.heading(), round(l.point.median(l.metric) / q.per), round(l.rival.median(l.metric) / q.per), l.rival.Name})
		}
	}
	for g, i := range rows {
		t[i][1] = fmt.Sprint(places[g])
	}
	if len(t) == 1 {
		d.printf("No row of via-xdp was worse than the kernel's TCP or another program.\n")
		return
	}
	d.printf("Where the kernel's TCP or another program was better than a row of via-xdp, by group with the worst place.\n" +
		"A star: by more than the spread of the turns. A cross: something else ran on the CPUs.\n\n")
	t.write(d.out)
}
