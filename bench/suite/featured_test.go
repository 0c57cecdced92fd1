package suite

import (
	"slices"
	"testing"

	"viaxdp/bench/report"
)

// The groups that docs/benchmarks.md shows are groups of the suite.
func TestFeaturedGroupsExist(t *testing.T) {
	var names []string
	for _, g := range Groups() {
		names = append(names, g.Name)
	}
	for _, f := range report.Featured() {
		if !slices.Contains(names, f) {
			t.Errorf("no group %s", f)
		}
	}
}
