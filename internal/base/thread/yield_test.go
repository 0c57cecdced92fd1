package thread

import (
	"testing"
	"time"
)

// A poller yields its CPU each time, until no other thread has run for many times. Then it tries seldom, until one has.
func TestYielder(t *testing.T) {
	var y Yielder
	yields := func(n int, others time.Duration) (yields int) {
		for range n {
			if y.Due() {
				yields++
				y.Yielded(others)
			}
		}
		return yields
	}
	for _, step := range []struct {
		others        time.Duration
		tries, yields int
	}{
		{yieldAlone, yieldTries - 1, yieldTries - 1},
		{yieldAlone + 1, 1, 1},
		{0, yieldTries, yieldTries},
		{0, 10 * (yieldSeldom + 1), 10},
		{time.Millisecond, yieldSeldom + 1, 1},
		{time.Millisecond, 1000, 1000},
	} {
		if got := yields(step.tries, step.others); got != step.yields {
			t.Errorf("%d yields in %d tries in which others have %v, want %d", got, step.tries, step.others, step.yields)
		}
	}
}
