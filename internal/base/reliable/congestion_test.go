package reliable

import (
	"testing"

	"viaxdp/internal/lab/nstest"
)

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
			nstest.FatalIf(t, len(gaps) != 1 || seq != 10, "time-out %d probes with frame %d", len(gaps), seq)
			s.Resent(now, seq)
		}
		for seq, ok := s.NextLost(); ok; seq, ok = s.NextLost() {
			s.Resent(now, seq)
		}
		nstest.Must(t, audit(s))
	}
	want := int64(2 * firstRTT)
	for i, gap := range gaps {
		nstest.FatalIf(t, gap != want, "time-out %d after %d ns, want %d; all: %v", i, gap, want, gaps)
		want = min(2*want, maxTimeout)
	}
	nstest.ErrorIf(t, want != maxTimeout || s.window() != leastWindow || s.Stats().Probes != 1,
		"ends at %d ns, window %d, %+v", want, s.window(), s.Stats())
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
		_, probe := s.Timeout(s.Deadline())
		nstest.FatalIf(t, probe, "probe with a frame that was given up")
	}
	nstest.ErrorIf(t, s.Stats() != before, "%+v, before %+v", s.Stats(), before)
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
	nstest.FatalIf(t, !ok || seq != 2, "lost: %d, %v", seq, ok)
	s.Resent(500_000, 2)
	s.Send(500_000, 4, 1)
	s.Ack(5_000_000, 5, 64) // up to frame 4, which had arrived long before
	nstest.ErrorIf(t, s.smooth > 21_000 || s.least != 20_000, "smooth %d ns, least %d ns", s.smooth, s.least)
	s.Ack(5_000_000, 6, 64) // frame 5 was sent once and came alone
	nstest.ErrorIf(t, s.smooth < 500_000, "smooth %d ns after a round trip of 4.5 ms", s.smooth)
	s = NewSender(1, 64)
	s.Send(1_000, 0, 1)
	s.Send(1_000, 1, 1)
	s.AckRange(21_000, 2, 3)
	nstest.ErrorIf(t, s.smooth != 20_000, "smooth %d ns: selective acknowledgement was not measured", s.smooth)
	s.AckRange(900_000, 2, 3)
	nstest.ErrorIf(t, s.smooth != 20_000, "smooth %d ns: a frame was measured again", s.smooth)
	s.Ack(41_000, 3, 64) // frame 1 came late, and now
	nstest.ErrorIf(t, s.smooth != 22_500, "smooth %d ns: the late frame was not measured", s.smooth)
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
		nstest.ErrorIf(t, s.Slows == 0 || s.Resent != 0, "first %d: %+v", first, s)
		if wait := int64(a.s.window()) * l.perFrame; wait > 3*delayCeiling {
			t.Errorf("first %d: window %d frames are a queue of %d us", first, a.s.window(), wait/1000)
		}
		nstest.ErrorIf(t, w.now > 20_000*l.perFrame*11/10, "first %d: took %d us", first, w.now/1000)
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
	nstest.ErrorIf(t, s.Slows == 0 || s.Resent != 0, "%+v", s)
	n := a.s.window()
	nstest.ErrorIf(t, n > 256/units/2, "window %d of long frames that take 1 ms each", n)
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
	nstest.ErrorIf(t, s.Stats().Slows > 0 || s.window() < initialWindow, "window %d, %+v", s.window(), s.Stats())
}

// A queue that overflows is answered by a smaller window and not by a storm.
func TestOverflowingQueueIsShared(t *testing.T) {
	l := link{delay: 20_000, perFrame: 2_000, queue: 64}
	w, a, b := pair(1, 1, 1024, l, local)
	a.total = 20_000
	mustTransfer(t, w, a, b, 60*second)
	s := a.s.Stats()
	nstest.ErrorIf(t, s.LossRounds == 0 || s.Timeouts > 2 || a.out.dropped > 2500, "%d frames dropped, %+v", a.out.dropped, s)
	nstest.ErrorIf(t, w.now > 20_000*l.perFrame*13/10, "took %d us", w.now/1000)
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
		nstest.FatalIf(t, a.err != nil || c.err != nil, "queue of %d: %v, %v", queue, a.err, c.err)
		first, second := float64(b.placed-from[0]), float64(d.placed-from[1])
		share := first / (first + second)
		nstest.ErrorIf(t, share < 0.35 || share > 0.65, "queue of %d: the first has %.2f of the link", queue, share)
		if full := 100_000_000 / float64(l.perFrame); first+second < 0.9*full {
			t.Errorf("queue of %d: %.0f frames in 100 ms, the link carries %.0f", queue, first+second, full)
		}
	}
}

// The window stays in its bounds, however small they are.
func TestWindowBounds(t *testing.T) {
	for _, window := range []int{-1, 0, 1, 2, 3, 64, 1 << 20} {
		s := NewSender(1, window)
		n := s.Room()
		nstest.ErrorIf(t, n < 1 || n > min(MaxWindow, initialWindow), "window %d: room %d", window, n)
		s.shrink()
		s.collapse(true)
		err := audit(s)
		nstest.ErrorIf(t, err != nil, "window %d: %v", window, err)
	}
}

// Frames of several units share the window; one that is larger than all of it
// goes alone.
func TestUnitsOfTheWindow(t *testing.T) {
	s := NewSender(7, 16)
	nstest.FatalIf(t, !s.Fits(40), "a frame of 40 units does not fit a window of 16 that is empty")
	s.Send(1, 0, 40)
	nstest.FatalIf(t, s.Fits(1) || s.Room() != 0, "room for %d frames beside one of 40 units in a window of 16", s.Room())
	s.Ack(2, 8, 16)
	s.Send(3, 0, 10)
	nstest.FatalIf(t, s.Fits(7) || !s.Fits(6) || s.Room() != 6, "10 of 16 units: room %d", s.Room())
	s.Send(3, 0, 6)
	nstest.FatalIf(t, s.Room() != 0, "16 of 16 units: room %d", s.Room())
	s.Ack(4, 9, 4) // the peer's window has become smaller
	nstest.FatalIf(t, s.Room() != 0, "6 units in a window of 4: room %d", s.Room())
	s.Ack(5, 10, 4)
	nstest.FatalIf(t, !s.Fits(4) || s.Fits(17) == false, "an empty window: room %d", s.Room())
}
