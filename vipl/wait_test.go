package vipl_test

import (
	"testing"
	"time"

	"viaxdp/vipl"
)

// Of several who wait for one queue all are woken when as many descriptors complete
// at once, just as they go to sleep.
func TestWaitersWakeEachOther(t *testing.T) {
	const waiters = 4
	n := newMemoryNet(t, memoryConfig{})
	h, leave := n.a.NewHesitant()
	defer leave()
	woken := make(chan error, waiters)
	for range waiters {
		go func() { woken <- h.Wait(-1) }() // a time-out would wake him, too
	}
	for end := time.Now().Add(patience); h.Looks.Load() < waiters; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d of %d have looked", h.Looks.Load(), waiters)
		}
	}
	h.Complete(waiters)
	close(h.Hold)
	for i := range waiters {
		select {
		case err := <-woken:
			if err != nil {
				t.Fatalf("waiter %d: %v", i, err)
			}
		case <-time.After(patience):
			t.Fatalf("%d of %d were woken", i, waiters)
		}
	}
}

// Who sleeps is woken once, however much happens before he has a CPU.
func TestSleeperIsWokenOnce(t *testing.T) {
	for completions, want := range map[int]int{0: 0, 1: 1, 16: 1} {
		if got := vipl.WakesOfSleep(completions); got != want {
			t.Errorf("%d completions: woken %d times, want %d", completions, got, want)
		}
	}
}
