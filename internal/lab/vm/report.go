package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"text/tabwriter"

	"viaxdp/bench"
	"viaxdp/internal/lab/vm/plan"
	"viaxdp/internal/ops/inspect"
)

// outcome is what a guest has reported.
type outcome struct {
	events  int     // reported in all
	boot    float64 // seconds to the guest's first step
	info    inspect.Interface
	modes   map[string]bool // reached on eth0
	figures []figure
	tests   int // that passed
	facts   []fact
	faults  []error
	done    bool
}

// figure is what a row has measured.
type figure struct {
	row
	p50, p99 float64 // microseconds, half a round trip
}

// readOutcome reads the results of a guest that got a task.
func readOutcome(path string, asked task) (*outcome, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	events, err := readEvents(f)
	if err != nil {
		return nil, err
	}
	return judge(events, asked), nil
}

func readEvents(r io.Reader) ([]plan.Event, error) {
	var events []plan.Event
	s := bufio.NewScanner(r)
	s.Buffer(nil, 64<<20)
	for s.Scan() {
		var e plan.Event
		if err := json.Unmarshal(s.Bytes(), &e); err != nil {
			return events, fmt.Errorf("line %d of the results is no event, %w: the guest's console may have written to the port of the results", len(events)+1, err)
		}
		events = append(events, e)
	}
	return events, s.Err()
}

// judge finds what is wrong. Every step of the plan must have been reported,
// and have done what it is there for.
func judge(events []plan.Event, asked task) *outcome {
	o := &outcome{events: len(events), modes: make(map[string]bool)}
	by := make(map[string]plan.Event)
	for _, e := range events {
		switch {
		case e.Done:
			o.done = true
		case e.Step == "":
			o.fault("guest: %s", e.Error)
		case e.Step == stepBoot:
			o.boot = e.Seconds
		default:
			by[e.Step] = e
			if e.Status != 0 || e.Error != "" {
				o.fault("%s: status %d %s\n%s\n%s", e.Step, e.Status, e.Error, tail(withoutPassed(e.Stdout+e.Stderr), 200), e.Diagnosis)
			}
		}
	}
	if !o.done {
		o.fault("the guest did not reach its end")
	}
	for _, s := range asked.plan().Steps {
		if _, ok := by[s.Name]; !ok {
			o.fault("%s: not run", s.Name)
		}
	}
	o.readInfo(by[stepInfo], asked.mode)
	o.facts = parseFacts(by[stepNIC].Stdout)
	for _, s := range asked.suites() {
		if e := by[s.step]; e.Step != "" {
			o.readTests(e, s.wants)
		}
	}
	for _, r := range asked.rows() {
		o.readRow(by[r.step()], r)
	}
	return o
}

func (o *outcome) fault(format string, args ...any) {
	o.faults = append(o.faults, fmt.Errorf(format, args...))
}

// readInfo reads what the interface can do; the mode must be among it.
func (o *outcome) readInfo(e plan.Event, mode string) {
	var list []inspect.Interface
	if err := json.Unmarshal([]byte(e.Stdout), &list); err != nil || len(list) != 1 {
		o.fault("%s: no answer that can be read: %v", stepInfo, err)
		return
	}
	o.info = list[0]
	reason := ""
	for _, m := range o.info.Modes {
		o.modes[m.Mode] = m.Reached
		if m.Mode == mode {
			reason = m.Reason
		}
	}
	if !o.modes[mode] {
		o.fault("%s: %s mode was not reached: %s", stepInfo, mode, reason)
	}
}

// readTests detects skipped tests, and tests that have not passed: a test binary also succeeds if none ran.
func (o *outcome) readTests(e plan.Event, wants []string) {
	ran := 0
	for line := range strings.Lines(e.Stdout) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "--- PASS"):
			ran++
		case strings.HasPrefix(line, "--- SKIP"):
			o.fault("%s: left out: %s", e.Step, line)
		}
	}
	if ran == 0 {
		o.fault("%s: no test has run", e.Step)
	}
	o.tests += ran
	for _, name := range wants {
		if !strings.Contains(e.Stdout, "--- PASS: "+name+" (") {
			o.fault("%s: %s has not passed", e.Step, name)
		}
	}
}

// readRow reads a ping-pong's result: all rounds there, and in the mode that was
// asked for.
func (o *outcome) readRow(e plan.Event, r row) {
	if e.Step == "" || e.Status != 0 {
		return // said already
	}
	var result bench.Result
	if err := json.Unmarshal([]byte(e.Stdout), &result); err != nil {
		o.fault("%s: the result cannot be read: %v", e.Step, err)
		return
	}
	l := result.LatencyOf(r.transport, r.bytes)
	if l == nil || l.N < int64(r.rounds()) {
		o.fault("%s: not all of %d rounds are there", e.Step, r.rounds())
		return
	}
	if got := result.Conditions.Mode; bench.UsesXDP(r.transport) && got != r.mode {
		o.fault("%s: ran in %s mode", e.Step, got)
	}
	o.figures = append(o.figures, figure{r, l.P50, l.P99})
}

// err is all that is wrong, or nil.
func (o *outcome) err() error { return errors.Join(o.faults...) }

