package reliable

import (
	"slices"
	"testing"

	"viaxdp/internal/lab/nstest"
)

// untilCompeting runs rounds beside frames of others until the sender competes.
func untilCompeting(t *testing.T, p *path, others func() int) {
	t.Helper()
	for rounds := 0; !p.c.competing; rounds++ {
		p.round(others())
		nstest.FatalIf(t, rounds > 400, "window %d, %d dips in vain", p.c.window(), p.c.vain)
	}
}

// constant is a number of frames of others that does not change.
func constant(n int) func() int { return func() int { return n } }

// Beside flows that do not fill what is left to them, the window stays below twice what they have in flight, and nothing is
// lost. On a long path it first fills the queue.
func TestTakesNoMoreThanItsRivals(t *testing.T) {
	const perFrame = 20_000
	for _, delay := range []int64{100_000, 10_000_000} {
		long := delay > longPath
		others := int(delay/perFrame) + 150
		p := started(delay, perFrame)
		p.most = 4 * others
		p.rounds(15, 0)
		untilCompeting(t, p, constant(others))
		if n := int(p.c.threshold / fraction); long != (n == MaxWindow) || !long && (n < others*8/10 || n > others*12/10) {
			t.Errorf("%d us: begins to compete with %d frames beside %d", delay/1000, n, others)
		}
		begun, trip := p.now, p.c.trip
		for p.c.dipping == 0 {
			p.round(others)
		}
		nstest.FatalIf(t, p.now < begun+dipEveryTrips*trip, "%d us: a dip after %d round trips", delay/1000, (p.now-begun)/trip)
		p.rounds(dipRounds, others)
		p.lost = 0
		var sum, rounds int
		for end := p.now + 20e9; p.now < end; rounds++ {
			p.round(others)
			sum += p.c.window()
			if n := p.c.window(); n > 2*others*12/10 {
				t.Fatalf("%d us: window %d beside %d frames", delay/1000, n, others)
			}
		}
		if n := sum / rounds; n < others/3 || p.lost > 0 {
			t.Errorf("%d us: mean window %d beside %d frames, %d losses", delay/1000, n, others, p.lost)
		}
	}
}

// Flows that fill the queue while the sender gives way, or have filled it, take what they get: the window doubles up to the
// peer's.
func TestRivalsThatFillTheQueue(t *testing.T) {
	for _, how := range []string{"it grows", "frames are lost"} {
		others := 200
		p := started(100_000, 20_000)
		p.rounds(15, 0)
		p.c.rivals.inFlight = 300 * fraction
		untilCompeting(t, p, func() int {
			switch {
			case how == "it grows" && p.c.dipping > 0:
				others += 40
			case how == "frames are lost" && p.c.vain == 3 && p.c.dipping == 0:
				p.c.lossRound(p.now, p.c.window())
			}
			return others
		})
		nstest.ErrorIf(t, p.c.threshold != p.c.most || p.c.rivals.inFlight > 400*fraction || p.c.rivals.lost != (how == "frames are lost"),
			"%s: begins to compete with %d frames beside %d", how, p.c.threshold/fraction, others)
	}
}

// The losses before a series of dips say nothing about this one.
func TestOldLossesOfRivals(t *testing.T) {
	p := started(100_000, 20_000)
	p.rounds(15, 0)
	p.c.lossRound(p.now, p.c.window())
	untilCompeting(t, p, constant(200))
	nstest.ErrorIf(t, p.c.threshold == p.c.most, "losses before the first dip in vain show that the others fill the queue")
}

// A dip while the sender competes bounds the window by what the others have, and by nothing where their part has grown.
func TestDipBoundsTheWindowByRivals(t *testing.T) {
	for _, c := range []struct{ before, in, want int }{
		{50, 50, 50},    // a quarter of 200
		{50, 20, 16},    // they have lost most of it: (150-1)*21/(200-21)-1
		{400, 400, 150}, // they have more
		{50, 300, 150},  // and here they have taken all
	} {
		p := started(100_000, 60_000)
		p.c.competing, p.c.rivals.limit = true, 0
		p.c.cwnd, p.c.threshold = 150*fraction, 150*fraction
		p.c.epoch, p.c.peak = p.now, 150*fraction
		p.c.rivals.nextMeasure, p.c.rivals.inFlight = 1<<62, 20*fraction
		p.round(c.before)
		window := p.c.window() // grown a little
		p.c.rivals.nextMeasure = 0
		p.round(c.before)
		nstest.FatalIf(t, p.c.dipping != dipRounds, "%+v: no dip", c)
		p.rounds(dipRounds, c.in)
		nstest.FatalIf(t, !p.c.competing, "%+v: competes no longer", c)
		nstest.ErrorIf(t, c.in == 300 && p.c.rivals.limit != 0,
			"%+v: does not ask again before it has %d frames", c, p.c.rivals.limit/fraction)
		want := int64(c.want)
		if c.want == 150 {
			want = int64(window)
		}
		n := p.c.threshold / fraction
		nstest.ErrorIf(t, n < want*9/10 || n > want*11/10+1, "%+v: resumes with %d frames of %d", c, n, window)
	}
}

