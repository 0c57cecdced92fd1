package connmgr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/ration"
	"viaxdp/internal/base/wire"
)

// Times of connection management. Both sides rely on them, so they are not options.
const (
	firstRetry   = 5 * time.Millisecond   // first resend of Request and Accept; then doubled
	lastRetry    = 200 * time.Millisecond // longest time between two resends
	linger       = 2 * time.Second        // how long a finished exchange is remembered after its last message
	reprobeAfter = 250 * time.Millisecond // silence after which the peer's neighbour entry is probed
	probeEvery   = time.Second            // time between probes during silence
	silence      = 3 * time.Second        // silence after which a peer is gone
	unanswered   = 8                      // and messages without an answer: this process may have been stopped
	unclaimed    = 10 * time.Second       // an Answer that is neither confirmed nor declined is declined
	sweepEvery   = 50 * time.Millisecond  // interval of the search for expired state, while there is any
	graceTime    = 100 * time.Millisecond // how long a discriminator stays open after a Wait
	returnTime   = 2 * time.Second        // how long programs of the previous agent may take to wait again
)

// Bounds of the state that the network can create.
const (
	maxBacklog  = 64   // requests that wait at one discriminator
	maxPending  = 1024 // unanswered requests, in all; see makeRoom
	maxFinished = 4096 // finished exchanges that are remembered: connected, not connected, and of the programs of each user here
)

// Manager is connection management and discovery of one interface.
type Manager struct {
	transport Transport
	port      uint16
	serving   chan struct{} // closed when Serve has returned
	serveErr  error         // valid after serving is closed
	done      chan struct{} // closed by Close
	asking    spinner       // waits for the answer to a Request
	accepting spinner       // waits for the answer to an Accept
	listening spinner       // waits for a Request
	// Reprobe, unless nil, is called for a peer that does not answer a user's request. It returns
	// at the latest when ctx ends. It must be set before the first request.
	Reprobe func(ctx context.Context, user uint32, local, peer netip.Addr)

	mu         sync.Mutex
	closed     bool
	cause      error // error of all calls after Close; set once closed
	counters   kagent.Counters
	doors      map[doorKey]*door
	discs      map[string]map[*door]struct{} // doors of each discriminator, for all hosts; they have one owner
	kept       map[string]keptDisc           // discriminators of programs that have not come back yet
	returned   time.Time                     // when programs of the previous agent have come back
	requests   map[uint64]*request
	peers      map[ends][]*request // queues of peer requests, in the order of the calls
	incoming   map[exchange]*incoming
	hellos     map[uint64]map[netip.Addr]int // calls of Discover: hosts that answered, and their distance in hops
	answers    ration.Ration                 // rate limit of answers to hellos of others
	pending    pending                       // entries of incoming that have no answer yet
	unproven   map[*incoming]struct{}        // entries of incoming with an unproven requester address
	cookies    cookies
	cookieMode cookieMode
	// Each list has its own bound. Floods of one kind must not evict another kind: an
	// established exchange that is forgotten would let a late copy of its Request in.
	unprovenEnded finished[*incoming] // unproven
	answered      finished[*incoming] // proven, and not connected
	connected     finished[*incoming]
	asked         map[uint32]*finished[*request] // by the user of the program that asked
	refused       finished[*refusedRequest]
	refusedBy     map[exchange]*refusedRequest // what refused has
	sweeping      bool
	sweeper       *time.Timer
}

// Client is the Manager of the programs of one user.
type Client struct {
	*Manager
	user uint32
}

// For returns the Client of a user.
func (m *Manager) For(user uint32) Client { return Client{m, user} }

// exchange identifies an exchange on the acceptor's side. The requester chooses the id, so the key includes
// its address.
type exchange struct {
	id   uint64
	peer netip.AddrPort
}

// refusedRequest is a refused Request. Late copies of it are refused, too, with the same answer.
type refusedRequest struct {
	key   exchange
	reply datagram
	heard time.Time
}

// finished is a list of ended exchanges, oldest first, which may be forgotten. Guarded by Manager.mu.
type finished[T any] struct {
	list   []T
	heard  func(T) time.Time
	forget func(T)
}

// add adds an exchange, and forgets the oldest if there are too many.
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
func NewManager(t Transport, port uint16) *Manager { return newManager(t, port, time.Time{}) }

// Resume is NewManager for the agent after another one, whose programs are about to come back. They may have been waiting:
// for returnTime requests that match nothing have no answer, so that requesters repeat them. kept are reserved until ReleaseDisc.
func Resume(t Transport, port uint16, kept ...Kept) *Manager {
	return newManager(t, port, time.Now().Add(returnTime), kept...)
}

