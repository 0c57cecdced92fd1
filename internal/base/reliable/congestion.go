package reliable

import "math"

// congestion is the congestion window of a Sender. It is kept in 1/256 of a frame, so that additive increase needs
// no fractions. What it learns comes from its caller: round trips (sample), acknowledgements (grow), losses
// (lossRound, lostOne), marks (marked), timeouts (collapse). It answers with window.
//
// It decides once a round. A round ends when everything that was in flight at its start is acknowledged. If the least
// round trip of a round is longer than the least one known, there was a queue for all of the round.
//
//   - No queue: the path has room. The window doubles each round below the threshold, and grows by a part of itself
//     above it. A loss is taken for chance, unless losses are heavy.
//   - A queue: the window grows as CUBIC's (RFC 9438), and a loss takes three tenths off it, as in CUBIC. On a long path,
//     after a loss in a queue below the ceiling, it stays on CUBIC's curve until that is back at the window before the loss,
//     even if no queue shows.
//   - A queue above the ceiling: the window dips, for a few rounds, below what the path holds without a queue. If all
//     flows do the same, the queue empties, and each sees the least round trip. The window returns to three quarters.
//   - Several dips in a row do not empty the queue: a flow that reacts only to losses keeps it full. The sender then
//     competes with it, by CUBIC alone, until a later dip empties the queue, or no queue shows for several rounds. What the
//     dips show of the others (rivals) bounds its window: no more than theirs. If the round trip shows that others dip, it
//     dips, too: perhaps all that compete are senders like this one, and none of them needs to. If round trips hardly vary
//     for long, the path has become longer, and there is no queue (steady).
//   - The first heavy losses of a connection, round trip above 1 ms: all round trips so far may include a queue of others.
//     When they are repaired, an RTT probe follows: the window is one frame for four rounds, and then what the losses have left. If the others probe
//     or dip, too, each sees the least round trip. It is the initial slowdown of LEDBAT++, and like ProbeRTT of BBR.
//   - Marked frames (ECN): the window shrinks by half the share of marked frames, as in DCTCP (RFC 8257).
//
// The dips, and the change between the two modes, are those of Copa (NSDI 2018) in a coarser form: this sender hears
// of up to 16 frames at once.
type congestion struct {
	cwnd, threshold, most int64
	step                  int64  // growth in a round above the threshold
	part                  int64  // growth that is not a 1/256 of a frame yet
	roundEnd              uint32 // the round ends when this number is acknowledged
	roundLeast            int64  // least round trip time of the round; 0: none measured
	samples               int    // round trips measured in the round
	trip, base            int64  // roundLeast of the last round that has one; least round trip known then
	before, roundAt       int64  // trip of the round before, of those that ended apart; end of the last such round
	bounded               bool   // the peer's window was full in the round
	mostInFlight          int64  // frames, since nothing was in flight
	underused             bool   // mostInFlight is less than half of the window

	floor int64 // lower bound of the window in a round of losses
	heavy int   // losses left until the round counts as congested

	// CUBIC: the window at the last reduction, its time, and the time after it at which the curve is back there.
	peak  int64
	epoch int64
	back  float64 // s
	prior int64   // the window before the last loss in a queue; peak may be less, for flows that have just begun

	regrowing bool // after a loss in a short queue of a long path, until the curve is back at peak
	lossy     bool // the path loses frames at random
	calm, bad int  // rounds without a queue, and of them with losses, that show lossy

	high, low int   // rounds in a row with a queue above the ceiling; without a queue
	dipping   int   // rounds left of the dip
	resume    int64 // the threshold after the dip
	emptied   int64 // greatest round trip during the dip that shows no queue but our own
	empty     bool  // a round of the dip has shown no other queue, the last one on a long path
	vain      int   // dips in a row that did not empty the queue
	competing bool
	always    bool  // CUBIC alone, see UseCubic
	nextDip   int64 // time of the next dip after a loss while competing
	rivals    rivals
	steady    steady // round trips while competing, from the end of a dip on
	newLeast  int64  // the least round trip that they have shown, for the Sender to take; 0: none

	probingRTT bool // the next dip, or this one, only measures the least round trip
	repairing  bool // frames are known to be lost and wait for their retransmission

	// DCTCP.
	seen, marks int   // frames acknowledged in the round, and of them marked
	share       int64 // moving average of the share of marked frames, in 1/1024; 0: none was marked in the last markRounds
	unmarked    int   // rounds in a row without marks
	reducing    bool  // marks reduce the window to target until reduceEnd is acknowledged (TCP_CA_CWR in Linux)
	target      int64
	reduceEnd   uint32
}

