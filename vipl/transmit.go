package vipl

// Step 3 of the table in ARCHITECTURE.md, which is 5 and 6 in tx.go: the transmit step and the doorbell.
//
// The transmit step decides where a frame goes: sealed or plain, to the TX ring, to a shared-memory link
// (shmlinks.go), or to another VI of this port. An AF_XDP queue does not receive its own frames, so those between
// two VIs of one port are passed from the sender to the receiver here. The format and the steps are the same; only
// the kernel is left out.

import (
	"viaxdp/internal/base/ordered"
	"viaxdp/xdpnic"
)

// send queues a frame, sealed if the connection has a key. isNew means that it may leave in a GSO packet.
func (p *port) send(c *conn, addr uint64, size int, retain, isNew bool) bool {
	if c.secure != nil {
		return p.sendSealed(c, addr, size, retain, isNew)
	}
	return p.queue(c, addr, size, retain, isNew)
}

// sendSegs queues a frame of several segments, sealed if the connection has a key. longFrames.parts are its bytes
// behind the lower headers.
func (p *port) sendSegs(c *conn, f *longFrame, retain, isNew bool) bool {
	if c.secure != nil {
		return p.sendLongSealed(c, f, retain, isNew)
	}
	return p.queueSegs(c, f.segs, retain, isNew)
}

// queue puts a frame on the ring, or passes it to another VI of this interface.
func (p *port) queue(c *conn, addr uint64, size int, retain, isNew bool) bool {
	if c.shm != nil {
		return p.sendLink(c.shm, addr, size, retain)
	}
	if !c.loop {
		ok := isNew && p.joinGSOAlone(c, addr, size, retain) || p.nic.Send(addr, size, retain)
		if ok && len(p.taps) > 0 {
			p.tapSent(p.mem[addr : addr+uint64(size)])
		}
		return ok
	}
	p.loop.queued = append(p.loop.queued, loopFrame{c, addr, size, retain})
	return true
}

// queueSegs puts a frame of several segments on the ring.
func (p *port) queueSegs(c *conn, segs []xdpnic.Desc, retain, isNew bool) bool {
	ok := isNew && c.gso.peer != 0 && p.joinGSO(c, segs, retain) || p.nic.SendSegs(segs, retain)
	if ok && len(p.taps) > 0 {
		p.tapLong(segs)
	}
	return ok
}

// doorbell is the state of the TX ring's doorbell. Invariant: a connection is in handed exactly if its inHanded is
// set; its sends up to workQueue.current are on a ring.
type doorbell struct {
	lazy    bool           // it may wait for more frames, see coalesce.go
	rung    bool           // it was rung since posting began
	stalled bool           // copy mode: entries remained on the TX ring after the last Flush
	failed  bool           // the last Flush failed, and entries remained: the link is down, for example
	unrung  ordered.Uint32 // 1 while frames wait for Ring, else 0
	handed  []*conn        // connections with sends that are done with the next doorbell
}

// failedRetry is how long after a failed Flush the next one is tried.
const failedRetry = 10_000_000 // ns

// ringBatch is the most frames that wait for Ring. It is small so that the peer can begin while the program goes
// on.
const ringBatch = 4

// ring rings the doorbell. In copy mode the kernel may leave entries on the ring if the send buffer or the NIC's
// queue is full, and nothing signals when there is room again. In zero-copy mode the driver takes entries in its
// own time.
func (p *port) ring() {
	p.doorbell.rung = true
	if p.doorbell.unrung.Load() != 0 {
		p.doorbell.unrung.Store(0)
	}
	p.sendGSO()
	err := p.nic.Flush()
	if err != nil {
		p.stats.FlushErrors++
		p.iface.failed(err)
	}
	remain := p.nic.Pending() > 0
	p.doorbell.stalled = !p.zeroCopy && err == nil && remain
	p.doorbell.failed = err != nil && !p.iface.gone && remain
}

