package reliable

import (
	"testing"

	"viaxdp/internal/lab/nstest"
)

// path is a path in rounds, for a congestion without a Sender: a link that takes perFrame for each frame, with a
// fixed delay, a queue of most frames, and frames of others in it.
type path struct {
	c        congestion
	now      int64
	nxt      uint32
	delay    int64
	perFrame int64
	most     int // frames in the queue; 0: any number
	mark     int // frames in the queue above which frames are marked; 0: never
	least    int64
	lost     int
}

func newPath(delay, perFrame int64) *path {
	p := &path{delay: delay, perFrame: perFrame, now: 1, nxt: 1}
	p.c.init(1)
	p.c.bound(MaxWindow)
	return p
}

// trip is the round trip of a full window beside frames of others.
func (p *path) trip(others int) int64 {
	return max(p.delay, int64(p.c.window()+others)*p.perFrame)
}

// round is a round in which the window is full and others frames of other flows are under way.
func (p *path) round(others int) {
	n := p.c.window()
	p.nxt += uint32(n)
	trip := p.trip(others)
	queue := int((trip - p.delay) / p.perFrame)
	p.now += trip
	if p.least == 0 || trip < p.least {
		p.least = trip
	}
	p.c.sample(trip)
	if p.most > 0 && queue > p.most {
		p.lost++
		p.c.lossRound(p.now, n)
		p.c.lostOne()
	}
	if p.mark > 0 && queue > p.mark {
		p.c.marked(min(n, queue-p.mark), p.nxt)
	}
	p.c.grow(p.now, n, p.nxt, p.nxt, p.least)
}

func (p *path) rounds(n, others int) {
	for range n {
		p.round(others)
	}
}

// started is a path whose least round trip is known.
func started(delay, perFrame int64) *path {
	p := newPath(delay, perFrame)
	p.c.cwnd = fraction
	p.round(0)
	return p
}

// Alone, the window dips whenever the queue is above the ceiling, and so the queue stays bounded.
func TestQueueStaysAtTheCeiling(t *testing.T) {
	p := started(100_000, 60_000)
	p.rounds(50, 0)
	for range 500 {
		p.round(0)
		if wait := p.trip(0) - p.delay; p.c.competing || wait > 3*delayCeiling {
			t.Fatalf("at %d us: a queue of %d us, competing %v", p.now/1000, wait/1000, p.c.competing)
		}
	}
	nstest.ErrorIf(t, p.c.window() < 1, "window %d", p.c.window())
}

// Beside a flow that keeps the queue full the sender competes, and ends that when the flow has gone.
func TestCompetes(t *testing.T) {
	p := started(100_000, 60_000)
	p.most = 200
	p.rounds(20, 0)
	const others = 100
	rounds := 0
	for ; !p.c.competing; rounds++ {
		p.round(others)
		nstest.FatalIf(t, rounds > 200, "window %d, %d dips in vain", p.c.window(), p.c.vain)
	}
	p.rounds(100, others)
	n := p.c.window()
	nstest.ErrorIf(t, n < 30 || n > 150, "window %d beside %d frames of others in a queue of %d", n, others, p.most)
	for i := 0; p.c.competing; i++ {
		p.round(0)
		nstest.FatalIf(t, i > 20_000, "competes with nothing")
	}
}

// Where the queue holds more than the path, one more dip has to be in vain: the dips of streams that start together take
// longer to coincide there.
func TestVainDips(t *testing.T) {
	for _, c := range []struct{ delay, want int64 }{{100_000, vainDips + 1}, {10_000_000, vainDips}} {
		const perFrame = 60_000
		others := int(c.delay/perFrame) + 100 // they fill the path, and a queue of 6 ms
		p := started(c.delay, perFrame)
		p.rounds(20, 0)
		for rounds := 0; !p.c.competing; rounds++ {
			p.round(others)
			nstest.FatalIf(t, rounds > 400, "%+v: %d dips in vain", c, p.c.vain)
		}
		nstest.ErrorIf(t, p.c.vain != int(c.want), "%+v: competes after %d dips in vain", c, p.c.vain)
	}
}

