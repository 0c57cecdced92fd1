package main

import (
	"fmt"
	"strings"
)

// fact is something that a kernel with its driver can do or not.
type fact struct {
	name   string
	can    bool
	reason string // why not
}

// takeFacts reads what the test of that name has logged.
func takeFacts(stdout string) (facts []fact) {
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
