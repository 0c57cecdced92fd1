package reliable

// congestion is the congestion window of a Sender. It is kept in 1/256 of a frame, so that additive increase needs
// no fractions.
type congestion struct {
	cwnd, threshold, most int64
	roundEnd              uint32 // the round ends when this number is acknowledged
	roundLeast            int64  // least round trip time of the round; 0: none measured
	bounded               bool   // the peer's window was full in the round

	floor int64 // lower bound of the window in a round of losses
	heavy int   // losses left until the round counts as congested
}

const fraction = 256

func (c *congestion) init(first uint32) {
	c.roundEnd = first
	c.cwnd = initialWindow * fraction
	c.threshold = MaxWindow * fraction
}

// bound sets the most frames that the peer accepts.
func (c *congestion) bound(most int) {
	c.most = int64(most) * fraction
	c.cwnd = min(c.cwnd, c.most)
}

func (c *congestion) window() int { return int(c.cwnd / fraction) }

// sample records a round trip time.
func (c *congestion) sample(t int64) {
	if c.roundLeast == 0 || t < c.roundLeast {
		c.roundLeast = t
	}
}

// grow handles the acknowledgement of n frames up to cum. nxt is the next number to send, least the least round
// trip time. The window doubles each round below the threshold, and grows by a part of itself above it. If the
// delay of a whole round shows that frames only queue, grow cuts the window by an eighth and returns slow.
func (c *congestion) grow(n int, cum, nxt uint32, least int64) (slow bool) {
	if !before(cum, c.roundEnd) {
		// If the sender does not fill its window, its frames do not queue: the delay is the peer's delay of
		// acknowledgements.
		used := min(c.cwnd, 2*int64(nxt-c.roundEnd)*fraction)
		full := used == c.cwnd || c.bounded
		if slow = full && c.roundLeast > 2*least+delayCeiling; slow {
			c.cut(used - used/8) // with long frames the peer's window admits fewer frames than cwnd
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

// lossRound begins a round with losses, with inFlight frames in flight.
func (c *congestion) lossRound(inFlight int) {
	c.floor = c.cwnd * 7 / 10
	c.heavy = max(inFlight/heavyShare, heavyLeast)
}

// lostOne handles one loss of the round. It takes a frame off the window, which grows back if losses are random. If
// heavy losses of the round are used up, it takes everything that a round may cost at once.
func (c *congestion) lostOne() {
	switch c.heavy--; {
	case c.heavy > 0:
		c.cut(min(c.cwnd, max(c.cwnd-fraction, c.floor))) // a timeout may have taken more
	case c.heavy == 0:
		c.cut(min(c.cwnd, c.floor))
	}
}

// shrink takes three tenths off the window.
func (c *congestion) shrink() { c.cut(c.cwnd * 7 / 10) }

// collapse handles a retransmission timeout. A second one in a row leaves the threshold unchanged.
func (c *congestion) collapse() {
	if least := min(leastWindow*fraction, c.most); c.cwnd > least {
		c.shrink()
		c.cwnd = least
	}
}

// rtt is the measured round trip time. It includes the peer's delay of acknowledgements.
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

// timeout returns the silence before a tail probe. It is doubled backoff times for the retransmissions after the
// probe.
func (r *rtt) timeout(backoff uint8) int64 {
	t := int64(2 * firstRTT)
	if r.smooth != 0 {
		t = min(max(2*r.smooth+4*r.varied, minTimeout), maxTimeout)
	}
	return min(t<<backoff, maxTimeout)
}
