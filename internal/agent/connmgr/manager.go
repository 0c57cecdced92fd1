package connmgr

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/ration"
	"viaxdp/internal/base/wire"
)

// Times of connection management. They are a matter of both sides, and so no
// options.
const (
	firstRetry   = 5 * time.Millisecond   // first resend of Request and Accept; then doubled
	lastRetry    = 200 * time.Millisecond // longest time between two resends
	linger       = 2 * time.Second        // how long a finished exchange is remembered after its last message
	reprobeAfter = 250 * time.Millisecond // a peer that has said nothing for so long may not be where the kernel thinks
	probeEvery   = time.Second            // and again, as long as it says nothing
	silence      = 3 * time.Second        // a peer that says nothing for so long is gone
	unanswered   = 8                      // and was looked for so often: this side may not have run all that time
	unclaimed    = 10 * time.Second       // an Answer that is neither confirmed nor declined is declined
	sweepEvery   = 50 * time.Millisecond  // how often what has expired is looked for, while there is something
	graceTime    = 100 * time.Millisecond // how long a discriminator stays open after a Wait
)

// Bounds of what the network can make a Manager remember.
const (
	maxBacklog  = 64   // requests that wait at one discriminator
	maxPending  = 1024 // requests that are not answered, in all; see makeRoom
	maxFinished = 4096 // finished exchanges that are remembered: connected, not connected, and of the programs here
)

// Manager is connection management and discovery of one interface.
type Manager struct {
	transport Transport
	port      uint16
	serving   chan struct{} // closed when Serve has returned
	serveErr  error         // valid after serving is closed
	done      chan struct{} // closed by Close
	// Reprobe, unless nil, is told of a peer that says nothing to a user's request; set
	// before anybody asks. It waits until ctx ends at most.
	Reprobe func(ctx context.Context, user uint32, local, peer netip.Addr)

	mu         sync.Mutex
	closed     bool
	cause      error // what those hear who call when it is closed; valid from then on
	counters   kagent.Counters
	doors      map[doorKey]*door
	discs      map[string][]*door  // of each discriminator, whatever the host
	kept       map[string]keptDisc // discriminators of programs that have not come back yet
	requests   map[uint64]*request
	peers      map[ends][]*request // lines of peer requests, in the order of the calls
	incoming   map[exchange]*incoming
	hellos     map[uint64]map[netip.Addr]int // calls of Discover: who is there, how many hops off
	answers    ration.Ration                 // of answers to the hellos of others
	pending    pending                       // entries of incoming that are not answered
	unproven   map[*incoming]struct{}        // entries of incoming whose requester has not proven its address
	cookies    cookies
	cookieMode cookieMode
	// Each list has its own bound. Floods of one kind must not evict another kind: an
	// established exchange that is forgotten would let a late copy of its Request in.
	unprovenEnded finished[*incoming] // unproven
	answered      finished[*incoming] // proven, and not connected
	connected     finished[*incoming]
	asked         finished[*request]
	refused       finished[*refusedRequest]
	refusedBy     map[exchange]*refusedRequest // what refused has
	sweeping      bool
	sweeper       *time.Timer
}

// exchange names an exchange on the acceptor's side: connection ids are the
// requester's, so its address belongs to them.
type exchange struct {
	id   uint64
	peer netip.AddrPort
}

// refusedRequest is a Request that did not come in. Late copies of it must not, either, and
// get the same answer.
type refusedRequest struct {
	key   exchange
	reply datagram
	heard time.Time
}

// finished is exchanges that are over, oldest first: what may be forgotten. Guarded by
// Manager.mu.
type finished[T any] struct {
	list   []T
	heard  func(T) time.Time
	forget func(T)
}

// add forgets the oldest when there are too many.
func (f *finished[T]) add(x T) {
	f.list = append(f.list, x)
	if len(f.list) > maxFinished {
		f.forget(f.list[0])
		f.list = f.list[1:]
	}
}

