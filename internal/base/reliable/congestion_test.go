package reliable

import "testing"

// No peer answers: one probe, then time-outs whose interval doubles up to the maximum.
func TestDeadPeerBacksOff(t *testing.T) {
	s := NewSender(1, 64)
	now := int64(1000)
	for i := range 10 {
		s.Send(now, uint64(i), 1)
	}
	last, gaps := now, []int64(nil)
	for range 40 {
		now = s.Deadline()
		gaps = append(gaps, now-last)
		last = now
		if seq, probe := s.Timeout(now); probe {
			if len(gaps) != 1 || seq != 10 {
				t.Fatalf("time-out %d probes with frame %d", len(gaps), seq)
			}
			s.Resent(now, seq)
		}
		for seq, ok := s.NextLost(); ok; seq, ok = s.NextLost() {
			s.Resent(now, seq)
		}
		if err := audit(s); err != nil {
			t.Fatal(err)
		}
	}
	want := int64(2 * firstRTT)
	for i, gap := range gaps {
		if gap != want {
			t.Fatalf("time-out %d after %d ns, want %d; all: %v", i, gap, want, gaps)
		}
		want = min(2*want, maxTimeout)
	}
	if want != maxTimeout || s.window() != leastWindow || s.Stats().Probes != 1 {
		t.Errorf("ends at %d ns, window %d, %+v", want, s.window(), s.Stats())
	}
}

// Frames that wait to be sent again are no reason for another collapse.
func TestNothingInFlightIsNoTimeout(t *testing.T) {
	s := NewSender(1, 64)
	for range 10 {
		s.Send(1, 0, 1)
	}
	for range 2 {
		s.Timeout(s.Deadline())
	}
	before := s.Stats()
	for range 5 {
		if _, probe := s.Timeout(s.Deadline()); probe {
			t.Fatal("probe with a frame that was given up")
		}
	}
	if s.Stats() != before {
		t.Errorf("%+v, before %+v", s.Stats(), before)
	}
}

// A round trip that contains the wait for a lost frame is not measured.
func TestRoundTripIsMeasuredFresh(t *testing.T) {
	s := NewSender(1, 64)
	for i := range 4 {
		s.Send(1_000, uint64(i), 1)
	}
	s.Ack(21_000, 2, 64) // 20 us
	s.AckRange(21_000, 3, 5)
	s.DetectLosses(21_000)
	s.Timeout(s.Deadline())
	seq, ok := s.NextLost()
	if !ok || seq != 2 {
		t.Fatalf("lost: %d, %v", seq, ok)
	}
	s.Resent(500_000, 2)
	s.Send(500_000, 4, 1)
	s.Ack(5_000_000, 5, 64) // up to frame 4, which had arrived long before
	if s.smooth > 21_000 || s.least != 20_000 {
		t.Errorf("smooth %d ns, least %d ns", s.smooth, s.least)
	}
	s.Ack(5_000_000, 6, 64) // frame 5 was sent once and came alone
	if s.smooth < 500_000 {
		t.Errorf("smooth %d ns after a round trip of 4.5 ms", s.smooth)
	}
	s = NewSender(1, 64)
	s.Send(1_000, 0, 1)
	s.Send(1_000, 1, 1)
	s.AckRange(21_000, 2, 3)
	if s.smooth != 20_000 {
		t.Errorf("smooth %d ns: selective acknowledgement was not measured", s.smooth)
	}
	s.AckRange(900_000, 2, 3)
	if s.smooth != 20_000 {
		t.Errorf("smooth %d ns: a frame was measured again", s.smooth)
	}
	s.Ack(41_000, 3, 64) // frame 1 came late, and now
	if s.smooth != 22_500 {
		t.Errorf("smooth %d ns: the late frame was not measured", s.smooth)
	}
}

// A queue that only adds delay is not filled: the window shrinks although
// nothing is lost, wherever the numbers start.
func TestDelayAloneSlowsDown(t *testing.T) {
	for _, first := range []uint32{1, 1<<31 + 5, 1<<32 - 5} {
		l := link{delay: 10_000, perFrame: 10_000} // 1024 frames wait 10 ms
		w, a, b := pair(1, first, 1024, l, local)
		a.total = 20_000
		mustTransfer(t, w, a, b, 60*second)
		s := a.s.Stats()
		if s.Slows == 0 || s.Resent != 0 {
			t.Errorf("first %d: %+v", first, s)
		}
		if wait := int64(a.s.window()) * l.perFrame; wait > 3*delayCeiling {
			t.Errorf("first %d: window %d frames are a queue of %d us", first, a.s.window(), wait/1000)
		}
		if w.now > 20_000*l.perFrame*11/10 {
			t.Errorf("first %d: took %d us", first, w.now/1000)
		}
	}
}

