package bench

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// The names that all others are compared with.
const (
	baselineRaw = "raw-afxdp"
	baselineTCP = "tcp-spin"
)

// WriteTable prints the conditions and one table for latency and one for bandwidth,
// with a block of rows for each message size. Columns headed by x give the ratio to
// raw-afxdp and to tcp-spin at the same size: of the median latency, and of the
// bandwidth. Round trips among the latencies say so and have no ratio. Of a single
// transport there is one block, a row for each size. Disturbed figures are marked, with
// the reasons below.
func (r *Result) WriteTable(w io.Writer) error {
	out := bufio.NewWriter(w)
	c := r.Conditions
	xdp := "no XDP"
	if c.Mode != "" {
		xdp = fmt.Sprintf("XDP mode %s, frames of %d bytes, memory %s", c.Mode, c.FrameBytes, orNone(c.Hugepages))
	}
	fmt.Fprintf(out, "kernel %s, %s (pinned: %s), interface %s, MTU %d, %s, via-xdp %s\n",
		c.Kernel, c.CPU(), orNone(joinInts(c.PinnedCPUs)), c.Interface, c.MTU, xdp, c.Version)
	if len(r.Latency) > 0 {
		t := table{title: "one way, us", columns: []string{"min", "p50", "p99", "p99.9", "x raw", "x tcp", "n"}}
		for _, l := range r.Latency {
			t.add(l.Bytes, rowName(l.Name), l.Disturbed, us(l.Min), us(l.P50), us(l.P99), us(l.P999),
				r.latencyRatio(l, baselineRaw), r.latencyRatio(l, baselineTCP), strconv.FormatInt(l.N, 10))
		}
		t.write(out)
		r.explainRoundTrips(out)
	}
	if len(r.Bandwidth) > 0 {
		t := table{title: "one direction", columns: []string{"MB/s", "msg/s", "x raw", "x tcp", "cpu tx", "cpu rx"}}
		for _, b := range r.Bandwidth {
			t.add(b.Bytes, b.Name, b.Disturbed, fmt.Sprintf("%.1f", b.MBps), fmt.Sprintf("%.0f", b.Messages),
				r.bandwidthRatio(b, baselineRaw), r.bandwidthRatio(b, baselineTCP),
				fmt.Sprintf("%.2f", b.CPUTx), fmt.Sprintf("%.2f", b.CPURx))
		}
		t.write(out)
	}
	return out.Flush()
}

// rowName is how a transport is called where latencies are shown.
func rowName(name string) string {
	if RoundTrip(name) {
		return name + " (round trip)"
	}
	return name
}

// explainRoundTrips adds a line on the rows that are no one-way latencies.
func (r *Result) explainRoundTrips(w io.Writer) {
	i := slices.IndexFunc(r.Latency, func(l Latency) bool { return l.RoundTrip })
	if i < 0 {
		return
	}
	fmt.Fprintf(w, "\n%s: the time of one whole read, a request and its answer, as ib_read_lat shows it;\n"+
		"not to be compared with the other rows, which are half of a round trip\n", rowName(r.Latency[i].Name))
}

func (r *Result) latencyRatio(l Latency, name string) string {
	if base := r.LatencyOf(name, l.Bytes); base != nil && !l.RoundTrip {
		return ratio(l.P50, base.P50)
	}
	return "-"
}

func (r *Result) bandwidthRatio(b Bandwidth, name string) string {
	if base := r.BandwidthOf(name, b.Bytes); base != nil {
		return ratio(b.MBps, base.MBps)
	}
	return "-"
}

// table has a block of rows for each size, or one block of all sizes where every
// row has the same name; all columns but the first are right-aligned.
type table struct {
	title   string
	columns []string
	rows    []tableRow
	marks   []string // why rows are marked, each reason once
}

type tableRow struct {
	bytes     int
	name      string
	disturbed bool
	cells     []string
}

func (t *table) add(bytes int, name string, disturbed []string, cells ...string) {
	t.rows = append(t.rows, tableRow{bytes, name, len(disturbed) > 0, cells})
	for _, why := range disturbed {
		if !slices.Contains(t.marks, why) {
			t.marks = append(t.marks, why)
		}
	}
}

func (t *table) write(w io.Writer) {
	t.dropEmpty()
	name := t.rows[0].name
	if !slices.ContainsFunc(t.rows, func(r tableRow) bool { return r.name != name }) {
		t.block(w, name+", "+t.title, t.rows, func(r tableRow) string { return fmt.Sprintf("%d B", r.bytes) })
	} else {
		for rows := t.rows; len(rows) > 0; {
			of := func(r tableRow) bool { return r.bytes == rows[0].bytes }
			block := slices.DeleteFunc(slices.Clone(rows), func(r tableRow) bool { return !of(r) })
			t.block(w, fmt.Sprintf("%d B, %s", rows[0].bytes, t.title), block, func(r tableRow) string { return r.name })
			rows = slices.DeleteFunc(slices.Clone(rows), of)
		}
	}
	if len(t.marks) > 0 {
		fmt.Fprintf(w, "\n%s doubtful: %s\n", unknownOutcome, strings.Join(t.marks, "; "))
	}
}

// unknownOutcome marks a row that was disturbed.
const unknownOutcome = "†"

// dropEmpty leaves out columns in which no row has anything.
func (t *table) dropEmpty() {
	for i := len(t.columns) - 1; i >= 0; i-- {
		if !slices.ContainsFunc(t.rows, func(r tableRow) bool { return r.cells[i] != "-" }) {
			t.columns = slices.Delete(t.columns, i, i+1)
			for j := range t.rows {
				t.rows[j].cells = slices.Delete(t.rows[j].cells, i, i+1)
			}
		}
	}
}

func (t *table) block(w io.Writer, title string, rows []tableRow, name func(tableRow) string) {
	lines := [][]string{append([]string{title}, t.columns...)}
	for _, r := range rows {
		lines = append(lines, append([]string{name(r)}, r.cells...))
	}
	widths := make([]int, len(lines[0]))
	for _, cells := range lines {
		for i, c := range cells {
			widths[i] = max(widths[i], len(c))
		}
	}
	widths[0] = max(widths[0], 26) // blocks under one another line up
	fmt.Fprintln(w)
	for k, cells := range lines {
		var line strings.Builder
		fmt.Fprintf(&line, "%-*s", widths[0], cells[0])
		for i, c := range cells[1:] {
			fmt.Fprintf(&line, "  %*s", max(widths[i+1], 7), c)
		}
		if k > 0 && rows[k-1].disturbed {
			line.WriteString(" " + unknownOutcome)
		}
		fmt.Fprintln(w, line.String())
	}
}

func us(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) }

func ratio(v, base float64) string {
	if base == 0 {
		return "-"
	}
	return strconv.FormatFloat(v/base, 'f', 2, 64)
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func joinInts(v []int) string {
	s := make([]string, len(v))
	for i, n := range v {
		s[i] = strconv.Itoa(n)
	}
	return strings.Join(s, ", ")
}