// expire forgets those that have been remembered for long enough.
func (f *finished[T]) expire(now time.Time) {
	f.list = slices.DeleteFunc(f.list, func(x T) bool {
		over := now.Sub(f.heard(x)) >= linger
		if over {
			f.forget(x)
		}
		return over
	})
	if len(f.list) == 0 {
		f.list = nil
	}
}

// datagram is a message ready to be sent; the zero value is none.
type datagram struct {
	b    []byte
	from netip.Addr
	to   netip.AddrPort
}

// NewManager starts connection management over t, which it owns from now on.
// Requests go to the given UDP port of other hosts; 0 means wire.Port.
func NewManager(t Transport, port uint16) *Manager {
	if port == 0 {
		port = wire.Port
	}
	m := &Manager{
		transport: t, port: port,
		serving: make(chan struct{}), done: make(chan struct{}),
		doors:     make(map[doorKey]*door),
		discs:     make(map[string][]*door),
		kept:      make(map[string]keptDisc),
		requests:  make(map[uint64]*request),
		peers:     make(map[ends][]*request),
		incoming:  make(map[exchange]*incoming),
		hellos:    make(map[uint64]map[netip.Addr]int),
		pending:   newPending(),
		unproven:  make(map[*incoming]struct{}),
		refusedBy: make(map[exchange]*refusedRequest),
	}
	for _, f := range []*finished[*incoming]{&m.unprovenEnded, &m.answered, &m.connected} {
		f.heard = func(in *incoming) time.Time { return in.heard }
		f.forget = func(in *incoming) {
			delete(m.incoming, in.key)
			delete(m.unproven, in)
		}
	}
	m.refused.heard = func(x *refusedRequest) time.Time { return x.heard }
	m.refused.forget = func(x *refusedRequest) { delete(m.refusedBy, x.key) }
	m.asked.heard = func(r *request) time.Time { return r.heard }
	m.asked.forget = func(r *request) { delete(m.requests, r.id) }
	go func() {
		defer close(m.serving)
		m.serveErr = t.Serve(m)
	}()
	return m
}

// Close tells the other sides of everything that is under way, once, and ends
// it with ErrClosed. It returns when the manager's goroutine has ended.
func (m *Manager) Close() error { return m.CloseWith(kagent.ErrClosed) }

// CloseWith is Close with another error for those who wait, and who call later.
func (m *Manager) CloseWith(cause error) error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		<-m.serving
		return nil
	}
	m.closed, m.cause = true, cause
	close(m.done)
	if m.sweeper != nil {
		m.sweeper.Stop()
	}
	var out []datagram
	for _, r := range m.requests {
		if r.state < reqConfirmed {
			out = append(out, r.end(cause, wire.CMReasonClosed))
		}
	}
	for _, in := range m.incoming {
		if in.state < inEstablished {
			in.end(cause, wire.CM{Type: wire.CMReject, Reason: wire.CMReasonClosed})
			out = append(out, in.allow(in.reply))
		}
	}
	clear(m.doors)
	clear(m.discs)
	m.mu.Unlock()
	for _, d := range out {
		m.send(d)
	}
	err := m.transport.Close()
	<-m.serving
	if m.serveErr != nil {
		return m.serveErr
	}
	return err
}

// send sends d, without m.mu.
func (m *Manager) send(d datagram) error {
	if d.b == nil {
		return nil
	}
	return m.transport.Send(d.b, d.from, d.to)
}

// sendAll sends what there is, without m.mu.
func (m *Manager) sendAll(all []datagram) {
	for _, d := range all {
		_ = m.send(d)
	}
}

// encode makes the datagram for a message that this package has filled in.
func encode(msg wire.CM, from netip.Addr, to netip.AddrPort) datagram {
	b, err := msg.Append(nil)
	if err != nil {
		// Offers are checked when they come from the program; the rest
		// is ours.
		return datagram{}
	}
	return datagram{b: b, from: from, to: to}
}

