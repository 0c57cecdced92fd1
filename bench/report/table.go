package report

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"viaxdp/bench"
	"viaxdp/internal/base/termsafe"
)

// WriteTable prints the groups as text, each with its conditions: one table each for latencies, bandwidths,
// operations and other figures that the group has. Columns are called as in perftest. Spread is the range of the
// turns of the table's main figure, relative to their median; without a main figure, that of the figure with the
// widest range; x is the ratio to the group's base. Disturbed points have a number in brackets, and the reason stands
// below.
func (r *Report) WriteTable(w io.Writer) error {
	out := bufio.NewWriter(w)
	for i := range r.Groups {
		if i > 0 {
			fmt.Fprintln(out)
		}
		r.Groups[i].write(out)
	}
	return out.Flush()
}

func (g *Group) write(w io.Writer) {
	fmt.Fprintf(w, "%s: %s\n%s\n", oneLine(g.Name), oneLine(g.Title), conditions(g.Conditions))
	notes := g.footnotes()
	for _, f := range families {
		if judged := f.drawn(g); len(judged) > 0 {
			fmt.Fprintln(w)
			g.grid(f, judged, notes).write(w)
		}
	}
	if len(notes)+len(g.Notes) > 0 || g.wholeTrips() {
		fmt.Fprintln(w)
	}
	if g.wholeTrips() {
		fmt.Fprintln(w, wholeTripsNote)
	}
	for _, n := range g.Notes {
		fmt.Fprintln(w, oneLine(n))
	}
	for i, c := range notes {
		fmt.Fprintf(w, "[%d] disturbed: %s\n", i+1, oneLine(strings.Join(c.Disturbed, "; ")))
	}
}

const wholeTripsNote = "Latencies of RDMA reads are whole round trips, a request and its answer; the others are half of one."

// wholeTrips reports whether the group has latencies of both sorts to explain.
func (g *Group) wholeTrips() bool {
	return len(families[0].drawn(g)) > 0 && slices.ContainsFunc(g.Series, func(s Series) bool { return roundTrip(s.Name) })
}

// footnotes are the disturbed points, in the order of the tables.
func (g *Group) footnotes() []cell {
	var notes []cell
	for _, block := range g.blocks() {
		for _, c := range block {
			if len(c.Disturbed) > 0 {
				notes = append(notes, c)
			}
		}
	}
	return notes
}

// grid is the table of a family, which is about some of its metrics.
func (g *Group) grid(f family, judged []Metric, notes []cell) grid {
	ratios, ratio := f.peers() && g.Base != "", !f.peers() && g.Base != ""
	axis := g.Axis.Unit
	if axis != "bytes" {
		axis = g.Axis.Name
	}
	head := []string{g.Name, "#" + oneLine(axis), "#iterations"}
	var shown []quantity
	for _, q := range f.metrics {
		if g.has(q.metric) {
			shown = append(shown, q)
			head = append(head, q.column)
			if ratios {
				head = append(head, "x")
			}
		}
	}
	head = append(head, "spread")
	if ratio {
		head = append(head, "x "+g.Base)
	}
	t := grid{head}
	for i, block := range g.blocks() {
		if i > 0 && len(block) > 1 {
			t = append(t, nil)
		}
		for _, c := range block {
			name := c.Name
			if n := slices.IndexFunc(notes, func(o cell) bool { return o.Point == c.Point }); n >= 0 {
				name = fmt.Sprintf("%s [%d]", name, n+1)
			}
			row := []string{oneLine(name), g.index(c.Point), strconv.FormatInt(c.N, 10)}
			for _, q := range shown {
				row = append(row, fixed(c.median(q.metric)/q.per, q.digits))
				if ratios {
					row = append(row, fixed(g.ratio(c.Series, c.Point, q.metric), 2))
				}
			}
			spread := math.NaN()
			for _, m := range judged {
				if v, ok := c.Values[m]; ok && !(v.Spread() < spread) {
					spread = v.Spread()
				}
			}
			row = append(row, percent(spread))
			if ratio {
				row = append(row, fixed(g.ratio(c.Series, c.Point, judged[0]), 2))
			}
			t = append(t, row)
		}
	}
	return t
}

// index is a point's place as a figure, or its label.
func (g *Group) index(p *Point) string {
	switch {
	case p.Label != "":
		return oneLine(p.Label)
	case g.Axis.Name == "":
		return "-"
	}
	return plain(p.X)
}

// grid is a table of text: the first column stands left, the others right. A
// row without cells is an empty line.
type grid [][]string

func (t grid) write(w io.Writer) {
	var widths []int
	for _, row := range t {
		for i, c := range row {
			c = termsafe.Printable(c)
			row[i] = c
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c))
		}
	}
	for _, row := range t {
		var line strings.Builder
		for i, c := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c))
			switch i {
			case 0:
				line.WriteString(c + pad)
			default:
				line.WriteString("  " + pad + c)
			}
		}
		fmt.Fprintln(w, strings.TrimRight(line.String(), " "))
	}
}

// conditions is one line about how a group was measured, as far as that is known: a simulation has no kernel, and of ranks and
// proxies, which open their NICs themselves, the suite knows no XDP mode.
func conditions(c bench.Conditions) string {
	var parts []string
	for _, p := range []struct {
		known bool
		text  string
	}{
		{c.Kernel != "", "kernel " + c.Kernel},
		{c.CPUs > 0, fmt.Sprintf("%s (pinned: %s)", c.CPU(), pinned(c))},
		{c.Interface != "", "interface " + c.Interface},
		{true, fmt.Sprintf("MTU %d", c.MTU)},
		{c.Mode != "", "XDP mode " + c.Mode},
		{c.FrameBytes > 0, fmt.Sprintf("frames of %d bytes", c.FrameBytes)},
		{c.Hugepages != "", "memory " + c.Hugepages},
		{c.Polling != "", "polling " + c.Polling},
		{c.Version != "", "via-xdp " + c.Version},
	} {
		if p.known {
			parts = append(parts, oneLine(p.text))
		}
	}
	return strings.Join(parts, ", ")
}

func pinned(c bench.Conditions) string {
	var cpus []string
	for _, n := range c.PinnedCPUs {
		cpus = append(cpus, strconv.Itoa(n))
	}
	return orNone(strings.Join(cpus, ", "))
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return oneLine(s)
}
