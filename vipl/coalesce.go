package vipl

// Coalescing of small messages and of frames, as Nagle's algorithm does for TCP. A kick of the kernel and a frame
// have a fixed cost. So while some frames of a reliable VI are unacknowledged, small messages wait in its send
// queue to share a frame, and frames wait on the ring to share a kick. The wait ends when one of these happens:
//
// - the peer acknowledges the outstanding frames
// - the program polls coalescePolls times without finding anything
// - a goroutine that waits for the port is about to sleep
// - coalesceMost has passed and some goroutine polls
// - the frame is full, or doorbellBatch frames wait
// - another connection sends, which rings the doorbell for all
//
// If the program posts and then does not call the library at all, the background goroutine ends the wait; it then
// runs every tickLeast.
//
// A message that is posted alone is sent at once. So are messages that are posted no faster than frames can be sent
// one by one (backToBackGap). Once a connection has coalesced it is in a stream, until nothing has waited and
// nothing has been outstanding for streamIdle. In a stream one outstanding frame is enough to wait for, so that
// what is posted within one round trip is sent together. Messages also wait while the program has received messages
// to dequeue: it will be back, and its answers to one frame are sent together.

import (
	"sync/atomic"

	"viaxdp/internal/base/ordered"
	"viaxdp/internal/base/wire"
)

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

// coalescer has the connections with something that waits. Invariant: a connection is in conns exactly if its
// batch.waiting is set, and waiting is 1 exactly if conns is not empty.
type coalescer struct {
	conns      []*conn
	since      int64          // when the first of them began to wait
	waiting    ordered.Uint32 // 1 while something waits, else 0
	idleAtPost ordered.Uint32 // value of poller.idle when a send was last posted
	count      atomic.Uint32  // calls of wakeBackground
}

// connBatch is what the coalescer knows of a connection.
type connBatch struct {
	gathered   gathering // small messages that wait
	off        bool      // small messages do not wait
	waiting    bool      // in coalescer.conns
	inStream   bool      // small messages have waited recently
	since      int64     // when a message last began to wait
	postedAt   int64     // when the program last finished posting a send
	backToBack bool      // the last post came within backToBackGap of the one before
}

// posting records that a send is being posted.
func (p *port) posting(c *conn, now int64) {
	if c.batch.inStream && c.sender.Idle() && !c.batch.waiting {
		c.endStream(now)
	}
	// The gap before the first reply of a batch says nothing about the post rate; keep the previous estimate.
	waited := p.poller.idle.Load() != p.coalescer.idleAtPost.Load()
	if !waited || !c.batch.inStream || !c.vi.recv.ready() {
		c.batch.backToBack = now-c.batch.postedAt < backToBackGap
	}
	p.notePost()
	p.doorbell.forget()
}

// notePost lets polls count from now on, see coalescePolls.
func (p *port) notePost() { p.coalescer.idleAtPost.Store(p.poller.idle.Load()) }

// posted records the end of the post. now is the time at its beginning. If the doorbell was rung, the clock is read
// again: a kick takes much longer than reading the clock.
func (p *port) posted(c *conn, now int64) {
	if p.doorbell.rung {
		now = p.now()
	}
	c.batch.postedAt = now
}

// sentAlone records that the program has posted a message that was sent at once.
func (c *conn) sentAlone(now int64) {
	b := &c.batch
	b.postedAt = now
	if b.inStream {
		c.endStream(now)
	}
	b.backToBack = b.backToBack && b.inStream
}

// stopCoalescing sends small messages without a wait from now on: the connection ends.
func (c *conn) stopCoalescing() { c.batch.off = true }

// packAfter returns how many frames must be outstanding for c to coalesce: streamAfter, or 1 in a stream.
func (c *conn) packAfter() int {
	if c.batch.inStream {
		return 1
	}
	return streamAfter
}

// endStream ends the stream if nothing has been coalesced for streamIdle.
func (c *conn) endStream(now int64) {
	if now-c.batch.since > streamIdle {
		c.batch.inStream = false
	}
}

// coalesces reports whether a small message waits for later ones: until the peer has acknowledged the outstanding
// frames and, in a stream, until the program has dequeued, and perhaps answered, what it has received.
func (c *conn) coalesces() bool {
	return c.sender.Outstanding() >= c.packAfter() || c.batch.inStream && c.vi.recv.ready()
}

// asksAck reports whether the next frame, of the given units, asks for an immediate acknowledgement. It does if it
// closes the window, if it takes the last TX chunk of the connection's share, or if it is a message of one frame and something
// may be coalesced until it is acknowledged: of a longer message the acknowledgement would only delay the program's answer,
// and its last frame asks for one soon (describe). Of frames of many units every fourth one asks, and so does each frame of
// several messages. The peer acknowledges other frames by count (ackEvery).
func (c *conn) asksAck(units int) bool {
	const whole = wire.FlagFirst | wire.FlagLast
	alone := c.header.Flags&whole == whole
	return c.sender.Closes(units) || c.chunks == c.vi.port.shares.tx-1 || alone && c.sender.Outstanding()+1 == c.packAfter() ||
		c.header.Kind == wire.KindPack || units >= longUnits && c.sender.Next()%4 == 3
}

// coalesce records that something of c waits.
func (p *port) coalesce(c *conn, now int64) {
	c.batch.inStream, c.batch.since = true, now
	if c.batch.waiting {
		return
	}
	c.batch.waiting = true
	if len(p.coalescer.conns) == 0 {
		p.coalescer.since = now
	}
	p.coalescer.conns = append(p.coalescer.conns, c)
	p.coalescer.waiting.Store(1)
	p.wakeBackground()
}

// wakeBackground makes the background goroutine run within one or two times tickLeast.
func (p *port) wakeBackground() {
	p.coalescer.count.Add(1)
	if p.poller.tick.Load() > int64(tickLeast) {
		p.rouse()
	}
}

// flushCoalesced sends everything that is coalesced, because the program may not call again soon. The doorbell is
// rung at the end of the turn.
func (p *port) flushCoalesced(now int64) {
	p.doorbell.hurry()
	for _, c := range p.coalescer.conns {
		c.batch.waiting = false
		c.batch.off = true
		p.pump(c, now)
		c.batch.off = false
	}
	p.coalescer.conns = p.coalescer.conns[:0]
	p.coalescer.waiting.Store(0)
}

// mayWait reports whether the doorbell for the frames that c has put on the ring may wait for more frames.
func (p *port) mayWait(c *conn, now int64) bool {
	pending := p.pending()
	if !c.open || c.sender == nil || !c.packs || !c.batch.backToBack || pending == 0 || pending >= doorbellBatch ||
		c.sender.Outstanding()-pending < c.packAfter() {
		return false
	}
	p.coalesce(c, now)
	return true
}

// gathering records how many waiting messages fit in one frame: those from queue index from up to index to, which
// take bytes in the frame.
type gathering struct {
	from, to uint64
	bytes    int
}

// packable counts the small messages at the head of the send queue that fit in one frame. full means that the next
// one does not fit or may not share a frame.
func (c *conn) packable() (count int, full bool) {
	q, g := &c.vi.send, &c.batch.gathered
	if g.from != q.current {
		*g = gathering{from: q.current, to: q.current}
	}
	for tail := q.tail.Load(); g.to != tail; g.to++ {
		e := q.at(g.to)
		n := e.room()
		if g.bytes+n > c.inPack || !c.small(e) {
			full = true
			break
		}
		g.bytes += n
	}
	return int(g.to - g.from), full
}
