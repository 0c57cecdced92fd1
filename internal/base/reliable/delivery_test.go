package reliable

import (
	"testing"

	"pgregory.net/rapid"
)

func drawLink(t *rapid.T, name string) link {
	g := func(what string, least, most int) int { return rapid.IntRange(least, most).Draw(t, name+what) }
	l := link{delay: int64(g(" delay us", 1, 2000)) * 1000}
	if rapid.Bool().Draw(t, name+" loses") {
		l.loss = float64(g(" loss %", 0, 30)) / 100
	}
	if rapid.Bool().Draw(t, name+" loses in bursts") {
		l.burst, l.burstFor = float64(g(" bursts ‰", 1, 20))/1000, int64(g(" burst us", 1, 5000))*1000
	}
	if rapid.Bool().Draw(t, name+" reorders") {
		l.jitter = int64(g(" jitter us", 0, 500)) * 1000
		l.late, l.lateBy = float64(g(" late %", 0, 20))/100, int64(g(" late us", 0, 5000))*1000
	}
	if rapid.Bool().Draw(t, name+" repeats") {
		l.repeat = float64(g(" repeat %", 0, 30)) / 100
	}
	if rapid.Bool().Draw(t, name+" is narrow") {
		l.perFrame, l.queue = int64(g(" ns a frame", 100, 20_000)), g(" queue", 4, 512)
	}
	return l
}

// Whatever the network does, each frame is placed once and in order, in both
// directions, in bounded time, and then both sides are at rest.
func TestEverythingArrivesOnceInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := rapid.OneOf(rapid.Uint32(), rapid.Uint32Range(1<<32-400, 1<<32-1),
			rapid.Uint32Range(1<<31-400, 1<<31+1)).Draw(t, "first")
		window := rapid.IntRange(1, 300).Draw(t, "window")
		w, a, b := pair(rapid.Uint64().Draw(t, "seed"), first, window, drawLink(t, "there"), drawLink(t, "back"))
		a.total = uint64(rapid.IntRange(0, 1500).Draw(t, "frames there"))
		if rapid.Bool().Draw(t, "both ways") {
			b.total = uint64(rapid.IntRange(0, 1500).Draw(t, "frames back"))
		}
		if rapid.Bool().Draw(t, "receiver stalls") {
			every, rest := rapid.Int64Range(50, 5000).Draw(t, "every us")*1000, rapid.Int64Range(1, 20_000).Draw(t, "stall us")*1000
			b.stalled = func(now int64) bool { return now%(every+rest) > every }
		}
		if err := transfer(w, a, b, 200_000_000_000); err != nil {
			t.Fatal(err)
		}
	})
}

// The same stream of events gives the same numbers wherever they start.
func TestWrapChangesNothing(t *testing.T) {
	l := link{delay: 20_000, jitter: 15_000, loss: 0.05, repeat: 0.05}
	var want SenderStats
	for i, first := range []uint32{1, 1<<31 - 500, 1 << 31, 1<<32 - 500, 1<<32 - 1} {
		w, a, b := pair(3, first, 256, l, l)
		a.total, b.total = 2000, 1000
		if err := transfer(w, a, b, 10_000_000_000); err != nil {
			t.Fatalf("first %d: %v", first, err)
		}
		if i == 0 {
			want = a.s.Stats()
		} else if got := a.s.Stats(); got != want {
			t.Errorf("first %d: %+v, first 1: %+v", first, got, want)
		}
	}
}
