package testbed

import (
	"testing"
	"time"
)

// What becomes of the frames that are watched is counted apart, also of those that go on later.
func TestWatched(t *testing.T) {
	w := &way{in: -1, out: -1, epoch: time.Now(), dice: newDice()} // whose kernel refuses all
	w.watch = func(frame []byte) bool { return frame[0] == 1 }
	w.faults = Faults{Seed: 1, Loss: 0.1, Burst: 0.02, Duplicate: 0.2, Reorder: 0.2}
	const count = 3000
	other := make([]byte, 60)
	frame := append([]byte{1}, other...)
	for range count {
		w.take(frame, 0)
		w.take(other, 0)
	}
	for len(w.line) > 0 {
		w.turn()
	}
	all, n := w.counters(), w.watched()
	if n.Taken != count || all.Taken != 2*count || !near(n.Lost, 0.1, count) || !near(n.Duplicated, 0.2, count) ||
		n.Lost == all.Lost || n.Reordered == 0 || n.LostInBurst == 0 || n.Refused == 0 {
		t.Errorf("%+v of %+v", n, all)
	}
	for _, n := range []WayCounters{n, all.Since(n)} {
		if n.Taken+n.Duplicated != n.Lost+n.LostInBurst+n.Refused || n.Waiting != 0 {
			t.Errorf("not balanced: %+v", n)
		}
	}
}
