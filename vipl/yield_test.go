package vipl

import (
	"testing"
	"time"

	"viaxdp/internal/lab/nstest"
)

// A process yields its CPU once its polls have been in vain for some time.
func TestCPUShare(t *testing.T) {
	var c cpuShare
	now, found := time.Second, uint32(7)
	for i, step := range []struct {
		found  uint32 // more than before
		polls  int    // each a quarter of yieldAfter later
		yields int
	}{{1, 1, 0}, {0, 3, 0}, {0, 1000, 1000}, {1, 4, 0}, {0, 10, 10}} {
		found += step.found
		yields := 0
		for range step.polls {
			if now += yieldAfter / 4; c.due(found, now) {
				yields++
				c.Yielded(time.Millisecond)
			}
		}
		nstest.ErrorIf(t, yields != step.yields, "step %d: %d yields, want %d", i, yields, step.yields)
	}
}
