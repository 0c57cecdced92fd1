package vipl

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/provider"
	"viaxdp/internal/base/ordered"
	"viaxdp/internal/base/wire"
	"viaxdp/xdpnic"
)

const (
	rxBatch      = 64  // frames leased at once
	refillBatch  = 16  // chunks received before they are returned to the kernel
	kickBatch    = 32  // frames queued in a burst before the kernel is kicked
	controlSpare = 8   // TX chunks that data leaves free for acknowledgements and other control frames
	pollsPerTime = 256 // empty polls between two reads of the clock

	maxWindow   = 256 // frames in flight of one VI
	leastWindow = 8
)

// never is the time of a timer that is off.
const never = math.MaxInt64

// port is the engine on one queue: it turns descriptors into frames and frames into completions, in the goroutine
// that posts, polls or waits. mu guards every field that is not atomic. It is never held while sleeping.
type port struct {
	mu       sync.Mutex
	nic      provider.Port
	mem      []byte               // the UMEM, for reaching retained frames by address
	txChunks int                  // number of TX chunks
	spare    int                  // TX chunks that data leaves free; more if a connection has a key
	now      func() int64         // the engine's clock, ns
	cpuTime  func() time.Duration // CPU time of the process
	zeroCopy bool                 // a driver fills the rings and may go to sleep at any time, see background

	nics          []*NIC          // handles that share the port
	vis           []*VI           // connected ones, by the low 16 bits of the VI number
	own           map[uint32]bool // numbers of all VIs
	timers        timerHeap
	acksDue       []*conn // connections that owe the peer an acknowledgement
	ready         []*conn // connections that may be able to send again
	stuck         []*conn // connections of ready that are set aside for this turn, see stuckAlone
	handed        []*conn // connections with sends that are done with the next doorbell
	coalescing    []*conn // connections with small messages or frames that wait for more
	coalesceSince int64   // when the first of them began to wait
	lazy          bool    // the doorbell may wait, see coalesce.go
	kicked        bool    // the doorbell was rung since posting began
	over          bool    // stopped: the rings may be unmapped, so a late poll must not touch them
	stalled       bool    // copy mode: entries remained on the TX ring after the last Flush
	window        int     // units that the peer of each connection may have outstanding
	ackEvery      int     // one frame in so many is acknowledged at once
	active        int     // connections that are open
	txShare       int     // TX chunks of each connection when they are short

	shmLinks atomic.Pointer[[]*shmLink] // links to other queues of the interface; changed under the lock
	from     *shmLink                   // the link that the current frame arrived on; nil: the queue
	looped   []loopFrame                // frames between VIs of this port
	loopback [1]xdpnic.Frame
	id       uint32      // number of the queue in this process, for display
	taps     []*tap      // captures
	gone     bool        // the interface was removed
	removed  bool        // gone has been handled: every connection has ended
	link     kagent.Link // the interface as the agent last reported it; Name is empty before that

	frames  [rxBatch]xdpnic.Frame
	pkt     wire.Packet
	record  wire.Record // record of a frame that arrived
	packing wire.Record // record of a frame that is being built
	reorder reorderBuffer
	inOrder [rxBatch]xdpnic.Frame // a buffered frame that is being delivered
	late    [rxBatch]xdpnic.Frame // a buffered frame that is being given up, which may happen during a delivery
	chains  chains                // state of long frames
	stats   Counters

	influx           influx         // the incoming stream, see pollpause.go
	noPollPause      bool           // every poll looks at the ring
	pollPause        ordered.Uint64 // time until which polls leave the RX ring alone, ns; 0: they do not
	leased, refillAt int            // chunks received since the last Refill, and how many cause one

	idle       ordered.Uint32 // empty polls; with turns and taken it shows that the program is active
	turns      ordered.Uint32 // polls that found frames
	taken      ordered.Uint32 // completed descriptors that were dequeued
	waits      ordered.Uint32 // 1 while messages or frames are coalesced, see coalesce.go, else 0
	unrung     ordered.Uint32 // 1 while frames wait for Ring, else 0
	idleAtPost ordered.Uint32 // value of idle when a send was last posted
	armed      atomic.Int64   // handlers that wait for a completion
	roused     chan struct{}  // tells background of new handlers, or of messages that wait
	coalesces  atomic.Uint32  // how often wakeBackground was called for something that waits
	tick       atomic.Int64   // ns until background runs again
	due        atomic.Int64   // when time alone requires work, or never
	sleepBy    atomic.Int64   // time until which a goroutine sleeps in nic.Wait; 0: none sleeps, or it has been woken
	sleeping   chan struct{}  // holds a token while a goroutine is in nic.Wait
	closed     chan struct{}
	stopped    sync.WaitGroup

	silence int64 // ns without a frame after which a peer is dead
}

