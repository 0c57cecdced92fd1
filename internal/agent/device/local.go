package device

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"viaxdp/bpf"
	"viaxdp/hugepages"
	"viaxdp/internal/agent/connmgr"
	"viaxdp/internal/agent/fdstore"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/route"
	"viaxdp/internal/base/wire"
	"viaxdp/xdpnic"
)

var (
	_ kagent.Agent     = (*Local)(nil)
	_ kagent.ShmLinker = (*Local)(nil)
)

// Local is the Kernel Agent in the program's own process.
type Local struct {
	dev     *device
	lease   *lease
	router  *route.Router
	manager connmgr.Client // of the holder's user
	numbers *kagent.Numbers
	demux   *bpf.Demux
	watch   *route.Watch
	open    context.Context // ended by end, in Close
	end     context.CancelFunc

	mu         sync.Mutex
	closed     bool
	vis        map[uint32]netip.Addr // VI numbers handed out, and their peers when they are in the table
	peerResets map[uint32]PeerReset  // of VIs whose peers ResetPeers can notify
	listeners  []*localListener
	keptDiscs  map[string]string // discriminators of the previous agent, by descriptor store key; see EndKept
}

// Config is a program's configuration, with additions of the agent that opens the queue for it.
type Config struct {
	kagent.Config

	// Shared puts the memory in a file that another process can map, so that
	// the queue can be handed out.
	Shared bool
	// Holder is the future holder of a queue that is to be handed out. Errors of other programs
	// name it from the beginning. Zero: this process.
	Holder kagent.Holder
	// FDStore, unless nil, keeps the agent's state in case the process is killed; see Restore.
	// The first open of an interface sets it.
	FDStore fdstore.Store

	// Processes is how many processes of the holder's user the queues of the interface have room for, if the queue is to
	// be handed out: several share a queue while there are fewer queues. At most 1: each process has a queue of its
	// own. Zero-copy queues are not shared.
	Processes int
	// Alone: the holder does not join other processes.
	Alone bool
	// OneQueue: the holder has no queue beside its own, whatever Steer is.
	OneQueue bool
	// OnlyJoin, unless nil, is why the holder may not have a queue of its own: it joins others, or Open fails with this.
	OnlyJoin error

	// Linger is how long the program stays attached after the last queue has been given back, or could not be
	// opened. Meanwhile an Open with a Linger gets the mode in which it is attached. So a holder cannot have
	// it attached and detached in a loop, for which some drivers take the link down each time. An Open
	// without a Linger first takes down what lingers. The longest Linger of a device counts.
	Linger time.Duration
	// NoZeroCopy, unless nil, is the reason why the holder may not have a zero-copy queue: that step is
	// skipped.
	NoZeroCopy error
}

// Open opens an interface of the calling thread's network namespace. A program that changes
// namespaces calls it on a locked thread; the agent then works from any thread. Several opens of
// one interface in one process share the program, the VI table and the control port. Each has a
// queue of its own, or shares one with Config.ShareQueue.
//
// Errors are of type *OpError. Unavailable reports whether an error means that the program cannot
// run on this machine.
func Open(cfg kagent.Config) (*Local, error) {
	return OpenContext(context.Background(), Config{Config: cfg})
}

