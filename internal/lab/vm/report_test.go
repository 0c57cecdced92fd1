package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"viaxdp/bench"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/vm/plan"
	"viaxdp/internal/ops/inspect"
)

// passes is what go test says of tests that have passed.
func passes(names ...string) (s string) {
	for _, name := range names {
		s += "--- PASS: " + name + " (0.10s)\n"
	}
	return s
}

// green is what a guest reports when all is well.
func green(t testing.TB, asked task) (events []plan.Event) {
	t.Helper()
	mode := asked.mode
	asJSON := func(v any) string {
		b, err := json.Marshal(v)
		must(t, err)
		return string(b)
	}
	results := make(map[string]string)
	for _, r := range asked.rows() {
		result := bench.Result{Latency: []bench.Latency{{Name: r.transport, Bytes: r.bytes, N: int64(r.rounds()), P50: 1}}}
		if bench.UsesXDP(r.transport) {
			result.Conditions.Mode = r.mode
		}
		results[r.step()] = asJSON(result)
	}
	results[stepInfo] = asJSON([]inspect.Interface{{Modes: []inspect.Mode{{Mode: mode, Reached: true}}}})
	results[stepNIC] = "=== RUN   TestNICsEcho\n" + passes(frameTests...) + "PASS\n"
	results[stepQueues] = "--- PASS: TestQueuesOfNICs (1.00s)\n"
	results[stepCopied] = results[stepQueues]
	results[stepAgent] = passes(agentTests...)
	results[stepShared] = passes(sharedTests...)
	if !asked.short {
		for _, group := range sharedRules {
			results[stepShared] += "    " + passes("TestNICsAllToAll/"+group)
		}
	}
	results[stepConformance] = passes("TestNICs")
	for _, group := range dataGroups {
		results[stepConformance] += "    " + passes("TestNICs/"+group)
	}
	events = []plan.Event{{Step: stepBoot, Seconds: 4}}
	for _, s := range asked.plan().Steps {
		events = append(events, plan.Event{Step: s.Name, Stdout: results[s.Name]})
	}
	return append(events, plan.Event{Done: true})
}

func TestJudgeGreen(t *testing.T) {
	for _, mode := range []string{zeroCopy, native} {
		o := judge(green(t, task{mode: mode}), task{mode: mode})
		nstest.WantErr(t, mode, o.err(), nil)
		if o.tests != len(frameTests)+len(agentTests)+len(sharedTests)+len(sharedRules)+1+len(dataGroups) || len(o.figures) != len(task{mode: mode}.rows()) || o.boot != 4 {
			t.Errorf("%s: %d tests, %d figures, boot %v", mode, o.tests, len(o.figures), o.boot)
		}
	}
}

// A short task leaves the conformance suite out, and nothing asks for it; with
// several queues VIs are steered to the last one.
func TestOrders(t *testing.T) {
	short := task{mode: zeroCopy, short: true}
	if o := judge(green(t, short), short); o.err() != nil || len(o.figures) != 1 || o.tests != len(frameTests)+len(agentTests)+len(sharedTests) {
		t.Errorf("%v, %d figures, %d tests", o.err(), len(o.figures), o.tests)
	}
	several := task{mode: zeroCopy, short: true, queues: 4}
	if o := judge(green(t, several), several); o.err() != nil || o.tests != len(frameTests)+len(agentTests)+len(sharedTests)+2 {
		t.Errorf("%v, %d tests", o.err(), o.tests)
	}
	for _, s := range (task{mode: zeroCopy, queues: 4}).plan().Steps {
		args := strings.Join(append(s.Argv, s.Env...), " ")
		nstest.ErrorIf(t, strings.Contains(args, "raw-afxdp"), "%s cannot steer", s.Name)
		nstest.ErrorIf(t, strings.Contains(args, "pingpong") && !strings.Contains(args, "--queue 3 --steer rss"), "%s: %s", s.Name, args)
	}
	for _, s := range (task{queues: 2, slow: 3}).plan().Steps {
		i := slices.Index(s.Argv, "-test.timeout")
		if !strings.HasSuffix(s.Argv[0], ".test") {
			continue
		}
		if i < 0 {
			t.Errorf("%s does not end by itself: %s", s.Name, s.Argv)
		} else if d, err := time.ParseDuration(s.Argv[i+1]); err != nil || d >= s.Limit || d < s.Limit/2 {
			t.Errorf("%s ends by itself after %v, and is killed after %v; %v", s.Name, d, s.Limit, err)
		}
	}
	if a, b := (task{}).plan().Steps[0].Limit, (task{slow: 3}).plan().Steps[0].Limit; b != 3*a {
		t.Errorf("limits: %v and %v", a, b)
	}
}