func newPort(nic provider.Port, mem []byte, zeroCopy bool, silence time.Duration, now func() int64, cpuTime func() time.Duration) *port {
	p := &port{
		nic: nic, mem: mem, now: now, cpuTime: cpuTime, zeroCopy: zeroCopy, silence: int64(silence),
		roused: make(chan struct{}, 1), sleeping: make(chan struct{}, 1), closed: make(chan struct{}), own: make(map[uint32]bool),
	}
	p.due.Store(never)
	p.txChunks = nic.TxFree()
	p.leaveSpare()
	p.share()
	p.refillAt = min(refillBatch, max(1, nic.RxChunks()/8))
	p.chains.init(nic.MaxSegs())
	p.reorder.init(nic.RxChunks(), p.chains.most, p.refillAt)
	p.stopped.Add(1)
	go p.background()
	return p
}

// stop ends the engine, which has no VIs left.
func (p *port) stop() {
	close(p.closed)
	p.nic.Wake()
	p.stopped.Wait()
	// Once the token is available, the goroutine that slept in the port has left.
	p.sleeping <- struct{}{}
	p.mu.Lock()
	p.refill()
	p.freeBlocks(true) // the rings are closed before the memory is reused
	p.over = true
	p.mu.Unlock()
}

// share divides the chunks for received frames among the connections. Each frame tells its peer the window, which
// grows when other connections end. share also divides the chunks for sending, see leaves.
func (p *port) share() {
	p.window = p.windowOf(p.active)
	p.ackEvery = max(1, min(16, p.window/4))
	p.txShare = max(leastWindow, p.txChunks*3/4/max(p.active, 1))
}

// windowOf returns the window of each of conns connections. A quarter of the chunks stays in reserve, and the
// window is at least leastWindow. A unit of the window takes one chunk, or several small ones.
func (p *port) windowOf(conns int) int {
	chunks := 1
	if _, rx := p.nic.FrameCap(); p.nic.MaxSegs() > 1 {
		chunks = (wire.WindowUnit + rx - 1) / rx
	}
	return max(leastWindow, min(maxWindow, p.nic.RxChunks()*3/4/chunks/max(conns, 1)))
}

// tellWindow tells the peer of c that its window has shrunk. Otherwise a peer that has been idle could return with
// as many frames as it was told long ago. A peer may keep up to a seventh more than the window: with the reserve of
// a quarter, and the chunks that refill has not returned yet, that is no more than there are.
func (p *port) tellWindow(c *conn, now int64) {
	if c.open && c.receiver != nil && c.vi.state == Connected && 8*p.window < 7*int(c.header.Window) {
		p.oweAckUntil(c, now+defaultAckDelay)
		p.wakeBackground()
	}
}

func (p *port) isClosed() bool {
	select {
	case <-p.closed:
		return true
	default:
		return false
	}
}

// busy reports whether there is work: frames or, checked now and then, something that has become due with time.
// Without the lock.
func (p *port) busy() bool {
	if p.mayPoll() && p.nic.Ready() || p.shmLinks.Load() != nil && p.linkReady() {
		return true
	}
	n := p.idle.Load() + 1 // concurrent polls may lose each other's counts
	p.idle.Store(n)
	return p.waits.Load() != 0 && n-p.idleAtPost.Load() >= coalescePolls ||
		n%pollsPerTime == 0 && p.overdue()
}

// overdue reports whether something has become due with time. It also wakes a driver that sleeps, see background.
func (p *port) overdue() bool {
	if p.zeroCopy && p.mu.TryLock() {
		p.refill()
		p.mu.Unlock()
	}
	return p.now() >= p.due.Load()
}

// poll makes progress if there is work and no other goroutine is doing it.
func (p *port) poll() {
	if p.busy() && p.mu.TryLock() {
		p.turns.Store(p.turns.Load() + 1)
		p.progress(p.now(), false)
		p.mu.Unlock()
	}
}

