package connmgr

import (
	"container/list"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/wire"
)

// door is where requests for one discriminator arrive. It has either Waits without a request or
// requests without a Wait. It stays open for graceTime after a Wait, so that a server which waits
// in a loop, or polls, misses no request. All fields are guarded by Manager.mu.
type door struct {
	key      doorKey
	user     uint32 // user that has the discriminator; see claim
	listener *listener
	waiters  []*waiter
	queue    []*incoming        // oldest first; while there are waiters, only requests that may not be returned yet
	hosts    map[netip.Addr]int // number of requests in queue by host
	place    *list.Element      // in m.pending, while there is a queue
	open     time.Time          // end of the grace time
	kept     int                // Accepts that keep it open, see keepOpen
}

// refusal is the answer to a request if there is no room for it.
var refusal = wire.CM{Type: wire.CMReject, Reason: wire.CMReasonResources}

type doorKey struct {
	host netip.Addr // zero: any
	disc string
}

type waiter struct {
	l  *listener      // nil: a plain Wait
	ch chan *incoming // gets at most one request
}

// listener is where requests for one discriminator arrive; see [kagent.Listener].
type listener struct {
	m    *Manager
	door *door
	done chan struct{} // closed by Close
}

func (m *Manager) doorKey(local kagent.Address) (doorKey, error) {
	if len(local.Disc) > wire.CMMaxDisc {
		return doorKey{}, fmt.Errorf("kagent: discriminator of %d bytes, at most %d", len(local.Disc), wire.CMMaxDisc)
	}
	return doorKey{kagent.Plain(local.Host), string(local.Disc)}, nil
}

// Listen takes requests to local from now on; see [kagent.Agent].
func (c Client) Listen(local kagent.Address) (kagent.Listener, error) {
	m := c.Manager
	key, err := m.doorKey(local)
	if err != nil {
		return nil, err
	}
	var out []datagram
	defer func() { m.sendAll(out) }()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, m.cause
	}
	d, out, err := m.claim(key, c.user, time.Now())
	if err != nil {
		return nil, err
	}
	if d.listener != nil {
		return nil, kagent.ErrListening
	}
	d.listener = &listener{m: m, door: d, done: make(chan struct{})}
	return d.listener, nil
}

func (l *listener) Wait(ctx context.Context) (kagent.Incoming, error) {
	return l.m.wait(ctx, l.door.key, l, l.door.user)
}

func (l *listener) Close() error {
	l.m.mu.Lock()
	d := l.door
	if d.listener != l {
		l.m.mu.Unlock()
		return nil
	}
	d.listener = nil
	close(l.done)
	d.waiters = slices.DeleteFunc(d.waiters, func(w *waiter) bool { return w.l == l })
	out := l.m.expireDoor(d, time.Now())
	l.m.mu.Unlock()
	l.m.sendAll(out)
	return nil
}

// Wait returns one request to local; see [kagent.Agent].
func (c Client) Wait(ctx context.Context, local kagent.Address) (kagent.Incoming, error) {
	key, err := c.doorKey(local)
	if err != nil {
		return nil, err
	}
	return c.wait(ctx, key, nil, c.user)
}

// wait returns the next request for key that is still alive.
func (m *Manager) wait(ctx context.Context, key doorKey, l *listener, user uint32) (kagent.Incoming, error) {
	for {
		in, err := m.next(ctx, key, l, user)
		if err != nil {
			return nil, err
		}
		if in.Err() == nil {
			return in, nil
		}
	}
}

func (m *Manager) next(ctx context.Context, key doorKey, l *listener, user uint32) (*incoming, error) {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil, m.cause
	}
	var closed chan struct{}
	if l != nil {
		closed = l.done
		if l.door.listener != l {
			m.mu.Unlock()
			return nil, kagent.ErrClosed
		}
	}
	d, out, err := m.claim(key, user, time.Now())
	if err != nil {
		m.mu.Unlock()
		m.sendAll(out)
		return nil, err
	}
	if in := m.nextQueued(d, time.Now()); in != nil {
		m.withdraw(in)
		m.pending.add(in, user)
		in.waited = l == nil
		m.leave(d, l)
		m.mu.Unlock()
		m.sendAll(out)
		return in, nil
	}
	w := &waiter{l: l, ch: make(chan *incoming, 1)}
	d.waiters = append(d.waiters, w)
	m.mu.Unlock()
	m.sendAll(out)

	m.listening.spin(m.transport, func() bool { return len(w.ch) > 0 })
	select {
	case in := <-w.ch:
		return in, nil
	case <-ctx.Done():
		err = kagent.ContextError(ctx)
	case <-closed:
		err = kagent.ErrClosed
	case <-m.done:
		err = m.cause
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := slices.Index(d.waiters, w); i >= 0 {
		d.waiters = slices.Delete(d.waiters, i, i+1)
		m.leave(d, l)
		return nil, err
	}
	// A request was handed over meanwhile, or the manager closed.
	select {
	case in := <-w.ch:
		return in, nil
	default:
		return nil, err
	}
}

