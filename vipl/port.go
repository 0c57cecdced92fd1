package vipl

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

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
	InFlight(addr uint64) bool
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
	kickBatch    = 32  // frames queued before the kernel is told, in a burst
	controlSpare = 8   // TX chunks that data leaves for acknowledgements and the like
	pollsPerTime = 256 // idle polls between two looks at the clock

	ackDelay    = 50_000 // ns that an acknowledgement waits for data to ride on
	maxWindow   = 256    // frames in flight of one VI
	leastWindow = 8
)

// never is the time of a timer that is off.
const never = math.MaxInt64

// port is the engine on one queue: it turns descriptors into frames and frames
// into completions, in the goroutine of whoever posts, polls or waits. mu
// guards everything but the atomics; it is never held while sleeping.
type port struct {
	mu  sync.Mutex
	nic Port
	mem []byte       // the UMEM, to reach retained frames by their address
	now func() int64 // the time in ns

	vis       []*VI           // connected ones, by the low 16 bits of the VI number
	own       map[uint32]bool // numbers of all VIs
	timers    timerHeap
	owed      []*conn // owe the peer an acknowledgement
	ready     []*conn // may be able to send again
	handed    []*conn // have sends that are done with the next doorbell
	holding   []*conn // have small messages that wait for company
	heldSince int64   // when the first of them began to
	lazy      bool    // the doorbell may wait, see hold.go
	window    int     // frames that each connection may be sent
	active    int     // connections

	looped []loopFrame // on their way between VIs of this port
	gone   bool        // the interface is
	fallen bool        // and every connection was told

	frames [rxBatch]xdpnic.Frame
	pkt    wire.Packet
	record wire.Record
	held   heldFrames
	stats  Counters

	polls    atomic.Uint32 // signs of life of a polling program
	armed    atomic.Int64  // handlers that wait for a completion
	roused   chan struct{} // tells background that there are handlers, or messages that wait
	holds    atomic.Uint32 // times that a message has begun to wait for company
	tick     atomic.Int64  // ns until background looks in again
	due      atomic.Int64  // when time alone makes work, or never
	sleepBy  atomic.Int64  // the time to which somebody sleeps in nic.Wait, 0: nobody
	sleeping chan struct{} // holds a token while somebody is in nic.Wait
	closed   chan struct{}
	stopped  sync.WaitGroup

	silence int64 // ns without a word after which a peer is dead
}

func newPort(nic Port, mem []byte, silence time.Duration, now func() int64) *port {
	p := &port{
		nic: nic, mem: mem, now: now, silence: int64(silence), roused: make(chan struct{}, 1),
		sleeping: make(chan struct{}, 1), closed: make(chan struct{}), own: make(map[uint32]bool),
	}
	p.due.Store(never)
	p.share()
	p.held.init(nic.RxChunks())
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
}

// share divides the chunks for arriving frames among the connections, with a
// quarter in reserve.
func (p *port) share() {
	p.window = max(leastWindow, min(maxWindow, p.nic.RxChunks()*3/4/max(p.active, 1)))
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
	if p.nic.Ready() {
		p.polls.Add(1)
		return true
	}
	return p.polls.Add(1)%pollsPerTime == 0 && p.now() >= p.due.Load()
}

// poll makes progress if there is something to do and nobody else is at it.
func (p *port) poll() {
	if p.busy() && p.mu.TryLock() {
		p.progress(p.now(), false)
		p.mu.Unlock()
	}
}

// progress does what there is to do: frames that arrived, timers, sends that
// became possible, acknowledgements, the doorbell. quiet says that the caller
// is about to sleep: acknowledgements do not wait. Under the lock.
func (p *port) progress(now int64, quiet bool) {
	p.receiveAll(now)
	for len(p.timers) > 0 && p.timers[0].due <= now {
		p.runTimer(p.timers[0], now)
	}
	p.finish(now, quiet)
}

// finish sends what the work until here made necessary, and says when time
// alone will make work again. Under the lock.
func (p *port) finish(now int64, quiet bool) {
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
	if len(p.ready) > 0 {
		due = min(due, now+ackDelay)
	}
	if len(p.timers) > 0 {
		due = min(due, p.timers[0].due)
	}
	p.due.Store(due)
	if by := p.sleepBy.Load(); by != 0 && due < by {
		p.nic.Wake() // who sleeps must sleep less
	}
}

// fall ends every connection, because the interface is gone.
func (p *port) fall() {
	p.fallen = true
	told := make(map[*Nic]bool)
	for _, v := range p.vis {
		if v == nil {
			continue
		}
		if !told[v.nic] {
			told[v.nic] = true
			v.nic.report(ErrorDescriptor{Resource: ResourceNic, Code: ErrorCatastrophic, Err: errGone})
		}
		p.breakDown(v.conn, broken{cause: errGone})
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
			break // no chunk: the rest waits for the next turn
		}
	}
	due = never
	for i := 0; i < len(p.owed); {
		c := p.owed[i]
		if quiet || c.owedAt+ackDelay <= now {
			if p.acknowledge(c) {
				p.lazy = false
				continue // p.owed[i] is another one now
			}
		}
		due = min(due, c.owedAt+ackDelay)
		i++
	}
	if !p.lazy && (p.nic.Pending() > 0 || len(p.handed) > 0) {
		p.flush()
	}
	return due
}

// flush rings the doorbell. What was handed over by it is done, but for the
// sends that wait for the peer; the program's descriptors are written after the
// doorbell, not before, so that the message is under way meanwhile.
func (p *port) flush() {
	if err := p.nic.Flush(); err != nil {
		p.stats.FlushErrors++
		p.gone = p.gone || errors.Is(err, xdpnic.ErrGone)
	}
	for _, c := range p.handed {
		c.inHanded = false
		p.settleSends(c)
	}
	p.handed = p.handed[:0]
}

// receiveAll takes the frames that have arrived, a bounded number of them so
// that others get the lock.
func (p *port) receiveAll(now int64) {
	for range 4 {
		n := p.nic.Receive(p.frames[:])
		for i := range p.frames[:n] {
			f := &p.frames[i]
			if !p.receive(f, now) {
				p.nic.Recycle(f.Addr)
			}
		}
		if n > 0 {
			p.nic.Refill()
		}
		if n < len(p.frames) {
			return
		}
	}
}

// heldFrames keeps the leases of frames that came early, by number.
type heldFrames struct {
	frames []xdpnic.Frame
	free   []uint32
}

func (h *heldFrames) init(n int) {
	h.frames = make([]xdpnic.Frame, n)
	for i := range n {
		h.free = append(h.free, uint32(n-1-i))
	}
}

func (h *heldFrames) put(f *xdpnic.Frame) uint64 {
	i := h.free[len(h.free)-1] // one place for each chunk there is
	h.free = h.free[:len(h.free)-1]
	h.frames[i] = *f
	return uint64(i)
}

func (h *heldFrames) take(tag uint64) xdpnic.Frame {
	h.free = append(h.free, uint32(tag))
	return h.frames[tag]
}
