package reliable

// congestion is the window of a Sender in frames, kept in 1/256 of a frame so
// that additive increase needs no fraction.
type congestion struct {
	cwnd, threshold, most int64
	roundEnd              uint32 // the round is over when this number is acknowledged
	roundLeast            int64  // least round trip of the round, 0: none measured
	bounded               bool   // the peer's window was full in the round

	floor int64 // of the window in a round of losses
	heavy int   // losses left until the round is one of many
}

const fraction = 256

func (c *congestion) init(first uint32) {
	c.roundEnd = first
	c.cwnd = initialWindow * fraction
	c.threshold = MaxWindow * fraction
}

// bound says how many frames the peer takes at most.
func (c *congestion) bound(most int) {
	c.most = int64(most) * fraction
	c.cwnd = min(c.cwnd, c.most)
}

func (c *congestion) window() int { return int(c.cwnd / fraction) }

// sample takes a round trip time.
func (c *congestion) sample(t int64) {
	if c.roundLeast == 0 || t < c.roundLeast {
		c.roundLeast = t
	}
}

// grow takes the acknowledgement of n frames up to cum, while nxt is the next
// number to send and least the least round trip: doubling a round below the
// threshold, a part of the window above it. It says slow, and takes an eighth
// away, when the delay of the whole round says that frames only queue.
func (c *congestion) grow(n int, cum, nxt uint32, least int64) (slow bool) {
	if !before(cum, c.roundEnd) {
		// Of a sender that does not fill its window the frames do not queue: the peer takes
		// its time for acknowledgements.
		used := min(c.cwnd, 2*int64(nxt-c.roundEnd)*fraction)
		full := used == c.cwnd || c.bounded
		if slow = full && c.roundLeast > 2*least+delayCeiling; slow {
			c.cut(used - used/8) // of long frames the peer's window takes fewer than cwnd is
		}
		c.roundEnd, c.roundLeast, c.bounded = nxt, 0, false
	}
	if c.cwnd < c.threshold {
		c.cwnd += int64(n) * fraction
	} else if c.cwnd < c.most {
		step := min(max(c.cwnd/growthShare, fraction), mostGrowth*fraction)
		c.cwnd += int64(n) * fraction * step / c.cwnd
	}
	c.cwnd = min(c.cwnd, c.most)
	return slow
}

func (c *congestion) cut(cwnd int64) {
	c.cwnd = min(max(cwnd, leastWindow*fraction), c.most)
	c.threshold = c.cwnd
}

// lossRound begins a round with losses, with so many frames in flight.
func (c *congestion) lossRound(inFlight int) {
	c.floor = c.cwnd * 7 / 10
	c.heavy = max(inFlight/heavyShare, heavyLeast)
}

// lostOne takes a loss of the round: a frame off the window, which losses by chance,
// no sign of congestion, let grow again. When much is lost that is one, and all that
// a round may cost goes at once.
func (c *congestion) lostOne() {
	switch c.heavy--; {
	case c.heavy > 0:
		c.cut(min(c.cwnd, max(c.cwnd-fraction, c.floor))) // a time-out may have taken more
	case c.heavy == 0:
		c.cut(min(c.cwnd, c.floor))
	}
}

// shrink takes three tenths of the window.
func (c *congestion) shrink() { c.cut(c.cwnd * 7 / 10) }

// collapse answers a retransmission time-out. A second one in a row leaves the
// threshold as it is.
func (c *congestion) collapse() {
	if least := min(leastWindow*fraction, c.most); c.cwnd > least {
		c.shrink()
		c.cwnd = least
	}
}

// rtt is the measured round trip, the peer's delay of acknowledgements
// included.
type rtt struct {
	smooth, varied int64 // RFC 6298's SRTT and RTTVAR
	least, leastAt int64
}

func (r *rtt) sample(now, t int64) {
	t = max(t, 1)
	if r.least == 0 || t <= r.least || now-r.leastAt > minRTTWindow {
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

// timeout is the time of silence before a tail probe, doubled backoff times
// for the retransmissions after it.
func (r *rtt) timeout(backoff uint8) int64 {
	t := int64(2 * firstRTT)
	if r.smooth != 0 {
		t = min(max(2*r.smooth+4*r.varied, minTimeout), maxTimeout)
	}
	return min(t<<backoff, maxTimeout)
}
