package undo

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// harmless are the paths that a list may name, in other words than allowed's.
var harmless = regexp.MustCompile(`^/sys/(kernel/mm/(hugepages/hugepages-2048kB/nr_hugepages|transparent_hugepage/enabled)|` +
	`devices/system/(node/node[^/]*/hugepages/hugepages-2048kB/nr_hugepages|` +
	`cpu/cpu[^/]*/(cpufreq/scaling_governor|cpuidle/state[^/]*/disable)))$`)

// Whatever is in a list, it is refused as a whole, or names no file but those that doctor and tune set, and is read
// again the same.
func FuzzJournal(f *testing.F) {
	for _, c := range []Change{
		{Setting: Setting{Kind: File, Name: "/sys/kernel/mm/transparent_hugepage/enabled"}, Before: "never", After: "always"},
		{Setting: Setting{Kind: File, Name: "/sys/devices/system/cpu/cpu0/../../../../../etc/passwd"}, Before: "x", After: "y"},
		{Setting: Setting{Kind: File, Name: "/sys/devices/system/cpu/cpu../cpuidle/state0/disable"}, Before: "x", After: "y"},
		{Setting: Setting{Kind: NetFile, Interface: "../..", Name: "threaded"}, Before: "0", After: "1", Netns: 1, Ifindex: 2},
	} {
		b, err := json.Marshal([]Change{c, c})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`[{"kind":"file","name":"\u0000"}]`))
	f.Add([]byte(`null`))
	f.Add([]byte(`[null]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		changes, err := parse(b)
		if err != nil {
			return
		}
		for _, c := range changes {
			if allowed(c.Name) == nil && (!harmless.MatchString(c.Name) || filepath.Clean(c.Name) != c.Name) {
				t.Fatalf("%q may be written", c.Name)
			}
		}
		again, err := json.Marshal(changes)
		must(t, err)
		if back, err := parse(again); err != nil || !slices.Equal(back, changes) {
			t.Fatalf("%+v is read again as %+v, %v", changes, back, err)
		}
	})
}
