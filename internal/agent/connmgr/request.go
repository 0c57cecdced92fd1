package connmgr

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/wire"
)

// reqState is the state of an exchange on the requester's side:
//
//	        Accept            Confirm
//	asking --------> answered --------> confirmed
//	   |                |
//	   +----------------+--> ended (Reject, NoMatch, Cancel, Close)
//	   |
//	   +--> yielded (a peer request: this side accepts the other's)
type reqState int

const (
	reqAsking reqState = iota
	reqAnswered
	reqConfirmed
	reqEnded
	reqYielded
)

type request struct {
	m      *Manager
	id     uint64
	to     netip.AddrPort
	result chan struct{} // closed when state leaves reqAsking
	peers  ends          // of a peer request
	turn   chan struct{} // of a peer request: closed when it may ask; else nil
	user   uint32        // user of the program that asks

	// guarded by m.mu
	state  reqState
	msg    wire.CM  // the Request, with its last cookie
	ask    datagram // msg
	answer *kagent.Answer
	err    error     // valid in reqEnded
	in     *incoming // valid in reqYielded
	inLine bool      // it is in the queue of peer requests
	last   datagram  // answer to a repeated Accept
	heard  time.Time // last change, or last repeated Accept
	known  bool      // a message of the acceptor has arrived

	again     backoff   // timer of resend
	repeat    datagram  // what resend sends: the proof in reqAnswered, the Confirm in reqConfirmed
	confirmed bool      // the acceptor has the Confirm
	since     time.Time // when the program confirmed
}

// Request asks remote for a connection; see [kagent.Agent].
func (c Client) Request(ctx context.Context, local, remote kagent.Address, o kagent.Offer) (*kagent.Answer, error) {
	m := c.Manager
	r, err := c.newRequest(local, remote, o, 0)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil, m.cause
	}
	m.requests[r.id] = r
	m.mu.Unlock()
	a, _, err := r.run(ctx)
	return a, err
}

// newRequest checks the program's arguments.
func (c Client) newRequest(local, remote kagent.Address, o kagent.Offer, flags uint16) (*request, error) {
	host := kagent.Plain(remote.Host)
	if !host.IsValid() || host.IsUnspecified() || host.IsMulticast() {
		return nil, fmt.Errorf("kagent: request to %v: %w", remote.Host, kagent.ErrUnreachable)
	}
	r := &request{
		m: c.Manager, user: c.user, id: kagent.NewKey(), to: netip.AddrPortFrom(host, c.port), result: make(chan struct{}),
		answer: &kagent.Answer{Local: kagent.Address{Host: kagent.Plain(local.Host), Disc: bytes.Clone(local.Disc)}},
	}
	r.answer.Confirmation = r
	r.msg = o.Message(wire.CMRequest)
	r.msg.ID, r.msg.From, r.msg.To = r.id, r.answer.Local.Disc, bytes.Clone(remote.Disc)
	r.msg.Flags |= flags
	b, err := r.msg.Append(nil)
	if err != nil {
		return nil, fmt.Errorf("kagent: request: %w", err)
	}
	r.ask = datagram{b: b, from: r.answer.Local.Host, to: r.to}
	return r, nil
}

// run repeats the Request until there is an outcome.
func (r *request) run(ctx context.Context) (*kagent.Answer, kagent.Incoming, error) {
	var retry backoff
	defer retry.stop()
	if r.m.Reprobe != nil {
		defer r.reprobeLater(ctx)()
	}
	var lost error
	for {
		r.m.mu.Lock()
		ask := r.ask
		r.m.mu.Unlock()
		if err := r.m.send(ask); errors.Is(err, kagent.ErrUnreachable) {
			return r.giveUp(err, wire.CMReasonNone)
		} else if err != nil {
			lost = err
		}
		if retry.timer == nil {
			r.m.asking.spin(r.m.transport, func() bool { return isClosed(r.result) })
		}
		select {
		case <-r.result:
			return r.outcome()
		case <-ctx.Done():
			err := kagent.ContextError(ctx)
			if lost != nil {
				err = fmt.Errorf("%w; sending failed: %w", err, lost)
			}
			return r.giveUp(err, wire.CMReasonTimeout)
		case <-retry.next():
		}
	}
}