// door returns the door for key, and creates it if necessary, for a user. Caller holds m.mu.
func (m *Manager) door(key doorKey, user uint32) *door {
	d := m.doors[key]
	if d == nil {
		d = &door{key: key, user: user}
		m.doors[key] = d
		if m.discs[key.disc] == nil {
			m.discs[key.disc] = make(map[*door]struct{})
		}
		m.discs[key.disc][d] = struct{}{}
	}
	return d
}

// leave starts the grace time when a Wait ends. A Listener (l is not nil) ends with its Close.
// Caller holds m.mu.
func (m *Manager) leave(d *door, l *listener) {
	if l != nil {
		return
	}
	d.open = time.Now().Add(graceTime)
	m.sweepLater()
}

// takes reports whether d accepts requests.
func (d *door) takes(now time.Time) bool {
	return d != nil && (len(d.waiters) > 0 || d.listener != nil || d.kept > 0 || now.Before(d.open))
}

// match finds the door for a request that came to host. Caller holds m.mu.
func (m *Manager) match(host netip.Addr, disc []byte, now time.Time) *door {
	for _, h := range [...]netip.Addr{host, {}} {
		if d := m.doors[doorKey{h, string(disc)}]; d.takes(now) {
			return d
		}
	}
	return nil
}

// arrive lets a request in. If the queue is full, it refuses another request, whose requester
// gets the refusal when it asks again. Caller holds m.mu.
func (m *Manager) arrive(d *door, in *incoming, now time.Time) {
	if len(d.waiters) > 0 && (in.proven || !m.cookiesRequired(now)) {
		m.deliver(d, in)
		return
	}
	if len(d.queue) >= maxBacklog {
		m.counters.Refused++
		d.victim().end(kagent.ErrCancelled, refusal)
	}
	m.pending.removeDoor(d)
	in.door = d
	d.queue = append(d.queue, in)
	if d.hosts == nil {
		d.hosts = make(map[netip.Addr]int)
	}
	d.hosts[in.key.peer.Addr()]++
	m.pending.add(in, d.user)
	m.pending.addDoor(d)
}

// deliver passes a request that is in no queue to the oldest Wait. Caller holds m.mu.
func (m *Manager) deliver(d *door, in *incoming) {
	w := d.waiters[0]
	d.waiters = d.waiters[1:]
	m.pending.add(in, d.user)
	in.waited = w.l == nil
	w.ch <- in
	m.leave(d, w.l)
}

// keepOpen keeps the discriminator of a Wait open while the program is in Accept with a request of an
// unproven address, since the program will wait again as soon as it can. Caller holds m.mu.
func (m *Manager) keepOpen(in *incoming) {
	if in.proven || !in.waited {
		return
	}
	for _, host := range [...]netip.Addr{in.local, {}} {
		if d := m.doors[doorKey{host, string(in.disc)}]; d != nil && d.user == in.user {
			d.kept++
			in.keepsOpen = d
			return
		}
	}
}

// endKeepOpen ends keepOpen, and starts the grace time. Caller holds m.mu.
func (m *Manager) endKeepOpen(in *incoming) {
	if d := in.keepsOpen; d != nil {
		in.keepsOpen = nil
		d.kept--
		d.open = time.Now().Add(graceTime)
		m.sweepLater()
	}
}

// deliverQueued passes requests from the queue to waiters, as far as there are any. Caller holds m.mu.
func (m *Manager) deliverQueued(d *door, now time.Time) {
	for len(d.waiters) > 0 {
		in := m.nextQueued(d, now)
		if in == nil {
			return
		}
		m.withdraw(in)
		m.deliver(d, in)
	}
}

// nextQueued returns the next request in d's queue to be passed on, or nil. Proven ones go first, and alone
// while cookies are required. Caller holds m.mu.
func (m *Manager) nextQueued(d *door, now time.Time) *incoming {
	if i := slices.IndexFunc(d.queue, func(in *incoming) bool { return in.proven }); i >= 0 {
		return d.queue[i]
	}
	if len(d.queue) == 0 || m.cookiesRequired(now) {
		return nil
	}
	return d.queue[0]
}