// OpenContext is Open for an agent that may hand the queue out. If ctx ends while the queue is busy, or the
// link is not back, it fails with ctx's cause.
func OpenContext(ctx context.Context, cfg Config) (_ *Local, err error) {
	cfg.Config, err = cfg.Config.WithDefaults()
	if err != nil {
		return nil, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	d, err := acquire(cfg)
	if err != nil {
		return nil, err
	}
	l, err := d.leaseOrShare(ctx, cfg)
	if err != nil {
		return nil, errors.Join(&kagent.OpError{Op: "open", Link: cfg.Interface, Err: err}, d.release())
	}
	local := newLocal(d, l)
	d.mu.Unlock()
	return local, nil
}

// newLocal makes a handle on a lease. Caller holds d.mu and has a reference to
// both.
func newLocal(d *device, l *lease) *Local {
	open, end := context.WithCancel(context.Background())
	return &Local{
		dev: d, lease: l, router: d.router, manager: d.manager.For(l.holder.UID), numbers: d.numbers,
		demux: d.demux, watch: d.watch,
		open: open, end: end, vis: make(map[uint32]netip.Addr),
		peerResets: make(map[uint32]PeerReset), keptDiscs: make(map[string]string),
	}
}

// leaseOrJoin leases a queue, or joins the processes of one. While another open of the user is under way, which may end with
// a queue to join, it waits.
func (d *device) leaseOrJoin(ctx context.Context, cfg Config) (*lease, error) {
	ctx, cancel := context.WithTimeout(ctx, 4*busyTime)
	defer cancel()
	if joined := d.joinSteered(ctx, cfg); joined != nil {
		return joined, nil
	}
	for {
		l, err := (*lease)(nil), cfg.OnlyJoin
		if err == nil {
			l, err = d.lease(ctx, cfg)
		}
		if cfg.Processes <= 1 || cfg.Alone || cfg.OnlyJoin == nil && !errors.Is(err, kagent.ErrQueueInUse) {
			return l, err
		}
		joined, why := d.join(cfg)
		switch {
		case why == nil:
			return joined, nil
		case !errors.Is(why, errNoGroup):
			return nil, why
		case !d.mayJoinLater(cfg) || !d.awaitChange(ctx):
			return nil, fmt.Errorf("%w; %w", err, why)
		}
	}
}

// leaseOrShare leases a queue, or shares one.
func (d *device) leaseOrShare(ctx context.Context, cfg Config) (*lease, error) {
	l, err := d.leaseOrJoin(ctx, cfg)
	if err == nil || !cfg.ShareQueue || !errors.Is(err, kagent.ErrQueueInUse) {
		return l, err
	}
	for _, l := range d.sortedLeases() {
		if cfg.Queue == kagent.AnyQueue || slices.Contains(l.queues(), cfg.Queue) {
			l.refs++
			return l, nil
		}
	}
	return nil, err
}

// Queue returns the leased queue. It has one owner, as package xdpnic requires. All Locals that
// share a queue return the same one. nil: the queue was handed out.
func (l *Local) Queue() *xdpnic.Queue { return l.lease.queue }

// Arena is the registered memory; the queue's chunks lie at its start. All
// blocks must be free before Close. nil when it was handed out.
func (l *Local) Arena() *hugepages.Arena { return l.lease.arena }

// UMEM is the memory of the frames. It holds the arena.
func (l *Local) UMEM() []byte { return l.lease.arena.Bytes() }

// Info returns what Open got. The caller must not change the slices.
func (l *Local) Info() kagent.Info { return l.lease.info }

// Inputs returns the number of queues that receive: more than Info's Queues if some only receive.
func (l *Local) Inputs() int {
	l.dev.mu.Lock()
	defer l.dev.mu.Unlock()
	return l.dev.inputs
}

// Counters returns the demux program's counters, for all Locals of the interface.
func (l *Local) Counters() (bpf.Counters, error) { return l.demux.Counters() }

// EachCounter calls f for each counter, with its name in docs/counters.md.
func (l *Local) EachCounter(f func(name string, v uint64)) error {
	c, err := l.demux.Counters()
	if err == nil {
		c.Each(f)
	}
	return err
}

func (l *Local) fail(op string, peer netip.Addr, err error) error {
	if l.isClosed() && op != "close" {
		err = fmt.Errorf("%w (%w)", kagent.ErrClosed, err) // whatever it was
	}
	return &kagent.OpError{Op: op, Link: l.lease.info.Interface, Peer: peer, Err: err}
}

func (l *Local) isClosed() bool { return l.open.Err() != nil }

// Link describes the current state of the interface. After its removal only the name is left.
func (l *Local) Link() kagent.Link {
	link := kagent.Link{Name: l.lease.info.Interface, Index: l.lease.info.Index}
	if !l.isClosed() {
		now, err := l.router.Link()
		if link.Gone = route.IsGone(err); err == nil {
			link = now
		}
	}
	link.Queue = l.lease.queueID
	return link
}

// NewVI hands out a VI number; see [kagent.Agent].
func (l *Local) NewVI() (uint32, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return 0, kagent.ErrClosed
	}
	num, err := l.numbers.New()
	if err != nil {
		return 0, l.fail("new VI", netip.Addr{}, fmt.Errorf("%w (%d)", err, l.lease.info.MaxVIs-1))
	}
	l.note(num, netip.Addr{})
	return num, nil
}

// FreeVI takes a VI number back; see [kagent.Agent].
func (l *Local) FreeVI(num uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	peer, ok := l.vis[num]
	if !ok || l.closed {
		return
	}
	if peer.IsValid() && l.demux.RemoveVI(num) != nil {
		return // the number stays taken, so that no other VI gets an index that is still in use
	}
	l.forget(num)
}

