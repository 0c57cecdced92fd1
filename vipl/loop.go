package vipl

import "viaxdp/xdpnic"

// Connections between two VIs of one port. An AF_XDP queue does not hear its
// own frames, so that they go from the sender to the receiver here, in the same
// form and through the same steps, only that no kernel is in between.

// loopFrame is a frame on its way. Its chunk is the sender's while it is
// retained, else it is given back on arrival.
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

// queue puts a frame on the ring, or on the way to another VI of this interface.
func (p *port) queue(c *conn, addr uint64, size int, retain bool) bool {
	if c.lane != nil {
		return p.sendLane(c.lane, addr, size, retain)
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

// owns says whether a VI of that number is on this port.
func (p *port) owns(num uint32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.own[num]
}

// loopBatch is how many frames arrive in a row before acknowledgements and new
// sends have a turn.
const loopBatch = 64

// deliverLooped lets frames arrive.
func (p *port) deliverLooped(now int64) {
	n := min(len(p.looped), loopBatch)
	for i := range n {
		f := p.looped[i]
		if f.c == nil {
			continue
		}
		p.loopback[0] = xdpnic.Frame{Addr: f.addr, Data: p.mem[f.addr : f.addr+uint64(f.size)]}
		p.receive(p.loopback[:], now)
		if !f.retain {
			p.nic.Release(f.addr)
		}
	}
	p.looped = append(p.looped[:0], p.looped[n:]...)
}

// unloop takes back the frames of c whose chunks it retained.
func (p *port) unloop(c *conn) {
	for i := range p.looped {
		if f := &p.looped[i]; f.c == c && f.retain {
			f.c = nil
		}
	}
}
