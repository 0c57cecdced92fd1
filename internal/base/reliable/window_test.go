package reliable

import (
	"testing"

	"pgregory.net/rapid"
)

// A Sender never sends more than the window that it heard of last, whether it has become
// larger or smaller, and comes to use all of it, however small it was at first. Tags outlive
// that.
func TestWindowFollowsThePeer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := rapid.OneOf(rapid.Uint32(), rapid.Uint32Range(1<<32-600, 1<<32-1)).Draw(t, "first")
		windows := rapid.OneOf(rapid.IntRange(1, 32), rapid.IntRange(1, 1024), rapid.IntRange(1, MaxWindow))
		window := windows.Draw(t, "first window")
		s, now, most := NewSender(first, window), int64(1), leastPlaces
		var sent, released uint64 // frames
		var units []int           // of those under way
		flight := 0               // their sum
		send := func(n int) {
			s.Send(now, sent, n)
			sent++
			units = append(units, n)
			flight += n
		}
		ack := func(t *rapid.T, n, w int) {
			now += shortPath
			from, to, valid := s.Ack(now, s.una+uint32(n), w)
			if !valid || int(to-from) != n {
				t.Fatalf("acknowledgement of %d frames: [%d, %d), valid %v", n, from, to, valid)
			}
			for ; from != to; from++ {
				if s.Tag(from) != released {
					t.Fatalf("frame %d has tag %d, want %d", from, s.Tag(from), released)
				}
				flight -= units[0]
				units = units[1:]
				released++
			}
			window = w
		}
		t.Repeat(map[string]func(*rapid.T){
			"send": func(t *rapid.T) {
				n := rapid.SampledFrom([]int{1, 1, 1, 3, 17}).Draw(t, "units")
				for range rapid.IntRange(1, 100).Draw(t, "frames") {
					alone := len(units) == 0
					if !s.Fits(n) {
						break
					}
					if send(n); flight > window && !alone {
						t.Fatalf("%d units under way in a window of %d", flight, window)
					}
				}
			},
			"ack": func(t *rapid.T) {
				ack(t, rapid.IntRange(0, len(units)).Draw(t, "frames"), windows.Draw(t, "window"))
			},
			"": func(t *rapid.T) {
				if err := audit(s); err != nil {
					t.Fatal(err)
				}
				most = max(most, roundUp(len(units)))
				if len(s.frames) != most {
					t.Fatalf("there is room for %d frames, at most %d were outstanding", len(s.frames), most)
				}
			},
		})
		last := windows.Draw(t, "last window")
		for range 18 { // doublings are enough: nothing was lost
			ack(t, len(units), last)
			for s.room() > 0 {
				for s.Room() == 0 { // paced
					now = s.Deadline()
					s.Pace(now)
				}
				send(1)
			}
		}
		if len(units) != last {
			t.Fatalf("%d frames under way in a window of %d", len(units), last)
		}
	})
}

// A stream that began when the peer had little room gets as fast as one that began with
// much when the peer has it, and as slow when it has none any more.
func TestStreamGetsFasterAndSlower(t *testing.T) {
	const little, much = 8, 512
	far := link{delay: 900_000}
	w, a, b := pair(1, 1<<32-1000, much, far, far)
	a.s = NewSender(a.s.Next(), little)
	b.window = little
	a.total = 1 << 20
	a.work()
	run := func(ms int64) (frames uint64) {
		before := b.placed
		w.run(w.now+ms*1_000_000, func() bool { return a.err != nil || b.err != nil })
		if a.err != nil || b.err != nil {
			t.Fatal(a.err, b.err)
		}
		return b.placed - before
	}
	const turns = 20
	perTurn := func() uint64 {
		run(20) // until it has come about
		return run(turns*18/10+1) / turns
	}
	for _, window := range []int{little, much, little, 2 * little, much} {
		b.window = window
		if n, want := perTurn(), uint64(window); n < want*8/10 || n > want*12/10 {
			t.Errorf("window %d: %d frames a round trip", window, n)
		}
	}
	if s := a.s.Stats(); s.Resent != 0 {
		t.Errorf("%+v", s)
	}
}

// Messages that use less than half of the window do not enlarge it, however many there are. One that uses half of it does.
func TestUnderusedWindow(t *testing.T) {
	s, now := NewSender(1, 256), int64(us)
	message := func(n int) int {
		for range n {
			s.Send(now, 0, 1)
		}
		now += trip
		s.Ack(now, s.Next(), 256)
		return s.window()
	}
	for range 100 {
		if w := message(initialWindow/2 - 1); w != initialWindow {
			t.Fatalf("a window of %d frames", w)
		}
	}
	if w := message(initialWindow / 2); w != initialWindow*3/2 {
		t.Errorf("after half a window it has %d frames", w)
	}
	if w := message(initialWindow/2 + 4); w != initialWindow*3/2 {
		t.Errorf("after less than half of the next one it has %d frames", w)
	}
	full := message(initialWindow * 3 / 2)
	if w := message(1); full <= initialWindow*3/2 || w != full {
		t.Errorf("a full window made it %d frames, and a small message behind it %d", full, w)
	}
}