const fraction = 256

func (c *congestion) init(first uint32) {
	c.roundEnd = first
	c.cwnd = initialWindow * fraction
	c.threshold = MaxWindow * fraction
	c.rivals.inFlight = MaxWindow * fraction
}

// bound sets the most frames that the peer accepts.
func (c *congestion) bound(most int) {
	c.most = int64(most) * fraction
	c.cwnd = min(c.cwnd, c.most)
}

// UseCubic makes the congestion control CUBIC's (RFC 9438): it does not react to delay, and each round with losses takes
// three tenths off the window. Marks act as without it. Call it before the first frame is sent.
func (c *congestion) UseCubic() { c.always, c.competing = true, true }

func (c *congestion) window() int { return int(c.cwnd / fraction) }

// sample records a round trip time.
func (c *congestion) sample(t int64) {
	c.samples++
	if c.roundLeast == 0 || t < c.roundLeast {
		c.roundLeast = t
	}
}

// grow handles the acknowledgement of n frames up to cum. nxt is the next number to send, least the least round
// trip time. It returns slow if delay has reduced the window.
func (c *congestion) grow(now int64, n int, cum, nxt uint32, least int64) (slow bool) {
	c.seen += n
	c.mostInFlight = max(c.mostInFlight, int64(nxt-cum)+int64(n))
	c.underused = c.underused && 2*c.mostInFlight*fraction < c.cwnd
	if !before(cum, c.roundEnd) {
		slow = c.endRound(now, nxt, least)
	}
	switch {
	case c.dipping > 0:
	case c.reducing:
		c.reduce(n, cum)
	case c.underused: // nothing shows that the path holds more
	case c.cwnd < c.threshold:
		c.cwnd += int64(n) * fraction
		if !c.competing && c.samples >= enough && c.roundLeast > least+least/4+c.ceiling(c.cwnd) {
			c.threshold = c.cwnd // what this round adds would double the queue once more
		}
	case c.cwnd < c.most:
		if c.step == 0 {
			c.step = c.freely()
		}
		c.part += int64(n) * fraction * c.step
		c.cwnd, c.part = c.cwnd+c.part/c.cwnd, c.part%c.cwnd
	}
	c.cwnd = min(c.cwnd, c.most)
	if least < shortPath {
		c.cwnd = min(c.cwnd, shortWindow*fraction)
	}
	return slow
}

// endRound decides on the round that has ended.
func (c *congestion) endRound(now int64, nxt uint32, least int64) (slow bool) {
	// If the sender does not fill its window, its frames do not queue: the delay is the peer's delay of
	// acknowledgements.
	flown := min(c.cwnd, int64(nxt-c.roundEnd)*fraction) // with long frames the peer's window admits fewer frames than cwnd
	full := 2*flown >= c.cwnd || c.bounded
	trip := c.roundLeast
	c.roundEnd, c.roundLeast, c.samples, c.bounded = nxt, 0, 0, false
	c.countMarks()
	c.step = c.freely()
	if trip == 0 {
		return false
	}
	if c.base == 0 && trip > longPath && c.cwnd < c.threshold { // few frames are no sample of what the path loses
		c.cwnd = min(max(c.cwnd, longWindow*fraction), c.most)
	}
	if c.competing {
		c.steady.add(trip)
	}
	joins := c.joins(trip)
	if now-c.roundAt >= trip/2 { // after a time without a processor several rounds end at once
		c.before, c.roundAt = c.trip, now
	}
	c.trip, c.base = trip, least
	if c.queued() {
		c.low = 0
		c.step = c.cubic(now)
	} else {
		if c.low++; c.low >= lowRounds {
			c.competing = false
		}
		c.countLosses()
		if c.regrowing {
			c.step = c.regrow(now)
		}
	}
	switch {
	case c.dipping > 0:
		c.empty = trip <= c.emptied || c.empty && c.base <= longPath // the other rounds may be slow for the work of processors
		if c.dipping--; c.dipping == 0 {
			c.endDip(now)
		}
	case c.probingRTT:
		if c.repairing {
			return false // see lostOne
		}
		c.dipping, c.resume, c.cwnd = dipRounds, c.cwnd, dipWindow*fraction
		return true
	case c.competing:
		if joins {
			c.dip(flown, flown)
			c.rivals.held = 0 // the others give way, too: the dip does not show what they have in flight
			return true
		}
		if c.measureAgain(now, flown) {
			c.dip(flown, flown)
			return true
		}
	case full && trip > least+least/4+c.ceiling(flown):
		// A single round may be slow because the peer got no processor.
		c.threshold = min(c.threshold, c.cwnd)
		if c.high++; c.high >= highRounds {
			c.dip(flown, flown*3/4)
			return true
		}
	default:
		c.high = 0
	}
	return false
}

