package reliable

// pacer spreads the frames of a window over the round trip, so that they do not all meet the queue of a bottleneck at
// once. Credit grows with time, a little faster than the window leaves in a round trip. A frame takes one unit. When the
// credit is used up, the sender waits for that of several frames, a group, which leave together, so that they can be a
// GSO packet.
//
// While nothing is sent, credit grows up to paceBurst. So a message of 64 KiB leaves at once if nothing was sent before.
// A window of at most paceBurst is not paced, nor is a short path, where the window is small.
//
// On a long path groups are small, and the credit that a stream may gather is that of two groups. There a short queue
// holds little of what leaves in a round trip, and beside smooth flows it is the burst that loses frames. A sender
// that wakes up late keeps the credit of that time, up to a burst: on a busy processor it is that of several groups.
type pacer struct {
	on     bool
	group  int64 // frames for which a sender without credit waits
	depth  int64 // credit that a stream may gather (of a token bucket)
	credit int64 // 1/fraction of a frame
	at     int64 // when that was, less the time whose credit is no whole unit yet
	sent   int64 // when the last frame was
	due    int64 // when the sender may go on; 0: now
}

const (
	paceBurst = 64 // most frames at once: more than a message of 64 KiB
	paceGroup = 24 // most frames of a group: at MTU 1500 half of the longest GSO packet, of 44 frames
	paceShare = 64 // on a long path 1/paceShare of the window is a group
	paceLong  = 8  // least window that is paced on a long path

	// paceQueue is the round trip, in ns, above which a path is long although only a queue makes it so. From 1 ms on, two VIs in a
	// queue of 50 KB at 200 Mbit/s, one of which competes, would not share it alike.
	paceQueue = 4_000_000
)

// set turns pacing on or off for a window of cwnd on a path with that round trip (see Sender.paceTrip).
func (p *pacer) set(cwnd, trip, now int64) {
	on, group, depth := trip >= shortPath && cwnd > paceBurst*fraction, int64(paceGroup), int64(paceBurst)
	if trip > longPath {
		on = cwnd > paceLong*fraction
		group = max(1, min(cwnd/fraction/paceShare, paceGroup))
		depth = 2 * group
	}
	if on && !p.on {
		p.credit, p.at = paceBurst*fraction, now
	}
	p.on, p.group, p.depth = on, group, depth*fraction
	if !on {
		p.due = 0
	}
}

// fill adds the credit for the time since the last call. trip is the time in which rate, in 1/fraction of a frame,
// leaves. open is true if only the pacer keeps frames back.
func (p *pacer) fill(now, rate, trip int64, open bool) {
	most := p.depth
	if p.due != 0 && open || now-p.sent >= trip {
		most = paceBurst * fraction
	}
	at := now
	if p.credit < most {
		grown := min(now-p.at, trip) * rate
		if p.credit += grown / trip; p.credit < most {
			at -= grown % trip / rate // the time of less than one unit of credit counts the next time
		} else {
			p.credit = most
		}
	}
	p.at = at
	if now >= p.due || p.credit >= p.group*fraction {
		p.due = 0
	}
}

// take uses the credit of a frame.
func (p *pacer) take(now, rate, trip int64) {
	p.credit -= fraction
	p.sent = now
	if p.credit < fraction && p.due == 0 {
		p.due = now + (p.group*fraction-p.credit)*trip/rate
	}
}

// paceTrip returns the round trip that decides how a path is paced: the least one or, while the sender competes in a long
// queue, the present one.
func (s *Sender) paceTrip() int64 {
	if s.competing && s.smooth > paceQueue {
		return s.smooth
	}
	return s.least
}

// paceRate returns the rate at which a window leaves, in 1/fraction of a frame per round trip: faster than the
// acknowledgements come, so that the window can grow.
func (s *Sender) paceRate() int64 {
	if s.cwnd < s.threshold {
		return 2 * s.cwnd
	}
	return s.cwnd + s.cwnd/4
}

// paced records that a frame was sent.
func (s *Sender) paced(now int64) {
	if s.pacer.on {
		s.pacer.take(now, s.paceRate(), s.smooth)
	}
}

// Pace tells the Sender the time before frames are sent. Ack and Timeout do so, too.
func (s *Sender) Pace(now int64) {
	if s.pacer.on {
		s.pacer.fill(now, s.paceRate(), s.smooth, s.room() > 0)
	}
}
