package reliable

import (
	"slices"
	"testing"

	"viaxdp/internal/lab/nstest"
)

const (
	us   = 1_000
	trip = 20 * us
)

// warm is a Sender with a steady round trip of trip at the returned time, and
// n frames in flight that were sent at that time; the first has the returned
// number.
func warm(n int) (s *Sender, now int64, first uint32) {
	s, now = NewSender(1, 256), us
	for range 50 {
		seq := s.Send(now, 0, 1)
		now += trip
		s.Ack(now, seq+1, 256)
	}
	s.cwnd = 70 * fraction // frames that leave one by one do not enlarge it
	first = s.Next()
	for range n {
		s.Send(now, 0, 1)
	}
	return s, now, first
}

func sack(s *Sender, now int64, start, end uint32) {
	s.AckRange(now, start, end)
	s.DetectLosses(now)
}

// lost takes all frames that NextLost returns and reports them as retransmitted.
func lost(s *Sender, now int64) (all []uint32) {
	for seq, ok := s.NextLost(); ok; seq, ok = s.NextLost() {
		all = append(all, seq)
		s.Resent(now, seq)
	}
	return all
}

func TestThreeLaterArrivalsTellALoss(t *testing.T) {
	s, now, f := warm(10)
	for i := range uint32(2) {
		sack(s, now+trip, f+1+i, f+2+i)
		if got := lost(s, now+trip); got != nil {
			t.Fatalf("after %d later arrivals: %v is lost", i+1, got)
		}
	}
	sack(s, now+trip, f+3, f+4)
	if got := lost(s, now+trip); !slices.Equal(got, []uint32{f}) {
		t.Fatalf("after three later arrivals: %v is lost", got)
	}
	// If there is reordering, three later arrivals prove nothing.
	s, now, f = warm(10)
	s.reordered = reorderRounds
	sack(s, now+trip, f+1, f+10)
	if got := lost(s, now+trip); got != nil {
		t.Errorf("with reordering: %v is lost", got)
	}
}

// One later arrival proves nothing yet, but sets the timer to the time after which the frame is lost.
func TestLateFrameIsLostInTime(t *testing.T) {
	s, now, f := warm(2)
	sack(s, now+trip, f+1, f+2)
	due := s.Deadline()
	if got := lost(s, now+trip); got != nil || due <= now+trip || due > now+2*trip {
		t.Fatalf("%v is lost, timer %d us after sending", got, (due-now)/us)
	}
	_, probe := s.Timeout(due)
	nstest.FatalIf(t, probe, "probe although the loss is clear")
	if got := lost(s, due); !slices.Equal(got, []uint32{f}) || s.Stats().Timeouts != 0 {
		t.Errorf("%v is lost, %+v", got, s.Stats())
	}
}

// Of a retransmission and a new frame that are both late, the one that was sent first is lost first.
func TestFirstLateFrameSetsTheTimer(t *testing.T) {
	s, now, f := warm(4)
	now += trip
	sack(s, now, f+1, f+4)
	if got := lost(s, now); !slices.Equal(got, []uint32{f}) {
		t.Fatalf("%v is lost", got)
	}
	now += 2 * us
	s.Send(now, 0, 1)
	s.Send(now, 0, 1)
	sack(s, now+trip, f+5, f+6)
	due := s.Deadline()
	if got := lost(s, now+trip); got != nil {
		t.Fatalf("%v is lost at once", got)
	}
	s.Timeout(due)
	if got := lost(s, due); !slices.Equal(got, []uint32{f}) {
		t.Errorf("%v is lost first, want %v", got, f)
	}
}

// A frame sent well before one that arrived is lost at once.
func TestOvertakenByTimeIsLost(t *testing.T) {
	s, now, f := warm(1)
	s.Send(now+trip, 0, 1)
	sack(s, now+2*trip, f+1, f+2)
	got := lost(s, now+2*trip)
	nstest.ErrorIf(t, !slices.Equal(got, []uint32{f}), "%v is lost", got)
}

// The arrival of frames that were sent before a retransmission proves nothing about the retransmission, however
// late they are.
func TestEarlierFramesDoNotJudgeARetransmission(t *testing.T) {
	s, now, f := warm(10)
	sack(s, now+trip, f+1, f+5)
	if got := lost(s, now+trip); len(got) != 1 {
		t.Fatalf("%v is lost", got)
	}
	sack(s, now+9*trip, f+5, f+10)
	if got := lost(s, now+9*trip); got != nil {
		t.Errorf("%v is lost again", got)
	}
}

