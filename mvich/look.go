package mvich

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"viaxdp/vipl"
)

// Who waits for a message of anybody connects with nobody for it: connections cost
// memory. But a rank may have died before it had called anybody, and then none knows
// of it. So those who may send the message and have not called are looked at now and
// then: whoever lives rejects a call of somebody that it does not know, and that costs
// nothing.

const (
	lookEvery   = 1 * time.Second
	lookToken   = "look" // no rank's
	looksAtOnce = 8      // a host that is silent takes callTurn
)

// expectAnybody has a look taken if somebody still waits for anybody by then.
func (w *World) expectAnybody() {
	if !w.looking && !w.leaving && !w.finalized && w.stats.Connections < uint64(len(w.peers)-1) {
		w.looking = true
		time.AfterFunc(callAfter, w.lookAround)
	}
}

// lookAround looks at all, and again after a while, as long as somebody waits.
func (w *World) lookAround() {
	w.mu.Lock()
	defer w.mu.Unlock()
	hidden := w.hidden()
	w.iprobed = nil
	if w.looking = len(hidden) > 0; !w.looking {
		return
	}
	w.tasks.Go(func() {
		var looks sync.WaitGroup
		places := make(chan struct{}, looksAtOnce)
		for _, p := range hidden {
			places <- struct{}{}
			looks.Go(func() {
				w.lookAt(p)
				<-places
			})
		}
		looks.Wait()
		time.AfterFunc(lookEvery, w.lookAround)
	})
}

// hidden are those whom somebody waits for among others, without a connection. Of the
// others it is forgotten that looks were in vain.
func (w *World) hidden() (all []*peer) {
	if w.leaving || w.finalized { // others may have left, with a good-bye for those who know them
		return nil
	}
	for _, p := range w.peers {
		in := func(c *Comm) bool { return c.rankOf(p.rank) >= 0 }
		if w.unseen(p) && (w.iprobed != nil && in(w.iprobed) || slices.ContainsFunc(w.probing, in) ||
			slices.ContainsFunc(w.posted, func(r *Request) bool { return r.peer == AnySource && in(r.comm) })) {
			all = append(all, p)
		} else {
			p.looks = vigil{}
		}
	}
	return all
}

// unseen says that there is no connection with p, and nobody makes one.
func (w *World) unseen(p *peer) bool { return p.state == apart && !p.calling && p.rank != w.rank }

// lookAt looks whether p is there.
func (w *World) lookAt(p *peer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.unseen(p) || w.stopping() {
		return
	}
	l, err := w.newLink(p)
	if err != nil {
		return
	}
	w.mu.Unlock()
	began := time.Now()
	ctx, cancel := context.WithTimeout(w.life, callTurn)
	_, err = l.vi.ConnectRequestContext(ctx, netAddress{w.self().host.addr, lookToken}.vipl(), p.host.vipl())
	cancel()
	w.mu.Lock()
	w.retire(l)
	switch {
	case err == nil: // no rank
	case errors.Is(err, vipl.ErrRejected):
		p.looks = vigil{}
	case !errors.Is(err, vipl.ErrNoMatch) && !errors.Is(err, vipl.ErrTimeout) && !errors.Is(err, vipl.ErrNotReachable):
		// this host's fault
	case p.looks.inVain(err, began, w.set.ackDelay) && w.unseen(p) && !w.stopping() && !w.leaving && !w.finalized:
		w.lose(p, err)
		w.pushDirty()
	}
}
