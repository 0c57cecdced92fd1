package report

import (
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"viaxdp/bench"
	"viaxdp/internal/lab/nstest"
)

var update = flag.Bool("update", false, "write testdata anew")

// golden compares a text with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		nstest.Must(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	nstest.Must(t, err)
	nstest.Same(t, path, got, string(want))
}

// text is what something of a report writes.
func text(t interface {
	Helper()
	Fatal(...any)
}, write func(io.Writer) error) string {
	t.Helper()
	var b strings.Builder
	nstest.Must(t, write(&b))
	return b.String()
}

// page is the document of a report.
func page(t interface {
	Helper()
	Fatal(...any)
}, r *Report) string {
	t.Helper()
	return text(t, func(w io.Writer) error { return r.WriteMarkdown(w, "plots") })
}

// has checks that a text has each of some parts.
func has(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		nstest.ErrorIf(t, !strings.Contains(text, p), "no %q in\n%s", p, text)
	}
}

// of is a report of one point.
func of(group, series string, p Point) *Report {
	return &Report{Groups: []Group{{Name: group, Series: []Series{{Name: series, Points: []Point{p}}}}}}
}

// turnsAround are three turns whose median is v, and which lie so far apart.
func turnsAround(v, spread float64) Value {
	return ValueOf([]float64{v, v * (1 - spread/2), v * (1 + spread/2)})
}

func conditionsOf(mtu int) bench.Conditions {
	return bench.Conditions{
		Kernel: "6.18.0", CPUs: 2, CPUModel: "Some CPU 9000", Hypervisor: true, Interface: "via0", Mode: "generic", Features: []string{"basic"}, MTU: mtu,
		FrameBytes: mtu + 14, Hugepages: "hugetlb", Polling: "spin", PinnedCPUs: []int{0, 1}, Version: "v1.2.3",
	}
}

// messagePoint has the figures of a transport for one size: the latency of an
// empty message, and the bytes that it carries in a microsecond.
func messagePoint(bytes, empty, perUs, spread float64) Point {
	p50 := empty + bytes/perUs
	rate := 0.9e6 / p50
	return Point{X: bytes, N: 5000, Values: map[Metric]Value{
		Min: turnsAround(0.9*p50, spread), P50: turnsAround(p50, spread),
		P99: turnsAround(1.4*p50, 2*spread), P999: turnsAround(3*p50, 4*spread),
		Max: turnsAround(9*p50, 4*spread), Mean: turnsAround(1.1*p50, spread), Stdev: turnsAround(0.2*p50, spread),
		Peak:      turnsAround(1.2*rate*bytes/1e6, spread),
		Bandwidth: turnsAround(rate*bytes/1e6, spread), Rate: turnsAround(rate, spread),
		CPUTx: turnsAround(0.8*p50, spread), CPURx: turnsAround(0.6*p50, spread),
	}}
}