// Retransmissions on a path that has become slower than the round trips known are not lost as soon as the first of them
// has arrived: those that left with it need as long.
func TestSlowerPathLosesNoRetransmission(t *testing.T) {
	s, now, f := warm(10)
	now += trip
	sack(s, now, f+5, f+10)
	if got := lost(s, now); len(got) != 5 {
		t.Fatalf("%v is lost", got)
	}
	now += 9 * trip
	s.Ack(now, f+1, 256)
	sack(s, now, f+5, f+10)
	if got := lost(s, now); got != nil {
		t.Errorf("%v is lost again", got)
	}
}

// A first transmission measures round trips itself: one long round trip of a later frame does not give it more time.
func TestOneLongRoundTripDelaysNoLoss(t *testing.T) {
	s, now, f := warm(2)
	now += 9 * trip
	sack(s, now, f+1, f+2)
	got := lost(s, now)
	nstest.ErrorIf(t, len(got) != 1 || got[0] != f, "%v is lost, want %d", got, f)
}

// Losses of one flight shrink the window by a frame each, as they may be chance, and by three tenths at once
// when there are too many for that. On a long path only the latter ends the doubling at the start. The window does not shrink again
// until frames that were sent after the first loss show further losses.
func TestOneRoundShrinksOnce(t *testing.T) {
	for _, c := range []struct {
		flight int
		losses uint32
		want   func(before int64) int64
	}{
		{60, 1, func(b int64) int64 { return b - fraction }},
		{60, 8, func(b int64) int64 { return b - 8*fraction }},
		{60, 12, func(b int64) int64 { return b * 7 / 10 }}, // a fifth of them
		{60, 30, func(b int64) int64 { return b * 7 / 10 }},
		{12, 8, func(b int64) int64 { return b - 8*fraction }}, // few, though of fewer
		{12, 9, func(b int64) int64 { return b * 7 / 10 }},
	} {
		for _, long := range []bool{true, false} {
			s, now, f := warm(c.flight)
			if long {
				s.base = longPath + 1
			}
			before, threshold := s.cwnd, s.threshold
			sack(s, now+trip, f+c.losses, f+uint32(c.flight))
			if n := len(lost(s, now+trip)); n != int(c.losses) || s.Stats().LossRounds != 1 || s.cwnd != c.want(before) {
				t.Errorf("%d of %d: %d lost, window from %d to %d, want %d, %+v",
					c.losses, c.flight, n, before, s.cwnd, c.want(before), s.Stats())
			}
			want := s.cwnd
			if long && s.cwnd > before*7/10 {
				want = threshold
			}
			nstest.ErrorIf(t, s.threshold != want,
				"%d of %d: threshold %d, window %d, long path %v", c.losses, c.flight, s.threshold, s.cwnd, long)
		}
	}
	// A window of few frames is not made smaller than its share at once.
	s, now, f := warm(12)
	s.cwnd = 10 * fraction
	sack(s, now+trip, f+8, f+12)
	lost(s, now+trip)
	nstest.ErrorIf(t, s.cwnd != 7*fraction, "8 losses of 12: window of 10 frames became %d/256", s.cwnd)
}

// What a time-out has taken off the window, losses of the round before do not give back.
func TestLossesDoNotUndoATimeout(t *testing.T) {
	s, now, f := warm(60)
	sack(s, now+trip, f+1, f+20)
	lost(s, now+trip)
	s.collapse(true)
	sack(s, now+2*trip, f+40, f+60)
	n := len(lost(s, now+2*trip))
	nstest.ErrorIf(t, n == 0 || s.window() != leastWindow, "%d more lost, window %d, want %d", n, s.window(), leastWindow)
}

// Without losses the window grows by a sixteenth in a round, at least by a frame and at
// most by four or a 64th: what chance takes at a loss of one frame in twenty comes back.
func TestWindowGrowsByRounds(t *testing.T) {
	for _, c := range []struct{ window, grown int64 }{{8, 1}, {16, 1}, {32, 2}, {64, 4}, {240, 4}, {960, 15}} {
		s := NewSender(1, 1024)
		s.cwnd, s.threshold = c.window*fraction, c.window*fraction
		for range c.window {
			s.Send(us, 0, 1)
		}
		for i := range c.window {
			s.Ack(us+shortPath, uint32(2+i), 1024)
		}
		if got := float64(s.cwnd)/fraction - float64(c.window); got < 0.8*float64(c.grown) || got > float64(c.grown) {
			t.Errorf("window of %d grew by %.2f frames in a round, want %d", c.window, got, c.grown)
		}
	}
}

