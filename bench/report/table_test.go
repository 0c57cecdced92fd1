package report

import (
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"viaxdp/bench"
	"viaxdp/internal/lab/nstest"
)

func TestTable(t *testing.T) {
	golden(t, "table.txt", text(t, sample().WriteTable))
}

// The table of a run of plans: of several transports by size; and of one, with nothing to
// compare it with, and a doubt.
func TestResultTable(t *testing.T) {
	r := bench.Result{Conditions: conditionsOf(1500)}
	for i, name := range []string{"raw-afxdp", "vi-reliable-delivery", "vi-rdma-read", "tcp-spin"} {
		for _, bytes := range []int{64, 65536} {
			f := float64(i + 1)
			r.Latency = append(r.Latency, bench.Latency{Name: name, Bytes: bytes, N: 1000, RoundTrip: bench.RoundTrip(name), Min: f, P50: 2 * f, P99: 3 * f, P999: 4 * f})
			r.Bandwidth = append(r.Bandwidth, bench.Bandwidth{Name: name, Bytes: bytes, MBps: 300 / f, Messages: 5e6 / f, CPUTx: 1, CPURx: 0.5})
		}
	}
	one := bench.Result{Conditions: r.Conditions, Latency: slices.Clone(r.Latency[2:4]), Bandwidth: slices.Clone(r.Bandwidth[2:4])}
	one.Latency[1].Disturbed = []string{"the client waited"}
	one.Bandwidth[1].Disturbed = []string{"the client waited", "the server waited"}
	for name, r := range map[string]*bench.Result{"result.txt": &r, "result-one.txt": &one} {
		golden(t, name, text(t, func(w io.Writer) error { return WriteResult(w, r) }))
	}
}

// Reports of any shape have tables and documents, without figures that are none.
func TestAnyReportIsShown(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := anyReport().Draw(t, "report")
		for g := range each(r.Groups) {
			g.Title = "A title"
			for c := range g.cells() {
				c.Disturbed = nil
			}
		}
		shown := text(t, r.WriteTable) + page(t, r)
		for _, word := range []string{"NaN", "Inf", "%!"} {
			if strings.Contains(shown, word) {
				t.Fatalf("%s in\n%s", word, shown)
			}
		}
	})
}

// The latency of a whole round trip is compared with no other.
func TestRatioOfRoundTrips(t *testing.T) {
	g := sample().Group("pingpong")
	read, delivery := g.Row("vi-rdma-read"), g.Row("vi-reliable-delivery")
	if r := g.ratio(read, read.At(64), P50); !math.IsNaN(r) {
		t.Errorf("latency of a read: %v times the base's", r)
	}
	if r := g.ratio(read, read.At(64), Bandwidth); !(r > 0.1 && r < 1) {
		t.Errorf("bandwidth of reads: %v times the base's", r)
	}
	if r := g.ratio(delivery, delivery.At(64), P50); !(r > 1 && r < 2) {
		t.Errorf("latency of a send: %v times the base's", r)
	}
}

