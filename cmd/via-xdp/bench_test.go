package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"viaxdp/bench/report"
	"viaxdp/bench/suite"
	"viaxdp/internal/lab/nstest"
)

// sampleReport has one figure.
func sampleReport(p50 float64) *report.Report {
	return &report.Report{
		Version: report.Version, Command: "via-xdp bench window", Turns: 3,
		Groups: []report.Group{{
			Name: "window", Title: "a title", Axis: report.Axis{Name: "message size", Unit: "bytes", Log: true},
			Series: []report.Series{{Name: "tcp-spin", Points: []report.Point{{
				X: 64, N: 10,
				Values: map[report.Metric]report.Value{report.P50: report.ValueOf([]float64{p50, p50 + 0.1, p50 + 0.2})},
			}}}},
		}},
	}
}

func readSample(t *testing.T, path string) *report.Report {
	t.Helper()
	r, err := readReport(path)
	nstest.Must(t, err)
	return r
}

func TestBenchFlags(t *testing.T) {
	out := filepath.Join(t.TempDir(), "new")
	r := &recorder{report: sampleReport(2)}
	status, table, errs := call(r, "bench", "--out", out, "--turns", "7", "--duration", "5ms", "--quick", "--mtu", "9000",
		"--mode", "native", "--hugepages=false", "--segmentation=false", "--install", "window", "vibe-c")
	if status != exitFine {
		t.Fatal(errs)
	}
	want := suite.Config{
		Groups: []string{"window", "vibe-c"}, Turns: 7, Duration: 5 * time.Millisecond, Quick: true, MTU: 9000,
		Mode: "native", NoSegmentation: true, Install: true, Out: out,
		Command:    "via-xdp bench --turns 7 --duration 5ms --quick --mtu 9000 --mode native --hugepages=false --segmentation=false --install window vibe-c",
		WorkerArgs: []string{workerCommand}, GuardArgs: []string{guardCommand},
		RankArgs: []string{"mpibench"}, ProxyArgs: []string{"proxy"},
		AgentArgs: []string{"agent", "--config", "/dev/null", "--no-fdstored"},
	}
	nstest.Same(t, "suite", r.suite, want, cmpopts.IgnoreFields(suite.Config{}, "Progress", "Stderr"))
	for _, text := range []string{"window: a title", "tcp-spin"} {
		nstest.ErrorIf(t, !strings.Contains(table, text), "the table has no %q:\n%s", text, table)
	}
	nstest.ErrorIf(t, !strings.Contains(errs, "takes about") || !strings.Contains(errs, out),
		"neither an estimate nor the place of the results: %q", errs)
	nstest.Same(t, "report.json", readSample(t, filepath.Join(out, "report.json")), r.report)
	if plots, _ := filepath.Glob(filepath.Join(out, "*.svg")); len(plots) != 1 {
		t.Errorf("plots: %v", plots)
	}
	// The defaults, without flags.
	t.Chdir(t.TempDir())
	status, jsonOut, table := call(r, "bench", "--json", "-")
	if status != exitFine || !r.suite.Hugepages || r.suite.Mode != "generic" || r.suite.Quick || r.suite.Turns != 0 || r.suite.MTU != 1500 {
		t.Errorf("status %d, defaults %+v", status, r.suite)
	}
	if !strings.HasPrefix(r.suite.Out, "bench-results/") || !json.Valid([]byte(jsonOut)) || !strings.Contains(table, "tcp-spin") {
		t.Errorf("results in %q, printed %q and %q", r.suite.Out, jsonOut, table)
	}
}

// Runs that begin in the same second have a directory each.
func TestBenchTwiceAtOnce(t *testing.T) {
	t.Chdir(t.TempDir())
	const runs = 4
	for range runs {
		status, _, errs := call(&recorder{report: sampleReport(2)}, "bench")
		nstest.FatalIf(t, status != exitFine, "status %d: %s", status, errs)
	}
	reports, err := filepath.Glob("bench-results/*/report.json")
	nstest.ErrorIf(t, err != nil || len(reports) != runs, "%v, %v", reports, err)
}