// A slow machine gets more time as a whole, too, unless --limit sets it.
func TestLimit(t *testing.T) {
	for args, want := range map[string]time.Duration{
		"": 15 * time.Minute, "--slow 4": time.Hour, "--slow 4 --limit 5m": 5 * time.Minute, "--limit 15m --slow 2": 15 * time.Minute,
	} {
		if o, err := parse(strings.Fields(args), io.Discard); err != nil || o.limit != want {
			t.Errorf("%s: %v, %v, want %v", args, o.limit, err, want)
		}
	}
}

// A request for help gets it, and no error.
func TestHelp(t *testing.T) {
	var help strings.Builder
	if err := run(t.Context(), []string{"-h"}, io.Discard, &help); err != nil || !strings.Contains(help.String(), "-kernel") {
		t.Errorf("%v, %s", err, &help)
	}
}

// Any failure in the guest makes the run fail, with the cause.
func TestJudgeRed(t *testing.T) {
	first := rows(zeroCopy, false)[0].step()
	change := func(step string, f func(e *plan.Event)) func([]plan.Event) []plan.Event {
		return func(events []plan.Event) []plan.Event {
			for i := range events {
				if events[i].Step == step {
					f(&events[i])
				}
			}
			return events
		}
	}
	replace := func(step, old, with string) func([]plan.Event) []plan.Event {
		return change(step, func(e *plan.Event) { e.Stdout = strings.ReplaceAll(e.Stdout, old, with) })
	}
	for _, tc := range []struct {
		name, want string
		change     func([]plan.Event) []plan.Event
	}{
		{"a test failed", "status 1", change(stepNIC, func(e *plan.Event) { e.Status = 1; e.Stdout = "--- FAIL: TestNICsEcho\n    bytes differ" })},
		{"a test was skipped", "left out", replace(stepConformance, "    --- PASS", "    --- SKIP")},
		{"no test was there", "no test has run", replace(stepNIC, "--- PASS", "--- WHAT")},
		{"a test has another name", "TestNICsStream has not passed", replace(stepNIC, "TestNICsStream ", "TestNICsFlow ")},
		{"the agent's test has another name", agentTests[0] + " has not passed", replace(stepAgent, "ZeroCopy", "Other")},
		{"a test of shared queues has another name", "TestNICsAllToAll has not passed", replace(stepShared, "AllToAll", "Other")},
		{"a group beside other programs has another name", "TestNICsAllToAll/rdma-read has not passed", replace(stepShared, "/rdma-read ", "/reads ")},
		{"a group has another name", "TestNICs/rdma-read has not passed", replace(stepConformance, "/rdma-read ", "/reads ")},
		{"the bind was not zero-copy", "zero-copy mode was not reached", replace(stepInfo, `"reached":true`, `"reached":false`)},
		{"a row ran in another mode", "ran in native mode", replace(first, `"mode":"zero-copy"`, `"mode":"native"`)},
		{"rounds are missing", "not all of", replace(first, `"n":200`, `"n":199`)},
		{"a row is not there", "not all of", replace(first, "vi-reliable", "vi-other")},
		{"a result cannot be read", "cannot be read", replace(first, "{", "[")},
		{"a step was killed", "killed", change(first, func(e *plan.Event) { e.Status, e.Error = -1, "killed after 60s" })},
		{"a server died", "status 2", change("server, "+zeroCopy, func(e *plan.Event) { e.Status = 2 })},
		{"a step is missing", "not run", func(e []plan.Event) []plan.Event {
			return slices.DeleteFunc(e, func(e plan.Event) bool { return e.Step == stepConformance })
		}},
		{"the guest stopped", "did not reach its end", func(e []plan.Event) []plan.Event { return e[:len(e)-1] }},
		{"the guest could not start", "no interface eth1", func(e []plan.Event) []plan.Event {
			return append(e, plan.Event{Status: -1, Error: "no interface eth1"})
		}},
		{"nothing", "did not reach its end", func([]plan.Event) []plan.Event { return nil }},
	} {
		err := judge(tc.change(green(t, task{mode: zeroCopy})), task{mode: zeroCopy}).err()
		nstest.ErrorIf(t, err == nil || !strings.Contains(err.Error(), tc.want), "%s: %v; want %q", tc.name, err, tc.want)
	}
}