// flush rings the doorbell and completes the sends that were handed over by it, except those that wait for the
// peer. The program's descriptors are written after the doorbell, while the message is already under way.
func (p *port) flush() {
	p.ring()
	p.settleHanded()
}

// handOver records that descriptors of c are on the ring. They are done with the next doorbell, unless they wait
// for the peer.
func (p *port) handOver(c *conn) {
	if c.vi.attrs.Level != ReliableReception && !c.inHanded {
		c.inHanded = true
		p.doorbell.handed = append(p.doorbell.handed, c)
	}
}

// settleHanded completes the sends that were handed over and are done.
func (p *port) settleHanded() {
	for _, c := range p.doorbell.handed {
		c.inHanded = false
		p.settleQueue(&c.vi.send)
	}
	p.doorbell.handed = p.doorbell.handed[:0]
}

// ringUnlessLazy rings the doorbell if frames wait for it and may not wait longer, and completes what that hands
// over.
func (p *port) ringUnlessLazy() {
	d := &p.doorbell
	if d.lazy {
		return
	}
	if p.pending() > 0 {
		p.ring()
	} else {
		if len(d.handed) > 0 {
			d.rung = true // the shared-memory link was rung, which takes as long as a kick
		}
		if d.unrung.Load() != 0 {
			d.unrung.Store(0) // the driver has taken the waiting entries by itself
		}
		d.stalled, d.failed = false, false
	}
	p.settleHanded()
}

// waitIf lets the doorbell wait for more frames if more is true.
func (d *doorbell) waitIf(more bool) { d.lazy = more }

// hurry ends the wait for more frames.
func (d *doorbell) hurry() { d.lazy = false }

// forget makes rung false: a post begins.
func (d *doorbell) forget() { d.rung = false }

// mayRingLater reports whether the frames on the ring may wait for Ring, and records that they do. Under the lock.
func (p *port) mayRingLater() bool {
	if n := p.pending(); n == 0 || n >= ringBatch {
		return false
	}
	if p.doorbell.unrung.Load() == 0 {
		p.doorbell.unrung.Store(1)
		p.wakeBackground()
	}
	return true
}

// loopback has the frames between VIs of this port.
type loopback struct {
	queued []loopFrame
	frame  [1]xdpnic.Frame // the one that is being delivered
}

// loopFrame is a frame between two VIs of this port. If it is retained, its chunk stays the sender's; else the
// chunk is released on arrival.
type loopFrame struct {
	c      *conn // the sender
	addr   uint64
	size   int
	retain bool
}

// loopBatch is how many frames are delivered in a row before acknowledgements and new sends have their turn.
const loopBatch = 64

// owns reports whether the VI with this number is on this port.
func (p *port) owns(num uint32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.vis.own[num]
}

// deliverLooped delivers frames between VIs of this port.
func (p *port) deliverLooped(now int64) {
	n := min(len(p.loop.queued), loopBatch)
	for i := range n {
		f := p.loop.queued[i]
		if f.c == nil {
			continue
		}
		p.loop.queued[i].c = nil // it is under way no more
		p.loop.frame[0] = xdpnic.Frame{Addr: f.addr, Data: p.mem[f.addr : f.addr+uint64(f.size)]}
		p.receive(p.loop.frame[:], now)
		if !f.retain {
			p.nic.Release(f.addr)
		}
	}
	p.loop.queued = append(p.loop.queued[:0], p.loop.queued[n:]...)
}

// onLoop returns the queued frame in a chunk, or nil.
func (p *port) onLoop(c *conn, addr uint64) *loopFrame {
	for i := range p.loop.queued {
		if f := &p.loop.queued[i]; f.c == c && f.addr == addr {
			return f
		}
	}
	return nil
}

// unloop removes frames of c whose chunks c retained.
func (p *port) unloop(c *conn) {
	for i := range p.loop.queued {
		if f := &p.loop.queued[i]; f.c == c && f.retain {
			f.c = nil
		}
	}
}
