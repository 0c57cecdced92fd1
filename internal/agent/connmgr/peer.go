package connmgr

import (
	"bytes"
	"cmp"
	"context"
	"net/netip"
	"slices"
	"time"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/wire"
)

// Both peers make a request. The order of their addresses decides which request becomes the
// exchange; see the package comment. Both sides know this from the first message on, so they
// cannot wait for each other, and three requests cannot meet. If both ends have the same address,
// both are of this agent, and the request that comes in is the requester.
//
// Requests with the same addresses queue up: only the first one asks, until it is met. So they
// meet in order even if the network reorders messages.

// ends are the addresses that a peer request is for.
type ends struct {
	local    netip.Addr // zero: any of this host's
	remote   netip.AddrPort
	from, to string // discriminators of this end and of the other
}

func (r *request) isPeer() bool { return r.turn != nil }

// RequestPeer connects with remote, which must also call RequestPeer for local; see [kagent.Agent]. A zero
// local.Host stands for any address of this host.
func (c Client) RequestPeer(
	ctx context.Context, local, remote kagent.Address, o kagent.Offer,
) (*kagent.Answer, kagent.Incoming, error) {
	m := c.Manager
	r, err := c.newRequest(local, remote, o, wire.CMPeer)
	if err != nil {
		return nil, nil, err
	}
	r.peers = ends{r.answer.Local.Host, r.to, string(local.Disc), string(remote.Disc)}
	r.turn = make(chan struct{})
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil, nil, m.cause
	}
	if m.ofAnother(r) {
		m.mu.Unlock()
		return nil, nil, errOtherUser
	}
	m.requests[r.id] = r
	first := m.lineUp(r)
	ask := first.ask
	m.mu.Unlock()
	if first != r && r.peers.from == r.peers.to {
		// The first one in the queue may wait for this one.
		m.send(ask)
	}
	select {
	case <-r.turn:
		return r.run(ctx)
	case <-r.result:
		return r.outcome()
	case <-ctx.Done():
		return r.giveUp(kagent.ContextError(ctx), wire.CMReasonTimeout)
	}
}

// lineUp puts r at the end of its queue, and returns the first one there. Caller holds m.mu.
func (m *Manager) lineUp(r *request) *request {
	line := append(m.peers[r.peers], r)
	m.peers[r.peers] = line
	r.inLine = true
	if line[0] == r {
		close(r.turn)
	}
	return line[0]
}

// stepOut removes r from its queue, if it is in one, since it is met or over. Caller holds m.mu.
func (m *Manager) stepOut(r *request) {
	if !r.inLine {
		return
	}
	r.inLine = false
	line := m.peers[r.peers]
	i := slices.Index(line, r)
	line = slices.Delete(line, i, i+1)
	switch {
	case len(line) == 0:
		delete(m.peers, r.peers)
		return
	case i == 0:
		close(line[0].turn)
	}
	m.peers[r.peers] = line
}

// onPeer processes a peer's Request, of size bytes, that has no exchange here. Caller holds m.mu.
func (m *Manager) onPeer(msg *wire.CM, size int, local netip.Addr, from netip.AddrPort, now time.Time) datagram {
	order := cmp.Or(local.Compare(from.Addr()), bytes.Compare(msg.To, msg.From))
	r := m.counterpart(msg, local, from)
	switch {
	case r == nil:
		return datagram{} // it asks again
	case order < 0 && len(r.ask.b) > size:
		return datagram{} // it is repeated by its timer
	case order < 0:
		return r.ask
	}
	other := m.requests[msg.ID]
	if order == 0 && (other == nil || !other.inLine) {
		return datagram{} // an old one
	}
	proven := m.proven(now, msg, local, from)
	if !proven && m.needsCookie(now, from.Addr()) {
		return m.retry(now, msg, local, from)
	}
	if order == 0 {
		m.stepOut(other)
	}
	in := m.newIncoming(msg, size, local, from, now, proven)
	m.pending.add(in, r.user)
	m.stepOut(r)
	delete(m.requests, r.id) // it will not get an answer
	r.state, r.in = reqYielded, in
	close(r.result)
	m.sweepLater()
	return in.firstReply()
}

// counterpart finds the first request, other than this very one, that a peer's
// Request meets. Caller holds m.mu.
func (m *Manager) counterpart(msg *wire.CM, local netip.Addr, from netip.AddrPort) *request {
	for _, host := range [...]netip.Addr{local, {}} {
		for _, r := range m.peers[ends{host, from, string(msg.To), string(msg.From)}] {
			if r.id != msg.ID {
				return r
			}
		}
	}
	return nil
}