// ceiling returns the queueing delay at which a sender slows down that uses a window of used. If many share a path,
// the window of each is small, and so that it is not too small, the queue may be longer (as in Swift).
func (c *congestion) ceiling(used int64) int64 {
	return delayCeiling + delayCeiling*smallWindow*fraction/max(used, fraction)
}

// queued reports whether round trips show a queue. CUBIC takes each loss for the sign of one.
func (c *congestion) queued() bool {
	if c.always {
		return true
	}
	trip := c.recent()
	if c.base == 0 && trip > longPath {
		return false // the first round trips are all that is known
	}
	return trip > c.base+shows(c.base)
}

// shows returns the queueing delay above a least round trip at which there is a queue.
func shows(least int64) int64 {
	if least > longPath { // the least of so long a round is hardly the work of processors
		return least/40 + queueShows/4
	}
	return least/32 + queueShows
}

// recent returns the least round trip of the round so far, or of the last one.
func (c *congestion) recent() int64 {
	if c.roundLeast != 0 {
		return c.roundLeast
	}
	return c.trip
}

// freely returns the growth in a round without a queue.
func (c *congestion) freely() int64 {
	if c.share > 0 {
		return fraction
	}
	most := c.cwnd / wideShare
	switch {
	case c.base > longPath && c.cwnd < c.peak*9/10: // the path has held more
		most = c.cwnd / growthShare
	case c.base > longPath:
		most = c.cwnd / longShare
	}
	return min(max(c.cwnd/growthShare, fraction), max(mostGrowth*fraction, most))
}

// cubic returns the growth in the round that begins: that of CUBIC's curve, or at least Reno's that is as
// aggressive with reductions of three tenths. While the sender competes on a long path, Reno's is a frame a round from the
// window before the loss on (RFC 9438, section 4.3).
func (c *congestion) cubic(now int64) int64 {
	if c.share > 0 {
		return fraction
	}
	if c.epoch == 0 {
		c.reduced(now, c.cwnd)
	}
	t := min(float64(now-c.epoch+c.trip)/1e9-c.back, cubicMost)
	target := c.peak + int64(cubicScale*t*t*t*fraction)
	least := int64(renoGrowth)
	if c.competesOnLongPath() && c.cwnd >= c.prior {
		least = fraction
	}
	return min(max(target-c.cwnd, least), c.cwnd/2)
}

// competesOnLongPath reports whether the sender competes on a long path. Seconds pass between two losses there, in which a
// CUBIC flow takes what this one leaves.
func (c *congestion) competesOnLongPath() bool { return c.competing && c.base > longPath }

// regrow returns the growth in the round that begins without a queue, after a loss in a queue. On a long path the
// reductions of all flows leave room for seconds. A CUBIC flow grows into it only as fast as the curve does.
func (c *congestion) regrow(now int64) int64 {
	if float64(now-c.epoch+c.trip)/1e9 > c.back || c.lossy {
		c.regrowing = false
		return c.freely()
	}
	return max(c.cubic(now), min(c.peak*regrowTenths/10-c.cwnd, c.freely()))
}

// reduced begins a new curve, whose plateau is peak.
func (c *congestion) reduced(now, peak int64) {
	c.epoch, c.peak = now, peak
	c.back = math.Cbrt(float64(peak-c.cwnd) / (cubicScale * fraction))
}

// dip begins a dip of a window of which used is used. It is resumed at resume if the queue is emptied.
func (c *congestion) dip(used, resume int64) {
	c.dipping, c.high, c.regrowing, c.empty = dipRounds, 0, false, false
	c.resume = resume
	c.rivals.held, c.rivals.heldTrip = used, c.trip
	if !c.competesOnLongPath() { // otherwise the curve of the loss goes on
		c.peak = used
	}
	c.cwnd = min(max(used*c.base/c.trip/2, dipWindow*fraction), c.most)
	c.emptied = c.base + c.base/8
	if used > c.cwnd { // otherwise the window cannot shrink
		c.emptied = max(c.emptied, c.trip*c.cwnd/used)
	}
	c.emptied += c.ceiling(used) / 2
}

