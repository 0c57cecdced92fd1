package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

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
	facts := takeFacts(logged)
	if len(facts) != 6 || facts[0] != (fact{"netdev netlink", true, ""}) || facts[1].can ||
		!strings.HasSuffix(facts[1].reason, "not supported; (take another)") {
		t.Fatalf("%+v", facts)
	}
	needs := forms[0].needs()
	if faults := missing("6.12.1", needs, facts); len(faults) != 0 {
		t.Errorf("6.12 need not have zero-copy on virtio, nor the TX budget: %v", faults)
	}
	faults := missing("6.18.0", needs, facts)
	if len(faults) != 2 { // zero-copy, and nothing known of the TX budget
		t.Errorf("6.18: %v", faults)
	}
}

func TestMatrix(t *testing.T) {
	runs := []*kernelRun{
		{release: "6.12.1", order: order{mode: native}, outcome: &outcome{tests: 7, facts: takeFacts(logged)}},
		{release: "6.18.1", order: order{mode: zeroCopy}, outcome: &outcome{tests: 8, facts: takeFacts(strings.Replace(logged, "zero-copy: no: ", "zero-copy: yes", 1))}},
	}
	page := string(matrix(options{series: "6.12,6.18"}, forms[0], runs))
	for _, want := range []string{
		"| | 6.12.1 | 6.18.1 |", "| zero-copy | no | yes |", "| tests passed | 7 | 8 |", "| 6.16 | zero-copy |",
		"- 6.12.1, zero-copy: xdpnic: bind",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
}

// docs/kernel-support.md is what a run has written: with the kernels that it names,
// the needs of today, and a yes wherever one of those kernels must be able to.
func TestPageIsInStep(t *testing.T) {
	b, err := os.ReadFile("../docs/kernel-support.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	command := regexp.MustCompile("`go run ./vm --nic ([a-z]+) --kernel ([^ ]+)( --short)? --doc docs/kernel-support.md`").FindStringSubmatch(page)
	if command == nil {
		t.Fatal("the page does not say what has written it")
	}
	form, err := findForm(command[1])
	if err != nil {
		t.Fatal(err)
	}
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
		r := &kernelRun{release: release, order: order{mode: native}, outcome: &outcome{}}
		if atLeast(release, form.zeroCopySince()) {
			r.mode = zeroCopy
		}
		if got := cells["tested in mode"]; len(got) <= i || got[i] != r.mode {
			t.Errorf("%s was tested in modes %q, want %s", release, got, r.mode)
		}
		for _, n := range form.needs() {
			got := cells[n.fact]
			if len(got) <= i || got[i] != "yes" && atLeast(release, n.version) {
				t.Errorf("%s: %s: %q", release, n.fact, got)
			}
		}
		runs = append(runs, r)
	}
	// All that does not come from a guest is as matrix writes it now.
	now := string(matrix(options{series: command[2], short: command[3] != ""}, form, runs))
	for line := range strings.Lines(now) {
		if strings.HasPrefix(line, "| tested in") || strings.HasPrefix(line, "| tests passed") {
			continue
		}
		if !slices.Contains(slices.Collect(strings.Lines(page)), line) {
			t.Errorf("the page does not have %q: let a run write it anew", line)
		}
	}
}