// The groups measured before a failed one are kept and shown.
func TestBenchFails(t *testing.T) {
	out := t.TempDir()
	r := &recorder{report: sampleReport(2), err: errors.New("vibe-cq: a frame was lost")}
	status, table, errs := call(r, "bench", "--out", out)
	nstest.ErrorIf(t, status != exitFailed || !strings.Contains(errs, "a frame was lost") || !strings.Contains(table, "tcp-spin"),
		"status %d, printed %q and %q", status, table, errs)
	readSample(t, filepath.Join(out, "report.json"))
	r.report = &report.Report{}
	if status, table, _ := call(r, "bench", "--out", t.TempDir()); status != exitFailed || table != "" {
		t.Errorf("without any group: status %d, printed %q", status, table)
	}
}

func TestBenchList(t *testing.T) {
	_, out, _ := call(&recorder{}, "bench", "list")
	_, help, _ := call(&recorder{}, "bench", "--help")
	for _, g := range suite.Groups() {
		if !strings.Contains("\n"+out, "\n"+g.Name+" ") || !strings.Contains(out, g.Title) || !strings.Contains(help, g.Title) {
			t.Errorf("no group %s in the list or in the help", g.Name)
		}
	}
}

func TestBenchCompare(t *testing.T) {
	dir := t.TempDir()
	files := map[string]string{}
	for name, p50 := range map[string]float64{"a": 2, "same": 2.1, "worse": 3} {
		files[name] = filepath.Join(dir, name+".json")
		nstest.Must(t, writeFile(files[name], sampleReport(p50).Write))
	}
	for _, c := range []struct {
		b      string
		flags  []string
		status int
		want   string
	}{
		{"same", []string{"--fail", "0"}, exitFine, "1.048"},
		{"worse", nil, exitFine, "*"},
		{"worse", []string{"--fail", "60"}, exitFine, "*"},
		{"worse", []string{"--fail", "20"}, exitFailed, "*"},
		{"worse", []string{"--json", "--fail", "20"}, exitFailed, `"marked": true`},
	} {
		status, out, errs := call(&recorder{}, append([]string{"bench", "compare", files["a"], files[c.b]}, c.flags...)...)
		nstest.ErrorIf(t, status != c.status || !strings.Contains(out, c.want),
			"%+v: status %d, printed %q, %q", c, status, out, errs)
	}
}

func TestBenchDoc(t *testing.T) {
	dir := t.TempDir()
	from, docs := filepath.Join(dir, "report.json"), filepath.Join(dir, "docs")
	nstest.Must(t, writeFile(from, sampleReport(2).Write))
	written := func(docs string) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(docs, "benchmarks.md"))
		nstest.Must(t, err)
		plots, _ := filepath.Glob(filepath.Join(docs, "benchmarks", "*.svg"))
		nstest.ErrorIf(t, len(plots) != 1 || !strings.Contains(string(text), "benchmarks/"+filepath.Base(plots[0])),
			"plots %v, document %s", plots, text)
	}
	r := &recorder{report: sampleReport(2)}
	if status, _, errs := call(r, "bench", "doc", "--from", from, "--docs", docs); status != exitFine || len(r.calls) > 0 {
		t.Fatalf("status %d, %s, called %v", status, errs, r.calls)
	}
	written(docs)
	again, copied := filepath.Join(dir, "again"), filepath.Join(dir, "copy.json")
	if status, _, errs := call(r, "bench", "doc", "--out", filepath.Join(dir, "out"), "--docs", again, "--json", copied); status != exitFine || len(r.calls) != 1 {
		t.Fatalf("status %d, %s, called %v", status, errs, r.calls)
	}
	written(again)
	nstest.Same(t, "the copy", readSample(t, copied), r.report)
}

// Groups that are measured again replace those of a report, and nothing else changes.
func TestBenchRenew(t *testing.T) {
	dir := t.TempDir()
	path, docs := filepath.Join(dir, "report.json"), filepath.Join(dir, "docs")
	old := sampleReport(2)
	other := old.Groups[0]
	other.Name = "pingpong"
	old.Groups = append(old.Groups, other)
	nstest.Must(t, writeFile(path, old.Write))
	later := sampleReport(7)
	later.Started = time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC)
	r := &recorder{report: later}
	if status, _, errs := call(r, "bench", "doc", "--from", path, "--docs", docs, "window"); status != exitFine || len(r.calls) != 1 {
		t.Fatalf("status %d, %s, called %v", status, errs, r.calls)
	}
	nstest.ErrorIf(t, r.suite.Turns != old.Turns || r.suite.Out != dir,
		"%d turns, histograms in %s", r.suite.Turns, r.suite.Out)
	want := *old
	want.Groups = []report.Group{later.Groups[0], other}
	want.Groups[0].Renewed = later.Started
	nstest.Same(t, "renewed", readSample(t, path), &want)
	text, err := os.ReadFile(filepath.Join(docs, "benchmarks.md"))
	if err != nil || strings.Count(string(text), "Measured again, in a run of its own, on 2026-03-04 05:06 UTC.") != 1 {
		t.Errorf("%v\n%s", err, text)
	}
	for _, wrong := range [][]string{{"--turns", "4"}, {"--out", docs}} {
		r := &recorder{report: later}
		if status, _, errs := call(r, append([]string{"bench", "doc", "--from", path, "--docs", docs, "window"}, wrong...)...); status == exitFine || len(r.calls) > 0 || !strings.Contains(errs, wrong[0]) {
			t.Errorf("%v: status %d, %s", wrong, status, errs)
		}
	}
}

