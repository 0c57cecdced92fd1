package fabric

import (
	"cmp"
	"math"
)

// packet is what links carry: a frame of an engine, or a segment of a TCP flow.
type packet struct {
	to    *Host
	flow  uint32 // selects one of several paths of the same length
	size  int    // bytes of the Ethernet frame without checksum
	ect   bool   // it may be marked
	ce    bool   // it was marked
	frame []byte
	seg   *segment
}

// onWire is what Ethernet adds to a frame: checksum, preamble, gap.
const onWire = 24

// node is a host or a switch.
type node interface{ receive(p *packet) }

// buffer is memory that the ports of a switch share. A port's queue may be as long as the memory that is free
// (dynamic threshold with a factor of 1).
type buffer struct{ size, used int }

// newBuffer makes a buffer of some bytes, or with 0 of any number.
func newBuffer(bytes int) *buffer { return &buffer{size: cmp.Or(bytes, math.MaxInt)} }

// Link is the configuration of a port. Rates are in bits per second, sizes in bytes.
type Link struct {
	Rate  float64
	Delay int64   // one way, ns
	Limit int     // of the port's queue; 0: what the buffer of the switch has room for
	Mark  int     // queue above which frames are marked; 0: never
	Loss  float64 // share of frames that are lost at random
}

// Port sends onto a link, first in, first out.
type Port struct {
	Link
	sim    *Sim
	to     node
	shared *buffer
	free   int64 // time at which the link has sent the queue
	queued int   // bytes that wait or are being sent
	down   bool  // frames that are on the link still arrive
	Stats  PortStats

	area, since int64 // of the queue over time, for the mean

	leave, arrive sequence
}

// PortStats counts the frames of a port.
type PortStats struct {
	Sent, Dropped, Lost, Marked uint64
	Bytes                       uint64 // sent, as the link counts them
}

func (s *Sim) port(l Link, shared *buffer, to node) *Port {
	return &Port{Link: l, sim: s, to: to, shared: shared, since: s.now}
}

// Forget sets the counts to 0.
func (p *Port) Forget() {
	p.Stats = PortStats{}
	p.area, p.since = 0, p.sim.now
}

// MeanQueue is the time average of the queue since Forget in bytes.
func (p *Port) MeanQueue() float64 {
	return float64(p.area) / float64(max(1, p.sim.now-p.since))
}

func (p *Port) room(n int) bool {
	if p.Limit > 0 {
		return p.queued+n <= p.Limit
	}
	return p.queued+n <= p.shared.size-p.shared.used
}

func (p *Port) send(f *packet) {
	switch {
	case p.down, p.Loss > 0 && p.sim.rng.Float64() < p.Loss:
		p.Stats.Lost++
		return
	case !p.room(f.size):
		p.Stats.Dropped++
		return
	}
	if p.Mark > 0 && p.queued > p.Mark && f.ect {
		p.Stats.Marked++
		f.ce = true
	}
	takes := int64(float64(8*(f.size+onWire)) * Second / p.Rate)
	now := p.sim.now
	p.free = max(p.free, now) + takes
	p.queued += f.size
	p.area += (p.free - now) * int64(f.size)
	p.shared.used += f.size
	p.leave.at(p.sim, p.free, func() {
		p.queued -= f.size
		p.shared.used -= f.size
		p.Stats.Sent++
		p.Stats.Bytes += uint64(f.size + onWire)
		p.arrive.at(p.sim, p.sim.now+p.Delay, func() { p.to.receive(f) })
	})
}

// Switch forwards a frame to one of the ports that lead to its host. All frames of a flow use the same port.
type Switch struct {
	routes map[*Host][]*Port
	buffer *buffer
}

// newSwitch makes a switch with a buffer of some bytes, or with 0 of any number.
func newSwitch(bytes int) *Switch {
	return &Switch{routes: make(map[*Host][]*Port), buffer: newBuffer(bytes)}
}

func (w *Switch) receive(f *packet) {
	ports := w.routes[f.to]
	n := 0
	for _, p := range ports {
		if !p.down {
			n++
		}
	}
	if n == 0 {
		return
	}
	k := int(f.flow*2654435761>>16) % n
	for _, p := range ports {
		if p.down {
			continue
		}
		if k == 0 {
			p.send(f)
			return
		}
		k--
	}
}
