package mvich

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"viaxdp/vipl"
)

// Connections are made on demand, one for a pair of ranks. The rank that wants
// to send calls, and after a while one that waits for a message of the other, which
// may have died; a goroutine of the other one, which listens all the time,
// admits it. When both call at once the higher rank gives way:
//
//	rank 1 (calls)              rank 4 (calls)
//	   |------ request ------------->| admits it, since 1 < 4
//	   |<----------- request --------|
//	   |------ reject -------------->| gives up its own
//	   |<----- accept ---------------|
//	   |------ first packet, with all credits -->|
//
// Who admits posts its receives before it accepts; who calls posts them when it
// is connected, and the first packet says so. A rejected call so leaves nothing
// on its VI.

const (
	callTurn   = 2 * time.Second // how long one request may take
	absence    = 3 * time.Second // after which a rank that does not listen is taken for dead: an agent starts again in less
	retryLeast = time.Millisecond
	retryMost  = 50 * time.Millisecond
)

// netAddress is where a rank listens. The token is random, and tells a rank that
// it is called by one of the job, and by whom.
type netAddress struct {
	addr  netip.Addr
	token string
}

func (a netAddress) vipl() vipl.NetAddress {
	return vipl.NetAddress{Host: a.addr, Discriminator: []byte(a.token)}
}

// listen admits callers until the world stops.
func (w *World) listen() {
	defer w.callers.Close()
	for !w.stopping() {
		conn, err := w.callers.Wait(w.life)
		if err == nil {
			w.tasks.Go(func() { w.admit(conn) })
		} else { // it stops, or the NIC was closed, or cannot
			w.pause(retryMost)
		}
	}
}

func (w *World) stopping() bool { return w.life.Err() != nil }

// pause waits for d, or the world's end.
func (w *World) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.life.Done():
	}
}

// admit answers a rank that calls.
func (w *World) admit(conn *vipl.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.tokens[string(conn.Remote().Discriminator)]
	l := w.prepareAdmission(p)
	if l == nil {
		w.mu.Unlock()
		conn.Reject()
		w.mu.Lock()
		return
	}
	w.mu.Unlock()
	err := conn.Accept(l.vi)
	w.mu.Lock()
	w.admitted(p, l, conn.RemoteAttributes(), err)
	w.pushDirty()
}

// admitted ends an admission, which has failed with err or not.
func (w *World) admitted(p *peer, l *link, theirs vipl.RemoteAttributes, err error) {
	switch {
	case p.link != l: // it has broken already, or the world ends
		w.retire(l)
	case err == nil:
		w.join(p, theirs)
	case l.heard: // what it has begun cannot go on, nor may it begin once more
		w.lose(p, err)
		w.retire(l)
	default:
		p.state, p.link = apart, nil
		p.control = fifo[packet]{} // the next connection has its own news
		w.retire(l)
		w.callIfNeeded(p)
		w.expect(p)
		w.announce()
	}
}

// prepareAdmission makes a link with receives for p, or nil if it has to be
// rejected.
func (w *World) prepareAdmission(p *peer) *link {
	if p == nil || p.state != apart || p.calling && w.rank < p.rank || w.stopping() {
		return nil
	}
	l, err := w.newLink(p)
	if err != nil {
		return nil
	}
	if w.stock(l) != nil {
		w.retire(l)
		return nil
	}
	p.state, p.link = admitting, l
	p.credits, p.acksDue, p.granted = 0, 0, w.set.credits // the first packet of the caller brings ours; it knows of its own
	w.tellAll(p)
	return l
}

// join takes p's link, which is connected, into use.
func (w *World) join(p *peer, theirs vipl.RemoteAttributes) {
	p.state = joined
	p.canRead = w.set.read && theirs.EnableRDMARead
	p.canWrite = theirs.EnableRDMAWrite
	w.stats.Connections++
	if w.finalized { // before this connection was there
		w.queueControl(p, packet{header: header{kind: kindBye}})
	}
	w.touch(p)
}

// callIfNeeded connects with p if there is something to send and nobody is at
// it.
func (w *World) callIfNeeded(p *peer) {
	if !p.idle() {
		w.call(p)
	}
}

// call connects with p, beside.
func (w *World) call(p *peer) {
	if p.state != apart || p.calling || p.rank == w.rank || w.stopping() {
		return
	}
	p.calling = true
	w.tasks.Go(func() {
		var v vigil
		for retry := retryLeast; ; retry = min(2*retry, retryMost) {
			began := time.Now()
			err := w.tryCall(p)
			if err == nil {
				return
			}
			if v.inVain(err, began, w.set.ackDelay) {
				w.giveUp(p, err)
				return
			}
			w.pause(retry)
		}
	})
}

// vigil is since when requests to a rank have been in vain. The zero value: they have not.
type vigil struct {
	since  time.Time // in whatever way
	absent time.Time // because nobody listens there
}

// inVain takes note of a request that has failed, and says whether the rank is dead.
func (v *vigil) inVain(err error, began time.Time, ackDelay time.Duration) bool {
	if v.since.IsZero() {
		v.since = began
	}
	now := time.Now()
	if !errors.Is(err, vipl.ErrNoMatch) {
		v.absent = time.Time{}
	} else if v.absent.IsZero() {
		v.absent = now
	}
	return now.Sub(v.since) > ackDelay || !v.absent.IsZero() && now.Sub(v.absent) > absence
}

// tryCall makes one attempt. nil: the call is over, one way or the other.
func (w *World) tryCall(p *peer) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.state != apart || w.stopping() {
		p.calling = false
		return nil
	}
	l, err := w.newLink(p)
	if err != nil {
		return err
	}
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(w.life, callTurn)
	theirs, err := l.vi.ConnectRequestContext(ctx, w.self().host.vipl(), p.host.vipl())
	cancel()
	w.mu.Lock()
	switch {
	case p.state != apart || w.stopping(): // it has called meanwhile
		w.retire(l)
		p.calling = false
		return nil
	case err != nil:
		w.retire(l) // the VI is in Error where the peer has sent something before it refused
		return err
	}
	p.calling = false
	p.state, p.link = joined, l
	p.credits, p.acksDue, p.granted = w.set.credits, w.set.credits, 0
	w.tellAll(p)
	if err := w.stock(l); err != nil {
		w.lose(p, err)
	} else {
		w.join(p, theirs)
	}
	w.pushDirty()
	return nil
}

// giveUp takes p for dead, because no connection with it comes about.
func (w *World) giveUp(p *peer, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p.calling = false
	if p.state == apart {
		w.lose(p, fmt.Errorf("no connection: %w", err))
		w.pushDirty() // nobody may call for long
	}
}
