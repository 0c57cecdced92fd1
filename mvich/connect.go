package mvich

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"viaxdp/vipl"
)

// A pair of ranks connects when one of them has something for the other:
//
//  1. call: a goroutine asks for the connection (tryCall), again and again for WithConnectTimeout at most.
//  2. The other rank listens, and admits it (admit): it posts its receives before it accepts.
//  3. The caller posts its receives when it is connected; its first packet says so by its credits. So a call that is
//     rejected leaves nothing on the VI.
//
// When both call at once the higher rank gives way:
//
//	rank 1 (calls)              rank 4 (calls)
//	   |------ request ------------->| admits it, since 1 < 4
//	   |<----------- request --------|
//	   |------ reject -------------->| gives up its own call
//	   |<----- accept ---------------|
//	   |------ first packet, with all credits -->|
//
// A rank that waits for a message connects only after a while, to notice the death of the sender (expectFor). An
// AnySource receive makes no connection, as connections cost memory: senders without a connection are probed
// (checkLiveness). A live rank rejects the probe's token at no cost.

const (
	callTurn   = 2 * time.Second        // how long one request may take
	absence    = 3 * time.Second        // after which a rank that does not listen is dead: an agent restarts in less
	callAfter  = 500 * time.Millisecond // after which a rank that is waited for is called
	retryLeast = time.Millisecond
	retryMost  = 50 * time.Millisecond

	checkEvery    = 1 * time.Second
	checksAtOnce  = 8      // a host that is silent takes callTurn
	livenessToken = "look" // no rank's
)

// call connects with p, in the background.
func (w *World) call(p *peer) {
	if p.state != apart || p.calling || p.rank == w.rank || w.stopping() {
		return
	}
	p.calling = true
	w.tasks.Go(func() {
		var theirs, ours vigil
		for retry := retryLeast; ; retry = min(2*retry, retryMost) {
			began := time.Now()
			err := w.tryCall(p)
			if err == nil {
				return
			}
			v, most := &theirs, w.set.connectTimeout
			if _, short := errors.AsType[shortage](err); short {
				v, most = &ours, most/2 // before p, which may call in vain, takes this rank for dead: that would hide the cause
			} else {
				ours = vigil{}
			}
			if v.inVain(err, began, most) {
				w.giveUp(p, err)
				return
			}
			w.pause(retry)
		}
	})
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
		return shortage{err}
	}
	theirs, err := w.ask(l, w.self().host)
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
		w.stop(shortage{err})
	} else {
		w.join(p, theirs)
	}
	w.pushDirty()
	return nil
}

// shortage: this rank lacks what it needs for a connection.
type shortage struct{ error }

func (s shortage) Error() string {
	return "mvich: this rank cannot make another connection: " + s.error.Error()
}
func (s shortage) Unwrap() error { return s.error }

// ask requests the connection of a link once, by the name of from. It unlocks the world meanwhile.
func (w *World) ask(l *link, from netAddress) (vipl.RemoteAttributes, error) {
	w.mu.Unlock()
	defer w.mu.Lock()
	ctx, cancel := context.WithTimeout(w.life, callTurn)
	defer cancel()
	return l.vi.ConnectRequestContext(ctx, from.vipl(), l.peer.host.vipl())
}

// giveUp takes p for dead, because no connection with it comes about. If the reason is a shortage of this rank, this rank
// ends instead: p may live, and all others would learn of its death.
func (w *World) giveUp(p *peer, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p.calling = false
	if p.state != apart {
		return
	}
	if _, short := errors.AsType[shortage](err); short {
		w.stop(err)
		return
	}
	w.lose(p, fmt.Errorf("no connection: %w", err))
	w.pushDirty() // the program may not call for long
}

// listen admits callers until the world stops, or its interface is removed.
func (w *World) listen() {
	defer w.callers.Close()
	for !w.stopping() {
		conn, err := w.callers.Wait(w.life)
		switch {
		case err == nil:
			w.tasks.Go(func() { w.admit(conn) })
		case errors.Is(err, syscall.ENODEV): // the interface was removed, and does not come back
			w.Stop(err)
			return
		default: // it stops, or the NIC was closed, or cannot
			w.pause(retryMost)
		}
	}
}

// admit answers a rank that calls.
func (w *World) admit(conn *vipl.Conn) {
	from := conn.Remote()
	w.mu.Lock()
	p := w.tokens[string(from.Discriminator)]
	if p != nil && from.Host.WithZone("") != p.host.addr.WithZone("") {
		p = nil // all ranks know the token, and another one calls by it
	}
	l := w.prepareAdmission(p)
	w.mu.Unlock()
	if l == nil {
		conn.Reject()
		return
	}
	err := conn.AcceptContext(w.life, l.vi) // the caller may have died
	w.mu.Lock()
	defer w.mu.Unlock()
	w.admitted(p, l, conn.RemoteAttributes(), err)
	w.pushDirty()
}