// note records the use of a VI number, also in the descriptor store. Caller holds l.mu.
func (l *Local) note(num uint32, peer netip.Addr) {
	l.vis[num] = peer
	l.lease.vis.set(num, peer)
	var peerReset *PeerReset
	if g, ok := l.peerResets[num]; ok {
		peerReset = &g
	}
	// An error does not affect the program: the VI works, and a later agent treats it as not handed out.
	_ = l.dev.fdStore.put(viKey(l.dev.place, num), viRecord{l.lease.id(), peer, peerReset})
}

// forget removes a VI number and its record. Caller holds l.mu.
func (l *Local) forget(num uint32) {
	delete(l.vis, num)
	delete(l.peerResets, num)
	l.lease.vis.remove(num)
	_ = l.dev.fdStore.Delete(viKey(l.dev.place, num))
	l.numbers.Free(num)
}

// Enter puts a VI in the VI table; see [kagent.Agent].
func (l *Local) Enter(num uint32, key uint64, peer netip.Addr) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return kagent.ErrClosed
	}
	if _, ok := l.vis[num]; !ok {
		return l.fail("enter VI", peer, fmt.Errorf("VI %#x is not of this NIC", num))
	}
	e := l.lease.entry(key)
	e.Peer = kagent.Plain(peer)
	if err := l.demux.EnterVI(num, e); err != nil {
		return l.fail("enter VI", peer, err)
	}
	l.note(num, e.Peer)
	return nil
}

// Remove takes a VI out of the VI table; see [kagent.Agent].
func (l *Local) Remove(num uint32) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return kagent.ErrClosed
	}
	delete(l.peerResets, num)
	if !l.vis[num].IsValid() {
		return nil
	}
	if err := l.demux.RemoveVI(num); err != nil {
		return l.fail("remove VI", netip.Addr{}, err)
	}
	l.note(num, netip.Addr{})
	return nil
}

// Listen takes requests to a discriminator; see [kagent.Agent].
func (l *Local) Listen(local kagent.Address) (kagent.Listener, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, kagent.ErrClosed
	}
	door, err := l.manager.Listen(local)
	if err != nil {
		return nil, l.fail("listen", netip.Addr{}, err)
	}
	ln := &localListener{Listener: door, unkeep: l.lease.keepListener(local.Disc)}
	if len(l.listeners) == cap(l.listeners) {
		l.listeners = slices.DeleteFunc(l.listeners, func(ln *localListener) bool { return ln.closed.Load() })
	}
	l.listeners = append(l.listeners, ln)
	return ln, nil
}

// localListener is a Listener that the descriptor store keeps.
type localListener struct {
	kagent.Listener
	unkeep func()
	closed atomic.Bool
}

// Close is [kagent.Listener]'s.
func (ln *localListener) Close() error {
	ln.unkeep()
	ln.closed.Store(true)
	return ln.Listener.Close()
}

