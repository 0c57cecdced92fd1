package kagent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"viaxdp/wire"
)

// door is where requests for one discriminator arrive: those who wait for one,
// or else the requests that wait for somebody. It stays open for graceTime
// after a Wait, so that a server which waits in a loop, or polls, misses
// nobody. All fields are guarded by Manager.mu.
type door struct {
	key      doorKey
	user     uint32 // who has waited last, or listens
	listener *Listener
	waiters  []*waiter
	queue    []*Incoming // oldest first; empty while there are waiters
	open     time.Time   // end of the grace
}

// refusal is the answer to a request that there is no room for.
var refusal = wire.CM{Type: wire.CMReject, Reason: wire.CMReasonResources}

type doorKey struct {
	host netip.Addr // zero: any
	disc string
}

type waiter struct {
	l    *Listener // nil: a plain Wait
	user uint32
	ch   chan *Incoming // gets one at most
}

// Listener takes requests for one discriminator until it is closed. All
// methods may be called concurrently.
type Listener struct {
	far  ListenerEnd // nil: all of it is here
	m    *Manager
	key  doorKey
	user uint32
	done chan struct{} // closed by Close
}

func (m *Manager) doorKey(local Address) (doorKey, error) {
	if len(local.Disc) > wire.CMMaxDisc {
		return doorKey{}, fmt.Errorf("kagent: discriminator of %d bytes, at most %d", len(local.Disc), wire.CMMaxDisc)
	}
	return doorKey{plain(local.Host), string(local.Disc)}, nil
}

// Listen takes requests to local from now on; see [Agent].
func (m *Manager) Listen(local Address) (*Listener, error) { return m.listen(local, 0) }

func (m *Manager) listen(local Address, user uint32) (*Listener, error) {
	key, err := m.doorKey(local)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, m.cause
	}
	d := m.door(key)
	if d.listener != nil {
		return nil, ErrListening
	}
	d.user = user
	d.listener = &Listener{m: m, key: key, user: user, done: make(chan struct{})}
	return d.listener, nil
}

// Wait returns the next request, those first that came before the call. At
// most 64 wait; a further one takes the place of the oldest, which is rejected.
func (l *Listener) Wait(ctx context.Context) (*Incoming, error) {
	if l.far != nil {
		return l.far.Wait(ctx)
	}
	return l.m.wait(ctx, l.key, l, l.user)
}

// Close ends Listen. Calls of Wait end with ErrClosed, and requests that
// nobody has taken get "no match".
func (l *Listener) Close() error {
	if l.far != nil {
		return l.far.Close()
	}
	l.m.mu.Lock()
	d := l.m.doors[l.key]
	if d == nil || d.listener != l {
		l.m.mu.Unlock()
		return nil
	}
	d.listener = nil
	close(l.done)
	d.waiters = slices.DeleteFunc(d.waiters, func(w *waiter) bool { return w.l == l })
	out := l.m.expireDoor(d, time.Now())
	l.m.mu.Unlock()
	for _, d := range out {
		l.m.send(d)
	}
	return nil
}

func (l *Listener) isClosed() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// Wait returns one request to local; see [Agent].
func (m *Manager) Wait(ctx context.Context, local Address) (*Incoming, error) {
	return m.waitFor(ctx, local, 0)
}

func (m *Manager) waitFor(ctx context.Context, local Address, user uint32) (*Incoming, error) {
	key, err := m.doorKey(local)
	if err != nil {
		return nil, err
	}
	return m.wait(ctx, key, nil, user)
}

// wait returns the next request for key that is still alive.
func (m *Manager) wait(ctx context.Context, key doorKey, l *Listener, user uint32) (*Incoming, error) {
	for {
		in, err := m.next(ctx, key, l, user)
		if err != nil || in.Err() == nil {
			return in, err
		}
	}
}

func (m *Manager) next(ctx context.Context, key doorKey, l *Listener, user uint32) (*Incoming, error) {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil, m.cause
	}
	var closed chan struct{}
	if l != nil {
		closed = l.done
		if d := m.doors[key]; d == nil || d.listener != l {
			m.mu.Unlock()
			return nil, ErrClosed
		}
	}
	d := m.door(key)
	if len(d.queue) > 0 {
		in := d.queue[0]
		d.queue = d.queue[1:]
		in.door = nil
		m.pending.add(in, user)
		m.leave(d, l, user)
		m.mu.Unlock()
		return in, nil
	}
	w := &waiter{l: l, user: user, ch: make(chan *Incoming, 1)}
	d.waiters = append(d.waiters, w)
	m.mu.Unlock()

	var err error
	select {
	case in := <-w.ch:
		return in, nil
	case <-ctx.Done():
		err = contextError(ctx)
	case <-closed:
		err = ErrClosed
	case <-m.done:
		err = m.cause
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := slices.Index(d.waiters, w); i >= 0 {
		d.waiters = slices.Delete(d.waiters, i, i+1)
		m.leave(d, l, user)
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

// door finds or makes the door for key. Caller holds m.mu.
func (m *Manager) door(key doorKey) *door {
	d := m.doors[key]
	if d == nil {
		d = &door{key: key}
		m.doors[key] = d
	}
	return d
}

// leave begins the grace when a Wait ends; a Listener (l is not nil) ends with
// its Close. Caller holds m.mu.
func (m *Manager) leave(d *door, l *Listener, user uint32) {
	if l != nil {
		return
	}
	d.open = time.Now().Add(graceTime)
	if d.listener == nil {
		d.user = user
	}
	m.sweepLater()
}

// takes tells whether a request may come in at d.
func (d *door) takes(now time.Time) bool {
	return d != nil && (len(d.waiters) > 0 || d.listener != nil || now.Before(d.open))
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

// arrive lets a request in. When there are too many, the oldest has waited in
// vain; its requester hears of it when it asks again. Caller holds m.mu.
func (m *Manager) arrive(d *door, in *Incoming) {
	if len(d.waiters) > 0 {
		w := d.waiters[0]
		d.waiters = d.waiters[1:]
		m.pending.add(in, w.user)
		w.ch <- in
		m.leave(d, w.l, w.user)
		return
	}
	if len(d.queue) >= maxBacklog {
		m.counters.Refused++
		d.queue[0].end(ErrCancelled, refusal)
	}
	in.door = d
	d.queue = append(d.queue, in)
	m.pending.add(in, d.user)
}

// withdraw takes an Incoming that ended out of the queue that it is in. Caller
// holds m.mu.
func (d *door) withdraw(in *Incoming) {
	if i := slices.Index(d.queue, in); i >= 0 {
		d.queue = slices.Delete(d.queue, i, i+1)
	}
}

// expireDoor shuts d when nobody holds it open, and returns the "no match" for
// whoever is in the queue. Caller holds m.mu.
func (m *Manager) expireDoor(d *door, now time.Time) (out []datagram) {
	if d.takes(now) {
		return nil
	}
	for len(d.queue) > 0 {
		out = append(out, d.queue[0].end(ErrCancelled, wire.CM{Type: wire.CMNoMatch}))
	}
	delete(m.doors, d.key)
	return out
}

// contextError says why ctx is done, in this package's terms.
func contextError(ctx context.Context) error {
	if err := ctx.Err(); errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", ErrTimeout, err)
	}
	return context.Cause(ctx)
}