// Receive takes a message from the transport.
func (m *Manager) Receive(b []byte, local netip.Addr, from netip.AddrPort) {
	msg, err := wire.ParseCM(b)
	local, from = kagent.Plain(local), netip.AddrPortFrom(kagent.Plain(from.Addr()), from.Port())
	m.mu.Lock()
	if m.closed || err != nil {
		if err != nil {
			m.counters.Malformed++
		}
		m.mu.Unlock()
		return
	}
	var reply datagram
	switch msg.Type {
	case wire.CMRequest:
		reply = m.onRequest(&msg, len(b), local, from)
	case wire.CMConfirm, wire.CMCancel:
		reply = m.onRequester(&msg, len(b), local, from)
	case wire.CMHello:
		reply = m.onHello(&msg, local, from)
	case wire.CMHere:
		m.onHere(&msg, from)
	default:
		reply = m.onAnswer(&msg, local, from)
	}
	m.mu.Unlock()
	m.send(reply)
}

// Undelivered takes the transport's news of a message that did not arrive.
func (m *Manager) Undelivered(quote []byte, to netip.AddrPort, err error) {
	t, id, ok := wire.PeekCM(quote)
	if !ok {
		return
	}
	to = netip.AddrPortFrom(kagent.Plain(to.Addr()), to.Port())
	m.mu.Lock()
	defer m.mu.Unlock()
	switch t {
	case wire.CMRequest:
		// A peer's agent may start later.
		r := m.requests[id]
		if r != nil && r.to == to && r.state == reqAsking && !(r.isPeer() && errors.Is(err, kagent.ErrNoMatch)) {
			r.end(err, wire.CMReasonNone)
		}
	case wire.CMAccept:
		// The requester's agent is gone. That its host is not reachable
		// may pass: time decides.
		if in := m.incoming[exchange{id, to}]; in != nil && in.state == inAccepting && errors.Is(err, kagent.ErrNoMatch) {
			in.end(kagent.ErrVanished, wire.CM{})
		}
	}
}

// sweepLater makes sure that sweep runs. Caller holds m.mu.
func (m *Manager) sweepLater() {
	if m.sweeping || m.closed {
		return
	}
	m.sweeping = true
	if m.sweeper == nil {
		m.sweeper = time.AfterFunc(sweepEvery, m.sweep)
	} else {
		m.sweeper.Reset(sweepEvery)
	}
}

// sweep ends and forgets what has expired.
func (m *Manager) sweep() {
	now := time.Now()
	var out []datagram
	m.mu.Lock()
	m.sweeping = false
	if m.closed {
		m.mu.Unlock()
		return
	}
	for _, f := range []*finished[*incoming]{&m.unprovenEnded, &m.answered, &m.connected} {
		f.expire(now)
	}
	m.asked.expire(now)
	m.refused.expire(now)
	m.sweepUnproven(now)
	for _, in := range m.incoming {
		if in.state == inPending && now.Sub(in.heard) >= silence {
			in.end(kagent.ErrVanished, wire.CM{})
		}
	}
	for _, r := range m.requests {
		if r.state == reqAnswered && now.Sub(r.heard) >= unclaimed {
			out = append(out, r.end(kagent.ErrTimeout, wire.CMReasonTimeout))
		}
	}
	more := len(m.requests)+len(m.incoming)+len(m.refusedBy) > 0
	for _, d := range m.doors {
		out = append(out, m.expireDoor(d, now)...)
		more = more || now.Before(d.open)
	}
	if more {
		m.sweepLater()
	}
	m.mu.Unlock()
	for _, d := range out {
		m.send(d)
	}
}

// Counters returns the counters as they are now.
func (m *Manager) Counters() kagent.Counters {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.counters
	if t, ok := m.transport.(interface{ Overrun() uint64 }); ok {
		c.Overrun = t.Overrun()
	}
	return c
}