// hasProven reports whether a request of a proven address waits in the queue.
func (d *door) hasProven() bool {
	return slices.ContainsFunc(d.queue, func(in *incoming) bool { return in.proven })
}

// victim returns the request in the queue, which is not empty, to be evicted: the oldest of an unproven
// address, or else the oldest of the host that has the most there.
func (d *door) victim() *incoming {
	oldest := d.queue[0]
	for _, in := range d.queue {
		if !in.proven {
			return in
		}
		if d.hosts[in.key.peer.Addr()] > d.hosts[oldest.key.peer.Addr()] {
			oldest = in
		}
	}
	return oldest
}

// withdraw removes an Incoming from its queue, if it is in one. Caller holds m.mu.
func (m *Manager) withdraw(in *incoming) {
	d := in.door
	if d == nil {
		return
	}
	in.door = nil
	m.pending.removeDoor(d)
	i := slices.Index(d.queue, in)
	d.queue = slices.Delete(d.queue, i, i+1)
	host := in.key.peer.Addr()
	if d.hosts[host]--; d.hosts[host] == 0 {
		delete(d.hosts, host)
	}
	m.pending.addDoor(d)
}

// expireDoor removes d if it no longer accepts requests, and returns a "no match" for each
// request in its queue. Caller holds m.mu.
func (m *Manager) expireDoor(d *door, now time.Time) (out []datagram) {
	if d.takes(now) {
		return nil
	}
	for len(d.queue) > 0 {
		in := d.queue[0]
		in.end(kagent.ErrCancelled, wire.CM{Type: wire.CMNoMatch})
		out = append(out, in.allow(in.reply))
	}
	delete(m.doors, d.key)
	m.disown(d)
	return out
}

// A discriminator belongs to one user at a time, for all hosts: to the user that listens or
// waits, and for graceTime after a Wait. Root is a user like any other. So no user can take the
// requests of another user's program, neither by a listener at a more specific host nor by a Wait
// beside its Wait.

// errOtherUser refuses a discriminator.
var errOtherUser = fmt.Errorf("%w: a program of another user listens or waits there", kagent.ErrListening)

// claim assigns the door for key to a user, unless another user has the discriminator. The caller
// sends what it returns, without m.mu. Caller holds m.mu.
func (m *Manager) claim(key doorKey, user uint32, now time.Time) (d *door, out []datagram, err error) {
	if k, ok := m.kept[key.disc]; ok && k.user != user {
		return nil, nil, errOtherUser
	}
	for d := range m.discs[key.disc] {
		if d.user == user {
			break // as all of them
		}
		if d.takes(now) {
			return nil, out, errOtherUser
		}
		out = append(out, m.expireDoor(d, now)...) // sweep has not removed it yet
	}
	return m.door(key, user), out, nil
}

// disown removes a deleted door from its discriminator. Caller holds m.mu.
func (m *Manager) disown(d *door) {
	rest := m.discs[d.key.disc]
	delete(rest, d)
	if len(rest) == 0 {
		delete(m.discs, d.key.disc)
	}
}

// keptDisc is a discriminator at which programs of a user listened when the previous agent ended, with the
// number of its listeners that have not been opened again.
type keptDisc struct {
	user  uint32
	times int
}

// Kept is a discriminator at which a program of a user listened when the previous agent ended. Until the program
// listens again, no other user gets it, and requests for it have no answer, so that requesters repeat them.
type Kept struct {
	Disc string
	User uint32
}

func (m *Manager) keep(k Kept) {
	if of, ok := m.kept[k.Disc]; !ok || of.user == k.User {
		m.kept[k.Disc] = keptDisc{k.User, of.times + 1}
	}
}

// ReleaseDisc ends one Kept.
func (m *Manager) ReleaseDisc(disc string, user uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k, ok := m.kept[disc]
	switch {
	case !ok || k.user != user:
	case k.times == 1:
		delete(m.kept, disc)
	default:
		m.kept[disc] = keptDisc{user, k.times - 1}
	}
}

// ofAnother reports whether a peer request of another user with r's addresses waits: the two would take each
// other's place. Caller holds m.mu.
func (m *Manager) ofAnother(r *request) bool {
	at := r.peers
	for _, at.local = range []netip.Addr{r.peers.local, {}} {
		if line := m.peers[at]; len(line) > 0 && line[0].user != r.user { // all of a queue are of one user
			return true
		}
	}
	return false
}
