package agentclient

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"viaxdp/bpf"
	"viaxdp/hugepages"
	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/fds"
	"viaxdp/xdpnic"
)

var (
	_ kagent.Agent     = (*Agent)(nil)
	_ kagent.ShmLinker = (*Agent)(nil)
)

// Agent is the Kernel Agent in a daemon, for one NIC handle.
type Agent struct {
	share *share
	ctx   context.Context // ended by end, in Close
	end   context.CancelFunc

	mu        sync.Mutex
	closed    bool
	vis       map[uint32]bool
	listeners []*listener
}

func (a *Agent) isClosed() bool { return a.ctx.Err() != nil }

func (a *Agent) fail(op string, peer netip.Addr, err error) error {
	if a.isClosed() && op != "close" {
		err = fmt.Errorf("%w (%w)", kagent.ErrClosed, err)
	}
	return &kagent.OpError{Op: op, Link: a.share.info.Interface, Peer: peer, Err: err}
}

// ask is a call with a short time limit.
func (a *Agent) ask(q agentproto.Request) (agentproto.Reply, error) {
	ctx, cancel := bounded()
	defer cancel()
	return a.within(ctx, q)
}

// within is a call that ends with ctx, and with Close.
func (a *Agent) within(ctx context.Context, q agentproto.Request) (agentproto.Reply, error) {
	return a.do(ctx, &call{request: q, again: true})
}

// do is within for all kinds of calls.
func (a *Agent) do(ctx context.Context, c *call) (agentproto.Reply, error) {
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(a.ctx, func() { cancel(kagent.ErrClosed) })()
	reply, err := a.share.session.do(inner, c)
	// Both sides check the deadline; this one may have cancelled first.
	late := errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, context.Canceled) && errors.Is(ctx.Err(), context.DeadlineExceeded)
	if late && !errors.Is(err, kagent.ErrTimeout) {
		err = fmt.Errorf("%w: %w", kagent.ErrTimeout, err)
	}
	return reply, err
}

// Queue returns the queue. It has one owner, as package xdpnic requires. All handles that share
// the queue return the same one.
func (a *Agent) Queue() *xdpnic.Queue { return a.share.queue }

// Arena is the registered memory; the queue's chunks lie at its start. All blocks
// must be free before Close.
func (a *Agent) Arena() *hugepages.Arena { return a.share.arena }

// UMEM is the memory of the frames. It holds the arena, unless this process has joined others on a queue.
func (a *Agent) UMEM() []byte { return a.share.umem.Bytes() }

// Info returns what Open got. The caller must not change the slices.
func (a *Agent) Info() kagent.Info { return a.share.info }

// Counters returns the demux program's counters, for all programs of the interface.
func (a *Agent) Counters() (c bpf.Counters, err error) {
	reply, err := a.ask(agentproto.Request{Op: agentproto.OpCounters})
	switch {
	case err != nil:
		return c, a.fail("counters", netip.Addr{}, err)
	case reply.Counters == nil:
		return c, a.fail("counters", netip.Addr{}, errShort)
	}
	return *reply.Counters, nil
}

var errShort = fmt.Errorf("%w: the answer lacks something", agentproto.ErrProtocol)

// Link describes the current state of the interface. Without a daemon it has only the name and the index.
func (a *Agent) Link() kagent.Link {
	link := kagent.Link{Name: a.share.info.Interface, Index: a.share.info.Index}
	if !a.isClosed() {
		if reply, err := a.ask(agentproto.Request{Op: agentproto.OpLink}); err == nil && reply.Link != nil {
			link = *reply.Link
		}
	}
	link.Queue = a.share.info.Queue
	return link
}

// NewVI hands out a VI number; see kagent.Agent.
func (a *Agent) NewVI() (uint32, error) {
	reply, err := a.ask(agentproto.Request{Op: agentproto.OpNewVI})
	if err != nil {
		return 0, a.fail("new VI", netip.Addr{}, err)
	}
	a.mu.Lock()
	closed := a.closed
	if !closed {
		a.vis[reply.VI] = true
	}
	a.mu.Unlock()
	if closed { // meanwhile: others may go on with the session
		a.share.session.tell(agentproto.Request{Op: agentproto.OpFreeVI, VI: reply.VI})
		return 0, kagent.ErrClosed
	}
	return reply.VI, nil
}

// FreeVI takes a VI number back; see kagent.Agent.
func (a *Agent) FreeVI(num uint32) {
	if a.forget(num) {
		ctx, cancel := context.WithTimeout(context.Background(), closeTime)
		defer cancel()
		// If this fails, the number stays taken until the session ends.
		_ = a.share.session.release(ctx, &call{request: agentproto.Request{Op: agentproto.OpFreeVI, VI: num}, again: true})
	}
}