// After the sender has begun to compete it asks again: on a short path in any case, on a long one if it has three quarters
// of what it takes the others to have. Later, if it has twice as much as they. CUBIC alone never dips.
func TestDipsAlthoughNothingIsLost(t *testing.T) {
	for _, c := range []struct {
		delay int64
		used  int // frames, of 100 of the others
		first bool
		later bool
	}{
		{100_000, 20, true, false}, {100_000, 190, true, false}, {100_000, 210, true, true},
		{10_000_000, 70, false, false}, {10_000_000, 80, true, false}, {10_000_000, 210, true, true},
	} {
		p := started(c.delay, 60_000)
		p.c.rivals.inFlight, p.c.rivals.secondTrip, p.c.trip = 100*fraction, c.delay, c.delay
		p.c.compete()
		used := int64(c.used) * fraction
		p.c.rivals.nextMeasure = p.now + 5
		nstest.ErrorIf(t, p.c.measureAgain(p.now+4, used), "%+v: a dip too early", c)
		if got := p.c.measureAgain(p.now+5, used); got != c.first {
			t.Errorf("%+v: first dip: %v", c, got)
		}
		p.c.rivals.held, p.c.rivals.heldTrip, p.c.trip = 101*fraction, 2*c.delay, c.delay
		p.c.cwnd = fraction / 2
		p.c.measureRivals() // 100.5 frames less halve the round trip: 100 of the others
		if got := p.c.measureAgain(p.now+5, used); got != c.later {
			t.Errorf("%+v: later dip: %v, %d frames of the others", c, got, p.c.rivals.inFlight/fraction)
		}
		p.c.UseCubic()
		nstest.ErrorIf(t, p.c.measureAgain(p.now+5, used), "%+v: a dip of CUBIC", c)
	}
}

// Dips from small windows show nothing of the others. Of the rest of a series the least result counts. If there is none,
// that of the series before remains.
func TestSmallDipsLeaveTheResult(t *testing.T) {
	p := started(100_000, 60_000)
	c := &p.c
	dip := func(vain int, held, window, trip int64) {
		c.vain = vain
		c.rivals.held, c.rivals.heldTrip, c.cwnd, c.trip = held*fraction, 6_000_000, window*fraction, trip
		c.measureRivals()
	}
	for i, d := range []struct {
		vain                     int
		held, window, trip, want int64
	}{
		{1, 15, 1, 3_000_000, MaxWindow}, // too small
		{2, 41, 1, 3_000_000, 39},        // 40*3/3-1
		{3, 61, 1, 3_000_000, 39},        // 59 is more
		{4, 31, 1, 3_000_000, 29},
		{1, 15, 1, 3_000_000, 29}, // a new series
		{2, 61, 1, 3_000_000, 59},
		{3, 61, 1, 6_000_000, 59}, // no shorter: not known
		{4, 17, 1, 1_000_000, leastRivals},
		{1, 201, 1, 3_000_000, 199},
		{2, 31, 1, 3_000_000, 99}, // 29, but this sender had 201 in twice the time
		{1, 61, 1, 3_000_000, 59},
	} {
		dip(d.vain, d.held, d.window, d.trip)
		nstest.ErrorIf(t, c.rivals.inFlight/fraction != d.want,
			"dip %d: %d frames of the others, want %d", i, c.rivals.inFlight/fraction, d.want)
	}
}

// A dip that follows a loss compares with the window before it: that made the queue of the last round.
func TestDipAfterALossKnowsTheWindowBefore(t *testing.T) {
	p := started(100_000, 20_000)
	p.c.competing, p.c.trip = true, 8_000_000
	p.c.cwnd, p.c.threshold = 200*fraction, 200*fraction
	p.c.sample(8_000_000)
	p.c.lossRound(p.now, 200)
	nstest.ErrorIf(t, p.c.dipping != dipRounds || p.c.rivals.held != 200*fraction || p.c.rivals.heldTrip != 8_000_000,
		"dip of %d rounds from %d frames and %d us", p.c.dipping, p.c.rivals.held/fraction, p.c.rivals.heldTrip/1000)
}

