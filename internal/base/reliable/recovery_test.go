package reliable

import (
	"testing"

	"viaxdp/internal/lab/nstest"
)

const second = 1_000_000_000

// A network of 10 us each way that loses nothing.
var local = link{delay: 10_000}

func mustTransfer(t *testing.T, w *world, a, b *host, limit int64) {
	t.Helper()
	nstest.Must(t, transfer(w, a, b, limit))
}

// Without loss nothing is sent twice and no timer runs out, at any width and
// distance of the path that the floors are made for.
func TestLosslessLinkSeesNoRetransmission(t *testing.T) {
	for name, l := range map[string]link{
		"near":       {delay: 2_000},
		"local":      local,
		"jitter":     {delay: 30_000, perFrame: 1_000, queue: 4096},
		"narrow":     {delay: 10_000, perFrame: 5_000, queue: 4096},
		"far":        {delay: 900_000},
		"very far":   {delay: 80_000_000},
		"far narrow": {delay: 500_000, perFrame: 10_000, queue: 4096},
	} {
		for _, both := range []bool{false, true} {
			w, a, b := pair(1, 1<<32-100, 1024, l, l)
			if a.total = 4_000; both {
				b.total = 2_000
			}
			mustTransfer(t, w, a, b, 100*second)
			for _, s := range []SenderStats{a.s.Stats(), b.s.Stats()} {
				if name == "very far" { // farther than the first timer: one flight is sent again until a round trip is known
					nstest.ErrorIf(t, s.Resent > 2*initialWindow, "%s, both ways %v: %+v", name, both, s)
				} else if s.Resent+s.Probes+s.Timeouts+s.LossRounds != 0 {
					t.Errorf("%s, both ways %v: %+v", name, both, s)
				}
			}
		}
	}
}

// One frame at a time with the acknowledgement delayed each time: the timer
// must not run out before it.
func TestDelayedAcknowledgementIsNoLoss(t *testing.T) {
	w, a, b := pair(1, 1, 64, local, local)
	for range 200 {
		a.total++
		mustTransfer(t, w, a, b, second)
	}
	s := a.s.Stats()
	nstest.ErrorIf(t, s.Resent != 0, "%+v", s)
}

// A path slower than the timer: frames of their own round trip sent one at a
// time are probed at first, then the timer has learned the round trip.
func TestTimerLearnsSlowPath(t *testing.T) {
	far := link{delay: 5_000_000}
	w, a, b := pair(1, 1, 64, far, far)
	for range 20 {
		a.total++
		mustTransfer(t, w, a, b, second)
	}
	if s := a.s.Stats(); s.Resent > 6 {
		t.Errorf("new path: %+v", s)
	}
	w, a, b = pair(1, 1, 64, local, local)
	a.total = 1000
	mustTransfer(t, w, a, b, second)
	a.out.delay, b.out.delay = 5_000_000, 5_000_000
	for range 50 {
		a.total++
		mustTransfer(t, w, a, b, second)
	}
	if s := a.s.Stats(); s.Resent > 20 {
		t.Errorf("path that became slow: %+v", s)
	}
}

// A round trip longer than the interval of retransmissions is measured: frames are not sent twice, the window grows, and
// a path that becomes as slow is learned again.
func TestRoundTripAboveTheLongestTimer(t *testing.T) {
	for _, delay := range []int64{150_000_000, 300_000_000} {
		far := link{delay: delay, perFrame: 500_000}
		for _, was := range []link{far, local} {
			for _, frames := range []uint64{1, 100, 1000} {
				w, a, b := pair(1, 1, 4096, was, was)
				for range 20 {
					a.total++
					mustTransfer(t, w, a, b, 10*second)
				}
				a.out.link, b.out.link = far, far
				before, begun := a.s.Stats().Resent, w.now
				for range 10 {
					a.total += frames
					mustTransfer(t, w, a, b, 100*second)
				}
				took := (w.now - begun) / 10
				if again := a.s.Stats().Resent - before; again > 400 || took > 8*(2*delay+int64(frames)*far.perFrame) {
					t.Errorf("%d ms, was %d, 10 times %d frames: %d sent again, %d ms each", 2*delay/1_000_000, 2*was.delay/1_000_000, frames, again, took/1_000_000)
				}
			}
		}
	}
}