func (a *Agent) forget(num uint32) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	had := a.vis[num]
	delete(a.vis, num)
	return had && !a.closed
}

func (a *Agent) has(num uint32) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.vis[num]
}

// Enter puts a VI in the VI table; see kagent.Agent.
func (a *Agent) Enter(num uint32, key uint64, peer netip.Addr) error {
	if a.isClosed() {
		return kagent.ErrClosed
	}
	if !a.has(num) {
		return a.fail("enter VI", peer, fmt.Errorf("VI %#x is not of this NIC", num))
	}
	if _, err := a.ask(agentproto.Request{Op: agentproto.OpEnter, VI: num, Key: key, Peer: peer}); err != nil {
		return a.fail("enter VI", peer, err)
	}
	return nil
}

// Remove takes a VI out of the VI table; see kagent.Agent. It waits for a daemon that does not answer for closeTime; the
// daemon gets the request when it continues, before any later Enter.
func (a *Agent) Remove(num uint32) error {
	if a.isClosed() {
		return kagent.ErrClosed
	}
	if !a.has(num) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	if err := a.share.session.release(ctx, &call{request: agentproto.Request{Op: agentproto.OpRemove, VI: num}, again: true}); err != nil {
		return a.fail("remove VI", netip.Addr{}, err)
	}
	return nil
}

// Listen takes requests to a discriminator; see kagent.Agent.
func (a *Agent) Listen(local kagent.Address) (kagent.Listener, error) {
	ctx, cancel := bounded()
	defer cancel()
	l := &listener{a: a, local: local}
	c := &call{request: agentproto.Request{Op: agentproto.OpListen, Local: &local}, opens: l, again: true}
	if _, err := a.do(ctx, c); err != nil {
		return nil, a.fail("listen", netip.Addr{}, err)
	}
	a.mu.Lock()
	closed := a.closed
	if !closed {
		if len(a.listeners) == cap(a.listeners) {
			a.listeners = slices.DeleteFunc(a.listeners, (*listener).isClosed)
		}
		a.listeners = append(a.listeners, l)
	}
	a.mu.Unlock()
	if closed { // meanwhile: others may go on with the session
		_ = l.Close()
		return nil, a.fail("listen", netip.Addr{}, kagent.ErrClosed)
	}
	return l, nil
}

// Wait waits for a request; see kagent.Agent.
func (a *Agent) Wait(ctx context.Context, local kagent.Address) (kagent.Incoming, error) {
	return a.wait(ctx, &call{request: agentproto.Request{Op: agentproto.OpWait, Local: &local}, again: true})
}

func (a *Agent) wait(ctx context.Context, c *call) (kagent.Incoming, error) {
	_, err := a.do(ctx, c)
	if err == nil && c.arrived == nil {
		err = errShort
	}
	if err != nil {
		return nil, a.fail("wait", netip.Addr{}, err)
	}
	return c.arrived, nil // it may have ended since
}

// answerOf makes the Answer of a call's reply.
func (a *Agent) answerOf(m *agentproto.Exchange, c *call) *kagent.Answer {
	return &kagent.Answer{
		Local: m.Local, Remote: m.Remote, Offer: m.Offer,
		Confirmation: &answer{s: a.share.session, agent: c.by, handle: m.Handle},
	}
}

// Request asks for a connection; see kagent.Agent.
func (a *Agent) Request(ctx context.Context, local, remote kagent.Address, o kagent.Offer) (*kagent.Answer, error) {
	c := &call{request: agentproto.Request{Op: agentproto.OpRequest, Local: &local, Remote: &remote, Offer: &o}, again: true}
	reply, err := a.do(ctx, c)
	if err == nil && reply.Answer == nil {
		err = errShort
	}
	if err != nil {
		return nil, a.fail("request", remote.Host, err)
	}
	return a.answerOf(reply.Answer, c), nil
}

// RequestPeer connects with a peer that calls RequestPeer for this side; see kagent.Agent.
func (a *Agent) RequestPeer(ctx context.Context, local, remote kagent.Address, o kagent.Offer) (*kagent.Answer, kagent.Incoming, error) {
	c := &call{request: agentproto.Request{Op: agentproto.OpRequestPeer, Local: &local, Remote: &remote, Offer: &o}, again: true}
	reply, err := a.do(ctx, c)
	switch {
	case err != nil:
	case reply.Answer != nil:
		return a.answerOf(reply.Answer, c), nil, nil
	case c.arrived != nil:
		return nil, c.arrived, nil
	default:
		err = errShort
	}
	return nil, nil, a.fail("request peer", remote.Host, err)
}