func TestNumbers(t *testing.T) {
	for _, c := range []struct {
		got, want string
	}{
		{round(0), "0.000"}, {round(0.00012345), "0.000123"}, {round(0.00731), "0.00731"},
		{round(0.01373), "0.0137"}, {round(0.5), "0.500"}, {round(0.9996), "1.00"},
		{round(2.345), "2.35"}, {round(99.96), "100.0"}, {round(123.45), "123.5"}, {round(999.96), "1000"}, {round(1e6), "1000000"},
		{round(math.NaN()), "-"}, {round(1e300), "1e+300"},
		{plain(64), "64"}, {plain(0), "0"}, {plain(123.456), "123.5"},
		{percent(0.0512), "5.1%"}, {percent(math.Inf(1)), "-"},
		{InBytes(64), "64 B"}, {InBytes(1536), "1536 B"}, {InBytes(4096), "4 KiB"}, {InBytes(1 << 20), "1 MiB"}, {InBytes(0), "0 B"},
		{tickLabel(2.5), "2.5"}, {tickLabel(5000), "5000"}, {tickLabel(161667), "161.7k"}, {tickLabel(2e6), "2M"},
	} {
		nstest.Equal(t, "number", c.got, c.want)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// A writer that fails is an error of all that write.
func TestWriteFails(t *testing.T) {
	r := sample()
	for name, err := range map[string]error{
		"report":     r.Write(broken{}),
		"table":      r.WriteTable(broken{}),
		"document":   r.WriteMarkdown(broken{}, ""),
		"comparison": Compare(r, r).WriteTable(broken{}),
		"histograms": WriteHistograms(broken{}, "", tailed(t, 4000, 10)),
	} {
		nstest.ErrorIf(t, err == nil, "%s: no error", name)
	}
}

// Each metric is shown in one way and at one place, and its sense is that of a rate or of a time.
func TestMetrics(t *testing.T) {
	more := []Metric{
		Rate, Bandwidth, Peak, GoodputRatio, SendersRatio, Fairness, LeastShare, LinkUsed, FirstShare, FlowFairness,
		OSUBandwidth, OSUBothWays, OSUPairs, OSUPairsRate,
	}
	seen := map[Metric]bool{}
	for _, q := range quantities {
		if m := q.metric; seen[m] || m.Lower() == slices.Contains(more, m) {
			t.Errorf("%s: shown before %v, less is better %v", m, seen[m], m.Lower())
		}
		seen[q.metric] = true
	}
}

// Each of OSU's figures has its ratio to the base, and a table of its own in the document.
func TestOSU(t *testing.T) {
	point := func(latency, bw float64) []Point {
		return []Point{{X: 8, N: 7, Values: map[Metric]Value{
			OSULatency: turnsAround(latency, 0.1), OSUBandwidth: turnsAround(bw, 0.3), OSUPairsRate: turnsAround(1e6*bw, 0.2),
		}}}
	}
	r := &Report{Turns: 3, Groups: []Group{{
		Name: "layers-osu", Title: "OSU", Base: "mpich-tcp", Axis: Axis{Name: "message size", Unit: "bytes"},
		Series: []Series{{Name: "mvich", Points: point(2, 30)}, {Name: "mpich-tcp", Points: point(5, 4)}},
	}}}
	document := page(t, r)
	dir := t.TempDir()
	files, err := r.WritePlots(dir)
	nstest.FatalIf(t, err != nil || len(files) != 3, "%q, %v", files, err)
	for i, m := range []string{"osu_latency_us", "osu_bw_mbps", "osu_mbw_mr_msgs_per_s"} {
		name := "layers-osu-" + m + ".svg"
		nstest.Equal(t, "file", files[i], filepath.Join(dir, name))
		has(t, document, "plots/"+name)
	}
	has(t, text(t, r.WriteTable),
		"#iterations  Latency (us)     x  Bandwidth (MB/s)     x  Messages/s     x  spread\n",
		"mvich            8            7          2.00  0.40             30.00  7.50    30000000  7.50   30.0%\n",
		"mpich-tcp        8            7          5.00  1.00              4.00  1.00     4000000  1.00   30.0%\n")
	has(t, document, "| mvich | 2.00 (0.40) |", "| mvich | 30.00 (7.50) |", "| mvich | 30000000 (7.50) |")
}

// The conditions leave out what a group does not have, or the suite does not know.
func TestUnknownConditions(t *testing.T) {
	simulated, ranks := sample().Groups[0], sample().Groups[0]
	simulated.Conditions = bench.Conditions{MTU: 1500, FrameBytes: 1514}
	ranks.Name, ranks.Conditions = "ranks", bench.Conditions{Kernel: "6.18.0", CPUs: 2, Interface: "via0", MTU: 1500, PinnedCPUs: []int{0}}
	nstest.Equal(t, "simulated", conditions(simulated.Conditions), "MTU 1500, frames of 1514 bytes")
	nstest.Equal(t, "ranks", conditions(ranks.Conditions), "kernel 6.18.0, 2 CPUs (pinned: 0), interface via0, MTU 1500")
	nstest.Equal(t, "plot", ranks.newChart("Median").Title.Text, "ranks: median (MTU 1500)")
	has(t, page(t, &Report{Groups: []Group{simulated, ranks}}),
		"| pingpong | - | - | not said | not said | none | - | 1500 | - | 1514 | - | - | - |",
		"| ranks | 6.18.0 | 2 | not said | not said | 0 | via0 | 1500 | - | - | - | - | - |")
}

// A report of another user cannot control the terminal on which it is printed.
func TestReportIsSafeForATerminal(t *testing.T) {
	r := sample()
	const hostile = "\x1b]0;x\a\u009b31m"
	for g := range each(r.Groups) {
		for _, s := range []*string{
			&g.Name, &g.Title, &g.Axis.Name, &g.Axis.Unit, &g.Base, &g.Conditions.Kernel, &g.Conditions.CPUModel, &g.Conditions.Interface,
			&g.Conditions.Mode, &g.Conditions.Hugepages, &g.Conditions.Polling, &g.Conditions.Version,
		} {
			*s += hostile
		}
		g.Notes = append(g.Notes, hostile)
		for s := range each(g.Series) {
			s.Name += hostile
			for p := range each(s.Points) {
				p.Label += hostile
				p.Disturbed = append(p.Disturbed, hostile)
				p.Values[Metric(hostile)] = ValueOf([]float64{1})
			}
		}
	}
	other := sample()
	other.Groups[0].Name += hostile
	for name, write := range map[string]func(io.Writer) error{
		"table": r.WriteTable, "comparison": Compare(r, r).WriteTable, "others": Compare(sample(), r).WriteTable, "other": Compare(other, r).WriteTable,
	} {
		out := text(t, write)
		if i := strings.IndexAny(out, "\x1b\a\u009b"); i >= 0 {
			t.Errorf("%s: %q", name, out[max(0, i-40):i+10])
		}
	}
}