// progress does the work that there is: received frames, timers, sends that have become possible, acknowledgements,
// the doorbell. quiet means that the caller is about to sleep, so acknowledgements are not delayed. came reports
// whether frames had arrived. Under the lock.
func (p *port) progress(now int64, quiet bool) (came bool) {
	if p.over {
		return false
	}
	if came = p.receiveAll(now); !came && len(p.coalescing) > 0 {
		p.flushCoalesced(now) // a program that polls has nothing more to post
	}
	for len(p.timers) > 0 && p.timers[0].due <= now {
		p.runTimer(p.timers[0], now)
	}
	p.finish(now, quiet)
	return came
}

// finish sends what the work so far requires, and sets the time at which time alone will require work again. Under
// the lock.
func (p *port) finish(now int64, quiet bool) {
	if p.over {
		return
	}
	if len(p.coalescing) > 0 && (quiet || now >= p.coalesceSince+coalesceMost) {
		p.flushCoalesced(now)
	}
	due := p.respond(now, quiet)
	for range loopRounds {
		if len(p.looped) == 0 {
			break
		}
		p.deliverLooped(now)
		due = p.respond(now, quiet)
	}
	if len(p.looped) > 0 {
		due = now
	}
	if p.gone && !p.removed {
		p.onRemove()
	}
	if len(p.chains.unread) > 0 {
		p.sweep(now)
		due = min(due, now+defaultAckDelay)
	}
	if len(p.coalescing) > 0 {
		due = min(due, p.coalesceSince+coalesceMost)
	}
	if len(p.ready) > 0 || p.stalled {
		due = min(due, now+defaultAckDelay)
	}
	if p.unrung.Load() != 0 {
		due = min(due, now+coalesceMost)
	}
	if len(p.timers) > 0 {
		due = min(due, p.timers[0].due)
	}
	// An early due time does no harm, and a store that is saved saves time.
	if old := p.due.Load(); due < old || old <= now || quiet {
		p.due.Store(due)
	}
	if by := p.sleepBy.Load(); by != 0 && due < by {
		p.wakeSleeper() // it must sleep for less time
	}
}

// onRemove ends every connection, because the interface was removed.
func (p *port) onRemove() {
	p.removed = true
	for _, n := range p.nics {
		n.report(ErrorDescriptor{Resource: ResourceNIC, Code: ErrorCatastrophic, Err: errGone})
	}
	for _, v := range p.vis {
		if v != nil {
			p.teardown(v.conn, broken{cause: errGone})
		}
	}
}

// loopRounds bounds how long frames between VIs of the port keep other goroutines from the lock.
const loopRounds = 16

// respond sends what has become possible and what is owed, and rings the doorbell. It returns the time at which the
// next delayed acknowledgement must be sent.
func (p *port) respond(now int64, quiet bool) (due int64) {
	for len(p.ready) > 0 {
		p.lazy = false // other connections have frames to send
		c := p.ready[len(p.ready)-1]
		p.ready = p.ready[:len(p.ready)-1]
		c.inReady = false
		if !p.pump(c, now) {
			if p.stuckAlone(c) {
				continue
			}
			// There is no chunk: the other connections wait for the next turn. Lost frames do not wait: they have
			// their chunks, and until they arrive no other chunks are freed.
			for _, other := range p.ready {
				if other.open && other.sender != nil {
					p.resendLost(other, now)
				}
			}
			break
		}
	}
	p.ready = append(p.ready, p.stuck...)
	p.stuck = p.stuck[:0]
	due = never
	for i := 0; i < len(p.acksDue); {
		c := p.acksDue[i]
		if quiet || c.ackDue <= now {
			c.ackDelay.wentAlone(min(c.ackDue, now))
			if p.acknowledge(c) {
				p.lazy = false
				continue // acksDue[i] is another connection now
			}
			c.ackDue = now + defaultAckDelay // a chunk may be free by then
		}
		due = min(due, c.ackDue)
		i++
	}
	if !p.lazy {
		if p.nic.Pending() > 0 {
			p.ring()
		} else {
			if len(p.handed) > 0 {
				p.kicked = true // a shared-memory link rang its own bell, which takes as long
			}
			if p.unrung.Load() != 0 {
				p.unrung.Store(0) // the driver has taken the waiting entries by itself
			}
			p.stalled = false
		}
		p.settleHanded()
	}
	return due
}
