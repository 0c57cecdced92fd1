package reliable

// pacer spreads the frames of a large window over the round trip, so that they do not all meet the queue of a
// bottleneck at once. Credit grows with time, a little faster than the window leaves in a round trip, up to a burst.
// A frame takes one. When the credit is used up, the sender waits for that of several frames, which leave together:
// segmentation offload needs them so. A window of a burst is not paced, nor is a short path, where the window
// is small. So a message of 64 KiB leaves at once if nothing was sent before.
type pacer struct {
	on     bool
	credit int64 // 1/fraction of a frame
	at     int64 // when that was
	due    int64 // when the sender may go on; 0: now
}

const (
	paceBurst   = 64 // most frames at once: more than a message of 64 KiB
	paceQuantum = 24 // frames for which a sender without credit waits: more than a packet of segmentation offload
)

// set turns pacing on or off.
func (p *pacer) set(on bool, now int64) {
	if on && !p.on {
		p.credit, p.at = paceBurst*fraction, now
	}
	if p.on = on; !on {
		p.due = 0
	}
}

// fill adds the credit for the time since the last call. trip is the time in which rate, in 1/fraction of a frame,
// leaves.
func (p *pacer) fill(now, rate, trip int64) {
	p.credit = min(p.credit+min(now-p.at, trip)*rate/trip, paceBurst*fraction)
	p.at = now
	if now >= p.due || p.credit >= paceQuantum*fraction {
		p.due = 0
	}
}

// take uses the credit of a frame.
func (p *pacer) take(now, rate, trip int64) {
	p.credit -= fraction
	if p.credit < fraction && p.due == 0 {
		p.due = now + (paceQuantum*fraction-p.credit)*trip/rate
	}
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
		s.pacer.fill(now, s.paceRate(), s.smooth)
	}
}