// Loss of single frames is repaired without waiting for the timer.
func TestLossIsFoundWithoutTimeouts(t *testing.T) {
	for _, loss := range []float64{0.001, 0.01, 0.05} {
		l := link{delay: 10_000, perFrame: 1_000, loss: loss}
		w, a, b := pair(5, 77, 512, l, local)
		a.total = 20_000
		mustTransfer(t, w, a, b, 60*second)
		s := a.s.Stats()
		nstest.FatalIf(t, a.out.dropped < int(loss*15_000), "only %d frames were lost", a.out.dropped)
		nstest.ErrorIf(t, int(s.Timeouts) > a.out.dropped/100+1, "loss %v: %d frames lost, %+v", loss, a.out.dropped, s)
		if extra := int(s.Resent) - a.out.dropped; extra > a.out.dropped/20+5 {
			t.Errorf("loss %v: %d frames lost, %d sent again in vain", loss, a.out.dropped, extra)
		}
		// 20,000 frames last 20 ms at full width, and what is lost goes twice.
		if most := int64(20_000_000 * (1 + 4*loss)); w.now > most+2_000_000 {
			t.Errorf("loss %v: took %d us, want less than %d; %+v", loss, w.now/1000, (most+2_000_000)/1000, s)
		}
	}
}

// Losses in bursts of eight, as of a queue that was full for a moment, cost little more
// than what they lose.
func TestBurstsCostLittle(t *testing.T) {
	run := 0
	l := link{delay: 10_000, perFrame: 1_000}
	w, a, b := pair(6, 77, 256, l, local)
	sent := 0
	a.out.drop = func(packet) bool {
		if sent++; sent%800 == 0 {
			run = 8
		}
		run--
		return run >= 0
	}
	a.total = 20_000
	mustTransfer(t, w, a, b, 60*second)
	if s := a.s.Stats(); a.out.dropped < 150 || w.now > 22_500_000 || s.Timeouts > 0 {
		t.Errorf("%d frames lost, took %d us; %+v", a.out.dropped, w.now/1000, s)
	}
}

// Hundreds of frames are lost when the first window of a long path overflows its queue. They are sent again at the window that the
// losses leave, and not one in each round trip of an RTT probe, which comes when they are repaired.
func TestHeavyFirstLossesAreRepairedSoon(t *testing.T) {
	const trip = 10_000_000
	for _, c := range []struct {
		queue int
		from  uint64 // the first of 800 frames that are lost; 0: none
		most  int64  // round trips
	}{
		{0, 300, 70}, // the losses are found in the probe
		{0, 600, 45}, // and before it
		{50, 0, 45},  // by chance both
		{400, 0, 30},
	} {
		w, a, b := pair(7, 77, 4096, link{delay: trip / 2, perFrame: 12_000, queue: c.queue}, link{delay: trip / 2})
		a.out.drop = func(p packet) bool { return c.from > 0 && p.data && !p.again && p.id >= c.from && p.id < c.from+800 }
		a.total = 8000
		probed := false
		b.out.drop = func(packet) bool {
			probed = probed || a.s.probingRTT && a.s.dipping > 0
			return false
		}
		mustTransfer(t, w, a, b, 600*second)
		nstest.FatalIf(t, a.out.dropped < 500 || !probed, "%+v: %d frames were lost, RTT probe %v", c, a.out.dropped, probed)
		if trips := w.now / trip; trips > c.most { // they last 10 at full width
			t.Errorf("%+v: took %d round trips; %+v", c, trips, a.s.Stats())
		}
	}
}

// Frames that overtake each other are not lost ones.
func TestReorderingIsNotTakenForLoss(t *testing.T) {
	for name, l := range map[string]link{
		"a little": {delay: 50_000, perFrame: 1_000, jitter: 10_000},
		"much":     {delay: 50_000, perFrame: 1_000, jitter: 100_000},
		"wild":     {delay: 10_000, perFrame: 1_000, jitter: 100_000},
		"few late": {delay: 50_000, perFrame: 1_000, late: 0.01, lateBy: 40_000},
	} {
		w, a, b := pair(9, 5, 512, l, local)
		a.total = 20_000
		mustTransfer(t, w, a, b, 60*second)
		if s := a.s.Stats(); s.Resent > 20 || s.Timeouts > 0 || b.r.Stats().OutOfOrder == 0 || w.now > 25_000_000 {
			t.Errorf("%s: at %d us: %+v, %+v", name, w.now/1000, s, b.r.Stats())
		}
	}
}

// If frames are late and not lost, and the peer knows it, gaps and their ends are not acknowledged at once. The
// few additional acknowledgements are for the frames that a closed gap releases.
func TestLateFramesCostFewAcks(t *testing.T) {
	const frames = 20_000
	acks := func(late float64) int {
		w, a, b := pair(11, 5, 512, link{delay: 100_000, perFrame: 1_000, late: late, lateBy: 100_000}, local)
		a.total = frames
		a.s.reordered, b.r.late = reorderRounds, lateRow
		mustTransfer(t, w, a, b, 60*second)
		if s := a.s.Stats(); s.Resent > 0 {
			t.Errorf("%v late, none lost: %+v", late, s)
		}
		return b.acks
	}
	none := acks(0)
	n := acks(0.02)
	nstest.ErrorIf(t, n > none+none/4, "%d acknowledgements, %d without late frames", n, none)
}