// ShmLink joins this queue with that of VI peer; see kagent.ShmLinker.
func (a *Agent) ShmLink(peer uint32) (*kagent.ShmLinkEnd, error) {
	ctx, cancel := bounded()
	defer cancel()
	c := &call{request: agentproto.Request{Op: agentproto.OpShmLink, VI: peer}, again: true, takes: true}
	reply, err := a.share.session.do(ctx, c)
	if err == nil && (reply.ShmLink == nil || len(c.files) != 3) {
		err = errShort
	}
	if err != nil {
		fds.CloseFiles(c.files...)
		return nil, a.fail("shared-memory link", netip.Addr{}, err)
	}
	return &kagent.ShmLinkEnd{
		ID: reply.ShmLink.ID, Side: reply.ShmLink.Side, Memory: c.files[0], Wake: c.files[1], Bell: c.files[2],
	}, nil
}

// Discover lists the agents on the link; see kagent.Agent.
func (a *Agent) Discover(ctx context.Context) ([]kagent.Neighbor, error) {
	reply, err := a.within(ctx, agentproto.Request{Op: agentproto.OpDiscover})
	if err != nil {
		return nil, a.fail("discover", netip.Addr{}, err)
	}
	return reply.Neighbors, nil
}

// Path finds the path to a peer; see kagent.Agent.
func (a *Agent) Path(ctx context.Context, local, peer netip.Addr) (kagent.Path, error) {
	reply, err := a.within(ctx, agentproto.Request{Op: agentproto.OpPath, Local: &kagent.Address{Host: local}, Peer: peer})
	if err == nil && reply.Path == nil {
		err = errShort
	}
	if err != nil {
		return kagent.Path{}, a.fail("path", peer, err)
	}
	return *reply.Path, nil
}

// Close gives back the handle's VIs and, with the last handle, queue and memory. The program must have
// stopped using them. It fails if blocks of the arena are still allocated; the arena then stays mapped, and
// everything else is closed. A second Close does nothing.
func (a *Agent) Close() error {
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return nil
	}
	a.closed = true
	vis, listeners := a.vis, a.listeners
	a.vis, a.listeners = nil, nil
	a.mu.Unlock()
	a.Watch(nil)
	err := a.share.leave(func() { // other handles continue
		ctx, cancel := context.WithTimeout(context.Background(), closeTime)
		defer cancel()
		for _, l := range listeners {
			_ = l.close(ctx)
		}
		for num := range vis {
			_ = a.share.session.release(ctx, &call{request: agentproto.Request{Op: agentproto.OpFreeVI, VI: num}, again: true})
		}
	})
	a.end()
	if err != nil {
		return a.fail("close", netip.Addr{}, err)
	}
	return nil
}

// closeTime is how long Close, Remove and FreeVI wait for the daemon to clean up.
const closeTime = 5 * time.Second

// watchers are the handles of a session that watch the interface. While the agent is away,
// changes go unnoticed; the next agent first reports the current state.
type watchers struct {
	mu   sync.Mutex // held during the callbacks; never held while waiting for the agent
	told map[*Agent]func(kagent.Link)
	last *kagent.Link // nil: no report from the agent yet
}

// changed takes the agent's report. The reader must not run the callbacks: a callback may wait
// for a goroutine that waits for a reply.
func (s *session) changed(l kagent.Link) {
	select {
	case <-s.links:
	default:
	}
	s.links <- l // never blocks: only this goroutine sends
}

// tellLinks passes reports on to the watchers, and asks for the next change, until the session
// is over.
func (s *session) tellLinks() {
	for {
		select {
		case l := <-s.links:
			s.watchers.tell(l)
			s.tell(agentproto.Request{Op: agentproto.OpWatch})
		case <-s.ctx.Done():
			return
		}
	}
}

func (w *watchers) tell(l kagent.Link) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = &l
	for _, f := range w.told {
		f(l)
	}
}

// watch asks the agent for changes once; resume asks the next agent.
func (s *session) watch() {
	s.mu.Lock()
	first := !s.watches
	s.watches = true
	s.mu.Unlock()
	if first {
		s.tell(agentproto.Request{Op: agentproto.OpWatch})
	}
}

// Watch registers a callback for changes of the interface; see kagent.Agent.
func (a *Agent) Watch(f func(kagent.Link)) {
	if a.isClosed() {
		return
	}
	s := a.share.session
	w := &s.watchers
	w.mu.Lock()
	if f == nil {
		delete(w.told, a)
		w.mu.Unlock()
		return
	}
	if w.told == nil {
		w.told = make(map[*Agent]func(kagent.Link))
	}
	w.told[a] = f
	if w.last != nil {
		f(*w.last)
	}
	w.mu.Unlock()
	s.watch()
}
