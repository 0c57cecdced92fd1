package bpf

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Each of the program's causes has a field of its own, and one name for all.
func TestCounterNames(t *testing.T) {
	var c Counters
	for i, cause := range causes {
		*cause.field(&c) = uint64(i) + 1
	}
	each := map[string]uint64{}
	next := uint64(1)
	c.Each(func(name string, v uint64) {
		if v != next {
			t.Errorf("%s: %d, want %d", name, v, next)
		}
		next++
		each[name] = v
	})
	if len(each) != int(demuxCauseCAUSE_COUNT) {
		t.Errorf("%d names for %d causes", len(each), demuxCauseCAUSE_COUNT)
	}
	text, err := json.Marshal(c)
	must(t, err)
	var fields map[string]uint64
	must(t, json.Unmarshal(text, &fields))
	if diff := cmp.Diff(each, fields); diff != "" {
		t.Errorf("JSON has other names (-Each +JSON):\n%s", diff)
	}
}
