package vipl

import (
	"math"
	"sync"
	"time"

	"viaxdp/internal/agent/provider"
	"viaxdp/internal/base/reliable"
)

const (
	rxBatch      = 64  // frames leased at once
	refillBatch  = 16  // chunks received before they are returned to the kernel
	kickBatch    = 32  // frames queued in a burst before the kernel is kicked
	controlSpare = 8   // TX chunks that data leaves free for acknowledgements and other control frames
	pollsPerTime = 256 // empty polls between two reads of the clock

	maxWindow   = reliable.MaxWindow // frames in flight of one VI, if there are chunks for them
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

	nics []*NIC // handles that share the port
	vis  viTable

	ready     readyList // connections that may be able to send
	coalescer coalescer // small messages and frames that wait for more
	long      longFrames
	gso       gsoSender
	doorbell  doorbell
	loop      loopback // frames between VIs of this port
	links     shmLinks // links to other queues of the interface
	taps      []*tap   // captures
	rx        receiver
	acks      ackList // acknowledgements that are owed
	timers    timerHeap
	poller    poller // goroutines that poll and that sleep
	shares    shares // how the connections share the chunks
	iface     iface
}

func newPort(nic provider.Port, mem []byte, zeroCopy bool, silence time.Duration, now func() int64, cpuTime func() time.Duration) *port {
	p := &port{nic: nic, mem: mem, now: now, zeroCopy: zeroCopy, silence: int64(silence)}
	p.poller.init(cpuTime)
	p.initShares()
	p.long.init(nic.MaxSegs())
	p.rx.init(nic.RxChunks(), p.long.most)
	return p
}

// stop ends the engine, which has no VIs left.
func (p *port) stop() {
	p.poller.close()
	p.nic.Wake()
	p.poller.stopped.Wait()
	// Once the token is available, the goroutine that slept in the port has left.
	p.poller.sleeping <- struct{}{}
	p.mu.Lock()
	p.refill()
	p.freeBlocks(true) // the rings are closed before the memory is reused
	p.gso.close()
	p.over = true
	p.mu.Unlock()
}

// progressNow is progress for a simulation, see provider.Virtual.
func (p *port) progressNow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.progress(p.now(), false)
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
		if len(p.loop.queued) == 0 {
			break
		}
		p.deliverLooped(now)
		due = p.respond(now, quiet)
	}
	if len(p.loop.queued) > 0 {
		due = now
	}
	if p.iface.gone && !p.iface.removed {
		p.onRemove()
	}
	if len(p.long.kept.unread) > 0 {
		p.sweep(now)
		due = min(due, now+defaultAckDelay)
	}
	if len(p.coalescer.conns) > 0 {
		due = min(due, p.coalescer.since+coalesceMost)
	}
	if len(p.ready.conns) > 0 || p.doorbell.stalled {
		due = min(due, now+defaultAckDelay)
	}
	if p.doorbell.failed {
		due = min(due, now+failedRetry)
	}
	if p.doorbell.unrung.Load() != 0 {
		due = min(due, now+coalesceMost)
	}
	if len(p.timers) > 0 {
		due = min(due, p.timers[0].due)
	}
	if p.poller.workAt(due, now, quiet) {
		p.wakeSleeper() // it must sleep for less time
	}
}

// loopRounds bounds how long frames between VIs of the port keep other goroutines from the lock.
const loopRounds = 16

// respond sends what has become possible and what is owed, and rings the doorbell. It returns the time at which the
// next delayed acknowledgement must be sent.
func (p *port) respond(now int64, quiet bool) (due int64) {
	p.pumpReady(now)
	due = p.acknowledgeDue(now, quiet)
	p.ringUnlessLazy()
	return due
}