// prepareAdmission makes a link with receives for p, or nil if it has to be rejected.
func (w *World) prepareAdmission(p *peer) *link {
	if p == nil || p.state != apart || p.calling && w.rank < p.rank || w.stopping() {
		return nil
	}
	l, err := w.newLink(p)
	if err == nil {
		if err = w.stock(l); err != nil {
			w.retire(l)
		}
	}
	if err != nil {
		w.call(p) // which ends this rank if it still has a shortage: p learns of no cause
		return nil
	}
	p.state, p.link = admitting, l
	p.credits, p.acksDue, p.granted = 0, 0, w.set.credits // the caller's first packet brings ours; it knows of its own
	w.tellAll(p)
	return l
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
		if !p.idle() {
			w.call(p)
		}
		w.expect(p)
		w.expectAnybody()
		w.announce()
	}
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

// vigil records since when requests to a rank have failed. The zero value: they have not.
type vigil struct {
	since  time.Time // since the first failure, of any kind
	absent time.Time // because no rank listens there
}

// inVain records a failed request, and reports whether the rank is dead.
func (v *vigil) inVain(err error, began time.Time, most time.Duration) bool {
	if v.since.IsZero() {
		v.since = began
	}
	now := time.Now()
	if !errors.Is(err, vipl.ErrNoMatch) {
		v.absent = time.Time{}
	} else if v.absent.IsZero() {
		v.absent = now
	}
	return now.Sub(v.since) > most || !v.absent.IsZero() && now.Sub(v.absent) > absence
}

// expectFor makes sure that a receive or probe notices the death of the ranks that it waits for.
func (w *World) expectFor(r *Request) {
	if r.peer >= 0 {
		w.expect(w.peers[r.peer])
		return
	}
	w.expectAnybody()
}

// expectAnybody has the ranks without a connection checked after a while if an AnySource call still waits for them.
func (w *World) expectAnybody() {
	if !w.checking && !w.leaving && !w.finalized && w.stats.Connections < uint64(len(w.peers)-1) {
		w.checking = true
		time.AfterFunc(callAfter, w.checkLiveness)
	}
}

// expect has p called after a while if a receive still waits for it and it has not called itself. So its death is
// noticed.
func (w *World) expect(p *peer) {
	if p.state != apart || p.expected || p.rank == w.rank || w.finalized || w.stopping() {
		return
	}
	p.expected = true
	time.AfterFunc(callAfter, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.callExpected(p)
	})
}

// callExpected calls p if a receive or Probe waits for it, or Iprobe asks again and again. Otherwise p is not
// called: a connection costs memory, and a rank whose memory runs out ends.
func (w *World) callExpected(p *peer) {
	p.expected = false
	if w.finalized {
		return
	}
	if p.probes > 0 || p.iprobes > 1 || slices.ContainsFunc(w.posted, func(r *Request) bool { return r.peer == p.rank }) {
		p.iprobes = 0
		w.call(p)
	}
}

// checkLiveness checks all ranks without a connection that may send what an AnySource call waits for, and again after
// a while, as long as one waits.
func (w *World) checkLiveness() {
	w.mu.Lock()
	defer w.mu.Unlock()
	hidden := w.hidden()
	w.iprobed = nil
	if w.checking = len(hidden) > 0; !w.checking {
		return
	}
	w.tasks.Go(func() {
		var checks sync.WaitGroup
		places := make(chan struct{}, checksAtOnce)
		for _, p := range hidden {
			places <- struct{}{}
			checks.Go(func() {
				w.checkAlive(p)
				<-places
			})
		}
		checks.Wait()
		time.AfterFunc(checkEvery, w.checkLiveness)
	})
}

// hidden returns the ranks without a connection that an AnySource call may wait for. It forgets failed checks of the
// others.
func (w *World) hidden() (all []*peer) {
	if w.leaving || w.finalized { // others may have left: their bye goes only to ranks that they are connected with
		return nil
	}
	for _, p := range w.peers {
		in := func(c *Comm) bool { return c.rankOf(p.rank) >= 0 }
		if w.unseen(p) && (w.iprobed != nil && in(w.iprobed) || slices.ContainsFunc(w.probing, in) ||
			slices.ContainsFunc(w.posted, func(r *Request) bool { return r.peer == AnySource && in(r.comm) })) {
			all = append(all, p)
		} else {
			p.checks = vigil{}
		}
	}
	return all
}

// unseen reports whether there is no connection with p, and none is being made.
func (w *World) unseen(p *peer) bool { return p.state == apart && !p.calling && p.rank != w.rank }

// checkAlive asks p for a connection that it rejects if it lives.
func (w *World) checkAlive(p *peer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.unseen(p) || w.stopping() {
		return
	}
	l, err := w.newLink(p)
	if err != nil {
		return
	}
	began := time.Now()
	_, err = w.ask(l, netAddress{w.self().host.addr, livenessToken})
	w.retire(l)
	switch {
	case err == nil: // no rank
	case errors.Is(err, vipl.ErrRejected):
		p.checks = vigil{}
	case !errors.Is(err, vipl.ErrNoMatch) && !errors.Is(err, vipl.ErrTimeout) && !errors.Is(err, vipl.ErrNotReachable):
		// this host's fault
	case p.checks.inVain(err, began, w.set.connectTimeout) && w.unseen(p) && !w.stopping() && !w.leaving && !w.finalized:
		w.lose(p, err)
		w.pushDirty()
	}
}
