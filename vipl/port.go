package vipl

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"viaxdp/internal/ordered"
	"viaxdp/kagent"
	"viaxdp/wire"
	"viaxdp/xdpnic"
)

// Port is the queue of a NIC as this package drives it: steps 3, 4, 6 and 10 of
// the way of a message. xdpnic.Queue is one over AF_XDP, xdpnictest.Queue one
// in memory. But for Ready, Wait and Wake, calls come one at a time.
type Port interface {
	// Alloc takes a chunk for a frame to send, Release gives it back; a
	// chunk that the kernel still has returns by itself on completion.
	Alloc() (addr uint64, buf []byte, ok bool)
	Release(addr uint64)
	TxFree() int
	// Send queues n bytes of a chunk as a frame; retain keeps the chunk ours
	// after completion. Flush hands queued frames to the kernel.
	Send(addr uint64, n int, retain bool) bool
	// SendSegs queues a frame of several segments, at most MaxSegs, each within a
	// chunk or within as much of the program's memory in the UMEM.
	SendSegs(segs []xdpnic.Desc, retain bool) bool
	MaxSegs() int
	InFlight(addr uint64) bool
	// Void makes a frame that has not left, and begins at addr, one that nobody takes.
	Void(addr uint64)
	Pending() int
	Flush() error
	Reap() int
	// Receive leases arrived frames, Recycle ends a lease, Refill makes
	// recycled chunks available for new frames.
	Receive(frames []xdpnic.Frame) int
	Recycle(addr uint64)
	Refill()
	// Ready says that frames have arrived; Wait sleeps until then, until
	// Wake, or until the time is over (negative: no limit).
	Ready() bool
	Wait(timeout time.Duration) error
	Wake()
	// FrameCap is the largest frame in one chunk, sent and received, and
	// RxChunks the number of chunks for frames that arrive.
	FrameCap() (tx, rx int)
	RxChunks() int
}

const (
	rxBatch      = 64  // frames leased at once
	refillBatch  = 16  // chunks received before the kernel is given them back
	kickBatch    = 32  // frames queued before the kernel is told, in a burst
	controlSpare = 8   // TX chunks that data leaves for acknowledgements and the like
	pollsPerTime = 256 // idle polls between two looks at the clock

	maxWindow   = 256 // frames in flight of one VI
	leastWindow = 8
)

// never is the time of a timer that is off.
const never = math.MaxInt64

// port is the engine on one queue: it turns descriptors into frames and frames
// into completions, in the goroutine of whoever posts, polls or waits. mu
// guards everything but the atomics; it is never held while sleeping.
type port struct {
	mu       sync.Mutex
	nic      Port
	mem      []byte               // the UMEM, to reach retained frames by their address
	txChunks int                  // that there are
	spare    int                  // of them, that data leaves: more where a connection has a key
	now      func() int64         // the time in ns
	cpuTime  func() time.Duration // what the process has used of its CPUs
	zeroCopy bool                 // a driver fills the rings, which may fall asleep at any time, see background

	nics      []*Nic          // handles
	vis       []*VI           // connected ones, by the low 16 bits of the VI number
	own       map[uint32]bool // numbers of all VIs
	timers    timerHeap
	owed      []*conn // owe the peer an acknowledgement
	ready     []*conn // may be able to send again
	stuck     []*conn // of those, in this turn: for whom alone there is no room
	handed    []*conn // have sends that are done with the next doorbell
	holding   []*conn // have small messages that wait for company
	heldSince int64   // when the first of them began to
	lazy      bool    // the doorbell may wait, see hold.go
	kicked    bool    // it was rung since posting began
	over      bool    // stopped: the rings may be gone, and who polls all the same leaves them alone
	stalled   bool    // it was rung last, and the kernel, which copies, has not taken everything
	window    int     // frames that each connection may be sent
	ackEvery  int     // of so many frames one is acknowledged at once
	active    int     // connections on which frames flow

	lanes    atomic.Pointer[[]*portLane] // to other queues of the interface; changed under the lock
	from     *portLane                   // the lane that the frame in hand has come by; nil: the queue
	looped   []loopFrame                 // on their way between VIs of this port
	loopback [1]xdpnic.Frame
	id       uint32      // of the queue, in this process: tells it from others for people
	taps     []*tap      // of those who capture
	gone     bool        // the interface is
	fallen   bool        // and every connection was told
	link     kagent.Link // the interface as the agent told last; its Name is empty before

	frames  [rxBatch]xdpnic.Frame
	pkt     wire.Packet
	record  wire.Record // of a frame that arrived
	packing wire.Record // of one that is built
	held    heldFrames
	early   [rxBatch]xdpnic.Frame // one of them that is being delivered
	late    [rxBatch]xdpnic.Frame // or given up, which may happen meanwhile
	chains  chains                // long frames under way, and room to build one
	stats   Counters

	influx           influx         // what comes in, see rest.go
	noRest           bool           // the ring is looked at by every poll
	rests            ordered.Uint64 // until when the RX ring is not looked at: 0, or ns
	leased, refillAt int            // chunks received since the last Refill, and how many at most

	idle       ordered.Uint32 // polls in vain: with those that follow, the signs of life of a program
	turns      ordered.Uint32 // polls that found frames
	taken      ordered.Uint32 // that found a completed descriptor
	waits      ordered.Uint32 // messages and frames wait for company, see hold.go: 1, else 0
	unrung     ordered.Uint32 // frames wait for Ring: 1, else 0
	idleAtPost ordered.Uint32 // idle when a send was posted last
	armed      atomic.Int64   // handlers that wait for a completion
	roused     chan struct{}  // tells background that there are handlers, or messages that wait
	holds      atomic.Uint32  // times that a message has begun to wait for company
	tick       atomic.Int64   // ns until background looks in again
	due        atomic.Int64   // when time alone makes work, or never
	sleepBy    atomic.Int64   // the time to which somebody sleeps in nic.Wait, 0: nobody, or he is woken
	sleeping   chan struct{}  // holds a token while somebody is in nic.Wait
	closed     chan struct{}
	stopped    sync.WaitGroup

	silence int64 // ns without a word after which a peer is dead
}

