package report

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"slices"

	"viaxdp/bench"
)

// Comparison is what Compare finds in two reports.
type Comparison struct {
	Differences []Difference // of all figures that both have, in the order of A
	OnlyA       []string     // groups, series, points and figures that B has not
	OnlyB       []string     // and those that A has not
	Conditions  []string     // conditions that differ, and how
}

// Difference is one figure of two reports.
type Difference struct {
	Group     string `json:"group"`
	Series    string `json:"series"`
	At        string `json:"at"` // the point, as people read it
	Metric    Metric `json:"metric"`
	A         Value  `json:"a"`
	B         Value  `json:"b"`
	Disturbed bool   `json:"disturbed"` // in A or in B
}

// Ratio is B by A.
func (d Difference) Ratio() float64 { return d.B.Median / d.A.Median }

// Marked reports whether the difference is more than the spread of the turns of
// both: the ranges of the turns do not overlap. With a single turn on both
// sides, every difference is.
func (d Difference) Marked() bool { return disjoint(d.A, d.B) }

func disjoint(a, b Value) bool {
	loA, hiA := a.Range()
	loB, hiB := b.Range()
	return hiA < loB || hiB < loA
}

// Worse is by how many percent B is worse than A: by how much a time has grown,
// or a rate shrunk. It is negative where B is better, NaN where the two cannot
// be compared, or it is not known which is better.
func (d Difference) Worse() float64 {
	switch {
	case !d.Metric.known():
		return math.NaN()
	case d.Metric.Lower():
		return 100 * (d.Ratio() - 1)
	}
	return 100 * (1 - d.Ratio())
}

// aside reports whether a figure depends on single messages or rounds, another figure
// represents it, or it is what was done to the network: it is shown and does not count.
func (d Difference) aside() bool { return d.Metric == FaultRatio || slices.Contains(aside, d.Metric) }

// WorseThan reports whether any figure of B is worse than that of A by more than
// percent, and marked. Points that were disturbed do not count, nor do [Max], [Mean],
// [Stdev], [Peak] and [FaultRatio].
func (c *Comparison) WorseThan(percent float64) bool {
	return slices.ContainsFunc(c.Differences, func(d Difference) bool {
		return d.Marked() && !d.Disturbed && !d.aside() && d.Worse() > percent
	})
}

// Compare compares two reports: everything that both have, and what only one has.
// Points match by label, or by X without one; groups match by name and axis. Neither
// report is changed.
func Compare(a, b *Report) *Comparison {
	c := &Comparison{}
	for g := range each(a.Groups) {
		h := b.counterpart(g)
		if h == nil {
			c.OnlyA = append(c.OnlyA, g.Name)
			continue
		}
		c.Conditions = append(c.Conditions, changed(g.Name, g.Conditions, h.Conditions)...)
		for s := range each(g.Series) {
			if t := h.Row(s.Name); t != nil {
				c.series(g, h, s, t)
			} else {
				c.OnlyA = append(c.OnlyA, place(g.Name, s.Name))
			}
		}
		for _, t := range h.Series {
			if g.Row(t.Name) == nil {
				c.OnlyB = append(c.OnlyB, place(h.Name, t.Name))
			}
		}
	}
	for h := range each(b.Groups) {
		if a.counterpart(h) == nil {
			c.OnlyB = append(c.OnlyB, h.Name)
		}
	}
	return c
}

// counterpart finds the group of the same name whose points stand along the
// same axis, or returns nil.
func (r *Report) counterpart(g *Group) *Group {
	return first(r.Groups, func(h *Group) bool {
		return h.Name == g.Name && h.Axis.Name == g.Axis.Name && h.Axis.Unit == g.Axis.Unit
	})
}

func (c *Comparison) series(g, h *Group, s, t *Series) {
	for p := range each(s.Points) {
		if q := t.like(p); q != nil {
			c.point(place(g.Name, s.Name, g.at(p)), Difference{
				Group: g.Name, Series: s.Name, At: g.at(p), Disturbed: len(p.Disturbed)+len(q.Disturbed) > 0,
			}, p, q)
		} else {
			c.OnlyA = append(c.OnlyA, place(g.Name, s.Name, g.at(p)))
		}
	}
	for q := range each(t.Points) {
		if s.like(q) == nil {
			c.OnlyB = append(c.OnlyB, place(h.Name, t.Name, h.at(q)))
		}
	}
}

func (c *Comparison) point(where string, d Difference, p, q *Point) {
	for _, m := range metricsOf(p, q) {
		a, b := finite(p.median(m)), finite(q.median(m))
		switch {
		case a && b:
			d.Metric, d.A, d.B = m, p.Values[m], q.Values[m]
			c.Differences = append(c.Differences, d)
		case a:
			c.OnlyA = append(c.OnlyA, place(where, string(m)))
		case b:
			c.OnlyB = append(c.OnlyB, place(where, string(m)))
		}
	}
}

// metricsOf are the metrics of two points: those that are known in their order, then others, as a report of another
// version of this program may have.
func metricsOf(p, q *Point) []Metric {
	var known, others []Metric
	for _, k := range quantities {
		known = append(known, k.metric)
	}
	for _, values := range []map[Metric]Value{p.Values, q.Values} {
		for m := range values {
			if !slices.Contains(known, m) {
				others = union(others, m)
			}
		}
	}
	slices.Sort(others)
	return append(known, others...)
}

// place joins the names that lead to something.
func place(names ...string) string {
	s := names[0]
	for _, n := range names[1:] {
		if n != "" {
			s += ", " + n
		}
	}
	return s
}

