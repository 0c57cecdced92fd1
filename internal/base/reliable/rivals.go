package reliable

// rivals is what dips in vain show of the flows that keep the queue full. A sender that competes keeps no more in flight
// than they do. That matters beside flows that do not fill what is left to them. A flow of BBRv1 keeps in flight twice what
// the path holds at its rate, which is little beside a deep queue, and lets another window grow until frames are lost.
//
// Before a dip, held and inFlight make a round trip of heldTrip. In the dip, the sender's small window and inFlight make a
// shorter one. If inFlight hardly changes, it follows from both.
type rivals struct {
	held, heldTrip int64 // in flight of this sender, and the round trip, before the dip
	inFlight       int64 // of the others; MaxWindow: not known yet
	measured       bool  // by this dip, or by one of this row until the sender competes

	full, fullTrip int64 // held and heldTrip of the first dip of this row, or of the last one while the sender competes

	second int64 // round trip in the second dip in a row
	lost   bool  // frames have been lost since the first one

	limit   int64 // in flight of this sender above which it dips while it competes, even if nothing is lost
	nextDip int64 // least time of that dip
}

// measureRivals takes what a dip in vain has shown. Until the sender competes, dips from small windows show nothing, and the
// least result counts.
func (c *congestion) measureRivals() {
	r := &c.rivals
	given := r.held - c.cwnd
	known := given > 0 && c.trip < r.heldTrip
	if c.competing || c.vain == 1 {
		r.full, r.fullTrip = r.held, r.heldTrip
	}
	switch {
	case c.competing:
		r.measured = known
	case c.vain == 1:
		r.measured, r.lost = false, false
	case c.vain == 2:
		r.second = c.trip
	}
	if !known || !c.competing && r.held < tellingWindow*fraction {
		return
	}
	// The path was full in the dip, and carries at least what this sender has had of it. That is a lower bound, since busy
	// processors vary round trips.
	inFlight := max(given*c.trip/(r.heldTrip-c.trip), r.full*c.trip/r.fullTrip) - c.cwnd
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
		r.limit = 0 // ask again soon
		if !r.lost && c.trip <= r.second*growingTrip/4 {
			c.resume = min(r.inFlight, c.most)
		}
	}
}

// rivalsHaveLess reports whether it is time for a dip although nothing is lost: the others may have less in flight than used.
func (c *congestion) rivalsHaveLess(now, used int64) bool {
	return !c.always && used > c.rivals.limit && now >= c.rivals.nextDip
}
