package reliable

// rivals is what a series of dips in vain shows of the flows that keep the queue full. A sender that competes keeps no more
// in flight than they do. That matters beside flows that do not fill what is left to them. A flow of BBRv1 keeps in flight
// about twice what the path holds at its rate. That is little beside a deep queue, and it yields to a window that grows until
// frames are lost.
//
// Before a dip, held and inFlight make a round trip of heldTrip. In the dip, the sender's small window and inFlight make a
// shorter one. If inFlight hardly changes, it follows from both.
type rivals struct {
	held, heldTrip int64 // in flight of this sender, and the round trip, before the dip
	inFlight       int64 // of the others; MaxWindow: not known yet
	measured       bool  // inFlight is a result of this dip or, before the sender competes, of this series of dips

	// Of the first dip of the series; while the sender competes, of the last dip.
	firstHeld, firstTrip int64 // held and heldTrip

	secondTrip int64 // round trip in the second dip of the series
	lost       bool  // frames have been lost since the first one

	limit       int64 // in flight of this sender above which it dips while it competes, even if nothing is lost
	nextMeasure int64 // earliest time of that dip
}

// measureRivals computes what the others have in flight from a dip in vain. Before the sender competes, dips from small
// windows are too inexact, and the least result of the series counts.
func (c *congestion) measureRivals() {
	r := &c.rivals
	given := r.held - c.cwnd
	known := given > 0 && c.trip < r.heldTrip
	if c.competing || c.vain == 1 {
		r.firstHeld, r.firstTrip = r.held, r.heldTrip
	}
	switch {
	case c.competing:
		r.measured = known
	case c.vain == 1:
		r.measured, r.lost = false, false
	case c.vain == 2:
		r.secondTrip = c.trip
	}
	if !known || !c.competing && r.held < tellingWindow*fraction {
		return
	}
	// The path is full in the dip, and carries at least what this sender has had of it. This lower bound holds although busy
	// processors vary the round trips.
	inFlight := max(given*c.trip/(r.heldTrip-c.trip), r.firstHeld*c.trip/r.firstTrip) - c.cwnd
	inFlight = max(inFlight, leastRivals*fraction)
	if c.competing {
		r.limit = 2 * inFlight
	} else if r.measured {
		inFlight = min(inFlight, r.inFlight)
	}
	r.inFlight, r.measured = min(inFlight, c.most), true
}

// compete begins to compete. The window doubles up to what the others have in flight. If the queue has grown while this
// sender gave way, or has overflowed, they take what they get: then the window doubles as that of a new flow does. On a long
// path it does so in any case: there flows recover from a full queue, and round trips vary more than a dip can change them.
func (c *congestion) compete() {
	r := &c.rivals
	c.competing, c.resume = true, c.most
	r.limit = min(r.inFlight, c.most) * 3 / 4 // the others had also what the dips gave up
	if c.base <= longPath {
		r.limit = 0 // measure again soon
		if !r.lost && c.trip <= r.secondTrip*growingTrip/4 {
			c.resume = min(r.inFlight, c.most)
		}
	}
}

// measureAgain reports whether it is time for a dip although nothing is lost: the others may have less in flight than used.
func (c *congestion) measureAgain(now, used int64) bool {
	return !c.always && used > c.rivals.limit && now >= c.rivals.nextMeasure
}

// steady watches the round trips while the sender competes, those of its dips, too. Flows that keep a queue full make them vary, and so do
// dips. If they do not vary, there is no queue: the path has become longer, and the least round trip that was known is over.
type steady struct {
	least        int64
	rounds, same int // same: of them those that show no queue above least
}

func (s *steady) add(trip int64) {
	if s.least == 0 || trip < s.least {
		if trip+shows(trip) < s.least {
			s.same = 0
		}
		s.least = trip
	}
	if s.rounds++; trip <= s.least+shows(s.least) {
		s.same++
	}
}

func (s *steady) varies() bool { return s.same < s.rounds-s.rounds/8 }

func (s *steady) shown() bool { return s.rounds >= steadyRounds && !s.varies() }
