package vipl

import (
	"testing"
	"time"
)

// A process yields its CPU once its polls have been in vain for some time: each time until no other thread has run for many times,
// and then seldom, until one has.
func TestCPUShare(t *testing.T) {
	var c cpuShare
	now, found := time.Second, uint32(7)
	yields := func(polls int, each, took time.Duration) (yields int) {
		for range polls {
			if now += each; c.due(found, now) {
				yields++
				c.yielded(took)
			}
		}
		return yields
	}
	for i, step := range []struct {
		found      uint32 // more than before
		polls      int
		each, took time.Duration
		yields     int
	}{
		{1, 1, time.Second, 0, 0},
		{0, 3, yieldAfter / 4, 0, 0},
		{0, yieldTries - 1, yieldAfter / 4, yieldAlone, yieldTries - 1},
		{0, 1, yieldAfter / 4, yieldAlone + 1, 1},
		{1, 4, yieldAfter / 4, 0, 0},
		{0, yieldTries, yieldAfter / 4, 0, yieldTries},
		{0, 10 * (yieldSeldom + 1), yieldAfter / 4, 0, 10},
		{0, yieldSeldom + 1, yieldAfter / 4, time.Millisecond, 1},
		{0, 1000, yieldAfter / 4, time.Millisecond, 1000},
	} {
		found += step.found
		if got := yields(step.polls, step.each, step.took); got != step.yields {
			t.Errorf("step %d: %d yields, want %d", i, got, step.yields)
		}
	}
}