// reprobeLater probes the peer's hardware address as long as the peer does not answer. stop ends
// that.
func (r *request) reprobeLater(ctx context.Context) (stop func()) {
	r.m.mu.Lock()
	from := r.answer.Local.Host
	r.m.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	timer := time.AfterFunc(reprobeAfter, func() {
		defer close(over)
		for ctx.Err() == nil && !r.isHeard() {
			r.m.Reprobe(ctx, r.user, from, r.to.Addr())
			select {
			case <-time.After(probeEvery):
			case <-ctx.Done():
			}
		}
	})
	return func() {
		cancel()
		if !timer.Stop() {
			<-over
		}
	}
}

// onRetry stores the cookie of a Retry, and returns the Request with it. Caller holds m.mu.
func (r *request) onRetry(cookie uint64) datagram {
	if r.state != reqAsking || r.msg.Cookie == cookie {
		return datagram{} // the Request with it has been sent, and is repeated by its timer
	}
	r.msg.Cookie = cookie
	r.ask = encode(r.msg, r.ask.from, r.to)
	return r.ask
}

// resend repeats to the acceptor that its Accept has arrived, until the program here confirms: this proves the address, and
// shows that the requester is alive. Then it repeats the Confirm until the acceptor has acknowledged it.
func (r *request) resend() {
	m := r.m
	m.mu.Lock()
	unheard := r.state == reqConfirmed && !r.confirmed && time.Since(r.since) < silence
	if m.closed || r.state != reqAnswered && !unheard {
		m.mu.Unlock()
		return
	}
	d := r.repeat
	r.again.call(r.resend)
	m.mu.Unlock()
	m.send(d)
}

// isHeard reports whether a message of the acceptor has arrived.
func (r *request) isHeard() bool {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	return r.known
}

func (r *request) outcome() (*kagent.Answer, kagent.Incoming, error) {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	switch r.state {
	case reqEnded:
		return nil, nil, r.err
	case reqYielded:
		return nil, r.in, nil
	}
	return r.answer, nil, nil
}

// giveUp ends the request unless its outcome has just arrived.
func (r *request) giveUp(err error, reason wire.CMReason) (*kagent.Answer, kagent.Incoming, error) {
	r.m.mu.Lock()
	if r.state != reqAsking {
		r.m.mu.Unlock()
		return r.outcome()
	}
	d := r.end(err, reason)
	r.m.mu.Unlock()
	r.m.send(d)
	return nil, nil, err
}

// end ends the exchange without a connection and returns the Cancel for the
// acceptor. Caller holds m.mu, and the state is below reqConfirmed.
func (r *request) end(err error, reason wire.CMReason) datagram {
	if r.state == reqAsking {
		close(r.result)
	}
	r.m.stepOut(r)
	r.again.stop()
	r.state = reqEnded
	r.err = err
	r.heard = time.Now()
	r.last = r.message(wire.CM{Type: wire.CMCancel, Reason: reason})
	r.remember()
	return r.last
}

// remember keeps a request that has its outcome for some time. Caller holds m.mu.
func (r *request) remember() {
	m := r.m
	f := m.asked[r.user]
	if f == nil {
		f = &finished[*request]{
			heard:  func(r *request) time.Time { return r.heard },
			forget: func(r *request) { delete(m.requests, r.id) },
		}
		m.asked[r.user] = f
	}
	f.add(r)
	m.sweepLater()
}

func (r *request) message(msg wire.CM) datagram {
	msg.ID = r.id
	return encode(msg, r.answer.Local.Host, r.to)
}