// A sender that competes dips, too, when the round trip falls as no loss makes it fall: in two rounds it was half as long again, and
// 6 ms longer.
func TestJoinsTheDipsOfOthers(t *testing.T) {
	const others = 800
	competing := func(perFrame int64) *path {
		p := started(100_000, perFrame)
		p.rounds(15, 0)
		untilCompeting(t, p, constant(others))
		for p.c.window() < 600 || p.c.dipping > 0 {
			p.round(others)
		}
		return p
	}
	for _, c := range []struct {
		name     string
		perFrame int64
		falls    func(all int) int // of all frames in flight, those of others that remain, by the window
		before   int               // frames of others in the round before
		twice    bool              // two rounds end at once before
		joins    bool
	}{
		{"others dip", 20_000, func(all int) int { return all * 65 / 100 }, others, false, true},
		{"others lose frames", 20_000, func(all int) int { return all * 7 / 10 }, others, false, false},
		{"a slow round", 20_000, func(all int) int { return all }, 4 * others, false, false},
		{"two slow rounds that end at once", 20_000, func(all int) int { return all }, 4 * others, true, false},
		{"a short queue", 8_000, func(all int) int { return all * 6 / 10 }, others, false, false},
	} {
		p := competing(c.perFrame)
		p.round(others)
		all := p.c.window() + others
		p.round(c.before)
		if c.twice {
			n := p.c.window()
			p.nxt += uint32(n)
			p.c.sample(p.c.trip)
			p.c.grow(p.now, n, p.nxt, p.nxt, p.least)
		}
		p.round(c.falls(all) - p.c.window())
		if joins := p.c.dipping > 0; joins != c.joins || !p.c.competing {
			t.Errorf("%s: round trips %d and %d us: dips: %v", c.name, p.c.before/1000, p.c.trip/1000, joins)
		}
	}

	for _, remain := range []int{0, 100} {
		p := competing(20_000)
		p.rounds(2, others)
		known := p.c.rivals.inFlight
		p.round(others - p.c.window()*7/10)
		nstest.FatalIf(t, p.c.dipping == 0, "no dip: round trip %d us, window %d", p.c.trip/1000, p.c.window())
		p.rounds(dipRounds, remain)
		nstest.ErrorIf(t, p.c.competing != (remain > 0) || p.c.rivals.inFlight != known,
			"%d frames of others remain: competes: %v, %d frames, known were %d", remain, p.c.competing, p.c.rivals.inFlight/fraction, known/fraction)
	}

	// Not on a long path.
	for _, least := range []int64{longPath, longPath + 1} {
		c := congestion{base: least, trip: 40_000_000, before: 40_000_000}
		if joins := c.joins(20_000_000); joins != (least == longPath) {
			t.Errorf("from 40 to 20 ms, least %d us: joins: %v", least/1000, joins)
		}
	}

	p := started(100_000, 20_000)
	p.c.UseCubic()
	p.c.threshold = 64 * fraction
	p.rounds(20, others)
	p.round(0)
	nstest.ErrorIf(t, p.c.dipping > 0, "CUBIC alone dips")
}

// A round of a dip that is slow, perhaps because the peer has no processor, does not hide that the queue is empty.
func TestSlowRoundInADip(t *testing.T) {
	for slow := range dipRounds {
		p := started(100_000, 20_000)
		p.rounds(15, 0)
		for p.c.dipping == 0 {
			p.round(200)
		}
		for i := range dipRounds {
			if i == slow {
				p.round(300)
			} else {
				p.round(0)
			}
		}
		nstest.ErrorIf(t, p.c.dipping > 0 || p.c.vain > 0, "round %d of the dip is slow: %d dips in vain", slow, p.c.vain)
	}

	p := started(10_000_000, 20_000) // processors hardly slow so long a round
	p.rounds(20, 0)
	for p.c.dipping == 0 {
		p.round(1000)
	}
	p.rounds(dipRounds-1, 0)
	p.round(1000)
	nstest.ErrorIf(t, p.c.vain != 1, "the last round of a dip on a long path shows a queue: %d dips in vain", p.c.vain)
}

// Only round trips that hardly vary, over enough rounds, show that there is no queue.
func TestSteadyRoundTrips(t *testing.T) {
	const ms = 1_000_000
	same := func(n int, trip int64) []int64 { return slices.Repeat([]int64{trip}, n) }
	for _, c := range []struct {
		name  string
		trips []int64
		want  bool
	}{
		{"a longer path", same(steadyRounds, 20*ms), true},
		{"few rounds", same(steadyRounds-1, 20*ms), false},
		{"late wakeups", append(same(steadyRounds-4, 20*ms), same(4, 24*ms)...), true},
		{"a dip shows a queue", append(same(steadyRounds, 20*ms), 18*ms), false},
		{"a queue that grows", append(same(steadyRounds/2, 20*ms), same(steadyRounds/2, 21*ms)...), false},
		{"a queue that ends", append(same(4, 24*ms), same(steadyRounds, 20*ms)...), true},
	} {
		var s steady
		for _, trip := range c.trips {
			s.add(trip)
		}
		got := s.shown()
		nstest.ErrorIf(t, got != c.want || got && s.least != slices.Min(c.trips), "%s: %v, %+v", c.name, got, s)
	}
}
