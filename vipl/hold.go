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
// be sent one by one (denseGap). Where something has waited a stream is under
// way, and as long as it is, one frame is enough to wait for: what is posted in
// one round trip goes together.

import "viaxdp/wire"

const (
	// packAfter is how many frames may be under way before something waits for
	// company.
	packAfter = 4
	// doorbellBatch is how many frames may wait for the doorbell.
	doorbellBatch = 16
	// heldMost is how long anything may wait for company, in ns, before whoever
	// looks in next sends it.
	heldMost = 500_000
	// heldPolls is how many polls in vain after a post say that the program has
	// nothing more to send.
	heldPolls = 4
	// denseGap is the time between two posts, in ns, below which sends come faster
	// than they could go alone: a kick in copy mode takes about 1 us, and a post
	// that rings it half of one more.
	denseGap = 1_750
)

// paced notes that a send was posted.
func (c *conn) paced(now int64) {
	c.dense = now-c.postedAt < denseGap
	c.postedAt = now
	p := c.vi.port
	p.idleAtPost.Store(p.idle.Load())
}

func (c *conn) packAfter() int {
	if c.streaming {
		return 1
	}
	return packAfter
}

// asksAck says whether the next frame, of so many units, asks for an
// acknowledgement at once: the window closes behind it, or something may wait
// for it. In a stream, and of long frames, that is one of four, and each that has
// several messages.
func (c *conn) asksAck(units int) bool {
	return c.sender.Closes(units) || c.sender.InFlight()+1 == c.packAfter() ||
		c.header.Kind == wire.KindPack || (c.streaming || units > 1) && c.sender.Next()%4 == 3
}

// hold notes that something of c waits.
func (p *port) hold(c *conn, now int64) {
	c.streaming = true
	if c.inHeld {
		return
	}
	c.inHeld = true
	if len(p.holding) == 0 {
		p.heldSince = now
	}
	p.holding = append(p.holding, c)
	p.waits.Store(1)
	p.holds.Add(1)
	if p.tick.Load() > int64(tickLeast) {
		p.rouse()
	}
}

// releaseHeld sends what waits for company, because nobody may come for a while.
// The doorbell is rung as the turn ends.
func (p *port) releaseHeld(now int64) {
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
		c.sender.InFlight()-pending < c.packAfter() {
		return false
	}
	p.hold(c, now)
	return true
}
