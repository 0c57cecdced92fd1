package kagenttest

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"viaxdp/internal/agent/connmgr"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/wire"
)

// inbox is how many datagrams an endpoint holds before it loses one.
const inbox = 1024

// Faults are what a Fabric does to datagrams. The zero value delivers each
// at once.
type Faults struct {
	Loss   float64       // share of datagrams that are lost, 0 to 1
	Streak int           // losses in a row of one kind of message of one exchange, at most; 0: no bound
	Dup    float64       // share that arrives twice
	Delay  time.Duration // least delay
	Jitter time.Duration // a random part of it comes on top, and reorders
	Seed   uint64        // of the random choices
}

// Fabric is the network between agents.
type Fabric struct {
	mu     sync.Mutex
	faults Faults
	rng    *rand.Rand
	hosts  map[netip.Addr]*endpoint
	cut    map[netip.Addr]bool
	lost   map[message]int // since one arrived
	agents int
}

// message is what sender and receiver repeat until it has arrived.
type message struct {
	kind wire.CMType
	id   uint64
}

// NewFabric makes a network without hosts.
func NewFabric(f Faults) *Fabric {
	return &Fabric{
		faults: f, rng: rand.New(rand.NewPCG(f.Seed, 1)),
		hosts: make(map[netip.Addr]*endpoint), cut: make(map[netip.Addr]bool), lost: make(map[message]int),
	}
}

// SetFaults changes the faults; the seed has no effect any more.
func (f *Fabric) SetFaults(faults Faults) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = faults
}

// Cut takes the host off the net, both ways and without a sign, or puts it on
// again.
func (f *Fabric) Cut(host netip.Addr, off bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut[host] = off
}

// endpoint is the Transport of one agent.
type endpoint struct {
	fabric *Fabric
	number int
	addrs  []netip.Addr
	port   uint16
	in     chan packet
	ctx    context.Context // ends with it
	end    context.CancelFunc
}

type packet struct {
	b           []byte
	local, from netip.AddrPort
	err         error // not nil: from did not get b
}

func (f *Fabric) attach(number int, port uint16, addrs []netip.Addr) *endpoint {
	e := &endpoint{fabric: f, number: number, addrs: addrs, port: port, in: make(chan packet, inbox)}
	e.ctx, e.end = context.WithCancel(context.Background())
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range addrs {
		f.hosts[a] = e
	}
	return e
}

// Send gives the datagram to the fabric.
func (e *endpoint) Send(b []byte, from netip.Addr, to netip.AddrPort) error {
	if e.isClosed() {
		return kagent.ErrClosed
	}
	if !from.IsValid() {
		from = e.source(to.Addr())
	}
	f := e.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	peer := f.hosts[to.Addr()]
	if peer == nil {
		return fmt.Errorf("%w: no host %v", kagent.ErrUnreachable, to.Addr())
	}
	if !f.cut[from] && !f.cut[to.Addr()] {
		e.transmit(peer, packet{b: b, local: to, from: netip.AddrPortFrom(from, e.port)})
	}
	return nil
}

// Broadcast gives the datagram to the fabric for all hosts that have an
// address of that family, this one included.
func (e *endpoint) Broadcast(b []byte, from netip.Addr) error {
	if e.isClosed() {
		return kagent.ErrClosed
	}
	p := packet{
		b:     b,
		local: netip.AddrPortFrom(connmgr.Everyone(from.Is4()), e.port), from: netip.AddrPortFrom(from, e.port),
	}
	f := e.fabric
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cut[from] {
		return nil
	}
	hosts := make(map[*endpoint]bool)
	for addr, host := range f.hosts {
		if addr.Is4() == from.Is4() && !f.cut[addr] && !host.isClosed() {
			hosts[host] = true
		}
	}
	// In one order, so that a seed means the same faults each time.
	for _, host := range slices.SortedFunc(maps.Keys(hosts), func(a, b *endpoint) int { return a.number - b.number }) {
		e.transmit(host, p)
	}
	return nil
}

func (e *endpoint) isClosed() bool { return e.ctx.Err() != nil }

// transmit applies the configured faults to a copy of p, and delivers the result. Caller holds
// the fabric's mutex.
func (e *endpoint) transmit(peer *endpoint, p packet) {
	p.b = bytes.Clone(p.b)
	f := e.fabric
	if f.loses(p.b) {
		return
	}
	copies := 1
	if f.rng.Float64() < f.faults.Dup {
		copies = 2
	}
	for range copies {
		delay := f.faults.Delay
		if f.faults.Jitter > 0 {
			delay += time.Duration(f.rng.Int64N(int64(f.faults.Jitter)))
		}
		if delay <= 0 {
			e.deliver(peer, p)
		} else {
			time.AfterFunc(delay, func() { e.deliver(peer, p) })
		}
	}
}

// loses decides whether a datagram is lost. Caller holds f.mu.
func (f *Fabric) loses(b []byte) bool {
	lost := f.rng.Float64() < f.faults.Loss
	_, kind, id, ok := wire.PeekCM(b)
	if f.faults.Streak == 0 || !ok {
		return lost
	}
	m := message{kind, id}
	if !lost || f.lost[m] >= f.faults.Streak {
		delete(f.lost, m)
		return false
	}
	f.lost[m]++
	return true
}

// deliver puts p into peer's inbox, or the news of it into e's when the agent
// there is closed.
func (e *endpoint) deliver(peer *endpoint, p packet) {
	if peer.isClosed() {
		p.from, p.local, p.err = p.local, p.from, kagent.ErrNoMatch
		peer = e
	}
	select {
	case peer.in <- p:
	default:
	}
}

// source is the address of e that is of the same family as to.
func (e *endpoint) source(to netip.Addr) netip.Addr {
	for _, a := range e.addrs {
		if a.Is4() == to.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

// Serve hands what arrives to h.
func (e *endpoint) Serve(h connmgr.Handler) error {
	for {
		select {
		case <-e.ctx.Done():
			return nil
		case p := <-e.in:
			if p.err != nil {
				h.Undelivered(p.b, p.from, p.err)
			} else {
				h.Receive(p.b, p.local.Addr(), p.from)
			}
		}
	}
}

// Close ends Serve. The addresses stay known as those of a host without agent.
func (e *endpoint) Close() error {
	e.end()
	return nil
}
