package reliable

import (
	"testing"

	"pgregory.net/rapid"

	"viaxdp/internal/lab/nstest"
)

// sequence draws numbers where a lie would hurt: near the frames in flight,
// half the circle away, and anywhere.
func sequence(s *Sender) *rapid.Generator[uint32] {
	return rapid.Custom(func(t *rapid.T) uint32 {
		base := rapid.SampledFrom([]uint32{s.una, s.nxt, s.una + 1<<31, s.nxt + 1<<31, s.una + 3<<29, s.nxt - 3<<29, 0}).Draw(t, "base")
		if rapid.IntRange(0, 9).Draw(t, "anywhere") == 0 {
			return rapid.Uint32().Draw(t, "number")
		}
		return base + uint32(rapid.IntRange(-80, 80).Draw(t, "offset"))
	})
}

// Whatever a peer claims, the Sender's accounts stay right, only frames in
// flight are released, each once and in order, and an honest end is reached.
func TestForgedAcknowledgements(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := rapid.OneOf(rapid.Uint32(), rapid.Uint32Range(1<<32-100, 1<<32-1)).Draw(t, "first")
		s := NewSender(first, rapid.IntRange(1, 64).Draw(t, "window"))
		now, released := int64(1), uint64(0)
		release := func(from, to uint32, nxt uint32) {
			if from-first != uint32(released) || to-from > nxt-from {
				t.Fatalf("released [%d, %d) of [%d, %d)", from, to, first+uint32(released), nxt)
			}
			for ; from != to; from++ {
				if s.Tag(from) != released {
					t.Fatalf("frame %d has tag %d, want %d", from, s.Tag(from), released)
				}
				released++
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"send": func(t *rapid.T) {
				for range min(s.Room(), rapid.IntRange(1, 64).Draw(t, "frames")) {
					s.Send(now, s.stats.Sent, 1)
				}
			},
			"ack": func(t *rapid.T) {
				una, nxt := s.una, s.nxt
				cum := sequence(s).Draw(t, "cum")
				from, to, valid := s.Ack(now, cum, rapid.IntRange(-1, 70_000).Draw(t, "window"))
				release(from, to, nxt)
				if future := int32(cum-nxt) > 0 && int32(cum-una) > 0; valid == future {
					t.Fatalf("acknowledgement of %d for [%d, %d): valid %v", cum, una, nxt, valid)
				}
			},
			"range": func(t *rapid.T) {
				start := sequence(s).Draw(t, "start")
				s.AckRange(now, start, sequence(s).Draw(t, "end"))
			},
			"detect": func(*rapid.T) { s.DetectLosses(now) },
			"time": func(t *rapid.T) {
				now += rapid.Int64Range(0, 1_000_000).Draw(t, "ns")
				if seq, probe := s.Timeout(now); probe {
					if seq-s.una >= s.nxt-s.una {
						t.Fatalf("probe with frame %d of [%d, %d)", seq, s.una, s.nxt)
					}
					s.Resent(now, seq)
				}
			},
			"resend": func(*rapid.T) {
				for seq, ok := s.NextLost(); ok; seq, ok = s.NextLost() {
					if seq-s.una >= s.nxt-s.una {
						t.Fatalf("lost frame %d of [%d, %d)", seq, s.una, s.nxt)
					}
					s.Resent(now, seq)
				}
			},
			"resend anything": func(t *rapid.T) { s.Resent(now, sequence(s).Draw(t, "seq")) },
			"": func(t *rapid.T) {
				if err := audit(s); err != nil {
					t.Fatal(err)
				}
			},
		})
		from, to, valid := s.Ack(now, s.nxt, 64)
		release(from, to, s.nxt)
		if due := s.pacer.due; due != 0 && s.Deadline() == due { // the next frame has to wait until then
			if seq, probe := s.Timeout(due); probe {
				t.Fatalf("probe with frame %d", seq)
			}
		}
		if !valid || !s.Idle() || s.Deadline() != 0 || released != s.stats.Sent {
			t.Fatalf("at the end: valid %v, idle %v, deadline %d, released %d of %d",
				valid, s.Idle(), s.Deadline(), released, s.stats.Sent)
		}
	})
}

// A range across half of the number space is no range: walking through it would take two billion steps and
// count all frames as arrived.
func TestRangeAroundTheCircleIsIgnored(t *testing.T) {
	s := NewSender(0, 64)
	for i := range 10 {
		s.Send(1, uint64(i), 1)
	}
	for _, r := range []Range{{3 << 29, ^uint32(0) - 1<<30}, {1 << 30, 1<<31 | 1<<30}, {11, 12}, {5, 11}, {5, 5}, {6, 5}, {^uint32(0), 0}} {
		s.AckRange(2, r.Start, r.End)
		nstest.FatalIf(t, s.sacked.n != 0, "range %+v was taken", r)
	}
	s.AckRange(2, ^uint32(0)-5, 3)
	nstest.ErrorIf(t, s.sacked.n != 3, "range with an old start: %d frames taken, want 3", s.sacked.n)
}

