package vipl

// What a stream lets wait, and how long. A kick of the kernel and a frame cost
// the same for much as for little. So with a few frames of a reliable VI under
// way, small messages wait in its send queue until they fill a frame, and frames
// wait on the ring until there are several for one kick: at most until the peer
// has acknowledged what is under way, or the program polls in vain (heldPolls),
// or somebody who waits for the port is about to sleep; and no longer than
// heldMost while anybody polls. For a program that posts and does not come back
// the background goroutine sees to it, which then looks in every tickLeast.
//
// What comes alone goes at once, and so does what comes no faster than frames can
// go one by one (denseGap). Where something has waited a stream is under
// way, until it has rested (streamRest), and as long as it is, one frame is enough to
// wait for: what is posted in one round trip goes together. So do the answers to
// what one frame brought, which a program gives one by one: as long as it has more
// to take, it will be back.

import "viaxdp/wire"

const (
	// streamAfter is how many frames may be under way before something waits for
	// company.
	streamAfter = 4
	// doorbellBatch is how many frames may wait for the doorbell.
	doorbellBatch = 32
	// longUnits is from when on a frame takes much of a window.
	longUnits = 8
	// heldMost is how long anything may wait for company, in ns, before whoever
	// looks in next sends it.
	heldMost = 500_000
	// heldPolls is how many polls in vain after a post say that the program has
	// nothing more to send.
	heldPolls = 4
	// denseGap is the time in ns between the end of a post and the beginning of the
	// next below which the program does nothing but post, so that sends come
	// faster than they can go alone.
	denseGap = 1_000
	// streamRest is how long, in ns, a stream is still one of which nothing waits
	// and nothing is under way.
	streamRest = 100_000
)

// posting notes that a send is being posted.
func (p *port) posting(c *conn, now int64) {
	if c.streaming && c.sender.Idle() && !c.inHeld {
		c.rest(now)
	}
	// The first answer to what has come tells nothing of how fast the others follow: as
	// those before did.
	waited := p.idle.Load() != p.idleAtPost.Load()
	if !waited || !c.streaming || !c.vi.recv.ready() {
		c.dense = now-c.postedAt < denseGap
	}
	p.idleAtPost.Store(p.idle.Load())
	p.kicked = false
}

// posted notes the end of it. The time is that of the beginning, but where the
// doorbell was rung, which takes much longer than to ask for the time.
func (p *port) posted(c *conn, now int64) {
	if p.kicked {
		now = p.now()
	}
	c.postedAt = now
}

// packAfter is streamAfter, or 1 in a stream.
func (c *conn) packAfter() int {
	if c.streaming {
		return 1
	}
	return streamAfter
}

// rest ends a stream of which nothing has waited for long.
func (c *conn) rest(now int64) {
	if now-c.heldAt > streamRest {
		c.streaming = false
	}
}

// holds says whether a small message waits for those behind it: until the peer has
// acknowledged what is under way, and in a stream until the program has taken, and
// perhaps answered, what it has received.
func (c *conn) holds() bool {
	return c.sender.Outstanding() >= c.packAfter() || c.streaming && c.vi.recv.ready()
}

// asksAck says whether the next frame, of so many units, asks for an
// acknowledgement at once: the window closes behind it, or something may wait
// for it. That is one of four frames of many units, and each that has several
// messages.
// The peer acknowledges others by number (ackEvery).
func (c *conn) asksAck(units int) bool {
	return c.sender.Closes(units) || c.sender.Outstanding()+1 == c.packAfter() ||
		c.header.Kind == wire.KindPack || units >= longUnits && c.sender.Next()%4 == 3
}

// hold notes that something of c waits.
func (p *port) hold(c *conn, now int64) {
	c.streaming, c.heldAt = true, now
	if c.inHeld {
		return
	}
	c.inHeld = true
	if len(p.holding) == 0 {
		p.heldSince = now
	}
	p.holding = append(p.holding, c)
	p.waits.Store(1)
	p.lookSoon()
}

// lookSoon makes the background goroutine look in within tickLeast or two.
func (p *port) lookSoon() {
	p.holds.Add(1)
	if p.tick.Load() > int64(tickLeast) {
		p.rouse()
	}
}

// releaseHeld sends what waits for company, because nobody may come for a while.
// The doorbell is rung as the turn ends.
func (p *port) releaseHeld(now int64) {
	p.lazy = false
	for _, c := range p.holding {
		c.inHeld = false
		c.hurry = true
		p.pump(c, now)
		c.hurry = false
	}
	p.holding = p.holding[:0]
	p.waits.Store(0)
}

// mayWait says whether the doorbell for the frames that c has put on the ring
// may wait for more of them.
func (p *port) mayWait(c *conn, now int64) bool {
	pending := p.nic.Pending()
	if !c.open || c.sender == nil || !c.packs || !c.dense || pending == 0 || pending >= doorbellBatch ||
		c.sender.Outstanding()-pending < c.packAfter() {
		return false
	}
	p.hold(c, now)
	return true
}