// The same holds for long frames. The peer's window holds few of them.
func TestDelayAloneSlowsDownLongFrames(t *testing.T) {
	const units = 17
	l := link{delay: 10_000, perFrame: 1_000_000} // the 15 frames of a window wait 15 ms
	w, a, b := pair(1, 1, 256, l, local)
	a.total, a.units = 2_000, units
	mustTransfer(t, w, a, b, 60*second)
	s := a.s.Stats()
	if s.Slows == 0 || s.Resent != 0 {
		t.Errorf("%+v", s)
	}
	if n := a.s.window(); n > 256/units/2 {
		t.Errorf("window %d of long frames that take 1 ms each", n)
	}
}

// A peer that takes its time for acknowledgements of little is no queue.
func TestLateAcknowledgementsAreNoQueue(t *testing.T) {
	s := NewSender(1, 256)
	now := int64(1000)
	for i := range uint32(50) {
		s.Send(now, 0, 1)
		if now += 20_000; i > 0 {
			now += 2 * delayCeiling
		}
		s.Ack(now, i+2, 256)
	}
	if s.Stats().Slows > 0 || s.window() < initialWindow {
		t.Errorf("window %d, %+v", s.window(), s.Stats())
	}
}

// A queue that overflows is answered by a smaller window and not by a storm.
func TestOverflowingQueueIsShared(t *testing.T) {
	l := link{delay: 20_000, perFrame: 2_000, queue: 64}
	w, a, b := pair(1, 1, 1024, l, local)
	a.total = 20_000
	mustTransfer(t, w, a, b, 60*second)
	s := a.s.Stats()
	if s.LossRounds == 0 || s.Timeouts > 2 || a.out.dropped > 2500 {
		t.Errorf("%d frames dropped, %+v", a.out.dropped, s)
	}
	if w.now > 20_000*l.perFrame*13/10 {
		t.Errorf("took %d us", w.now/1000)
	}
}

// Two streams on one link come to share it, and use all of it, although the second one starts late. A little
// reordering keeps the two from losing frames in step.
func TestTwoStreamsShareALink(t *testing.T) {
	for _, queue := range []int{16, 64, 256} {
		l := link{delay: 20_000, jitter: 10_000, perFrame: 2_000, queue: queue}
		w, a, b := pair(1, 1, 256, l, local)
		_, c, d := pair(2, 500, 256, l, local)
		for _, h := range []*host{c, d} {
			h.w, h.out.w = w, w
		}
		c.out.through = a.out
		a.total, c.total = 1<<20, 1<<20 // more than the time is enough for
		w.at(40_000_000, c.work)
		a.work()
		var from [2]uint64
		w.at(60_000_000, func() { from = [2]uint64{b.placed, d.placed} })
		w.run(160_000_000, func() bool { return a.err != nil || c.err != nil })
		if a.err != nil || c.err != nil {
			t.Fatalf("queue of %d: %v, %v", queue, a.err, c.err)
		}
		first, second := float64(b.placed-from[0]), float64(d.placed-from[1])
		if share := first / (first + second); share < 0.35 || share > 0.65 {
			t.Errorf("queue of %d: the first has %.2f of the link", queue, share)
		}
		if full := 100_000_000 / float64(l.perFrame); first+second < 0.9*full {
			t.Errorf("queue of %d: %.0f frames in 100 ms, the link carries %.0f", queue, first+second, full)
		}
	}
}

// The window stays in its bounds, however small they are.
func TestWindowBounds(t *testing.T) {
	for _, window := range []int{-1, 0, 1, 2, 3, 64, 1 << 20} {
		s := NewSender(1, window)
		if n := s.Room(); n < 1 || n > min(MaxWindow, initialWindow) {
			t.Errorf("window %d: room %d", window, n)
		}
		s.shrink()
		s.collapse(true)
		if err := audit(s); err != nil {
			t.Errorf("window %d: %v", window, err)
		}
	}
}

// Frames of several units share the window; one that is larger than all of it
// goes alone.
func TestUnitsOfTheWindow(t *testing.T) {
	s := NewSender(7, 16)
	if !s.Fits(40) {
		t.Fatal("a frame of 40 units does not fit a window of 16 that is empty")
	}
	s.Send(1, 0, 40)
	if s.Fits(1) || s.Room() != 0 {
		t.Fatalf("room for %d frames beside one of 40 units in a window of 16", s.Room())
	}
	s.Ack(2, 8, 16)
	s.Send(3, 0, 10)
	if s.Fits(7) || !s.Fits(6) || s.Room() != 6 {
		t.Fatalf("10 of 16 units: room %d", s.Room())
	}
	s.Send(3, 0, 6)
	if s.Room() != 0 {
		t.Fatalf("16 of 16 units: room %d", s.Room())
	}
	s.Ack(4, 9, 4) // the peer's window has become smaller
	if s.Room() != 0 {
		t.Fatalf("6 units in a window of 4: room %d", s.Room())
	}
	s.Ack(5, 10, 4)
	if !s.Fits(4) || s.Fits(17) == false {
		t.Fatalf("an empty window: room %d", s.Room())
	}
}
