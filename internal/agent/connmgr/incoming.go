package connmgr

import (
	"bytes"
	"container/list"
	"context"
	"crypto/subtle"
	"fmt"
	"net/netip"
	"time"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/wire"
)

// inState is the state of an exchange on the acceptor's side:
//
//	            Accept                 Confirm, Established
//	pending ------------> accepting ------------------------> established
//	   |                      |
//	   +----------------------+--> ended (Reject, Cancel, silence, Close)
type inState int

const (
	inPending inState = iota
	inAccepting
	inEstablished
	inEnded
)

// incoming is the acceptor's side of an exchange; see [kagent.Incoming].
type incoming struct {
	m      *Manager
	key    exchange
	local  netip.Addr // destination address of the Request
	disc   []byte     // destination discriminator
	remote []byte     // discriminator of the requester
	offer  kagent.Offer

	established chan struct{} // closed when state becomes inEstablished
	done        chan struct{} // closed when state becomes inEnded

	// guarded by m.mu
	state     inState
	user      uint32        // the user that it counts for while it is in m.pending
	place     *list.Element // its place in m.pending
	door      *door         // the door in whose queue it is
	reply     datagram      // answer to a repeated Request
	proof     []byte        // proof that a Confirm must carry, or nil
	echo      uint64        // the key of the Accept
	heard     time.Time     // last message of the requester, or end of the exchange
	accepted  time.Time     // when the program accepted
	err       error         // valid when done is closed
	proven    bool          // the requester receives what is sent to its address; else in m.unproven
	credit    int           // bytes that may be sent to it before that
	reserve   int           // part of credit that is reserved for the answer
	waited    bool          // returned by a Wait, not by a Listener
	keepsOpen *door         // door that is kept open until Accept returns
}

// onRequest takes a Request of size bytes and returns the reply. Caller holds m.mu.
func (m *Manager) onRequest(msg *wire.CM, size int, local netip.Addr, from netip.AddrPort) datagram {
	now := time.Now()
	key := exchange{msg.ID, from}
	if in := m.incoming[key]; in != nil {
		return m.onRepeated(in, msg, size, now)
	}
	if x := m.refusedBy[key]; x != nil {
		x.heard = now
		return x.reply
	}
	if msg.Flags&wire.CMPeer != 0 {
		return m.onPeer(msg, size, local, from, now)
	}
	d := m.match(local, msg.To, now)
	if _, kept := m.kept[string(msg.To)]; d == nil && (kept || now.Before(m.returned)) {
		return datagram{} // its program is about to come back, or may be
	}
	if d == nil {
		m.counters.NoMatch++
		return m.refuse(key, local, wire.CM{Type: wire.CMNoMatch}, now)
	}
	proven := m.proven(now, msg, local, from)
	if !proven && (m.needsCookie(now, from.Addr()) || m.isFull(d)) {
		return m.retry(now, msg, local, from)
	}
	if !m.makeRoom(d) {
		m.counters.Refused++
		return m.refuse(key, local, refusal, now)
	}
	in := m.newIncoming(msg, size, local, from, now, proven)
	m.sweepLater()
	m.arrive(d, in, now)
	return in.firstReply()
}

// refuse rejects a Request, and returns the answer, or none if its type is 0. Caller holds m.mu.
func (m *Manager) refuse(key exchange, local netip.Addr, answer wire.CM, now time.Time) datagram {
	x := &refusedRequest{key: key, heard: now}
	if answer.Type != 0 {
		answer.ID = key.id
		x.reply = encode(answer, local, key.peer)
	}
	m.refusedBy[key] = x
	m.refused.add(x)
	m.sweepLater()
	return x.reply
}

// onRepeated processes a Request of a known exchange. Caller holds m.mu.
func (m *Manager) onRepeated(in *incoming, msg *wire.CM, size int, now time.Time) datagram {
	in.heard = now
	in.credit += size
	if in.state == inAccepting && in.isEcho(msg.Cookie) {
		in.prove()
		return datagram{} // it has the Accept, and its program has not answered yet
	}
	if !in.proven && in.state < inEnded && m.proven(now, msg, in.local, in.key.peer) {
		in.prove()
	}
	if in.proven || in.state != inPending {
		return in.allow(in.reply)
	}
	if in.door != nil {
		m.deliverQueued(in.door, now)
	}
	// A pending requester proves itself meanwhile.
	reply := m.retry(now, msg, in.local, in.key.peer)
	if in.credit-len(reply.b) < in.reserve {
		return datagram{}
	}
	return in.allow(reply)
}