// A connection that begins in a full queue does not know the least round trip. At its first heavy losses on a long path the
// window is a frame for four rounds, and then what the losses have left, once.
func TestFirstLossesMeasureTheLeastRoundTrip(t *testing.T) {
	const others = 300
	for _, queued := range []bool{true, false} {
		p := newPath(100_000, 60_000)
		p.round(others)
		p.c.cwnd = 80 * fraction
		if queued {
			p.c.sample(p.trip(others))
		}
		p.c.lossRound(p.now, 80)
		for range 80/heavyShare + 1 {
			p.c.lostOne()
		}
		p.round(others)
		nstest.FatalIf(t, !p.c.probingRTT || p.c.window() != dipWindow || p.c.resume != 56*fraction,
			"queued %v: probing %v, window %d, then %d", queued, p.c.probingRTT, p.c.window(), p.c.resume/fraction)
		p.rounds(dipRounds, 0)
		nstest.ErrorIf(t, p.c.probingRTT || p.c.base != p.delay || p.c.threshold != 56*fraction,
			"queued %v: probing %v, least round trip %d us, threshold %d", queued, p.c.probingRTT, p.c.base/1000, p.c.threshold/fraction)
		p.c.base = 2 * longPath
		p.c.probeRTT()
		nstest.ErrorIf(t, p.c.probingRTT, "queued %v: a second RTT probe", queued)
	}
	// A sender that begins to compete doubles as a new one does, up to the peer's window, and does not probe at its losses.
	p := newPath(2*longPath, 1_000)
	p.round(0)
	p.c.competing = true
	p.c.probeRTT()
	nstest.ErrorIf(t, p.c.probingRTT || p.c.threshold != p.c.most,
		"competing: probing %v, threshold %d", p.c.probingRTT, p.c.threshold/fraction)
	// A timeout ends the probe: it begins with a small window anyway.
	p.c.competing = false
	p.c.probeRTT()
	p.round(0)
	nstest.FatalIf(t, p.c.dipping != dipRounds || !p.c.probingRTT, "probing %v, dipping %d", p.c.probingRTT, p.c.dipping)
	p.c.collapse(true)
	nstest.ErrorIf(t, p.c.probingRTT || p.c.dipping > 0, "after a timeout: probing %v, dipping %d", p.c.probingRTT, p.c.dipping)
	for _, cubic := range []bool{true, false} {
		p := newPath(longPath, 1_000)
		if cubic {
			p = newPath(2*longPath, 1_000)
			p.c.UseCubic()
		}
		p.round(0)
		p.c.probeRTT()
		nstest.ErrorIf(t, p.c.probingRTT, "probing with a round trip of %d us, CUBIC alone %v", p.delay/1000, cubic)
	}
}

// A loss takes three tenths off the window where a queue shows, once a round, and a frame where none does.
func TestLossIsJudgedByTheQueue(t *testing.T) {
	for _, queue := range []bool{false, true} {
		p := started(100_000, 1_000)
		p.c.cwnd, p.c.threshold = 90*fraction, 90*fraction
		trip := int64(100_000)
		if queue {
			trip += 2 * queueShows
		}
		p.c.sample(trip)
		before := p.c.cwnd
		p.c.lossRound(p.now, 90)
		p.c.lostOne()
		p.c.lostOne()
		want := before - 2*fraction
		if queue {
			want = before * 7 / 10
		}
		nstest.ErrorIf(t, p.c.cwnd != want || p.c.threshold != want,
			"queue %v: window from %d to %d, want %d", queue, before, p.c.cwnd, want)
	}
}

// On a long path the window grows as CUBIC's after a loss in a queue, also while no queue shows: until the curve is
// back at the peak, or until most rounds are bad: they lose frames without a queue.
func TestRegrowsAsCubic(t *testing.T) {
	const delay, perFrame, peak = 10_000_000, 5_000, 700 // no queue below 2000 frames
	for _, bad := range []int{0, 1, chanceRounds} {
		p := started(delay, perFrame)
		p.c.cwnd, p.c.threshold = peak*fraction, peak*fraction
		p.c.sample(delay + 2*queueShows)
		p.c.lossRound(p.now, peak)
		p.c.lostOne()
		if n := p.c.window(); n != peak*7/10 {
			t.Fatalf("window %d after a loss in a queue", n)
		}
		p.c.roundLeast = 0
		p.rounds(chanceRounds, 0)
		for range bad {
			p.c.lossRound(p.now, p.c.window())
			p.c.lostOne()
			p.round(0)
		}
		for end := p.now + second; p.now < end; {
			p.round(0)
		}
		if n := p.c.window(); (n > peak) != (bad > 1) || n < peak*8/10 {
			t.Errorf("%d bad rounds: window %d of %d after 1 s", bad, n, peak)
		}
		for end := p.now + int64(p.c.back*1e9); p.now < end; {
			p.round(0)
		}
		if n := p.c.window(); n < 2000 {
			t.Errorf("%d bad rounds: window %d after the curve", bad, n)
		}
	}
}

