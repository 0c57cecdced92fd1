package mvich

// Credits. A packet that meets no posted receive breaks the connection, so a
// rank sends a packet only if it has a credit: a receive that its peer has
// posted, and told it of. Each packet carries the number of receives that its
// sender has posted since its last one (credit_update); where nothing else is to
// be sent, and many are owed, a noop does. Three rules keep it alive:
//
//  1. Data leaves a reserve of credits to packets that other packets wait for.
//  2. The last credit goes only with a packet that brings credits. So of two
//     ranks without a packet between them never both are without credit: the
//     one whose packet came last gave the other one at least.
//  3. noopAt is at most what is owed to a peer that has but its reserve, where fewer
//     than the reserve are still to be posted (repost).
//
// With nothing on the way, a rank that waits for credits is owed noopAt at
// least by its peer; and one of the two has a credit to say so with (rule 2),
// upon which the other one has.

// mayControl says whether a packet that others wait for may go to p now.
func (w *World) mayControl(p *peer) bool {
	return p.credits > 1 || p.credits == 1 && p.acksDue > 0
}

// mayData says whether data, or an envelope, may go to p now.
func (w *World) mayData(p *peer) bool { return p.credits > w.set.reserve() }

// spend fills in what a packet says of credits.
func (w *World) spend(p *peer, h *header) {
	h.credits = uint16(p.acksDue)
	p.granted += p.acksDue
	p.acksDue = 0
	p.credits--
	if p.unexpected > w.set.unexpected {
		h.flags |= flagFull
	}
}

// earn takes what a packet of p says of credits, and the one that it has used.
func (w *World) earn(p *peer, h *header) error {
	if p.granted--; p.granted < 0 {
		return errNoCredit
	}
	if p.credits += int(h.credits); p.credits > w.set.credits {
		return errCredits
	}
	if p.control.len() > w.set.envelopes { // each packet adds one at most, and so does each message that is kept
		return errAnswers
	}
	p.full = h.flags&flagFull != 0
	return nil
}

// pushNoop tells p of its credits where no other packet does.
func (w *World) pushNoop(p *peer) error {
	if p.acksDue < w.set.noopAt() || p.credits == 0 {
		return nil
	}
	w.stats.Noops++
	return w.sendControl(p, packet{header: header{kind: kindNoop}})
}
