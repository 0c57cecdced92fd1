package main

import (
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