// An outage of a millisecond costs little more than its length.
func TestOutageIsSurvived(t *testing.T) {
	for _, outage := range []int64{100_000, 1_000_000, 10_000_000, 100_000_000} {
		l := link{delay: 10_000, perFrame: 1_000}
		w, a, b := pair(1, 1, 256, l, local)
		a.out.drop = func(packet) bool { return w.now > 10_000_000 && w.now < 10_000_000+outage }
		a.total = 20_000
		mustTransfer(t, w, a, b, 10*second)
		over := w.now - 20_000_000 - outage
		nstest.ErrorIf(t, over > 2*outage+5_000_000, "outage of %d us costs %d us more: %+v", outage/1000, over/1000, a.s.Stats())
	}
}

// A reordering that was seen once does not slow loss detection for ever.
func TestReorderingIsForgotten(t *testing.T) {
	l := link{delay: 20_000, loss: 0.01}
	w, a, b := pair(2, 5, 256, l, local)
	a.s.reordered = reorderRounds
	a.total = 20_000
	mustTransfer(t, w, a, b, 60*second)
	nstest.ErrorIf(t, a.s.reordered != 0, "after %d rounds of losses still expects reordering", a.s.Stats().LossRounds)
}

// No later frames reveal the loss of a stream's last frames. A probe does, long before a retransmission
// time-out.
func TestTailLossIsProbed(t *testing.T) {
	for lost := 1; lost <= 20; lost++ {
		w, a, b := pair(1, 1, 64, local, local)
		a.total = 500
		mustTransfer(t, w, a, b, second)
		dropped := 0
		a.out.drop = func(p packet) bool {
			if p.data && p.id >= 520-uint64(lost) && dropped < lost {
				dropped++
				return true
			}
			return false
		}
		start := w.now
		a.total = 520
		mustTransfer(t, w, a, b, second)
		s := a.s.Stats()
		nstest.ErrorIf(t, s.Probes != 1 || s.Timeouts != 0 || int(s.Resent) != lost, "last %d lost: %+v", lost, s)
		took := w.now - start
		nstest.ErrorIf(t, took > 600_000, "last %d lost: took %d us", lost, took/1000)
	}
}

// A retransmission that is lost too is found by the frames sent after it.
func TestLostRetransmissionIsFound(t *testing.T) {
	w, a, b := pair(1, 1, 256, local, local)
	tries := 0
	a.out.drop = func(p packet) bool {
		if p.data && p.id == 1000 {
			tries++
		}
		return p.data && p.id == 1000 && tries <= 3
	}
	a.total = 5000
	mustTransfer(t, w, a, b, second)
	s := a.s.Stats()
	nstest.ErrorIf(t, s.Timeouts != 0 || s.Resent > 5, "%+v", s)
}

// The peer's program takes nothing for a while: the window closes, nothing is
// lost, and the stream goes on.
func TestStalledReceiverClosesTheWindow(t *testing.T) {
	w, a, b := pair(1, 1, 64, local, local)
	b.stalled = func(now int64) bool { return now > 100_000 && now < 500_000_000 }
	a.total = 5000
	mustTransfer(t, w, a, b, second)
	s := a.s.Stats()
	nstest.ErrorIf(t, s.Resent != 0 || w.now < 500_000_000 || w.now > 520_000_000, "at %d us: %+v", w.now/1000, s)
}

// Machines that were stopped with frames under way, as virtual machines for a snapshot, go on as before: the time does not
// count as a round trip, for pacing and for losses.
func TestClockThatJumps(t *testing.T) {
	for _, l := range []link{{delay: 20_000, perFrame: 1000}, {delay: 20_000, perFrame: 1000, loss: 0.02}, {delay: 500_000, perFrame: 10_000}} {
		for seed := range uint64(5) {
			w, a, b := pair(seed, 1, 256, l, l)
			a.total = 2000
			mustTransfer(t, w, a, b, second)
			a.total += 2000
			a.work()
			w.run(w.now+second, func() bool { return b.placed == 3000 })
			const stopped = 600 * second
			w.now += stopped
			for i := range w.events {
				w.events[i].at += stopped
			}
			if err := transfer(w, a, b, second); err != nil {
				t.Errorf("%+v: %.100s", l, err.Error())
			}
		}
	}
}