// firstReply returns the reply to the first Request. For an unproven address that is nothing, so
// that the program's answer can use the credit of the Request. Caller holds m.mu.
func (in *incoming) firstReply() datagram {
	if !in.proven {
		return datagram{}
	}
	return in.reply
}

// newIncoming begins the acceptor's side of an exchange. Caller holds m.mu.
func (m *Manager) newIncoming(msg *wire.CM, size int, local netip.Addr, from netip.AddrPort, now time.Time, proven bool) *incoming {
	in := &incoming{
		proven: proven, credit: size, reserve: size,
		m: m, key: exchange{msg.ID, from}, local: local,
		disc: bytes.Clone(msg.To), remote: bytes.Clone(msg.From), offer: kagent.OfferOf(msg),
		established: make(chan struct{}), done: make(chan struct{}), heard: now,
	}
	m.incoming[in.key] = in
	if !proven {
		m.unproven[in] = struct{}{}
	}
	in.reply = in.message(wire.CM{Type: wire.CMPending})
	return in
}

// onRequester takes a Confirm or a Cancel of size bytes. Caller holds m.mu.
func (m *Manager) onRequester(msg *wire.CM, size int, local netip.Addr, from netip.AddrPort) datagram {
	key := exchange{msg.ID, from}
	in := m.incoming[key]
	if in == nil {
		if msg.Type == wire.CMCancel && m.refusedBy[key] == nil {
			// The Cancel has overtaken its Request, which must not come in.
			m.refuse(key, local, wire.CM{}, time.Now())
		}
		return datagram{}
	}
	in.credit += size
	var reply datagram
	switch {
	case msg.Type == wire.CMConfirm && (in.state == inAccepting || in.state == inEstablished):
		if !in.confirmedBy(msg) {
			return datagram{}
		}
		if in.state == inAccepting {
			in.establish()
		}
		reply = in.message(wire.CM{Type: wire.CMConfirmed})
	case msg.Type == wire.CMConfirm && in.state == inEnded:
		return in.allow(in.reply) // a Reject, since this side has given up meanwhile
	case msg.Type == wire.CMCancel && in.state < inEstablished:
		in.end(cancelled(msg.Reason), wire.CM{})
	}
	in.heard = time.Now()
	return reply
}

// cancelled returns the error of a Cancel with that reason. With some of them the requester has declined the Accept.
func cancelled(reason wire.CMReason) error {
	switch reason {
	case wire.CMReasonResources, wire.CMReasonNoKey, wire.CMReasonPlain, wire.CMReasonKey:
		return fmt.Errorf("%w: %w", kagent.ErrCancelled, &kagent.RejectedError{Reason: reason})
	}
	return fmt.Errorf("%w: %v", kagent.ErrCancelled, reason)
}

// confirmedBy reports whether the sender of a Confirm has read the Accept: it has the proof of the handshake,
// or else the key. Caller holds m.mu.
func (in *incoming) confirmedBy(msg *wire.CM) bool {
	right := in.isEcho(msg.Cookie)
	if len(in.proof) > 0 {
		right = subtle.ConstantTimeCompare(msg.Handshake, in.proof) == 1
	}
	if !right {
		in.m.counters.Forged++
	}
	return right
}

// isEcho reports whether a cookie is the key of the Accept.
func (in *incoming) isEcho(cookie uint64) bool { return cookie != 0 && sameCookie(cookie, in.echo) }

// establish ends the exchange with a connection. Caller holds m.mu.
func (in *incoming) establish() {
	in.prove()
	in.m.endKeepOpen(in)
	in.state = inEstablished
	in.reply = datagram{}
	in.heard = time.Now()
	close(in.established)
	in.m.connected.add(in)
	in.m.sweepLater()
}

// end ends the exchange without a connection; last (none if its type is 0) answers
// later messages of the requester; the caller sends it if allow permits. Caller holds
// m.mu, and the state is neither inEstablished nor inEnded.
func (in *incoming) end(err error, last wire.CM) {
	in.m.withdraw(in)
	in.m.endKeepOpen(in)
	in.m.pending.remove(in)
	in.state = inEnded
	in.err = err
	in.heard = time.Now()
	in.reply = datagram{}
	if last.Type != 0 {
		in.reply = in.message(last)
	}
	close(in.done)
	if in.proven {
		in.m.answered.add(in)
	} else {
		in.m.unprovenEnded.add(in)
	}
	in.m.sweepLater()
}

