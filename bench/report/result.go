package report

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"viaxdp/bench"
)

// The rows that all others of a result are compared with.
const (
	baselineRaw = "raw-afxdp"
	baselineTCP = "tcp-spin"
)

// WriteResult prints a run of plans: the conditions and one table for latency and one for
// bandwidth, with a block of rows for each message size. Columns headed by x give the
// ratio to raw-afxdp and to tcp-spin at the same size: of the median latency, and of the
// bandwidth. Round trips among the latencies say so and have no ratio. Of a single
// transport there is one block, a row for each size. Disturbed figures are marked, with
// the reasons below.
func WriteResult(w io.Writer, r *bench.Result) error {
	out := bufio.NewWriter(w)
	fmt.Fprintln(out, conditions(r.Conditions))
	latency := resultTable{title: "one way, us", columns: []string{"min", "p50", "p99", "p99.9", "x raw", "x tcp", "n"}}
	trips := ""
	for _, l := range r.Latency {
		name, by := lineName(l.Name, P50), func(base string) float64 {
			if b := r.LatencyOf(base, l.Bytes); b != nil && !l.RoundTrip {
				return l.P50 / b.P50
			}
			return math.NaN()
		}
		if l.RoundTrip {
			trips = name
		}
		latency.add(l.Bytes, name, l.Disturbed, fixed(l.Min, 2), fixed(l.P50, 2), fixed(l.P99, 2), fixed(l.P999, 2),
			fixed(by(baselineRaw), 2), fixed(by(baselineTCP), 2), strconv.FormatInt(l.N, 10))
	}
	latency.write(out)
	if trips != "" {
		fmt.Fprintf(out, "\n%s: the time of one whole read, a request and its answer, as ib_read_lat shows it;\n"+
			"not to be compared with the other rows, which are half of a round trip\n", trips)
	}
	bandwidth := resultTable{title: "one direction", columns: []string{"MB/s", "msg/s", "x raw", "x tcp", "cpu tx", "cpu rx"}}
	for _, b := range r.Bandwidth {
		by := func(base string) float64 {
			if o := r.BandwidthOf(base, b.Bytes); o != nil {
				return b.MBps / o.MBps
			}
			return math.NaN()
		}
		bandwidth.add(b.Bytes, b.Name, b.Disturbed, fixed(b.MBps, 1), fixed(b.Messages, 0),
			fixed(by(baselineRaw), 2), fixed(by(baselineTCP), 2), fixed(b.CPUTx, 2), fixed(b.CPURx, 2))
	}
	bandwidth.write(out)
	return out.Flush()
}

// resultTable has a block of rows for each size, or one block of all sizes where every row
// has the same name.
type resultTable struct {
	title   string
	columns []string
	sizes   []int
	rows    map[int][]resultRow // by size
	figures map[int]bool        // columns that have any
	names   []string
	marks   []string // why rows are marked, each reason once
}

type resultRow struct {
	name  string
	cells []string
}

// doubtful marks a row that was disturbed.
const doubtful = "†"

func (t *resultTable) add(bytes int, name string, disturbed []string, cells ...string) {
	if t.rows == nil {
		t.rows, t.figures = map[int][]resultRow{}, map[int]bool{}
	}
	for i, c := range cells {
		t.figures[i] = t.figures[i] || c != "-"
	}
	if len(disturbed) > 0 {
		cells = append(cells, doubtful)
	}
	t.rows[bytes] = append(t.rows[bytes], resultRow{name, cells})
	t.sizes, t.names, t.marks = union(t.sizes, bytes), union(t.names, name), union(t.marks, disturbed...)
}

// union adds those that are not there yet.
func union[T comparable](to []T, more ...T) []T {
	for _, m := range more {
		if !slices.Contains(to, m) {
			to = append(to, m)
		}
	}
	return to
}

func (t *resultTable) write(w io.Writer) {
	// Without the columns in which no row has a figure.
	shown := func(name string, cells []string) []string {
		row := []string{name}
		for i, c := range cells {
			if i >= len(t.columns) || t.figures[i] {
				row = append(row, c)
			}
		}
		return row
	}
	var g grid
	for i, bytes := range t.sizes {
		size := fmt.Sprintf("%d B", bytes)
		if title := size; len(t.names) > 1 || i == 0 {
			if len(t.names) == 1 {
				title = t.names[0]
			}
			g = append(g, nil, shown(title+", "+t.title, t.columns))
		}
		for _, r := range t.rows[bytes] {
			if len(t.names) == 1 {
				r.name = size
			}
			g = append(g, shown(r.name, r.cells))
		}
	}
	g.write(w)
	if len(t.marks) > 0 {
		fmt.Fprintf(w, "\n%s doubtful: %s\n", doubtful, strings.Join(t.marks, "; "))
	}
}

// WriteResultPlots writes latency.svg (medians) and bandwidth.svg of a run of plans,
// as WritePlots does: one line for each name over the message size.
func WriteResultPlots(result *bench.Result, dir string) ([]string, error) {
	g := Group{Axis: Axis{Name: "message size", Unit: "bytes", Log: true}, Conditions: result.Conditions}
	add := func(name string, bytes int, m Metric, figure float64) {
		s := g.Row(name)
		if s == nil {
			g.Series = append(g.Series, Series{Name: name})
			s = &g.Series[len(g.Series)-1]
		}
		if s.At(float64(bytes)) == nil {
			s.Points = append(s.Points, Point{X: float64(bytes), Values: map[Metric]Value{}})
		}
		s.At(float64(bytes)).Values[m] = Value{Median: figure}
	}
	for _, l := range result.Latency {
		add(l.Name, l.Bytes, P50, l.P50)
	}
	for _, b := range result.Bandwidth {
		add(b.Name, b.Bytes, Bandwidth, b.MBps)
	}
	r := Report{Groups: []Group{g}}
	return r.WritePlots(dir)
}
