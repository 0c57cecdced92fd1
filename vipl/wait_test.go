package vipl_test

import (
	"runtime"
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

// Who is woken in vain, because others take what completes, needs no more memory the longer he
// waits.
func TestWokenInVain(t *testing.T) {
	const times = 2000
	n := newMemoryNet(t, memoryConfig{})
	h, leave := n.a.NewHesitant()
	defer leave()
	close(h.Hold)
	woken := make(chan error)
	go func() { woken <- h.Wait(time.Hour) }()
	vain := func(times int) {
		t.Helper()
		for range times {
			looks := h.Looks.Load()
			h.WakeInVain()
			for end := time.Now().Add(patience); h.Looks.Load() == looks; runtime.Gosched() {
				if time.Now().After(end) {
					t.Fatal("he was not woken")
				}
			}
		}
	}
	if !comes(func() bool { return h.Looks.Load() > 0 }) {
		t.Fatal("he has not looked")
	}
	vain(10)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	vain(times)
	runtime.ReadMemStats(&after)
	if made := after.Mallocs - before.Mallocs; made > times {
		t.Errorf("%d times woken in vain, %d pieces of memory", times, made)
	}
	h.Complete(1)
	if err := <-woken; err != nil {
		t.Error(err)
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
