package kagenttest

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	"viaxdp/internal/agent/connmgr"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/wire"
)

var _ kagent.Agent = (*Agent)(nil)

// Agent is a kagent.Agent on a Fabric.
type Agent struct {
	connmgr.Client
	fabric  *Fabric
	numbers *kagent.Numbers
	end     *endpoint

	telling sync.Mutex        // held during the watcher's callback; before mu
	watcher func(kagent.Link) // or nil; guarded by telling

	mu     sync.Mutex
	link   kagent.Link
	table  map[uint32]entry
	closed bool
}

type entry struct {
	key  uint64
	peer netip.Addr
}

// Agent adds a host with an agent. Without addresses it gets 10.0.0.n and
// fd00::n, where n counts the agents from 1. An address that a closed agent
// had may be used again.
func (f *Fabric) Agent(name string, addrs ...netip.Addr) *Agent {
	f.mu.Lock()
	f.agents++
	n := f.agents
	f.mu.Unlock()
	if len(addrs) == 0 {
		addrs = []netip.Addr{
			netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}),
			netip.MustParseAddr(fmt.Sprintf("fd00::%x", n)),
		}
	}
	link := kagent.Link{Name: name, Index: n, MAC: mac(n), MTU: 1500, Up: true}
	for _, a := range addrs {
		if a.Is4() {
			link.IPv4 = append(link.IPv4, a)
		} else {
			link.IPv6 = append(link.IPv6, a)
		}
	}
	end := f.attach(n, wire.Port, addrs)
	return &Agent{
		Client: connmgr.NewManager(end, wire.Port).For(0), fabric: f, numbers: kagent.NewNumbers(0),
		end: end, link: link, table: make(map[uint32]entry),
	}
}

func mac(n int) [6]byte { return [6]byte{2, 0, 0, 0, byte(n >> 8), byte(n)} }

// Link describes the imagined interface.
func (a *Agent) Link() kagent.Link {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.link
}

// SetMTU changes the MTU.
func (a *Agent) SetMTU(mtu int) {
	a.Change(func(l *kagent.Link) { l.MTU = mtu })
}

// Change changes the result of Link, as if the interface had changed, and calls the watcher. The
// addresses at which hosts are reachable do not change.
func (a *Agent) Change(change func(l *kagent.Link)) {
	a.telling.Lock()
	defer a.telling.Unlock()
	a.mu.Lock()
	change(&a.link)
	l := a.link
	a.mu.Unlock()
	if a.watcher != nil {
		a.watcher(l)
	}
}

// Watch has f called at once and after each Change.
func (a *Agent) Watch(f func(kagent.Link)) {
	a.telling.Lock()
	defer a.telling.Unlock()
	if a.watcher = f; f != nil {
		f(a.Link())
	}
}

// Addr is the agent's first address.
func (a *Agent) Addr() netip.Addr { return a.end.addrs[0] }

// NewVI hands out a VI number.
func (a *Agent) NewVI() (uint32, error) {
	if a.isClosed() {
		return 0, kagent.ErrClosed
	}
	return a.numbers.New()
}

// FreeVI takes a VI number back, and its entry out of the table.
func (a *Agent) FreeVI(num uint32) {
	a.mu.Lock()
	delete(a.table, num)
	a.mu.Unlock()
	a.numbers.Free(num)
}

// Enter puts an entry into the VI table.
func (a *Agent) Enter(num uint32, key uint64, peer netip.Addr) error {
	if !a.numbers.Live(num) {
		return fmt.Errorf("kagenttest: VI %#x has not been handed out", num)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return kagent.ErrClosed
	}
	a.table[num] = entry{key, peer.Unmap().WithZone("")}
	return nil
}

// Remove takes an entry out of the VI table.
func (a *Agent) Remove(num uint32) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return kagent.ErrClosed
	}
	delete(a.table, num)
	return nil
}

// Admit decides as the demux program would: whether a frame for VI num that
// carries key and comes from src passes.
func (a *Agent) Admit(num uint32, key uint64, src netip.Addr) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	e, ok := a.table[num]
	return ok && e == entry{key, src.Unmap().WithZone("")}
}

// Discover lists the agents on the fabric.
func (a *Agent) Discover(ctx context.Context) ([]kagent.Neighbor, error) {
	return a.Manager.Discover(ctx, a.end.addrs)
}

// Path finds peer on the fabric.
func (a *Agent) Path(ctx context.Context, local, peer netip.Addr) (kagent.Path, error) {
	if a.isClosed() {
		return kagent.Path{}, kagent.ErrClosed
	}
	peer = peer.Unmap().WithZone("")
	a.fabric.mu.Lock()
	other := a.fabric.hosts[peer]
	a.fabric.mu.Unlock()
	if !local.IsValid() {
		local = a.end.source(peer)
	}
	if other == nil || !local.IsValid() {
		return kagent.Path{}, fmt.Errorf("%w: no host %v", kagent.ErrUnreachable, peer)
	}
	link := a.Link()
	return kagent.Path{
		Link: wire.Link{
			SrcMAC: link.MAC, DstMAC: mac(other.number), Src: local, Dst: peer, Port: wire.Port,
		},
		MTU: link.MTU, Loopback: other == a.end, Elsewhere: !link.Has(local),
	}, nil
}

func (a *Agent) isClosed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.closed
}

// Close empties the VI table and ends connection management.
func (a *Agent) Close() error {
	a.Watch(nil)
	a.mu.Lock()
	a.closed = true
	clear(a.table)
	a.mu.Unlock()
	return a.Manager.Close()
}
