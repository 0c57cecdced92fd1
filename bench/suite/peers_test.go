package suite

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"viaxdp/bench/peers"
	"viaxdp/bench/report"
	"viaxdp/internal/lab/nstest"
)

// Under the names of other people's programs the test program is those.
func init() {
	switch name := filepath.Base(os.Args[0]); {
	case name == "iperf3":
		exitWith(iperf3Main())
	case name == "fi_pingpong":
		exitWith(errors.New("no such provider"))
	}
}

func exitWith(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(61)
	}
	os.Exit(0)
}

// iperf3Main imitates iperf3: a server that listens, and a client that prints the
// output of a real one.
func iperf3Main() error {
	after := func(flag string) string { return os.Args[slices.Index(os.Args, flag)+1] }
	switch {
	case slices.Contains(os.Args, "--version"):
		fmt.Println("iperf 3.99")
	case slices.Contains(os.Args, "--server"):
		l, err := net.Listen("tcp4", net.JoinHostPort(after("--bind"), after("--port")))
		if err != nil {
			return err
		}
		defer l.Close()
		return nstest.Forever()
	default:
		fmt.Println(`{"start":{"test_start":{"blksize":64}},"end":{"sum_received":{"seconds":1.000038,"bytes":38289960}}}`)
	}
	return nil
}

// A working program has its figures in each turn. Failing and missing programs have a
// note, and do not stop the others.
func TestPeers(t *testing.T) {
	exe, err := os.Executable()
	nstest.Must(t, err)
	dir := t.TempDir()
	for _, name := range []string{"iperf3", "fi_pingpong"} {
		nstest.Must(t, os.Symlink(exe, filepath.Join(dir, name)))
	}
	t.Setenv("PATH", dir)
	cfg := shortly("peers")
	cfg.Turns = 2
	var doing []string
	cfg.Progress = func(p Progress) { doing = append(doing, p.Doing) }
	g := measure(t, cfg).Group("peers")
	var rows []string
	for _, s := range g.Series {
		rows = append(rows, s.Name)
	}
	nstest.Same(t, "rows", rows, []string{delivery, tcpSpin, "iperf3-tcp"})
	p := g.Row("iperf3-tcp").At(64)
	if b := p.Values[report.Bandwidth]; len(b.Turns) != 2 || b.Median < 38 || b.Median > 39 || p.N != 2*(38289960/64) {
		t.Errorf("iperf3: %+v", p)
	}
	nstest.ErrorIf(t, len(p.Values) != 2, "iperf3 has figures that it does not tell: %+v", p.Values)
	if v := g.Row(delivery).At(64).Values[report.P50]; len(v.Turns) != 2 {
		t.Errorf("%s: %+v", delivery, v)
	}
	notes := strings.Join(g.Notes, "\n")
	for _, want := range []string{
		"No figures of sockperf-udp: sockperf is not installed (Debian's package sockperf; --install fetches it).",
		"No figures of fi_pingpong-msg (mean) at 64 B: server: it does not listen: no such provider (exit status 61).",
		"No figures of ucx_perftest-tag-bw: ucx_perftest is not installed",
		"Versions: iperf3 3.99, fi_pingpong ?.",
	} {
		nstest.ErrorIf(t, strings.Count(notes, want) != 1, "not once among the notes: %s\n%s", want, notes)
	}
	var iperf3 []string
	for _, d := range doing {
		if strings.Contains(d, "iperf3") || strings.Contains(d, "fi_pingpong-msg (") {
			iperf3 = append(iperf3, d)
		}
	}
	want := []string{
		"iperf3-tcp, 64 B (turn 1 of 2)", "fi_pingpong-msg (mean), 64 B (turn 1 of 2)", "iperf3-tcp, 64 B (turn 2 of 2)",
	}
	nstest.Same(t, "steps", iperf3, want)
}

// The names in the report identify the programs, as package report recognizes its
// rivals by name. They also give the MTU, and say if a mean stands for a median.
func TestPeersContests(t *testing.T) {
	s := newSession(t.Context(), Config{})
	contests := peersContests(s, nil)
	nstest.FatalIf(t, len(contests) != 2 || contests[0].mtu != DefaultMTU || contests[1].mtu != largestMTU, "%+v", contests)
	var names []string
	for _, c := range contests {
		for _, r := range c.programs {
			names = append(names, c.series(s, r))
		}
	}
	for _, want := range []string{
		"sockperf-udp", "iperf3-tcp", "fi_pingpong-msg (mean)", "ucx_perftest-tag-lat",
		"iperf3-tcp MTU 65535", "ucx_perftest-tag-bw MTU 65535",
	} {
		nstest.ErrorIf(t, !slices.Contains(names, want), "no %s among %s", want, names)
	}
	if n := len(slices.Compact(slices.Sorted(slices.Values(names)))); n != len(names) {
		t.Errorf("names twice among %v", names)
	}
	s.MTU = largestMTU
	nstest.Equal(t, "contests at the largest MTU", len(peersContests(s, nil)), 1)
}

// A program's mean stands for a median that it does not report. A figure that it does
// not report at all is absent.
func TestPeersAdd(t *testing.T) {
	f := newSheet(nil)
	f.at("a", 64).told(peers.Figures{N: 5, Mean: 4, P50: 3, P99: 9})
	f.at("b", 64).told(peers.Figures{N: 6, Mean: 4, Disturbed: []string{"noise"}})
	var g report.Group
	f.fill(&g, "peers", "")
	one := func(v float64) report.Value { return report.ValueOf([]float64{v}) }
	want := []report.Series{
		{Name: "a", Points: []report.Point{{X: 64, N: 5, Values: map[report.Metric]report.Value{report.P50: one(3), report.Mean: one(4), report.P99: one(9)}}}},
		{Name: "b", Points: []report.Point{{
			X: 64, N: 6, Values: map[report.Metric]report.Value{report.P50: one(4), report.Mean: one(4)}, Disturbed: []string{"noise (1 of 1 turns)"},
		}}},
	}
	nstest.Same(t, "series", g.Series, want)
}