// After a loss in a queue above the ceiling the window grows freely: all flows that dip share the path by dips.
func TestRegrowsFreelyAboveTheCeiling(t *testing.T) {
	const delay, peak = 10_000_000, 700
	p := started(delay, 5_000)
	p.c.cwnd, p.c.threshold = peak*fraction, peak*fraction
	p.c.sample(delay*5/4 + 2*delayCeiling)
	p.c.lossRound(p.now, peak)
	p.c.roundLeast = 0
	p.rounds(20, 0)
	n := p.c.window()
	nstest.ErrorIf(t, n < peak, "window %d of %d after 20 rounds", n, peak)
}

// Marks keep the queue at their threshold, by small steps.
func TestMarksSetTheWindow(t *testing.T) {
	p := started(100_000, 12_000)
	p.mark = 20
	p.rounds(200, 0)
	for range 200 {
		before := p.c.window()
		p.round(0)
		queue := int((p.trip(0) - p.delay) / p.perFrame)
		nstest.FatalIf(t, queue > 2*p.mark || p.c.window() < before*3/4,
			"a queue of %d frames, threshold %d; window from %d to %d", queue, p.mark, before, p.c.window())
	}
}

// Marks of one flight halve the window once, and frames go on leaving while it shrinks.
func TestMarksKeepFramesComing(t *testing.T) {
	s, now, f := warm(0)
	s.cwnd, s.threshold = 20*fraction, 20*fraction
	for s.Room() > 0 {
		s.Send(now, 0, 1)
	}
	now += trip
	for i := range uint32(20) {
		sent := s.Next()
		s.Marked(i + 1)
		for s.Ack(now, f+i+1, 256); s.Room() > 0; {
			s.Send(now, 0, 1)
		}
		nstest.ErrorIf(t, i%2 == 1 && s.Next() == sent, "window %d, %d in flight: nothing was sent", s.window(), s.inFlight())
	}
	nstest.ErrorIf(t, s.window() != 10 || s.inFlight() != 10, "window %d, %d in flight", s.window(), s.inFlight())
	s.Ack(now+trip, f+25, 256)
	nstest.ErrorIf(t, s.window() < 10, "window %d: the flight's marks reduce it once more", s.window())
	// The marks of the next flight count again.
	s.Marked(21)
	s.Ack(now+trip, s.Next(), 256)
	nstest.ErrorIf(t, s.window() >= 10, "window %d after another flight", s.window())
}

// A path that has marked a frame once becomes one that does not mark: the window grows as before, and random losses
// do not keep it small. While marks go on to come, it grows by a frame a round.
func TestMarksAreForgotten(t *testing.T) {
	grown := func(marked bool, every int) (most int) {
		p := started(50_000_000, 12_000)
		p.c.cwnd, p.c.threshold = 400*fraction, 400*fraction
		p.round(0)
		for i := range 2 * markRounds {
			if marked && (i == 0 || every > 0 && i%every == 0) {
				p.c.marked(1, p.nxt)
			}
			if i%2 == 0 { // 1 % is lost
				p.c.lossRound(p.now, p.c.window())
				for range p.c.window() / 50 {
					p.c.lostOne()
				}
			}
			before := p.c.window()
			if p.round(0); i > 10 && i%2 == 1 {
				most = p.c.window() - before
			}
		}
		return most
	}
	never, once, often := grown(false, 0), grown(true, 0), grown(true, markRounds/2)
	nstest.ErrorIf(t, never < 10 || once < never/4, "grows by %d frames a round, %d if a frame was marked once", never, once)
	nstest.ErrorIf(t, often > 1, "grows by %d frames a round although frames are marked", often)
}

