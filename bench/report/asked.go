package report

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// answer is what a report says about a target, in all of its groups.
type answer struct {
	target
	places []finding
}

// finding is one verdict on a target.
type finding struct {
	group *Group
	verdict
}

// answers has one for each target.
func (r *Report) answers() []answer {
	var list []answer
	for _, t := range targets {
		a := answer{target: t}
		for i := range r.Groups {
			for _, v := range t.verdicts(&r.Groups[i]) {
				a.places = append(a.places, finding{&r.Groups[i], v})
			}
		}
		list = append(list, a)
	}
	return list
}

// ratio is the figure by the rival's.
func (p finding) ratio(m Metric) float64 { return p.row.median(m) / p.rival.median(m) }

// disturbed reports whether one of the two figures is doubtful.
func (v verdict) disturbed() bool { return len(v.row.Disturbed)+len(v.rival.Disturbed) > 0 }

// beyond reports whether the turns of a figure are all on the same side of the
// limits that those of its rival make.
func (v verdict) beyond(m Metric) bool {
	factor := v.limit / v.rival.median(m) // 1, or that of the target
	lo, hi := v.row.Values[m].Range()
	rivalLo, rivalHi := v.rival.Values[m].Range()
	return lo > factor*rivalHi || hi < factor*rivalLo
}

// measured is the ratio, or the figure, that was found: its range where there are several places,
// with the figures of the first of them, in the order of the report.
func (a answer) measured() string {
	if len(a.places) == 0 {
		return "-"
	}
	q := quantityOf(a.metric)
	figure, show, unit := finding.ratio, func(v float64) string { return fixed(v, 2) }, " x"
	if a.limit != 0 {
		figure, show, unit = func(p finding, m Metric) float64 { return p.row.median(m) / q.per }, round, strings.TrimRight(" "+q.unit, " ")
	}
	lo, hi, doubtful := math.Inf(1), math.Inf(-1), 0
	for _, p := range a.places {
		lo, hi = min(lo, figure(p, a.metric)), max(hi, figure(p, a.metric))
		if p.disturbed() {
			doubtful++
		}
	}
	first := a.places[0]
	at := first.group.Name
	if where := first.group.at(first.row.Point); a.x == 0 && a.label == "" && where != "" {
		at += ", " + where
	}
	s := show(lo)
	if t := show(hi); t != s {
		s += " to " + t
	}
	s += unit
	if a.limit == 0 {
		at += fmt.Sprintf(": %s and %s %s", round(first.row.median(a.metric)/q.per), round(first.rival.median(a.metric)/q.per), q.unit)
	}
	s += " (" + at + ")"
	if doubtful > 0 {
		s += " †"
	}
	return s
}

// met says whether the target was reached, and where it was not everywhere, in how
// many places.
func (a answer) met() string {
	missed, clearly := 0, 0
	for _, p := range a.places {
		if p.missed(a.metric) {
			missed++
			if p.beyond(a.metric) {
				clearly++
			}
		}
	}
	n, s := len(a.places), ""
	switch {
	case n == 0:
		return "not measured"
	case missed == 0:
		return "yes"
	case missed == n:
		s = "no"
	default:
		s = fmt.Sprintf("in %d of %d places", n-missed, n)
	}
	if clearly == 0 {
		s += ", by less than the spread of the turns"
	}
	return s
}

// asked is the table of the targets: what a reader wants to know first.
func (d document) asked() {
	d.printf("\n## What was asked\n\n")
	d.printf(`Rows called vi- are via-xdp's, and poll unless they end in -wait. raw-afxdp is the floor, the rings below with
nothing above them, and raw-afxdp-copy the same with the content copied out, as a receive must; -c is the floor in C,
which has no frames longer than a chunk, and so none beside those of MTU 9000.
tcp- and udp- are the kernel's: -spin polls, -block sleeps in system calls, -net is Go's package net. mvich and vianet are
the messages and the sockets above VIs, mpich-tcp is MPICH over the kernel's TCP. The others are other people's programs. Where a figure was measured in several places, the range of the ratio is told, and the figures of the
first. A cross: something else ran on the CPUs in one of them.

`)
	t := markdown{{"what", "asked", "measured", "met"}}
	met, missed, open := 0, 0, 0
	for _, a := range d.report.answers() {
		verdict := a.met()
		switch verdict {
		case "yes":
			met++
		case "not measured":
			open++
		default:
			missed++
		}
		t = append(t, []string{a.what(), a.asked(), a.measured(), verdict})
	}
	append(t, counted...).write(d.out)
	d.printf("\nOf what was measured %d were met, %d not or not everywhere. Not measured: %d.\n", met, missed, open)
	d.better()
}

// better is a line for each group in which TCP or another program was better
// somewhere: the worst of these places.
func (d document) better() {
	t := markdown{{"group", "places", "the worst: times worse", "row", "at", "figure", "via-xdp", "other", "set against"}}
	rows := map[*Group]int{}
	places := map[*Group]int{}
	for _, l := range d.report.losses() { // the worst first
		if l.target {
			continue
		}
		places[l.group]++
		if rows[l.group] == 0 {
			q := quantityOf(l.metric)
			rows[l.group] = len(t)
			t = append(t, []string{l.group.Name, "", fixed(l.ratio(), 2) + l.marks(), l.point.Name, l.group.at(l.point.Point),
				q.heading(), round(l.point.median(l.metric) / q.per), round(l.other / q.per), l.against})
		}
	}
	for g, i := range rows {
		t[i][1] = fmt.Sprint(places[g])
	}
	if len(t) == 1 {
		d.printf("\nNo row of via-xdp was worse than the kernel's TCP or another program.\n")
		return
	}
	d.printf("\nWhere the kernel's TCP or another program was better than a row of via-xdp, by group with the worst place:\n\n")
	t.write(d.out)
}

// counted is what was asked and takes no measurement: tests count it.
var counted = markdown{{
	"user-space copies of a 64 KiB payload in the arena", "sender 0, receiver 1",
	"not here: sender: ByReference in TestLongFrames; receiver: by construction", "where frames are longer than a chunk; at MTU 1500 the sender copies, too",
}}

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