// onAnswer processes a message of the acceptor. Caller holds m.mu.
func (m *Manager) onAnswer(msg *wire.CM, local netip.Addr, from netip.AddrPort) datagram {
	r := m.requests[msg.ID]
	if r == nil {
		if msg.Type != wire.CMAccept {
			return datagram{}
		}
		return encode(wire.CM{Type: wire.CMCancel, ID: msg.ID, Reason: wire.CMReasonUnknown}, local, from)
	}
	if r.to != from {
		return datagram{}
	}
	r.known = true
	switch msg.Type {
	case wire.CMRetry:
		return r.onRetry(msg.Cookie)
	case wire.CMPending:
		m.stepOut(r)
	case wire.CMConfirmed:
		r.confirmed = true
		r.again.stop()
	case wire.CMAccept:
		if r.state == reqAsking {
			m.stepOut(r)
			r.state = reqAnswered
			r.heard = time.Now()
			r.answer.Offer = kagent.OfferOf(msg)
			r.answer.Remote = kagent.Address{Host: from.Addr(), Disc: bytes.Clone(msg.From)}
			r.answer.Local.Host = local
			close(r.result)
			proof := r.msg
			proof.Cookie = r.answer.Key
			r.repeat = encode(proof, local, r.to)
			r.again.call(r.resend)
			m.sweepLater()
			return datagram{}
		}
		if r.state > reqAnswered {
			r.heard = time.Now()
		}
		if r.state == reqConfirmed {
			return r.repeat
		}
		return r.last
	case wire.CMReject:
		if r.state < reqConfirmed {
			r.end(&kagent.RejectedError{Reason: msg.Reason}, wire.CMReasonNone)
		}
	case wire.CMNoMatch:
		if r.state == reqAsking && !r.isPeer() {
			r.end(kagent.ErrNoMatch, wire.CMReasonNone)
		}
	}
	return datagram{}
}

// ConfirmWith sends the Confirm, and again until the acceptor has it; see [kagent.Confirmation].
func (r *request) ConfirmWith(proof []byte) error {
	r.m.mu.Lock()
	switch r.state {
	case reqAnswered:
	case reqConfirmed:
		r.m.mu.Unlock()
		return nil
	default:
		defer r.m.mu.Unlock()
		return r.err
	}
	r.state = reqConfirmed
	r.heard = time.Now()
	r.since = r.heard
	msg := wire.CM{Type: wire.CMConfirm, Handshake: proof}
	if len(proof) == 0 {
		msg.Cookie = r.answer.Key
	}
	r.repeat = r.message(msg)
	r.remember()
	r.again.stop()
	r.again = backoff{}
	r.again.call(r.resend)
	r.m.mu.Unlock()
	r.m.send(r.repeat) // which does not change any more
	return nil
}

// Decline sends a Cancel; see [kagent.Confirmation].
func (r *request) Decline(reason wire.CMReason) {
	r.m.mu.Lock()
	var d datagram
	if r.state == reqAnswered {
		d = r.end(kagent.ErrState, reason)
	}
	r.m.mu.Unlock()
	r.m.send(d)
}

// backoff is the resend timer: firstRetry, doubled up to lastRetry.
type backoff struct {
	wait  time.Duration
	timer *time.Timer
}

func (b *backoff) next() <-chan time.Time {
	b.restart(func() *time.Timer { return time.NewTimer(firstRetry) })
	return b.timer.C
}

// call has f called when next would fire. It must always be the same f.
func (b *backoff) call(f func()) {
	b.restart(func() *time.Timer { return time.AfterFunc(firstRetry, f) })
}

// restart starts the timer, the first time with start.
func (b *backoff) restart(start func() *time.Timer) {
	if b.timer == nil {
		b.wait, b.timer = firstRetry, start()
		return
	}
	b.wait = min(2*b.wait, lastRetry)
	b.timer.Reset(b.wait)
}

func (b *backoff) stop() {
	if b.timer != nil {
		b.timer.Stop()
	}
}
