package vipl

import (
	"math"
	"sync"
	"time"

	"viaxdp/internal/agent/provider"
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
//
// Each part has a file that explains it and that alone changes its fields (TestParts).
type port struct {
	mu       sync.Mutex
	nic      provider.Port
	mem      []byte       // the UMEM, for reaching retained frames by address
	now      func() int64 // the engine's clock, ns
	zeroCopy bool         // a driver fills the rings and may go to sleep at any time, see background
	silence  int64        // ns without a frame after which a peer is dead
	id       uint32       // number of the queue in this process, for display
	over     bool         // stopped: the rings may be unmapped, so a late poll must not touch them
	stats    Counters

	nics []*NIC          // handles that share the port
	vis  []*VI           // connected ones, by the low 16 bits of the VI number
	own  map[uint32]bool // numbers of all VIs

	ready     readyList   // connections that may be able to send
	coalescer coalescer   // small messages and frames that wait for more
	tx        transmitter // frames that do not go to the TX ring
	doorbell  doorbell
	long      longFrames // frames of several chunks, and memory that is sent by reference
	rx        receiver
	reorder   reorderBuffer
	acks      ackList // acknowledgements that are owed
	timers    timerHeap
	pollPause pollPause
	poller    poller // who polls, who sleeps
	shares    shares // how the connections share the chunks
	iface     iface
}

func newPort(nic provider.Port, mem []byte, zeroCopy bool, silence time.Duration, now func() int64, cpuTime func() time.Duration) *port {
	p := &port{nic: nic, mem: mem, now: now, zeroCopy: zeroCopy, silence: int64(silence), own: make(map[uint32]bool)}
	p.poller.init(cpuTime)
	p.shares.txChunks = nic.TxFree()
	p.leaveSpare()
	p.share()
	p.long.init(nic.MaxSegs())
	p.rx.init(nic.RxChunks())
	p.reorder.init(nic.RxChunks(), p.long.most, p.rx.refillAt)
	p.poller.stopped.Add(1)
	go p.background()
	return p
}

// stop ends the engine, which has no VIs left.
func (p *port) stop() {
	close(p.poller.closed)
	p.nic.Wake()
	p.poller.stopped.Wait()
	// Once the token is available, the goroutine that slept in the port has left.
	p.poller.sleeping <- struct{}{}
	p.mu.Lock()
	p.refill()
	p.freeBlocks(true) // the rings are closed before the memory is reused
	p.over = true
	p.mu.Unlock()
}

// progress does the work that there is: received frames, timers, sends that have become possible, acknowledgements,
// the doorbell. quiet means that the caller is about to sleep, so acknowledgements are not delayed. came reports
// whether frames had arrived. Under the lock.
func (p *port) progress(now int64, quiet bool) (came bool) {
	if p.over {
		return false
	}
	if came = p.receiveAll(now); !came && len(p.coalescer.conns) > 0 {
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
	if len(p.coalescer.conns) > 0 && (quiet || now >= p.coalescer.since+coalesceMost) {
		p.flushCoalesced(now)
	}
	due := p.respond(now, quiet)
	for range loopRounds {
		if len(p.tx.looped) == 0 {
			break
		}
		p.deliverLooped(now)
		due = p.respond(now, quiet)
	}
	if len(p.tx.looped) > 0 {
		due = now
	}
	if p.iface.gone && !p.iface.removed {
		p.onRemove()
	}
	if len(p.long.unread) > 0 {
		p.sweep(now)
		due = min(due, now+defaultAckDelay)
	}
	if len(p.coalescer.conns) > 0 {
		due = min(due, p.coalescer.since+coalesceMost)
	}
	if len(p.ready.conns) > 0 || p.doorbell.stalled {
		due = min(due, now+defaultAckDelay)
	}
	if p.doorbell.unrung.Load() != 0 {
		due = min(due, now+coalesceMost)
	}
	if len(p.timers) > 0 {
		due = min(due, p.timers[0].due)
	}
	// An early due time does no harm, and a store that is saved saves time.
	if old := p.poller.due.Load(); due < old || old <= now || quiet {
		p.poller.due.Store(due)
	}
	if by := p.poller.sleepBy.Load(); by != 0 && due < by {
		p.wakeSleeper() // it must sleep for less time
	}
}

// loopRounds bounds how long frames between VIs of the port keep other goroutines from the lock.
const loopRounds = 16

// respond sends what has become possible and what is owed, and rings the doorbell. It returns the time at which the
// next delayed acknowledgement must be sent.
func (p *port) respond(now int64, quiet bool) (due int64) {
	for len(p.ready.conns) > 0 {
		p.doorbell.lazy = false // other connections have frames to send
		c := p.ready.conns[len(p.ready.conns)-1]
		p.ready.conns = p.ready.conns[:len(p.ready.conns)-1]
		c.inReady = false
		if !p.pump(c, now) {
			if p.stuckAlone(c) {
				continue
			}
			// There is no chunk: the other connections wait for the next turn. Lost frames do not wait: they have
			// their chunks, and until they arrive no other chunks are freed.
			for _, other := range p.ready.conns {
				if other.open && other.sender != nil {
					p.resendLost(other, now)
				}
			}
			break
		}
	}
	p.ready.conns = append(p.ready.conns, p.ready.stuck...)
	p.ready.stuck = p.ready.stuck[:0]
	due = never
	for i := 0; i < len(p.acks.due); {
		c := p.acks.due[i]
		if quiet || c.ack.due <= now {
			c.ack.delay.wentAlone(min(c.ack.due, now))
			if p.acknowledge(c) {
				p.doorbell.lazy = false
				continue // acksDue[i] is another connection now
			}
			c.ack.due = now + defaultAckDelay // a chunk may be free by then
		}
		due = min(due, c.ack.due)
		i++
	}
	if !p.doorbell.lazy {
		if p.nic.Pending() > 0 {
			p.ring()
		} else {
			if len(p.doorbell.handed) > 0 {
				p.doorbell.rung = true // a shared-memory link rang its own bell, which takes as long
			}
			if p.doorbell.unrung.Load() != 0 {
				p.doorbell.unrung.Store(0) // the driver has taken the waiting entries by itself
			}
			p.doorbell.stalled = false
		}
		p.settleHanded()
	}
	return due
}