// print writes the figures.
func (o *outcome) print(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "one way, us (software emulation: function, not speed)\tbytes\tp50\tp99\t")
	for _, f := range o.figures {
		fmt.Fprintf(t, "%s\t%d\t%.0f\t%.0f\t\n", f.name, f.bytes, f.p50, f.p99)
	}
	t.Flush()
}

// withoutPassed is the output of tests without the lines of those that passed: a
// failure may be long before the end.
func withoutPassed(s string) string {
	return passed.ReplaceAllString(s, "")
}

var passed = regexp.MustCompile(`(?m)^\s*(--- PASS|=== (RUN|PAUSE|CONT|NAME)).*\n`)

// tail is the end of a text, in lines.
func tail(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// fact is something that a kernel with its driver can do or not.
type fact struct {
	name   string
	can    bool
	reason string // why not
}

// parseFacts reads what the test of that name has logged.
func parseFacts(stdout string) (facts []fact) {
	for line := range strings.Lines(stdout) {
		_, text, ok := strings.Cut(strings.TrimSpace(line), "fact: ")
		if !ok {
			continue
		}
		name, value, _ := strings.Cut(text, ": ")
		_, reason, _ := strings.Cut(value, ": ")
		facts = append(facts, fact{name, strings.HasPrefix(value, "yes"), reason})
	}
	return facts
}

// since says from which kernel on a fact must hold; with an earlier one it may.
type since struct {
	fact    string
	version [2]int
	why     string
}

// needs are the facts that a kernel must show, with a kind of NIC.
func (f nicForm) needs() []since {
	return []since{
		{"native", [2]int{5, 18}, "XDP in the driver"},
		{"generic", [2]int{5, 18}, "XDP for any interface"},
		{"netdev netlink", [2]int{6, 3}, "asks the driver for its features"},
		{"multi-buffer, generic", [2]int{6, 6}, "frames of several chunks (XDP_USE_SG)"},
		{"multi-buffer, native", [2]int{6, 6}, "the same, where the driver has it"},
		{"TX budget", [2]int{6, 17}, "more than 32 frames a kick (XDP_MAX_TX_SKB_BUDGET)"},
		{"zero-copy", f.zeroCopySince(), "zero-copy queues of " + f.name},
	}
}

// missing are the facts that a kernel should have shown and has not.
func missing(release string, needs []since, facts []fact) (faults []error) {
	for _, n := range needs {
		if !atLeast(release, n.version) {
			continue
		}
		f := findFact(facts, n.fact)
		if f == nil {
			faults = append(faults, fmt.Errorf("nothing is known of %s", n.fact))
		} else if !f.can {
			faults = append(faults, fmt.Errorf("no %s, which kernels from %d.%d on have: %s", n.fact, n.version[0], n.version[1], f.reason))
		}
	}
	return faults
}

func findFact(facts []fact, name string) *fact {
	for i := range facts {
		if facts[i].name == name {
			return &facts[i]
		}
	}
	return nil
}

// matrix is what the kernels have shown, as a page of Markdown.
func matrix(o options, form nicForm, runs []*kernelRun) []byte {
	flags, suite := "", ", the data part of the\nconformance suite, and ping-pongs whose every byte is checked"
	if o.short {
		flags, suite = " --short", "\nand a ping-pong whose every byte is checked"
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `# Kernels

Written by `+"`go run ./internal/lab/vm --nic %s --kernel %s%s --doc docs/kernel-support.md`"+`, which
boots each of these kernels of Debian in a virtual machine with two %[1]s NICs, asks what
they can do, and runs the tests of package xdpnic for real NICs%[4]s: in zero-copy
mode where the driver has it, else in native mode. All of that has passed with each of them.

`, form.name, o.series, flags, suite)
	cells := []string{"| |", "|---|"}
	for _, r := range runs {
		cells[0] += " " + r.release + " |"
		cells[1] += "---|"
	}
	fmt.Fprintf(&b, "%s\n%s\n", cells[0], cells[1])
	line := func(name string, cell func(*kernelRun) string) {
		fmt.Fprintf(&b, "| %s |", name)
		for _, r := range runs {
			fmt.Fprintf(&b, " %s |", cell(r))
		}
		b.WriteByte('\n')
	}
	for _, f := range runs[0].outcome.facts {
		line(f.name, func(r *kernelRun) string {
			switch g := findFact(r.outcome.facts, f.name); {
			case g == nil:
				return "not known"
			case g.can:
				return "yes"
			}
			return "no"
		})
	}
	line("tested in mode", func(r *kernelRun) string { return r.mode })
	line("tests passed", func(r *kernelRun) string { return fmt.Sprint(r.outcome.tests) })
	b.WriteString("\nWhat a kernel must be able to do for all of that to pass:\n\n| from | | |\n|---|---|---|\n")
	for _, n := range form.needs() {
		fmt.Fprintf(&b, "| %d.%d | %s | %s |\n", n.version[0], n.version[1], n.fact, n.why)
	}
	var refused []string
	for _, r := range runs {
		for _, f := range r.outcome.facts {
			if !f.can {
				refused = append(refused, fmt.Sprintf("- %s, %s: %s", r.release, f.name, f.reason))
			}
		}
	}
	if len(refused) > 0 {
		fmt.Fprintf(&b, "\nThe reasons, as the library gives them:\n\n%s\n", strings.Join(refused, "\n"))
	}
	return b.Bytes()
}