func newPort(nic Port, mem []byte, zeroCopy bool, silence time.Duration, now func() int64, cpuTime func() time.Duration) *port {
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
	p.held.init(nic.RxChunks(), p.chains.most, p.refillAt)
	p.stopped.Add(1)
	go p.background()
	return p
}

// stop ends the engine, which has no VIs any more.
func (p *port) stop() {
	close(p.closed)
	p.nic.Wake()
	p.stopped.Wait()
	// Whoever was asleep in the port has left when the token can be had.
	p.sleeping <- struct{}{}
	p.mu.Lock()
	p.refill()
	p.over = true
	p.mu.Unlock()
}

// share divides the chunks for arriving frames among the connections. Each frame
// tells its peer, which so has more when others have gone.
func (p *port) share() {
	p.window = p.windowOf(p.active)
	p.ackEvery = max(1, min(16, p.window/4))
}

// windowOf is the window of each of so many connections: with a quarter of the chunks
// in reserve, and nobody gets less than leastWindow. A unit of the window takes one
// chunk, or several small ones.
func (p *port) windowOf(conns int) int {
	chunks := 1
	if _, rx := p.nic.FrameCap(); p.nic.MaxSegs() > 1 {
		chunks = (wire.WindowUnit + rx - 1) / rx
	}
	return max(leastWindow, min(maxWindow, p.nic.RxChunks()*3/4/chunks/max(conns, 1)))
}

