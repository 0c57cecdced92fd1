package vipl

// Coalescing of small messages and of frames, as Nagle's algorithm does for TCP. A kick of the kernel and a frame
// have a fixed cost. So while some frames of a reliable VI are unacknowledged, small messages wait in its send
// queue to share a frame, and frames wait on the ring to share a kick. The wait ends when one of these happens:
//
// - the peer acknowledges the outstanding frames
// - the program polls coalescePolls times without finding anything
// - a goroutine that waits for the port is about to sleep
// - coalesceMost has passed and some goroutine polls
//
// If the program posts and then does not call the library at all, the background goroutine ends the wait; it then
// runs every tickLeast.
//
// A message that is posted alone is sent at once. So are messages that are posted no faster than frames can be sent
// one by one (backToBackGap). Once a connection has coalesced it is in a stream, until nothing has waited and
// nothing has been outstanding for streamIdle. In a stream one outstanding frame is enough to wait for, so that
// what is posted within one round trip is sent together. Messages also wait while the program has received messages
// to dequeue: it will be back, and its answers to one frame are sent together.

import "viaxdp/internal/base/wire"

const (
	// streamAfter is how many frames must be outstanding before anything is coalesced.
	streamAfter = 4
	// doorbellBatch is how many frames may wait for one doorbell.
	doorbellBatch = 32
	// longUnits is the size in units from which a frame takes a large part of a window.
	longUnits = 8
	// coalesceMost is the longest time in ns that anything is coalesced; the next goroutine that makes progress then
	// sends it.
	coalesceMost = 500_000
	// coalescePolls is the number of empty polls after a post that show that the program has nothing more to send.
	coalescePolls = 4
	// backToBackGap is in ns. If a post begins within this time after the previous one ended, the program does
	// nothing but post, and sends come faster than they can be sent one by one.
	backToBackGap = 1_000
	// streamIdle is how long in ns a stream lasts after anything last waited, once nothing is outstanding.
	streamIdle = 100_000
)

// posting records that a send is being posted.
func (p *port) posting(c *conn, now int64) {
	if c.inStream && c.sender.Idle() && !c.inCoalescing {
		c.endStream(now)
	}
	// The gap before the first reply of a batch says nothing about the post rate; keep the previous estimate.
	waited := p.idle.Load() != p.idleAtPost.Load()
	if !waited || !c.inStream || !c.vi.recv.ready() {
		c.backToBack = now-c.postedAt < backToBackGap
	}
	p.idleAtPost.Store(p.idle.Load())
	p.kicked = false
}

// posted records the end of the post. now is the time at its beginning. If the doorbell was rung, the clock is read
// again: a kick takes much longer than reading the clock.
func (p *port) posted(c *conn, now int64) {
	if p.kicked {
		now = p.now()
	}
	c.postedAt = now
}

// packAfter returns how many frames must be outstanding for c to coalesce: streamAfter, or 1 in a stream.
func (c *conn) packAfter() int {
	if c.inStream {
		return 1
	}
	return streamAfter
}

// endStream ends the stream if nothing has been coalesced for streamIdle.
func (c *conn) endStream(now int64) {
	if now-c.coalescedAt > streamIdle {
		c.inStream = false
	}
}

// coalesces reports whether a small message waits for later ones: until the peer has acknowledged the outstanding
// frames and, in a stream, until the program has dequeued, and perhaps answered, what it has received.
func (c *conn) coalesces() bool {
	return c.sender.Outstanding() >= c.packAfter() || c.inStream && c.vi.recv.ready()
}

// asksAck reports whether the next frame, of the given units, asks for an immediate acknowledgement. It does if it
// closes the window or if something may be coalesced until it is acknowledged. Of frames of many units every fourth
// one asks, and so does each frame of several messages. The peer acknowledges other frames by count (ackEvery).
func (c *conn) asksAck(units int) bool {
	return c.sender.Closes(units) || c.sender.Outstanding()+1 == c.packAfter() ||
		c.header.Kind == wire.KindPack || units >= longUnits && c.sender.Next()%4 == 3
}

// coalesce records that something of c waits.
func (p *port) coalesce(c *conn, now int64) {
	c.inStream, c.coalescedAt = true, now
	if c.inCoalescing {
		return
	}
	c.inCoalescing = true
	if len(p.coalescing) == 0 {
		p.coalesceSince = now
	}
	p.coalescing = append(p.coalescing, c)
	p.waits.Store(1)
	p.wakeBackground()
}

// wakeBackground makes the background goroutine run within one or two times tickLeast.
func (p *port) wakeBackground() {
	p.coalesces.Add(1)
	if p.tick.Load() > int64(tickLeast) {
		p.rouse()
	}
}

// flushCoalesced sends everything that is coalesced, because the program may not call again soon. The doorbell is
// rung at the end of the turn.
func (p *port) flushCoalesced(now int64) {
	p.lazy = false
	for _, c := range p.coalescing {
		c.inCoalescing = false
		c.noCoalesce = true
		p.pump(c, now)
		c.noCoalesce = false
	}
	p.coalescing = p.coalescing[:0]
	p.waits.Store(0)
}

// mayWait reports whether the doorbell for the frames that c has put on the ring may wait for more frames.
func (p *port) mayWait(c *conn, now int64) bool {
	pending := p.nic.Pending()
	if !c.open || c.sender == nil || !c.packs || !c.backToBack || pending == 0 || pending >= doorbellBatch ||
		c.sender.Outstanding()-pending < c.packAfter() {
		return false
	}
	p.coalesce(c, now)
	return true
}
