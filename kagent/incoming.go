package kagent

import (
	"bytes"
	"container/list"
	"context"
	"crypto/subtle"
	"fmt"
	"net/netip"
	"time"

	"viaxdp/wire"
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

// Incoming is a request for a connection that waits for this program's answer.
// All methods may be called concurrently. An Incoming that is neither accepted
// nor rejected ends when the requester gives up.
type Incoming struct {
	far    IncomingEnd // nil: all of it is here
	m      *Manager
	key    exchange
	local  netip.Addr // the address that it came to
	disc   []byte     // the discriminator that it came to
	remote []byte     // the requester's
	offer  Offer

	established chan struct{} // closed on the way to inEstablished
	done        chan struct{} // closed on the way to inEnded

	// guarded by m.mu
	state inState
	user  uint32        // whose it is while it is in m.pending
	place *list.Element // there
	door  *door         // whose queue it is in
	reply datagram      // what a repeated Request gets
	proof []byte        // what a Confirm must have
	heard time.Time     // last message of the requester, or end of the exchange
	err   error         // valid when done is closed
}

// onRequest takes a Request and returns the reply. Caller holds m.mu.
func (m *Manager) onRequest(msg *wire.CM, local netip.Addr, from netip.AddrPort) datagram {
	now := time.Now()
	key := exchange{msg.ID, from}
	if in := m.incoming[key]; in != nil {
		in.heard = now
		return in.reply
	}
	if msg.Flags&wire.CMPeer != 0 {
		return m.onPeer(msg, local, from)
	}
	in := m.newIncoming(msg, local, from, now)
	d := m.match(local, msg.To, now)
	switch {
	case d == nil:
		m.counters.NoMatch++
		return in.end(ErrCancelled, wire.CM{Type: wire.CMNoMatch})
	case !m.makeRoom(d):
		m.counters.Refused++
		return in.end(ErrCancelled, refusal)
	}
	m.sweepLater()
	m.arrive(d, in)
	return in.reply
}

// newIncoming begins the acceptor's side of an exchange. Caller holds m.mu.
func (m *Manager) newIncoming(msg *wire.CM, local netip.Addr, from netip.AddrPort, now time.Time) *Incoming {
	in := &Incoming{
		m: m, key: exchange{msg.ID, from}, local: local,
		disc: bytes.Clone(msg.To), remote: bytes.Clone(msg.From), offer: offerOf(msg),
		established: make(chan struct{}), done: make(chan struct{}), heard: now,
	}
	m.incoming[in.key] = in
	in.reply = in.message(wire.CM{Type: wire.CMPending})
	return in
}

// onRequester takes a Confirm or a Cancel. Caller holds m.mu.
func (m *Manager) onRequester(msg *wire.CM, local netip.Addr, from netip.AddrPort) datagram {
	key := exchange{msg.ID, from}
	in := m.incoming[key]
	switch {
	case in == nil && msg.Type == wire.CMCancel:
		// It has overtaken the Request, which must find nobody home.
		in = &Incoming{m: m, key: key, local: local, done: make(chan struct{})}
		m.incoming[key] = in
		in.end(ErrCancelled, wire.CM{})
	case in == nil:
		return datagram{}
	case msg.Type == wire.CMConfirm && in.state == inAccepting:
		if subtle.ConstantTimeCompare(msg.Handshake, in.proof) == 0 {
			m.counters.Forged++
			return datagram{}
		}
		in.establish()
	case msg.Type == wire.CMConfirm && in.state == inEnded:
		return in.reply // a Reject: this side has given up meanwhile
	case msg.Type == wire.CMCancel && in.state < inEstablished:
		in.end(fmt.Errorf("%w: %v", ErrCancelled, msg.Reason), wire.CM{})
	}
	in.heard = time.Now()
	return datagram{}
}

// establish ends the exchange well. Caller holds m.mu.
func (in *Incoming) establish() {
	in.state = inEstablished
	in.reply = datagram{}
	in.heard = time.Now()
	close(in.established)
	in.m.answered.add(in)
	in.m.sweepLater()
}

// end ends the exchange without a connection; last (none if its type is 0) is
// returned, and sent again to whoever asks again. Caller holds m.mu, and the
// state is neither inEstablished nor inEnded.
func (in *Incoming) end(err error, last wire.CM) datagram {
	in.m.pending.remove(in)
	if in.door != nil {
		in.door.withdraw(in)
		in.door = nil
	}
	in.state = inEnded
	in.err = err
	in.heard = time.Now()
	in.reply = datagram{}
	if last.Type != 0 {
		in.reply = in.message(last)
	}
	close(in.done)
	in.m.answered.add(in)
	in.m.sweepLater()
	return in.reply
}

func (in *Incoming) message(msg wire.CM) datagram {
	msg.ID = in.key.id
	return encode(msg, in.local, in.key.peer)
}

// Remote is the requester: host and discriminator. The caller must not change
// the discriminator's bytes.
func (in *Incoming) Remote() Address { return Address{in.key.peer.Addr(), in.remote} }

// Local is the address and discriminator that the request came to. Frames of
// the connection must have this host as their source.
func (in *Incoming) Local() Address { return Address{in.local, in.disc} }

// Offer is what the requester tells about its VI.
func (in *Incoming) Offer() Offer { return in.offer }

// Done is closed when the exchange has ended without a connection: cancelled,
// vanished, rejected or closed. Err then says how.
func (in *Incoming) Done() <-chan struct{} {
	if in.far != nil {
		return in.far.Done()
	}
	return in.done
}

// Err is nil until Done is closed.
func (in *Incoming) Err() error {
	if in.far != nil {
		return in.far.Err()
	}
	in.m.mu.Lock()
	defer in.m.mu.Unlock()
	return in.err
}

// Accept offers this side's VI and returns nil when the requester has
// confirmed it. The VI must be able to receive before the call, since the
// first frame may come before the confirmation; the caller then says so by
// Established. It fails with ErrCancelled, ErrVanished, ErrTimeout (the
// requester is then told), ErrState or ErrClosed, after which there is no
// connection. ctx without a deadline: the requester's silence of 3 s ends it.
func (in *Incoming) Accept(ctx context.Context, o Offer) error {
	if in.far != nil {
		return in.far.Accept(ctx, o)
	}
	msg := o.message(wire.CMAccept)
	msg.From, msg.To = in.disc, in.remote
	msg.ID = in.key.id
	if _, err := msg.Append(nil); err != nil {
		return fmt.Errorf("kagent: accept: %w", err)
	}
	m := in.m
	m.mu.Lock()
	switch in.state {
	case inPending:
	case inEnded:
		defer m.mu.Unlock()
		return in.err
	default:
		m.mu.Unlock()
		return ErrState
	}
	in.state = inAccepting
	m.pending.remove(in)
	in.heard = time.Now()
	in.reply = encode(msg, in.local, in.key.peer)
	in.proof = []byte(o.Confirm)
	accept, heard := in.reply, in.heard
	m.mu.Unlock()

	var retry backoff
	defer retry.stop()
	for sent := 1; ; sent++ {
		m.send(accept)
		asked := time.Now()
		select {
		case <-in.established:
			return nil
		case <-in.done:
			return in.Err()
		case <-ctx.Done():
			return in.giveUp(contextError(ctx))
		case <-retry.next():
		}
		m.mu.Lock()
		if in.heard.After(heard) {
			heard, sent = in.heard, 0
		}
		if time.Since(asked) >= silence/2 {
			sent = 0 // nobody looked here: what the requester said meanwhile is still to be read
		}
		silent := sent >= unanswered && time.Since(heard) >= silence
		m.mu.Unlock()
		if silent {
			return in.giveUp(ErrVanished)
		}
	}
}

// giveUp ends an Accept that got no answer, unless one came just now.
func (in *Incoming) giveUp(err error) error {
	in.m.mu.Lock()
	switch in.state {
	case inEstablished:
		in.m.mu.Unlock()
		return nil
	case inEnded:
		defer in.m.mu.Unlock()
		return in.err
	}
	d := in.end(err, wire.CM{Type: wire.CMReject, Reason: wire.CMReasonTimeout})
	in.m.mu.Unlock()
	in.m.send(d)
	return err
}

// Established says that a valid frame of the requester's VI has come in, which
// is as good as its confirmation. It is for the data path: it does not wait
// for the network and does not allocate. Only the first call after Accept
// does anything.
func (in *Incoming) Established() {
	if in.far != nil {
		in.far.Established()
		return
	}
	in.m.mu.Lock()
	defer in.m.mu.Unlock()
	if in.state == inAccepting {
		in.establish()
	}
}

// Reject refuses the request, once; the requester gets ErrRejected with that
// reason. It fails with ErrState when the request was answered before, or with
// the error that has ended it.
func (in *Incoming) Reject(reason wire.CMReason) error {
	if in.far != nil {
		return in.far.Reject(reason)
	}
	in.m.mu.Lock()
	switch in.state {
	case inPending:
	case inEnded:
		defer in.m.mu.Unlock()
		return in.err
	default:
		in.m.mu.Unlock()
		return ErrState
	}
	d := in.end(ErrState, wire.CM{Type: wire.CMReject, Reason: reason}) // a second answer is one too many
	in.m.mu.Unlock()
	in.m.send(d)
	return nil
}