// The original that comes after its retransmission was sent is recognized:
// it was late, not lost.
func TestEchoTellsReordering(t *testing.T) {
	s, now, f := warm(10)
	sack(s, now+trip, f+1, f+10)
	got := lost(s, now+trip+us)
	nstest.FatalIf(t, len(got) != 1, "%v is lost", got)
	s.Ack(now+trip+2*us, f+10, 256) // a microsecond after it was sent again
	nstest.ErrorIf(t, s.reordered != reorderRounds || s.rackSent != now,
		"reordered %d, newest arrival was sent at %d, want %d", s.reordered, s.rackSent, now)
	for _, took := range []int64{trip, trip - 1, trip - trip/32} { // its round trip, which may be a little less than all known ones
		s, now, f = warm(10)
		sack(s, now+trip, f+1, f+10)
		lost(s, now+trip)
		s.Ack(now+trip+took, f+10, 256)
		nstest.ErrorIf(t, s.reordered != 0 || s.rackSent != now+trip,
			"after %d ns: reordered %d, newest arrival was sent at %d, want %d", took, s.reordered, s.rackSent, now+trip)
	}
}

// The answer to a probe shows all losses of the flight, although it comes sooner than each round trip so far: the peer
// delayed the acknowledgements of those.
func TestProbeIsAnsweredWithoutDelay(t *testing.T) {
	s, now := NewSender(1, 256), int64(us)
	s.Send(now, 0, 1)
	now += trip + 50*us
	s.Ack(now, 2, 256)
	f := s.Next()
	for range 16 {
		s.Send(now, 0, 1)
	}
	now = s.Deadline()
	seq, probe := s.Timeout(now)
	nstest.FatalIf(t, !probe || seq != f+15, "frame %d, probe %v", seq, probe)
	s.Resent(now, seq)
	now += trip
	sack(s, now, seq, seq+1)
	nstest.ErrorIf(t, s.lost.n != 15 || s.reordered != 0, "%d of 15 are lost, reordered %d", s.lost.n, s.reordered)
}

// After silence the doubled timer stays until a round trip was measured, and
// the next silence begins with a probe.
func TestTimerRecovers(t *testing.T) {
	s, now, f := warm(4)
	for range 5 {
		now = s.Deadline()
		if seq, probe := s.Timeout(now); probe {
			s.Resent(now, seq)
		}
		lost(s, now)
	}
	now += trip
	s.Ack(now, f+3, 256)
	if gap := s.Deadline() - now; gap != s.timeout(5) {
		t.Errorf("timer %d us after an arrival that measures nothing", gap/us)
	}
	s.Ack(now, f+4, 256)
	f = s.Send(now, 0, 1)
	s.Send(now, 0, 1)
	now += trip
	s.Ack(now, f+1, 256)
	if gap := s.Deadline() - now; gap != s.timeout(0) {
		t.Errorf("timer %d us after a measured round trip", gap/us)
	}
	if seq, probe := s.Timeout(s.Deadline()); !probe || seq != f+1 {
		t.Errorf("frame %d, probe %v", seq, probe)
	}
}

// Time-outs in a row keep what was learned about the path's width.
func TestTimeoutsKeepTheThreshold(t *testing.T) {
	s, _, _ := warm(20)
	want := s.cwnd * 7 / 10
	for range 5 {
		now := s.Deadline()
		s.Timeout(now)
		lost(s, now)
	}
	nstest.ErrorIf(t, s.threshold != want || s.window() != leastWindow || s.Stats().Timeouts != 4,
		"threshold %d, want %d; window %d, %+v", s.threshold, want, s.window(), s.Stats())
}

// Word of a retransmission that comes after the acknowledgement changes
// nothing, not even for the frame that took the place.
func TestLateResentIsIgnored(t *testing.T) {
	s, now, f := warm(1)
	before := s.Stats()
	s.Resent(now+us, f-1)
	s.Resent(now+us, f+256)
	nstest.ErrorIf(t, s.Stats() != before || s.frames[f&s.mask].sentAt != now, "%+v, was %+v", s.Stats(), before)
}