// A peer's count of marks that is old changes nothing.
func TestOldCountOfMarks(t *testing.T) {
	s, _, _ := warm(20)
	s.Marked(3)
	s.grow(1, 0, s.nxt, s.nxt, s.least)
	before := s.cwnd
	s.Marked(3)
	s.Marked(2)
	s.grow(1, 0, s.nxt, s.nxt, s.least)
	nstest.ErrorIf(t, s.cwnd != before || s.seenMarks != 3, "window from %d to %d, %d marks", before, s.cwnd, s.seenMarks)
}

// News of a mark needs a bare acknowledgement, once.
func TestMarkNeedsABareAcknowledgement(t *testing.T) {
	r := NewReceiver(1, 16)
	r.Arrive(1, false)
	nstest.FatalIf(t, r.Bare() || r.Marks() != 0, "bare %v, %d marks", r.Bare(), r.Marks())
	r.Mark()
	nstest.FatalIf(t, !r.Bare() || r.Marks() != 1, "bare %v, %d marks", r.Bare(), r.Marks())
	r.Acked()
	nstest.ErrorIf(t, r.Bare() || r.Marks() != 1, "bare %v, %d marks", r.Bare(), r.Marks())
}

// Beside a CUBIC flow on a long path a dip in vain leaves CUBIC's curve as it was: the window is back at the peak when
// the curve is, and not later. A dip that empties the queue ends the curve.
func TestDipKeepsTheCurveOnALongPath(t *testing.T) {
	const delay, peak = 10_000_000, 600
	for _, emptied := range []bool{false, true} {
		p := started(delay, 5_000)
		p.c.cwnd, p.c.threshold, p.c.competing = peak*fraction, peak*fraction, true
		p.c.sample(5 * delay)
		p.c.trip = 5 * delay
		p.c.lossRound(p.now, peak)
		begun, back := p.now, p.c.back
		if p.c.dipping == 0 || p.c.peak != peak*fraction || p.c.prior != peak*fraction || back < 7.66 || back > 7.67 { // cbrt(0.3*600/0.4)
			t.Fatalf("dip of %d rounds, peak %d, back after %.3f s", p.c.dipping, p.c.peak/fraction, back)
		}
		p.c.roundLeast = 0
		others := 0
		if !emptied {
			others = 100_000 // few rounds, so that Reno's growth is small
		}
		for p.c.dipping > 0 {
			p.round(others)
		}
		if emptied {
			nstest.ErrorIf(t, p.c.competing || p.c.epoch != 0 || p.c.peak != peak*7/10*fraction,
				"emptied: competing %v, epoch %d, peak %d", p.c.competing, p.c.epoch, p.c.peak/fraction)
			continue
		}
		nstest.FatalIf(t, !p.c.competing || p.c.epoch != begun || p.c.peak != peak*fraction || p.c.threshold != peak*7/10*fraction,
			"in vain: competing %v, epoch %d, peak %d, threshold %d", p.c.competing, p.c.epoch, p.c.peak/fraction, p.c.threshold/fraction)
		for p.now+2*p.c.trip < begun+int64(back*1e9) {
			p.round(others)
		}
		n := p.c.window()
		nstest.ErrorIf(t, n < peak*98/100 || n > peak*102/100, "window %d of %d when the curve is back", n, peak)
	}
}

// RFC 9438, section 4.3: where CUBIC grows as Reno, it does so by 0.53 frames a round up to the window before the loss,
// and by one from there on. This holds while the sender competes on a long path.
func TestGrowsAsRenoFromThePriorWindowOn(t *testing.T) {
	for _, c := range []struct {
		base      int64
		competing bool
		cwnd      int64
		want      int64
	}{
		{10_000_000, true, 599, renoGrowth}, {10_000_000, true, 600, fraction}, {10_000_000, true, 601, fraction},
		{10_000_000, false, 601, renoGrowth}, {longPath, true, 601, renoGrowth}, {longPath + 1, true, 601, fraction},
	} {
		g := congestion{base: c.base, trip: c.base, competing: c.competing, cwnd: c.cwnd * fraction, prior: 600 * fraction}
		g.reduced(1, g.cwnd) // the plateau: the curve itself does not grow
		n := g.cubic(1)
		nstest.ErrorIf(t, n != c.want, "%+v: growth %d", c, n)
	}
}