// until returns a context that also ends with Close, with ErrClosed as its cause.
func (l *Local) until(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.open, func() { cancel(kagent.ErrClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// Wait waits for a request; see [kagent.Agent].
func (l *Local) Wait(ctx context.Context, local kagent.Address) (kagent.Incoming, error) {
	ctx, stop := l.until(ctx)
	defer stop()
	in, err := l.manager.Wait(ctx, local)
	if err != nil {
		return nil, l.fail("wait", netip.Addr{}, err)
	}
	return in, nil
}

// Request asks for a connection; see [kagent.Agent].
func (l *Local) Request(ctx context.Context, local, remote kagent.Address, o kagent.Offer) (*kagent.Answer, error) {
	ctx, stop := l.until(ctx)
	defer stop()
	err := l.findSource(ctx, &local, remote)
	if err == nil {
		var a *kagent.Answer
		if a, err = l.manager.Request(ctx, local, remote, o); err == nil {
			return a, nil
		}
	}
	return nil, l.fail("request", remote.Host, err)
}

// findSource enters the source address of a request. Only the neighbour entry shows that a host is absent: the
// errors of a socket that is bound to a device do not.
func (l *Local) findSource(ctx context.Context, local *kagent.Address, remote kagent.Address) error {
	p, err := l.router.Path(ctx, local.Host, remote.Host)
	local.Host = p.Src
	return err
}

// RequestPeer connects with a peer that calls RequestPeer for this side; see [kagent.Agent].
func (l *Local) RequestPeer(ctx context.Context, local, remote kagent.Address, o kagent.Offer) (*kagent.Answer, kagent.Incoming, error) {
	ctx, stop := l.until(ctx)
	defer stop()
	err := l.findSource(ctx, &local, remote)
	if err == nil {
		var a *kagent.Answer
		var in kagent.Incoming
		if a, in, err = l.manager.RequestPeer(ctx, local, remote, o); err == nil {
			return a, in, nil
		}
	}
	return nil, nil, l.fail("request peer", remote.Host, err)
}

// Discover lists the agents on the link; see [kagent.Agent].
func (l *Local) Discover(ctx context.Context) ([]kagent.Neighbor, error) {
	ctx, stop := l.until(ctx)
	defer stop()
	link, err := l.router.Link()
	if err == nil {
		var list []kagent.Neighbor
		list, err = l.manager.Discover(ctx, slices.Concat(link.IPv4, link.IPv6))
		if err == nil && !l.isClosed() {
			return list, nil
		}
	}
	return nil, l.fail("discover", netip.Addr{}, err)
}

// Path finds the path to a peer; see [kagent.Agent].
func (l *Local) Path(ctx context.Context, local, peer netip.Addr) (kagent.Path, error) {
	ctx, stop := l.until(ctx)
	defer stop()
	p, err := l.router.Path(ctx, local, peer)
	if err != nil {
		return kagent.Path{}, l.fail("path", peer, err)
	}
	return p, nil
}

// Watch registers a callback for changes of the interface; see [kagent.Agent].
func (l *Local) Watch(f func(kagent.Link)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	if f == nil {
		l.watch.Add(l, nil)
		return
	}
	l.watch.Add(l, func(link kagent.Link) {
		link.Queue = l.lease.queueID
		f(link)
	})
}

// Close takes the agent's VIs out of the VI table and gives the queue back:
// map entries, link, sockets, memory. The program must have stopped using
// Queue and Arena. It fails when blocks of the arena are still in use; the arena
// then stays mapped, and all else is closed. A second Close does nothing.
func (l *Local) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	l.end()
	var errs []error
	for num, peer := range l.vis {
		if peer.IsValid() {
			errs = append(errs, l.demux.RemoveVI(num))
		}
		l.forget(num)
	}
	for _, ln := range l.listeners {
		errs = append(errs, ln.Close())
	}
	l.endKept()
	l.watch.Add(l, nil)
	l.watch.OnGone(l, nil)
	l.mu.Unlock()
	l.dev.mu.Lock()
	errs = append(errs, l.lease.release(), l.dev.release())
	if err := errors.Join(errs...); err != nil {
		return l.fail("close", netip.Addr{}, err)
	}
	return nil
}

// VIs returns the number of the handle's VI numbers.
func (l *Local) VIs() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.vis)
}

// HasVI reports whether a VI number belongs to the handle.
func (l *Local) HasVI(num uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.vis[num]
	return ok
}

// PeerReset describes the connection of a program that has died: the data with which the peer
// accepts a reset.
type PeerReset struct {
	From, To netip.Addr // this side, the peer
	VI       uint32     // the peer's
	Key      uint64     // of frames to the peer
	Seq      uint32     // the peer's first sequence number
	Offset   uint8      `json:",omitempty"` // the peer's PortOffset
}

// Connected records a connection that ResetPeers resets if the program dies, until the VI leaves
// the VI table. The record is also in the descriptor store, for a later agent.
func (l *Local) Connected(num uint32, g PeerReset) {
	l.mu.Lock()
	defer l.mu.Unlock()
	peer, ok := l.vis[num]
	if l.closed || !ok {
		return
	}
	l.peerResets[num] = g
	l.note(num, peer)
}

// ResetPeers resets all connections recorded by Connected at their peers, after the program has
// died.
func (l *Local) ResetPeers() {
	l.mu.Lock()
	peerResets := slices.Collect(maps.Values(l.peerResets))
	clear(l.peerResets)
	l.mu.Unlock()
	for _, g := range peerResets {
		l.dev.reset(g)
	}
}

// reset resets a connection of a dead program at its peer. The frame goes through the kernel, from the
// control socket, since the queue is gone. If it is lost, or the peer's NIC puts it on another queue than
// the connection's, the peer detects the death by its silence time. So does the peer of a
// connection with a key: the agent cannot seal the frame, and the peer drops it.
func (d *device) reset(g PeerReset) {
	h := wire.Header{
		Kind: wire.KindError, VI: g.VI, Key: g.Key, Ack: g.Seq, Immediate: uint32(wire.ReasonClosed),
	}
	b := make([]byte, wire.HeaderLen)
	h.Put(b)
	wire.PutChecksum(b)
	d.mu.Lock()
	udp, router := d.udp, d.router
	d.mu.Unlock()
	if udp != nil && !router.Own(g.To) {
		_ = udp.Send(b, g.From, netip.AddrPortFrom(g.To, d.key.port+uint16(g.Offset)))
	}
}