// A report into which the groups that were measured again cannot be written stays as it was, and nothing lies beside it.
func TestBenchRenewFails(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "report.json"), filepath.Join(dir, "link.json")
	nstest.Must(t, writeFile(path, sampleReport(2).Write))
	nstest.Must(t, errors.Join(os.Chmod(path, 0o600), os.Symlink("report.json", link)))
	before := readSample(t, path)
	wrong := sampleReport(7)
	wrong.Groups[0].Series = append(wrong.Groups[0].Series, wrong.Groups[0].Series[0]) // a name that means two things
	renew := func(by *report.Report) int {
		status, _, _ := call(&recorder{report: by}, "bench", "doc", "--from", link, "--docs", filepath.Join(dir, "docs"), "window")
		return status
	}
	nstest.ErrorIf(t, renew(wrong) == exitFine, "a report with two series of one name was written")
	nstest.Same(t, "report", readSample(t, path), before)
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) != 2 {
		t.Errorf("beside the report: %q, %v", left, err)
	}
	sound := sampleReport(7)
	sound.Started = time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC)
	nstest.ErrorIf(t, renew(sound) != exitFine, "a sound report was not written")
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != 0o600 || len(readSample(t, link).Groups) != 1 || readSample(t, path).Groups[0].Renewed.IsZero() {
		t.Errorf("renewed: %v, %v", info.Mode(), err)
	}
}

// The command in a report has no directories of the user, however they are written.
func TestWithoutPlaces(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"bench", "--out=/tmp/an out", "--mode", "native", "peers"}, "via-xdp bench --mode native peers"},
		{[]string{"bench", "doc", "--out", "/tmp/it's", "--turns", "7", "load"}, "via-xdp bench doc --turns 7 load"},
		{[]string{"bench", "--json", "x.json", "--docs=", "--turns=7", "--json=-"}, "via-xdp bench --turns=7"},
		{[]string{"bench", "--quick", "it's a group", "--out"}, `via-xdp bench --quick 'it'\''s a group'`},
	} {
		nstest.Equal(t, strings.Join(test.args, " "), commandLine(withoutPlaces(test.args)), test.want)
	}
}

// The program itself, from end to end; with -short one group of it, for package suite has
// all that spin.
func TestBench(t *testing.T) {
	nstest.Require(t)
	out := t.TempDir()
	groups := []string{"pingpong", "vibe-cq"}
	patterns := []string{"vibe-cq-*.hdr", "vibe-cq-bandwidth.svg"}
	if testing.Short() {
		groups = groups[1:]
	} else {
		patterns = append(patterns, "pingpong-latency.svg", "pingpong-percentiles.svg")
	}
	args := append([]string{"bench", "--quick", "--duration", "2ms", "--turns", "2", "--out", out}, groups...)
	status, table, errs := produce(context.Background(), args...)
	nstest.FatalIf(t, status != exitFine, "status %d: %s", status, errs)
	r := readSample(t, filepath.Join(out, "report.json"))
	if len(r.Groups) != len(groups) || r.Groups[0].Name != groups[0] || r.Groups[len(groups)-1].Conditions.Mode != "generic" {
		t.Errorf("got %+v", r)
	}
	for _, pattern := range patterns {
		if files, _ := filepath.Glob(filepath.Join(out, pattern)); len(files) == 0 {
			t.Errorf("no %s", pattern)
		}
	}
	for _, text := range []string{"t_typical[usec]", "BW average[MB/sec]", "vi-reliable-delivery with a CQ"} {
		nstest.ErrorIf(t, !strings.Contains(table, text), "the table has no %q:\n%s", text, table)
	}
}