// sample has a group of each shape that the suite has: along a size, along rates that
// the rows do not share, along a count, of labelled operations, of single points.
func sample() *Report {
	pingpong := Group{
		Name: "pingpong", Title: "MyVIA's ping-pong", Base: "raw-afxdp", Conditions: conditionsOf(1500),
		Axis:  Axis{Name: "message size", Unit: "bytes", Log: true},
		Notes: []string{"MyVIA on Myrinet with LANai9: 8.46 us one way."},
	}
	for _, row := range []struct {
		name         string
		empty, perUs float64
	}{
		{"raw-afxdp", 1.9, 1030}, {"raw-afxdp-c", 1.85, 1040}, {"raw-afxdp-copy", 1.95, 890}, {"vi-reliable-delivery", 2.3, 790},
		{"vi-rdma-write", 2.35, 785}, {"vi-rdma-read", 4.5, 770}, {"tcp-spin", 5.5, 1600}, {"udp-spin", 4, 390},
	} {
		s := Series{Name: row.name}
		for _, bytes := range []float64{64, 4096, 65536} {
			s.Points = append(s.Points, messagePoint(bytes, row.empty, row.perUs, 0.05))
		}
		pingpong.Series = append(pingpong.Series, s)
	}
	pingpong.Row("tcp-spin").At(64).Disturbed = []string{"steal time 3.1 % of the CPU time", "412 involuntary context switches a second"}

	load := Group{
		Name: "load", Title: "Latency at an offered rate", Conditions: conditionsOf(1500),
		Axis: Axis{Name: "offered rate", Unit: "messages/s", Log: true},
	}
	for _, row := range []struct {
		name    string
		service float64 // us
	}{{"vi-reliable-delivery", 2.4}, {"tcp-spin", 6}} {
		s := Series{Name: row.name}
		for _, part := range []float64{0.1, 0.5, 0.9} {
			p50 := row.service * (1 + 0.5*part/(1-part))
			rate := part * 1e6 / row.service
			s.Points = append(s.Points, Point{X: math.Round(rate), N: 40000, Values: map[Metric]Value{
				P50: turnsAround(p50, 0.1), P99: turnsAround(4*p50, 0.3), Rate: turnsAround(rate, 0.01),
			}})
		}
		load.Series = append(load.Series, s)
	}

	vis := Group{
		Name: "vibe-vis", Title: "Open VIs, one of them active", Conditions: conditionsOf(1500),
		Axis: Axis{Name: "open VIs", Log: true}, Series: []Series{{Name: "vi-reliable-delivery"}},
	}
	for n := 1.; n <= 4096; n *= 16 {
		p := messagePoint(64, 2.3+0.05*math.Log2(n), 790, 0.04)
		p.X = n
		vis.Series[0].Points = append(vis.Series[0].Points, p)
	}

	ops := Group{
		Name: "vibe-ops", Title: "Operations that move no data", Conditions: conditionsOf(1500),
		Axis: Axis{Name: "operation"},
	}
	for i, op := range []string{"create VI", "destroy VI", "connect", "disconnect"} {
		ops.Series = append(ops.Series, Series{Name: op, Points: []Point{{
			X: float64(i), Label: op, N: 200, Values: map[Metric]Value{Operation: turnsAround(3*math.Pow(8, float64(i)), 0.2)},
		}}})
	}

	table := Group{
		Name: "abl-table", Title: "The translation table against a map with a lock", Base: "table",
		Conditions: conditionsOf(9000), Axis: Axis{},
		Series: []Series{
			{Name: "table", Points: []Point{{N: 10000, Values: map[Metric]Value{P50: turnsAround(2.3, 0.03)}}}},
			{Name: "locked map", Points: []Point{{N: 10000, Values: map[Metric]Value{P50: turnsAround(2.5, 0.03)}}}},
		},
	}
	table.Series[1].Points[0].Disturbed = []string{"steal time 1.4 % of the CPU time"}
	return &Report{
		Version: Version, Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Took: 754.2,
		Command: "via-xdp bench doc", Turns: 3, Groups: []Group{pingpong, load, vis, ops, table},
	}
}

// withHistograms keeps histograms in dir for the points whose percentiles are
// plotted: three turns around the point's median.
func withHistograms(t testing.TB, r *Report, dir string) {
	t.Helper()
	for _, name := range []string{pingpongGroup, loadGroup} {
		g := r.Group(name)
		for s := range each(g.Series) {
			for p := range each(s.Points) {
				if name == pingpongGroup && p.X != smallMessage {
					continue
				}
				factor := 2000. // a round trip, of whose time the half is reported
				if roundTrip(s.Name) || name == loadGroup {
					factor = 1000
				}
				var turns []*hdrhistogram.Histogram
				for turn := range 3 {
					turns = append(turns, tailed(t, factor*p.median(P50)*(1+0.02*float64(turn-1)), 2000))
				}
				nstest.Must(t, p.SaveHistograms(dir, g.Name, s.Name, turns...))
			}
		}
	}
}

// tailed is a histogram of n values with a median and a long tail.
func tailed(t testing.TB, median float64, n int) *hdrhistogram.Histogram {
	t.Helper()
	h := hdrhistogram.New(1, int64(time.Minute), 3)
	for i := range n {
		share := (float64(i) + 0.5) / float64(n)
		v := median * (0.9 + 0.1*math.Pow(-math.Log2(1-share), 1.6))
		if err := h.RecordValue(int64(v)); err != nil {
			t.Fatal(fmt.Errorf("value %v: %w", v, err))
		}
	}
	return h
}
