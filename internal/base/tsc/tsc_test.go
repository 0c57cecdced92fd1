package tsc

import (
	"testing"
	"time"

	"viaxdp/internal/lab/nstest"
)

// The counter and the monotonic clock agree about how long something took.
func TestRate(t *testing.T) {
	ns, ok := Rate()
	if !ok {
		nstest.FatalIf(t, Steady(), "the kernel keeps time by the TSC, and its rate is not known")
		t.Skip("the kernel does not keep time by a TSC")
	}
	a := look()
	time.Sleep(100 * time.Millisecond) // what is measured
	b := look()
	got := time.Duration(float64(b.ticks-a.ticks) * float64(ns) / (1 << 32))
	want := b.at.Sub(a.at)
	if d := (got - want).Abs(); d > want/1000 {
		t.Errorf("%v by the counter, %v by the clock", got, want)
	}
}

// The counter does not run backwards, whatever processor reads it.
func TestForward(t *testing.T) {
	if !Steady() {
		t.Skip("the kernel does not keep time by a TSC")
	}
	values := make(chan uint64)
	go func() {
		defer close(values)
		for range 1000 {
			values <- Read()
		}
	}()
	last := Read()
	for v := range values {
		if now := Read(); v < last || now < v {
			t.Fatalf("%d, then %d, then %d", last, v, now)
		} else {
			last = v
		}
	}
}