// joins reports whether the round trip of a round, trip, shows that others dip: it is a third less than in each of the last two
// rounds. A loss takes three tenths off the windows of CUBIC flows, and busy processors mostly vary round trips by less than
// joinFall; on a long path, with more frames in flight, by more. If all flows that compete are of this kind, the first dips that
// coincide bring the others along, and the queue empties.
func (c *congestion) joins(trip int64) bool {
	was := min(c.trip, c.before) // one round may have been slow because the peer got no processor
	return !c.always && c.base <= longPath && 3*trip < 2*was && was-trip > joinFall
}

// endDip decides what the dip has shown, and resumes by doubling.
func (c *congestion) endDip(now int64) {
	if c.probingRTT {
		c.probingRTT, c.threshold = false, max(c.resume, c.cwnd)
		return
	}
	switch {
	case !c.competing || c.empty || c.steady.varies():
		c.steady = steady{}
	case c.steady.shown():
		c.newLeast, c.competing, c.vain, c.epoch = c.steady.least, false, 0, 0
		c.threshold, c.steady = max(c.resume, c.cwnd), steady{}
		return
	}
	keepsCurve := c.competesOnLongPath() && !c.empty
	used := c.peak
	if c.competing { // then the dip began with this window, and peak may be that of the loss
		used = c.resume
	}
	if c.empty {
		c.vain, c.competing, c.peak = 0, false, used
	} else {
		c.vain++
		c.measureRivals()
		switch {
		case c.competing:
			if c.rivals.measured && c.rivals.inFlight < used {
				used, c.resume, keepsCurve = c.rivals.inFlight, c.rivals.inFlight, false
			}
		case c.vain > vainDips, c.vain == vainDips && c.trip < 2*c.base: // in a deep queue dips take longer to coincide
			c.compete()
		default:
			c.resume = c.peak
		}
		c.rivals.nextMeasure = now + dipEveryTrips*c.trip
		c.nextDip = max(now+dipEvery, c.rivals.nextMeasure)
		c.cwnd = max(c.cwnd, min(used/4, c.most)) // rounds are long now
	}
	c.threshold = max(c.resume, c.cwnd)
	if !keepsCurve {
		c.epoch = 0
	}
}

func (c *congestion) cut(cwnd int64) {
	c.cwnd = min(max(cwnd, leastWindow*fraction), c.most)
	c.threshold = c.cwnd
}

// lossRound begins a round with losses, with inFlight frames in flight.
func (c *congestion) lossRound(now int64, inFlight int) {
	c.floor = c.cwnd * 7 / 10
	c.rivals.lost = true
	c.heavy = max(inFlight/heavyShare, heavyLeast)
	switch {
	case c.dipping > 0:
		c.heavy = 0 // they were sent before the dip
	case c.queued():
		c.heavy = 0
		c.probeRTT()
		// In a queue that may exceed the ceiling, dips share the path.
		c.regrowing = c.base > longPath && !c.lossy && c.recent() <= c.base+c.base/4+c.ceiling(c.cwnd)
		peak := c.cwnd
		c.prior = c.cwnd
		if peak < c.peak {
			peak = peak * 17 / 20 // leave room for flows that have just begun
		}
		c.cwnd = min(max(c.cwnd*7/10, queueWindow*fraction), c.most)
		c.threshold = c.cwnd
		c.reduced(now, max(peak, c.cwnd))
		c.calm, c.bad = 0, 0
		if c.competing && !c.always && now >= c.nextDip {
			// Other flows that compete lose frames at the same time: perhaps all of them dip now.
			c.dip(c.cwnd, c.cwnd)
			c.rivals.held = c.prior // at the round trip before the loss
		}
	case c.low >= chanceRounds:
		c.bad++
	}
}

// countLosses ends a round without a queue. If half of such rounds lose frames, the losses are random. The first rounds
// after a queue do not count: flows that have just reduced their windows send in bursts, which lose frames.
func (c *congestion) countLosses() {
	if c.low <= chanceRounds {
		return
	}
	if c.calm++; c.calm >= chanceRounds {
		c.lossy = 2*c.bad >= c.calm
	}
}

// lostOne handles one loss of the round. It takes a frame off the window, which grows back if losses are random. If
// heavy losses of the round are used up, it takes everything that a round may cost at once. A window that doubles
// goes on doubling after random losses on a long path, and while no round trip is known: then the first timer may
// have been too short.
func (c *congestion) lostOne() {
	if c.dipping > 0 && c.probingRTT { // its window would send hundreds of lost frames again in as many round trips: it comes later
		c.dipping, c.cwnd = 0, min(c.resume, c.most)
	}
	threshold := c.threshold
	doubles := c.cwnd < threshold && (c.base == 0 || c.base > longPath && c.heavy > 1)
	switch c.heavy--; {
	case c.heavy > 0:
		c.cut(min(c.cwnd, max(c.cwnd-fraction, c.floor))) // a timeout may have taken more
	case c.heavy == 0:
		c.probeRTT()
		c.regrowing = false
		c.cut(min(c.cwnd, c.floor))
	}
	if doubles {
		c.threshold = threshold
	}
}

