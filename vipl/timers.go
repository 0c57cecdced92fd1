package vipl

import "viaxdp/internal/base/wire"

// timerHeap orders connections by the time of their next timer. A connection's true time mostly moves later, since
// each acknowledgement restarts a retransmission timer. So due is only a lower bound: it is lowered at once, and
// raised when it expires.
type timerHeap []*conn

// schedule makes c's timer run at t at the latest.
func (h *timerHeap) schedule(c *conn, t int64) {
	if c.timer == 0 {
		*h = append(*h, c)
		c.timer = len(*h)
		c.due = t
		h.up(c.timer - 1)
	} else if t < c.due {
		c.due = t
		h.up(c.timer - 1)
	}
}

// postpone moves c, whose timer has expired, to t.
func (h timerHeap) postpone(c *conn, t int64) {
	c.due = t
	h.down(c.timer - 1)
}

func (h *timerHeap) remove(c *conn) {
	if c.timer == 0 {
		return
	}
	i, last := c.timer-1, len(*h)-1
	(*h)[i] = (*h)[last]
	(*h)[i].timer = i + 1
	(*h)[last] = nil
	*h = (*h)[:last]
	c.timer = 0
	if i < last {
		h.up(i)
		h.down(i)
	}
}

func (h timerHeap) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].timer, h[j].timer = i+1, j+1
}

func (h timerHeap) up(i int) {
	for i > 0 && h[i].due < h[(i-1)/2].due {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (h timerHeap) down(i int) {
	for {
		least := i
		for _, j := range [2]int{2*i + 1, 2*i + 2} {
			if j < len(h) && h[j].due < h[least].due {
				least = j
			}
		}
		if least == i {
			return
		}
		h.swap(i, least)
		i = least
	}
}

// forgive excludes time in which this engine did not run from the peer's silence. An engine that is not scheduled
// processes no frames and sends no probes, however alive the peer is. The peer may suffer from the same load.
func (p *port) forgive(c *conn, now int64) {
	late := now - c.due
	if late < max(p.silence/8, int64(2*tickMost)) {
		return // within the usual lateness of a timer
	}
	heard := min(c.heard+late, now)
	if c.opened == c.heard {
		c.opened = heard // keeps the fact that nothing was heard yet
	}
	c.heard = heard
	c.moved = min(c.moved+late, now)
}

// standstill is how long a live peer may go without receiving a frame of ours. A frame is retransmitted at least
// every 200 ms, so 16 times or more with the default silence. On a lossy network all of those must not fail by
// chance. Where round trips are longer than 200 ms, it is every 800 ms at least.
func (p *port) standstill() int64 { return 2 * p.silence }

// runTimer does what is due for a connection whose timer has expired.
func (p *port) runTimer(c *conn, now int64) {
	if c.unproven() {
		// No frame is sent to it yet, and its silence counts from the proof of its address. Connection management has
		// timers of its own.
		c.opened, c.heard, c.moved = now, now, now
	}
	p.forgive(c, now)
	if now-c.heard >= p.silence {
		p.stats.PeersLost++
		cause := errPeerSilent
		if c.heard == c.opened {
			cause = errPeerUnheard
		}
		p.sendReset(c, wire.ReasonUnheard, now) // the peer may be alive and receive our frames
		p.teardown(c, broken{cause: cause, silent: c.sender != nil})
		return
	}
	if c.source.lost(now, p.grace()) {
		p.loseSource(c, now)
		return
	}
	next := max(c.heard, c.probed) + p.silence/4
	if next <= now {
		if p.control(c, wire.KindProbe, 0, 0) {
			p.stats.Probes++
		}
		c.probed = now
		next = now + p.silence/4
	}
	next = min(next, c.heard+p.silence)
	if c.source.since != 0 {
		next = min(next, c.source.since+p.grace())
	}
	if c.sender != nil {
		if !c.sender.Idle() {
			if now-c.moved >= p.standstill() {
				p.stats.PathsLost++
				p.sendReset(c, wire.ReasonClosed, now)
				p.teardown(c, broken{cause: errNoWay, silent: true})
				return
			}
			next = min(next, c.moved+p.standstill())
		}
		if t := c.sender.Deadline(); t != 0 && t <= now {
			if seq, probe := c.sender.Timeout(now); probe {
				p.resend(c, seq, now, wire.FlagAckNow)
			}
			p.enqueue(c)
		}
		if t := c.sender.Deadline(); t != 0 {
			next = min(next, t)
		}
	}
	p.timers.postpone(c, max(next, now+1))
}