// changed lists the conditions of a group that differ, except the version of via-xdp,
// as comparing versions is the purpose.
func changed(group string, a, b bench.Conditions) []string {
	var list []string
	for _, f := range []struct{ name, a, b string }{
		{"kernel", a.Kernel, b.Kernel},
		{"CPUs", fmt.Sprint(a.CPUs), fmt.Sprint(b.CPUs)},
		{"CPU model", cpuModel(a), cpuModel(b)},
		{"hypervisor", hypervisor(a), hypervisor(b)},
		{"pinned CPUs", pinned(a), pinned(b)},
		{"interface", a.Interface, b.Interface},
		{"XDP mode", a.Mode, b.Mode},
		{"MTU", fmt.Sprint(a.MTU), fmt.Sprint(b.MTU)},
		{"frame bytes", fmt.Sprint(a.FrameBytes), fmt.Sprint(b.FrameBytes)},
		{"memory", a.Hugepages, b.Hugepages},
		{"polling", a.Polling, b.Polling},
	} {
		if f.a != f.b {
			list = append(list, fmt.Sprintf("%s: %s is %s in A, %s in B", group, f.name, orNone(f.a), orNone(f.b)))
		}
	}
	return list
}

// WriteTable prints a comparison: a table for each group with A, B, and B by A,
// where * stands for a difference beyond the spread of the turns and ! for a
// point that was disturbed; then what differs otherwise; then a line that sums
// it up.
func (c *Comparison) WriteTable(w io.Writer) error {
	out := bufio.NewWriter(w)
	var t grid
	for i, d := range c.Differences {
		if i == 0 || c.Differences[i-1].Group != d.Group {
			t.write(out)
			if i > 0 {
				fmt.Fprintln(out)
			}
			t = grid{{d.Group, "at", "figure", "A", "B", "B/A", "", ""}}
		}
		t = append(t, d.row())
	}
	t.write(out)
	for _, l := range []struct {
		head string
		list []string
	}{
		{"Other conditions:", c.Conditions},
		{"Only in A:", c.OnlyA},
		{"Only in B:", c.OnlyB},
	} {
		if len(l.list) > 0 {
			fmt.Fprintf(out, "\n%s\n", l.head)
		}
		for _, s := range l.list {
			fmt.Fprintf(out, "  %s\n", oneLine(s))
		}
	}
	fmt.Fprintf(out, "\n%s\n", c.summary())
	return out.Flush()
}

func (d Difference) row() []string {
	mark, verdict := "", ""
	if d.Marked() {
		mark = "*"
		switch w := d.Worse(); {
		case w > 0:
			verdict = "worse"
		case w < 0:
			verdict = "better"
		}
	}
	if d.Disturbed {
		mark += "!"
	}
	return []string{oneLine(d.Series), oneLine(d.At), oneLine(string(d.Metric)),
		round(d.A.Median), round(d.B.Median), fixed(d.Ratio(), 3), mark, verdict}
}

// more reports whether d is worse than o. What was nothing in A has no percentage, and gives way to what has one.
func (d Difference) more(o Difference) bool {
	if a, b := finite(d.Worse()), finite(o.Worse()); a != b {
		return a
	}
	return d.Worse() > o.Worse()
}

// summary is one line about everything.
func (c *Comparison) summary() string {
	worse, better, single := 0, 0, 0
	worst := Difference{}
	for _, d := range c.Differences {
		if len(d.A.Turns) < 2 && len(d.B.Turns) < 2 {
			single++
		}
		switch {
		case !d.Marked():
		case d.Worse() > 0:
			worse++
			if !d.aside() && (worst.Metric == "" || d.more(worst)) {
				worst = d
			}
		case d.Worse() < 0:
			better++
		}
	}
	s := fmt.Sprintf("%d figures in both: beyond the spread of the turns (*) %d are worse in B, %d better", len(c.Differences), worse, better)
	if worst.Metric != "" {
		by := "by " + fixed(worst.Worse(), 1) + "%"
		if !finite(worst.Worse()) {
			by = fmt.Sprintf("from %s to %s", round(worst.A.Median), round(worst.B.Median))
		}
		s += fmt.Sprintf("; most of all %s %s", oneLine(place(worst.Group, worst.Series, worst.At, string(worst.Metric))), by)
	}
	if single > 0 {
		s += fmt.Sprintf("; %d have a single turn on both sides, whose spread is not known", single)
	}
	return s + "."
}

// difference is a Difference as WriteJSON has it.
type difference struct {
	Difference
	Ratio  number `json:"ratio"`         // B by A
	Worse  number `json:"worse_percent"` // of B; negative: better
	Marked bool   `json:"marked"`        // beyond the spread of the turns of both
}

// WriteJSON writes a comparison as one indented JSON object: what WriteTable prints.
// Figures that are not finite become null.
func (c *Comparison) WriteJSON(w io.Writer) error {
	out := struct {
		Differences []difference `json:"differences"`
		OnlyA       []string     `json:"only_a"`
		OnlyB       []string     `json:"only_b"`
		Conditions  []string     `json:"conditions"`
		Summary     string       `json:"summary"`
	}{[]difference{}, list(c.OnlyA), list(c.OnlyB), list(c.Conditions), c.summary()}
	for _, d := range c.Differences {
		out.Differences = append(out.Differences, difference{d, number(d.Ratio()), number(d.Worse()), d.Marked()})
	}
	return writeJSON(w, &out)
}

// list is [] in JSON where there is nothing, rather than null.
func list(s []string) []string { return append([]string{}, s...) }
