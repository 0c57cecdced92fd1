package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"text/tabwriter"

	"viaxdp/bench"
	"viaxdp/internal/inspect"
	"viaxdp/vm/plan"
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

// readOutcome reads the results of a guest that got an order.
func readOutcome(path string, asked order) (*outcome, error) {
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
func judge(events []plan.Event, asked order) *outcome {
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
				o.fault("%s: status %d %s\n%s\n%s", e.Step, e.Status, e.Error, tail(withoutPassed(e.Stdout+e.Stderr), 200), e.Look)
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
	o.takeInfo(by[stepInfo], asked.mode)
	o.takeTests(by[stepNIC])
	o.facts = takeFacts(by[stepNIC].Stdout)
	o.takeTests(by[stepConformance])
	o.takeTests(by[stepQueues])
	for _, name := range frameTests {
		o.wantTest(by[stepNIC], name)
	}
	for _, group := range dataGroups {
		o.wantTest(by[stepConformance], "TestNICs/"+group)
	}
	for _, r := range asked.rows() {
		o.takeRow(by[r.step()], r)
	}
	return o
}

func (o *outcome) fault(format string, args ...any) {
	o.faults = append(o.faults, fmt.Errorf(format, args...))
}

// takeInfo reads what the interface can do; the mode must be among it.
func (o *outcome) takeInfo(e plan.Event, mode string) {
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

// takeTests looks for tests that were left out: a test binary without one that
// ran is content, too.
func (o *outcome) takeTests(e plan.Event) {
	if e.Step == "" {
		return
	}
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
}

// wantTest looks for a test that must have passed: one that has another name by now is
// left out without a word.
func (o *outcome) wantTest(e plan.Event, name string) {
	if e.Step != "" && !strings.Contains(e.Stdout, "--- PASS: "+name+" (") {
		o.fault("%s: %s has not passed", e.Step, name)
	}
}

// takeRow reads a ping-pong's result: all rounds there, and in the mode that was
// asked for.
func (o *outcome) takeRow(e plan.Event, r row) {
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

// withoutPassed is what tests said, but for the lines of those that have passed and of
// their beginnings: what has failed may have done so long before the end.
func withoutPassed(s string) string {
	return passed.ReplaceAllString(s, "")
}

var passed = regexp.MustCompile(`(?m)^\s*(--- PASS|=== (RUN|PAUSE|CONT|NAME)).*\n`)

// tail is the end of a text, in lines.
func tail(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
