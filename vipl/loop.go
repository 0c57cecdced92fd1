package vipl

import "viaxdp/xdpnic"

// Connections between two VIs of one port. An AF_XDP queue does not receive its own frames, so they are passed from
// the sender to the receiver here. The format and the steps are the same; only the kernel is left out.

// loopFrame is a frame between two VIs of this port. If it is retained, its chunk stays the sender's; else the
// chunk is released on arrival.
type loopFrame struct {
	c      *conn // the sender
	addr   uint64
	size   int
	retain bool
}

// send queues a frame, sealed if the connection has a key.
func (p *port) send(c *conn, addr uint64, size int, retain bool) bool {
	if c.secure != nil {
		return p.sendSealed(c, addr, size, retain)
	}
	return p.queue(c, addr, size, retain)
}

// queue puts a frame on the ring, or passes it to another VI of this interface.
func (p *port) queue(c *conn, addr uint64, size int, retain bool) bool {
	if c.shm != nil {
		return p.sendLink(c.shm, addr, size, retain)
	}
	if !c.loop {
		ok := p.nic.Send(addr, size, retain)
		if ok && len(p.taps) > 0 {
			p.tapSent(p.mem[addr : addr+uint64(size)])
		}
		return ok
	}
	p.looped = append(p.looped, loopFrame{c, addr, size, retain})
	return true
}

// owns reports whether the VI with this number is on this port.
func (p *port) owns(num uint32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.own[num]
}

// loopBatch is how many frames are delivered in a row before acknowledgements and new sends have their turn.
const loopBatch = 64

// deliverLooped delivers frames between VIs of this port.
func (p *port) deliverLooped(now int64) {
	n := min(len(p.looped), loopBatch)
	for i := range n {
		f := p.looped[i]
		if f.c == nil {
			continue
		}
		p.looped[i].c = nil // it is under way no more
		p.loopback[0] = xdpnic.Frame{Addr: f.addr, Data: p.mem[f.addr : f.addr+uint64(f.size)]}
		p.receive(p.loopback[:], now)
		if !f.retain {
			p.nic.Release(f.addr)
		}
	}
	p.looped = append(p.looped[:0], p.looped[n:]...)
}

// onLoop returns the queued frame in a chunk, or nil.
func (p *port) onLoop(c *conn, addr uint64) *loopFrame {
	for i := range p.looped {
		if f := &p.looped[i]; f.c == c && f.addr == addr {
			return f
		}
	}
	return nil
}

// unloop removes frames of c whose chunks c retained.
func (p *port) unloop(c *conn) {
	for i := range p.looped {
		if f := &p.looped[i]; f.c == c && f.retain {
			f.c = nil
		}
	}
}