// tellWindow tells the peer of c that its window has become smaller: it may be one from
// which nothing comes, and which could come back with as much as it was told long ago. A
// seventh more than the window is left to it: with the quarter in reserve, and what refill
// has not given back yet, that is no more than there is.
func (p *port) tellWindow(c *conn, now int64) {
	if c.open && c.receiver != nil && c.vi.state == Connected && 8*p.window < 7*int(c.header.Window) {
		p.oweUntil(c, now+ackDelay)
		p.lookSoon()
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

// busy says whether there is something to do: frames, or, looked at now and
// then, something that time alone has made due. Without the lock.
func (p *port) busy() bool {
	if p.rested() && p.nic.Ready() || p.lanes.Load() != nil && p.laneReady() {
		return true
	}
	n := p.idle.Load() + 1 // several who poll may lose one another's counts
	p.idle.Store(n)
	return p.waits.Load() != 0 && n-p.idleAtPost.Load() >= heldPolls ||
		n%pollsPerTime == 0 && p.overdue()
}

// overdue says whether time alone has made something due. It wakes a driver that sleeps,
// see background.
func (p *port) overdue() bool {
	if p.zeroCopy && p.mu.TryLock() {
		p.refill()
		p.mu.Unlock()
	}
	return p.now() >= p.due.Load()
}

// poll makes progress if there is something to do and nobody else is at it.
func (p *port) poll() {
	if p.busy() && p.mu.TryLock() {
		p.turns.Store(p.turns.Load() + 1)
		p.progress(p.now(), false)
		p.mu.Unlock()
	}
}

// progress does what there is to do: frames that arrived, timers, sends that
// became possible, acknowledgements, the doorbell. quiet says that the caller
// is about to sleep: acknowledgements do not wait. came: frames have arrived. Under
// the lock.
func (p *port) progress(now int64, quiet bool) (came bool) {
	if p.over {
		return false
	}
	if came = p.receiveAll(now); !came && len(p.holding) > 0 {
		p.releaseHeld(now) // whoever polls has nothing more to post
	}
	for len(p.timers) > 0 && p.timers[0].due <= now {
		p.runTimer(p.timers[0], now)
	}
	p.finish(now, quiet)
	return came
}

// finish sends what the work until here made necessary, and says when time
// alone will make work again. Under the lock.
func (p *port) finish(now int64, quiet bool) {
	if p.over {
		return
	}
	if len(p.holding) > 0 && (quiet || now >= p.heldSince+heldMost) {
		p.releaseHeld(now)
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
	if p.gone && !p.fallen {
		p.fall()
	}
	if len(p.holding) > 0 {
		due = min(due, p.heldSince+heldMost)
	}
	if len(p.ready) > 0 || p.stalled {
		due = min(due, now+ackDelay)
	}
	if p.unrung.Load() != 0 {
		due = min(due, now+heldMost)
	}
	if len(p.timers) > 0 {
		due = min(due, p.timers[0].due)
	}
	// Too early is no harm, and a store that can be saved is time.
	if old := p.due.Load(); due < old || old <= now || quiet {
		p.due.Store(due)
	}
	if by := p.sleepBy.Load(); by != 0 && due < by {
		p.wakeSleeper() // who sleeps must sleep less
	}
}

// fall ends every connection, because the interface is gone.
func (p *port) fall() {
	p.fallen = true
	for _, n := range p.nics {
		n.report(ErrorDescriptor{Resource: ResourceNic, Code: ErrorCatastrophic, Err: errGone})
	}
	for _, v := range p.vis {
		if v != nil {
			p.breakDown(v.conn, broken{cause: errGone})
		}
	}
}

// loopRounds bounds how long frames between VIs of the port keep others from
// the lock.
const loopRounds = 16

// respond sends what became possible and what is owed, and rings the doorbell.
// It returns when an acknowledgement that may still wait has to go.
func (p *port) respond(now int64, quiet bool) (due int64) {
	for len(p.ready) > 0 {
		p.lazy = false // others have frames to send
		c := p.ready[len(p.ready)-1]
		p.ready = p.ready[:len(p.ready)-1]
		c.inReady = false
		if !p.pump(c, now) {
			if p.stuckAlone(c) {
				continue
			}
			// No chunk: the rest waits for the next turn, but for what was lost. That
			// has its chunks, and while it is missing others come free for nobody.
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
	for i := 0; i < len(p.owed); {
		c := p.owed[i]
		if quiet || c.oweBy <= now {
			c.patience.wentAlone(min(c.oweBy, now))
			if p.acknowledge(c) {
				p.lazy = false
				continue // p.owed[i] is another one now
			}
			c.oweBy = now + ackDelay // when a chunk may have come back
		}
		due = min(due, c.oweBy)
		i++
	}
	if !p.lazy {
		if p.nic.Pending() > 0 {
			p.ring()
		} else {
			if len(p.handed) > 0 {
				p.kicked = true // by a lane, whose bell takes as long
			}
			if p.unrung.Load() != 0 {
				p.unrung.Store(0) // the driver has taken what waited by itself
			}
			p.stalled = false
		}
		p.settleHanded()
	}
	return due
}

// flush rings the doorbell. What was handed over by it is done, but for the
// sends that wait for the peer; the program's descriptors are written after the
// doorbell, not before, so that the message is under way meanwhile.
func (p *port) flush() {
	p.ring()
	p.settleHanded()
}

// ring is the doorbell alone. A kernel that copies may leave entries on the ring, while
// the send buffer or the NIC's queue is full: nothing tells when there is room again. A
// driver in zero-copy mode takes them in its own time.
func (p *port) ring() {
	p.kicked = true
	if p.unrung.Load() != 0 {
		p.unrung.Store(0)
	}
	err := p.nic.Flush()
	if err != nil {
		p.stats.FlushErrors++
		p.gone = p.gone || errors.Is(err, xdpnic.ErrGone)
	}
	p.stalled = !p.zeroCopy && err == nil && p.nic.Pending() > 0
}

// settleHanded completes the sends that were handed over and are done with that.
func (p *port) settleHanded() {
	for _, c := range p.handed {
		c.inHanded = false
		p.settleSends(c)
	}
	p.handed = p.handed[:0]
}

// receiveAll takes the frames that have arrived, a bounded number of them so
// that others get the lock. It says whether there were any.
func (p *port) receiveAll(now int64) (came bool) {
	before := p.stats.Frames
	for range 4 {
		n := p.nic.Receive(p.frames[:])
		if len(p.taps) > 0 {
			p.tapReceived(p.frames[:n])
		}
		for i, k := 0, 0; i < n; i = k {
			for k = i + 1; p.frames[k-1].More && k < n; k++ {
			}
			if !p.receive(p.frames[i:k], now) {
				p.recycle(p.frames[i:k])
			}
		}
		if p.leased += n; p.leased >= p.refillAt {
			p.refill()
		}
		if n <= len(p.frames)-p.chains.most { // the next frame would have fitted
			break
		}
	}
	if came = p.stats.Frames != before; came && !p.noRest {
		p.rest(int(p.stats.Frames-before), now)
	}
	if p.lanes.Load() != nil && p.receiveLanes(now) {
		came = true
	}
	return came
}

// refill gives the kernel the chunks that were recycled. It reads that ring from
// another CPU, so that each store there costs: it is done for several at once,
// and before somebody sleeps.
func (p *port) refill() {
	if p.over {
		return
	}
	p.leased = 0
	p.nic.Refill()
}

// recycle ends the lease of a frame.
func (p *port) recycle(frame []xdpnic.Frame) {
	for i := range frame {
		p.nic.Recycle(frame[i].Addr)
	}
}