func TestReadEvents(t *testing.T) {
	var b bytes.Buffer
	for _, e := range green(t, task{mode: native}) {
		line, err := json.Marshal(e)
		must(t, err)
		b.Write(append(line, '\n'))
	}
	events, err := readEvents(&b)
	nstest.ErrorIf(t, err != nil || judge(events, task{mode: native}).err() != nil, "%d events, %v", len(events), err)
	if _, err := readEvents(strings.NewReader("{\"Step\":\"boot\"}\nSeaBIOS\n")); err == nil {
		t.Error("a line that is no event was taken for one")
	}
}

// For a failed step the report shows the test that failed, however many passed after it.
func TestFailureIsShown(t *testing.T) {
	out := "=== RUN   TestNICs\n    --- FAIL: TestNICs/early (0.01s)\n        x_test.go:7: wrong\n" +
		strings.Repeat("        --- PASS: TestNICs/later (0.00s)\n", 100) + "FAIL\n"
	want := "    --- FAIL: TestNICs/early (0.01s)\n        x_test.go:7: wrong\nFAIL\n"
	if got := withoutPassed(out); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

const logged = `=== RUN   TestNICsFacts
    nics_test.go:1: fact: netdev netlink: yes
    nics_test.go:2: fact: zero-copy: no: xdpnic: bind, interface 2 queue 0: operation not supported; (take another)
    nics_test.go:3: fact: native: yes
    nics_test.go:4: fact: generic: yes
    nics_test.go:5: fact: multi-buffer, generic: yes
    nics_test.go:6: fact: multi-buffer, native: yes
--- PASS: TestNICsFacts (1.00s)
`

func TestFacts(t *testing.T) {
	facts := parseFacts(logged)
	if len(facts) != 6 || facts[0] != (fact{"netdev netlink", true, ""}) || facts[1].can ||
		!strings.HasSuffix(facts[1].reason, "not supported; (take another)") {
		t.Fatalf("%+v", facts)
	}
	needs := forms[0].needs()
	if faults := missing("6.12.1", needs, facts); len(faults) != 0 {
		t.Errorf("6.12 need not have zero-copy on virtio, nor the TX budget: %v", faults)
	}
	faults := missing("6.18.0", needs, facts)
	nstest.ErrorIf(t, len(faults) != 2, "6.18: %v", faults) // zero-copy, and nothing known of the TX budget
}

func TestMatrix(t *testing.T) {
	runs := []*kernelRun{
		{release: "6.12.1", task: task{mode: native}, outcome: &outcome{tests: 7, facts: parseFacts(logged)}},
		{release: "6.18.1", task: task{mode: zeroCopy}, outcome: &outcome{tests: 8, facts: parseFacts(strings.Replace(logged, "zero-copy: no: ", "zero-copy: yes", 1))}},
	}
	page := string(matrix(options{series: "6.12,6.18"}, forms[0], runs))
	for _, want := range []string{
		"| | 6.12.1 | 6.18.1 |", "| zero-copy | no | yes |", "| tests passed | 7 | 8 |", "| 6.16 | zero-copy |",
		"- 6.12.1, zero-copy: xdpnic: bind",
	} {
		nstest.ErrorIf(t, !strings.Contains(page, want), "no %q in\n%s", want, page)
	}
}

// docs/kernel-support.md was written by a run: with the kernels that it names, the current needs, and a yes wherever
// one of those kernels must have a feature.
func TestPageIsInStep(t *testing.T) {
	b, err := os.ReadFile("../../../docs/kernel-support.md")
	must(t, err)
	page := string(b)
	command := regexp.MustCompile("`go run ./internal/lab/vm --nic ([a-z]+) --kernel ([^ ]+)( --short)? --doc docs/kernel-support.md`").FindStringSubmatch(page)
	nstest.FatalIf(t, command == nil, "the page does not say what has written it")
	form, err := findForm(command[1])
	must(t, err)
	cells := make(map[string][]string) // by a row's name
	for line := range strings.Lines(page) {
		if row := strings.Split(strings.TrimSpace(line), " | "); strings.HasPrefix(line, "| ") && len(row) > 1 {
			row[len(row)-1] = strings.TrimSuffix(row[len(row)-1], " |")
			cells[strings.TrimPrefix(row[0], "| ")] = row[1:]
		}
	}
	releases := cells["|"]
	if series := strings.Split(command[2], ","); len(releases) != len(series) {
		t.Fatalf("kernels %q, for %q", releases, series)
	}
	var runs []*kernelRun
	for i, release := range releases {
		r := &kernelRun{release: release, task: task{mode: native}, outcome: &outcome{}}
		if atLeast(release, form.zeroCopySince()) {
			r.mode = zeroCopy
		}
		if got := cells["tested in mode"]; len(got) <= i || got[i] != r.mode {
			t.Errorf("%s was tested in modes %q, want %s", release, got, r.mode)
		}
		for _, n := range form.needs() {
			got := cells[n.fact]
			nstest.ErrorIf(t, len(got) <= i || got[i] != "yes" && atLeast(release, n.version), "%s: %s: %q", release, n.fact, got)
		}
		runs = append(runs, r)
	}
	// All that does not come from a guest is as matrix writes it now.
	now := string(matrix(options{series: command[2], short: command[3] != ""}, form, runs))
	for line := range strings.Lines(now) {
		if strings.HasPrefix(line, "| tested in") || strings.HasPrefix(line, "| tests passed") {
			continue
		}
		nstest.ErrorIf(t, !slices.Contains(slices.Collect(strings.Lines(page)), line), "the page does not have %q: let a run write it again", line)
	}
}

// FuzzEvents: each line of a guest's output is an event, or is reported as none. An event is written and read back
// unchanged. The judgement is good only for a guest that has reported every step, without a fault, and its end.
func FuzzEvents(f *testing.F) {
	lines := func(events []plan.Event) []byte {
		var b bytes.Buffer
		for _, e := range events {
			line, err := json.Marshal(e)
			nstest.Must(f, err)
			b.Write(append(line, '\n'))
		}
		return b.Bytes()
	}
	asked := task{mode: native, short: true}
	all := lines(green(f, asked))
	f.Add(all)
	f.Add(all[:len(all)/2])
	f.Add([]byte("{\"Step\":\"boot\"}\nSeaBIOS\n"))
	f.Add([]byte("{\"Step\":\"interface\",\"Stdout\":\"[{}]\"}\n{\"Done\":true}"))
	f.Add([]byte("null\n\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		events, err := readEvents(bytes.NewReader(b))
		if n := bytes.Count(b, []byte("\n")); len(events) > n+1 || err == nil && len(events) < n {
			t.Fatalf("%d events in %d lines", len(events), n)
		}
		nstest.FatalIf(t, err != nil && !strings.Contains(err.Error(), "line "), "%v", err)
		if back, err := readEvents(bytes.NewReader(lines(events))); err != nil || !reflect.DeepEqual(back, events) {
			t.Fatalf("%+v are read again as %+v: %v", events, back, err)
		}
		o := judge(events, asked)
		done := false
		seen := make(map[string]bool)
		bad := ""
		status := make(map[string]int)
		for _, e := range events {
			done = done || e.Done
			if !e.Done && e.Step != "" {
				seen[e.Step] = true
				status[e.Step] = e.Status
			}
		}
		for _, s := range asked.plan().Steps {
			if !seen[s.Name] || status[s.Name] != 0 {
				bad = s.Name
			}
		}
		if o.err() == nil && (!done || bad != "" || o.tests <= 0 || !o.modes[asked.mode] || len(o.figures) != len(asked.rows())) {
			t.Fatalf("%s is good: done %v, without %q, %d tests", b, done, bad, o.tests)
		}
		nstest.FatalIf(t, o.tests < 0 || len(o.figures) > len(asked.rows()) || o.events != len(events), "%+v", o)
	})
}