func newManager(t Transport, port uint16, returned time.Time, kept ...Kept) *Manager {
	if port == 0 {
		port = wire.Port
	}
	m := &Manager{
		transport: t, port: port, returned: returned,
		serving: make(chan struct{}), done: make(chan struct{}),
		doors:     make(map[doorKey]*door),
		discs:     make(map[string]map[*door]struct{}),
		kept:      make(map[string]keptDisc),
		requests:  make(map[uint64]*request),
		peers:     make(map[ends][]*request),
		incoming:  make(map[exchange]*incoming),
		hellos:    make(map[uint64]map[netip.Addr]int),
		pending:   newPending(),
		unproven:  make(map[*incoming]struct{}),
		asked:     make(map[uint32]*finished[*request]),
		refusedBy: make(map[exchange]*refusedRequest),
	}
	for _, f := range []*finished[*incoming]{&m.unprovenEnded, &m.answered, &m.connected} {
		f.heard = func(in *incoming) time.Time { return in.heard }
		f.forget = func(in *incoming) {
			delete(m.incoming, in.key)
			delete(m.unproven, in)
		}
	}
	for _, k := range kept {
		m.keep(k)
	}
	m.refused.heard = func(x *refusedRequest) time.Time { return x.heard }
	m.refused.forget = func(x *refusedRequest) { delete(m.refusedBy, x.key) }
	go func() {
		defer close(m.serving)
		m.serveErr = t.Serve(m)
	}()
	return m
}

// Close cancels or rejects each exchange under way with one message, and ends it with ErrClosed.
// It returns when the manager's goroutine has ended.
func (m *Manager) Close() error { return m.CloseWith(kagent.ErrClosed) }

// CloseWith is Close with another error, which waiting and later calls return.
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
	m.sendAll(out)
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

// sendAll sends all of out, without m.mu.
func (m *Manager) sendAll(all []datagram) {
	for _, d := range all {
		_ = m.send(d)
	}
}

// encode makes the datagram for a message that this package has filled in.
func encode(msg wire.CM, from netip.Addr, to netip.AddrPort) datagram {
	b, err := msg.Append(nil)
	if err != nil {
		// Offers are checked when the program passes them; the other fields are set by this package.
		return datagram{}
	}
	return datagram{b: b, from: from, to: to}
}

// Receive takes a message from the transport.
func (m *Manager) Receive(b []byte, local netip.Addr, from netip.AddrPort) {
	msg, err := wire.ParseCM(b)
	local, from = kagent.Plain(local), netip.AddrPortFrom(kagent.Plain(from.Addr()), from.Port())
	m.mu.Lock()
	if err != nil {
		m.counters.Malformed++
	}
	var reply datagram
	switch {
	case m.closed:
	case errors.Is(err, wire.ErrVersion):
		reply = m.onOtherVersion(b, local, from)
	case err != nil:
	case msg.Type == wire.CMRequest:
		reply = m.onRequest(&msg, len(b), local, from)
	case msg.Type == wire.CMConfirm, msg.Type == wire.CMCancel:
		reply = m.onRequester(&msg, len(b), local, from)
	case msg.Type == wire.CMHello:
		reply = m.onHello(&msg, local, from)
	case msg.Type == wire.CMHere:
		m.onHere(&msg, from)
	default:
		reply = m.onAnswer(&msg, local, from)
	}
	m.mu.Unlock()
	m.send(reply)
}

// onOtherVersion processes a message of another version of the format. A Request is rejected, in this version, which
// the requester sees, too. Its agent then ends the request. Caller holds m.mu.
func (m *Manager) onOtherVersion(b []byte, local netip.Addr, from netip.AddrPort) datagram {
	version, t, id, ok := wire.PeekCM(b)
	switch {
	case !ok:
	case t == wire.CMRequest: // which is no shorter than the answer
		return encode(wire.CM{Type: wire.CMReject, ID: id, Reason: wire.CMReasonVersion}, local, from)
	case t == wire.CMReject:
		if r := m.requests[id]; r != nil && r.to == from && r.state == reqAsking {
			r.end(fmt.Errorf("%w: %v has version %d, this host version %d: update the older of the two",
				&kagent.RejectedError{Reason: wire.CMReasonVersion}, from.Addr(), version, wire.VersionNumber), wire.CMReasonNone)
		}
	}
	return datagram{}
}

// Undelivered processes the transport's report of a message that did not arrive.
func (m *Manager) Undelivered(quote []byte, to netip.AddrPort, err error) {
	_, t, id, ok := wire.PeekCM(quote)
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
		// The requester's agent is gone. An unreachable host may be temporary, so only time decides.
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
	for user, f := range m.asked {
		if f.expire(now); len(f.list) == 0 {
			delete(m.asked, user)
		}
	}
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
	m.sendAll(out)
}

// Counters returns the current counters.
func (m *Manager) Counters() kagent.Counters {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.counters
	if t, ok := m.transport.(interface{ Overrun() uint64 }); ok {
		c.Overrun = t.Overrun()
	}
	return c
}