// probeRTT handles a loss in a queue, before the window shrinks for it. The first one of a connection on a long path asks
// for an RTT probe.
func (c *congestion) probeRTT() {
	c.probingRTT = c.probingRTT || c.threshold == MaxWindow*fraction && c.base > longPath && !c.competing
}

// shrink takes three tenths off the window.
func (c *congestion) shrink() { c.cut(c.cwnd * 7 / 10) }

// marked handles the news that n more frames have arrived with a mark. The window shrinks by half the share of marked
// frames, once for the frames in flight, which end before nxt. It shrinks as they are acknowledged, so that new frames
// leave all the time (RFC 6937). Otherwise none would leave until the window is larger than what is in flight, and
// then none would show that the last frames in flight are lost.
func (c *congestion) marked(n int, nxt uint32) {
	c.marks += n
	if c.share == 0 {
		c.share = 1024
	}
	if c.reducing || c.dipping > 0 {
		return
	}
	c.reducing, c.reduceEnd = true, nxt
	c.target = max(c.cwnd-c.cwnd*c.share/2048, dipWindow*fraction)
	c.threshold = c.target
}

// reduce takes the part of n acknowledged frames off the window.
func (c *congestion) reduce(n int, cum uint32) {
	cwnd := c.cwnd - int64(n)*fraction*c.share/2048
	if !before(cum, c.reduceEnd) {
		c.reducing, cwnd = false, c.target
	}
	c.cwnd = min(c.cwnd, max(cwnd, c.target))
}

// countMarks ends a round's count of marks.
func (c *congestion) countMarks() {
	if c.share > 0 && c.seen > 0 {
		c.share = max(1, c.share+(1024*int64(min(c.marks, c.seen))/int64(c.seen)-c.share)/16)
		if c.unmarked++; c.marks > 0 {
			c.unmarked = 0
		} else if c.unmarked >= markRounds {
			c.share, c.epoch = 0, 0
		}
	}
	c.seen, c.marks = 0, 0
}

// idled handles a time in which nothing was in flight: it does not count for the curve (RFC 9438, section 5.8). The window then grows
// only when half of it has been in flight (RFC 7661). Otherwise small messages would enlarge it up to the peer's window, and a long
// message would leave in a burst that the path has never carried.
func (c *congestion) idled(time int64) {
	c.mostInFlight, c.underused = 0, true
	if c.epoch != 0 {
		c.epoch += time
	}
}

// collapse handles a retransmission timeout. A second one in a row leaves the threshold unchanged. So does one before
// a round trip is known: perhaps it is only longer than the first timer.
func (c *congestion) collapse(known bool) {
	if least := min(leastWindow*fraction, c.most); c.cwnd > least {
		if known {
			c.shrink()
		}
		c.cwnd = least
	}
	c.dipping, c.probingRTT, c.regrowing = 0, false, false
}

// rtt is the measured round trip time. It includes the peer's delay of acknowledgements.
type rtt struct {
	smooth, varied int64 // RFC 6298's SRTT and RTTVAR
	least, leastAt int64
}

// sample records a round trip. The least one is measured again after window.
func (r *rtt) sample(now, t, window int64) {
	t = max(t, 1)
	if r.least == 0 || t <= r.least || now-r.leastAt > window {
		r.least, r.leastAt = t, now
	}
	if r.smooth == 0 {
		r.smooth, r.varied = t, t/2
		return
	}
	d := r.smooth - t
	if d < 0 {
		d = -d
	}
	r.varied += (d - r.varied) / 4
	r.smooth += (t - r.smooth) / 8
}

// timeout returns the time between two retransmissions: that before a tail probe, doubled backoff times up to longest.
func (r *rtt) timeout(backoff uint8) int64 { return min(r.silence()<<backoff, r.longest()) }

func (r *rtt) silence() int64 {
	if r.smooth == 0 {
		return 2 * firstRTT
	}
	return min(max(2*r.smooth+4*r.varied, minTimeout), r.longest())
}

// longest is maxTimeout or, on a slow path, a quarter more than the least round trip. The smoothed one also grows if
// acknowledgements are lost.
func (r *rtt) longest() int64 { return max(maxTimeout, min(r.least+r.least/4, slowTimeout)) }