// The ranges of one acknowledgement cost no more than a look at each frame in flight,
// whatever a peer makes of them: those behind one that does not ascend are ignored.
func TestRangesLookAtEachFrameOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := rapid.OneOf(rapid.Uint32(), rapid.Uint32Range(1<<32-100, 1<<32-1)).Draw(t, "first")
		s := NewSender(first, 64)
		for i := range rapid.IntRange(1, 64).Draw(t, "frames") {
			s.Send(1, uint64(i), 1)
		}
		s.Ack(2, first+uint32(rapid.IntRange(0, s.Outstanding()-1).Draw(t, "acknowledged")), 64)
		cum := rapid.SampledFrom([]uint32{s.una, first, s.una - 1<<30}).Draw(t, "cum")
		ranges := make([]Range, rapid.IntRange(0, 32).Draw(t, "ranges"))
		for i := range ranges {
			ranges[i] = Range{sequence(s).Draw(t, "start"), sequence(s).Draw(t, "end")}
		}
		s.AckRanges(3, cum, ranges)
		if s.looked > uint64(s.Outstanding()) {
			t.Fatalf("%d looks at %d frames: %+v behind %d", s.looked, s.Outstanding(), ranges, cum)
		}
		if err := audit(s); err != nil {
			t.Fatal(err)
		}
	})
}

// hostileRanges are those of an acknowledgement with which a peer has everything looked at
// again and again: each names all frames but the first.
func hostileRanges() (ranges [32]Range) {
	for i := range ranges {
		ranges[i] = Range{2, MaxWindow + 1}
	}
	return ranges
}

func TestRangesInDisorder(t *testing.T) {
	full := func() *Sender {
		s := NewSender(1, MaxWindow)
		s.cwnd = s.most
		for i := range MaxWindow {
			s.Send(1, uint64(i), 1)
		}
		return s
	}
	s, ranges := full(), hostileRanges()
	nstest.ErrorIf(t, s.AckRanges(20_000, 1, ranges[:]) || s.looked != MaxWindow-1, "%d looks at %d frames", s.looked, MaxWindow)
	for _, c := range []struct {
		name   string
		ranges []Range
		valid  bool
		sacked int
	}{
		{"none", nil, true, 0},
		{"ascending", []Range{{2, 4}, {5, 6}, {6, 9}, {1000, 1025}}, true, 31},
		{"descending", []Range{{5, 6}, {2, 4}}, false, 1},
		{"overlapping", []Range{{2, 6}, {5, 9}}, false, 4},
		{"twice", []Range{{2, 6}, {2, 6}}, false, 4},
		{"empty", []Range{{2, 2}, {5, 6}}, false, 0},
		{"backwards", []Range{{6, 2}, {7, 8}}, false, 0},
		{"before the cumulative one", []Range{{0, 4}, {5, 6}}, false, 0},
		{"around the circle", []Range{{2, 3}, {1<<31 - 1, 1 << 31}, {1<<32 - 2, 1<<32 - 1}, {1, 4}}, false, 1},
		{"not sent", []Range{{MaxWindow, MaxWindow + 2}, {2 * MaxWindow, 2*MaxWindow + 1}}, true, 0},
	} {
		s := full()
		if valid := s.AckRanges(20_000, 1, c.ranges); valid != c.valid || s.sacked.n != c.sacked {
			t.Errorf("%s: valid %v, %d frames taken; want %v, %d", c.name, valid, s.sacked.n, c.valid, c.sacked)
		}
	}
}

// A peer that acknowledges everything selectively but never cumulatively gets no frames and causes no busy
// timer.
func TestSelectiveLiarStarves(t *testing.T) {
	s := NewSender(1, 64)
	for i := range 64 {
		s.Send(1, uint64(i), 1)
	}
	now := int64(20_000)
	s.AckRange(now, 1, 65)
	for range 30 {
		s.DetectLosses(now)
		_, lost := s.NextLost()
		nstest.FatalIf(t, lost || s.Room() > 0, "sends more")
		now = s.Deadline()
		_, probe := s.Timeout(now)
		nstest.FatalIf(t, probe, "probes")
	}
	nstest.ErrorIf(t, s.Deadline() != now+maxTimeout || s.Stats().Timeouts != 0,
		"next timer after %d ns, %+v", s.Deadline()-now, s.Stats())
}

// Before the peer's first message the initial window is not exceeded, for any size of frames.
func TestFirstWindowIsNotExceeded(t *testing.T) {
	for _, window := range []int{1, 7, 8, 96, 192, 256, 5000} {
		for _, units := range []int{1, 3, 18} {
			s, sent := NewSender(1<<32-3, window), 0
			for s.Fits(units) {
				s.Send(us, 0, units)
				sent += units
			}
			nstest.ErrorIf(t, sent > max(window, units), "%d units in frames of %d, and the peer takes %d", sent, units, window)
		}
	}
}