func (in *incoming) message(msg wire.CM) datagram {
	msg.ID = in.key.id
	return encode(msg, in.local, in.key.peer)
}

func (in *incoming) Remote() kagent.Address {
	return kagent.Address{Host: in.key.peer.Addr(), Disc: in.remote}
}

func (in *incoming) Local() kagent.Address { return kagent.Address{Host: in.local, Disc: in.disc} }

func (in *incoming) Offer() kagent.Offer { return in.offer }

func (in *incoming) Done() <-chan struct{} {
	return in.done
}

func (in *incoming) Err() error {
	in.m.mu.Lock()
	defer in.m.mu.Unlock()
	return in.err
}

// Accept sends the Accept until the requester confirms; see [kagent.Incoming].
func (in *incoming) Accept(ctx context.Context, o kagent.Offer) error {
	msg := o.Message(wire.CMAccept)
	msg.From, msg.To = in.disc, in.remote
	msg.ID = in.key.id
	if _, err := msg.Append(nil); err != nil {
		return fmt.Errorf("kagent: accept: %w", err)
	}
	m := in.m
	m.mu.Lock()
	if err := in.answerable(); err != nil {
		m.mu.Unlock()
		return err
	}
	in.state = inAccepting
	m.keepOpen(in)
	m.pending.remove(in)
	in.heard = time.Now()
	in.accepted = in.heard
	in.reply = encode(msg, in.local, in.key.peer)
	in.proof, in.echo = []byte(o.Confirm), o.Key
	accept, heard := in.allow(in.reply), in.heard
	m.mu.Unlock()

	var retry backoff
	defer retry.stop()
	for sent := 1; ; sent++ {
		m.send(accept)
		if retry.timer == nil {
			m.accepting.spin(m.transport, func() bool { return isClosed(in.established) })
		}
		asked := time.Now()
		select {
		case <-in.established:
			return nil
		case <-in.done:
			return in.Err()
		case <-ctx.Done():
			return in.giveUp(kagent.ContextError(ctx))
		case <-retry.next():
		}
		m.mu.Lock()
		if in.heard.After(heard) {
			heard, sent = in.heard, 0
		}
		if time.Since(asked) >= silence/2 {
			sent = 0 // this goroutine did not run: messages of the requester may still be unread
		}
		silent := sent >= unanswered && time.Since(heard) >= silence
		accept = datagram{}
		if !silent && in.state == inAccepting {
			accept = in.allow(in.reply) // an unproven requester repeats its Request to get it
		}
		m.mu.Unlock()
		if silent {
			return in.giveUp(kagent.ErrVanished)
		}
	}
}

// answerable returns why the program cannot answer the request, or nil. Caller holds m.mu.
func (in *incoming) answerable() error {
	switch in.state {
	case inPending:
		return nil
	case inEnded:
		return in.err
	}
	return kagent.ErrState
}

// giveUp ends an Accept without an answer, unless the answer has just arrived.
func (in *incoming) giveUp(err error) error {
	in.m.mu.Lock()
	if in.state >= inEstablished {
		defer in.m.mu.Unlock()
		return in.err // nil, if it is established
	}
	if now := time.Now(); !in.proven && now.Sub(in.heard) >= yieldInFlood {
		in.m.cookieMode.extend(now)
	}
	in.end(err, wire.CM{Type: wire.CMReject, Reason: wire.CMReasonTimeout})
	d := in.allow(in.reply)
	in.m.mu.Unlock()
	in.m.send(d)
	return err
}

func (in *incoming) Established() {
	in.m.mu.Lock()
	defer in.m.mu.Unlock()
	if in.state == inAccepting {
		in.establish()
	}
}

func (in *incoming) Reject(reason wire.CMReason) error {
	in.m.mu.Lock()
	if err := in.answerable(); err != nil {
		in.m.mu.Unlock()
		return err
	}
	in.end(kagent.ErrState, wire.CM{Type: wire.CMReject, Reason: reason}) // the request was already answered
	d := in.allow(in.reply)
	in.m.mu.Unlock()
	in.m.send(d)
	return nil
}
