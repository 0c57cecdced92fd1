package mvich

import (
	"fmt"
	"slices"
)

// The death of ranks. A rank notices that another one has died by the end of their connection without a good-bye, or
// because no connection comes about. It notifies all ranks that it is connected with, and these forward the news.
// Operations that involve the dead rank fail with a RankError, now and later: sends to it, receives from it, and, in
// communicators that it is a member of, collective operations and, until Acknowledge, AnySource receives. All others
// go on.
//
// One death causes others: a rank that learns of it gives up and leaves, and ranks that do not know yet see a second
// death. So a rank that leaves first sends the deaths that it knows, on the connection that ends. A new connection
// begins with them. If several ranks are missing, the error names the first. News spreads along the connections in
// order, so no rank learns of a death before the one that caused it.
//
// A rank that leaves after a death counts as dead, with or without a bye. It may leave a collective operation of a
// communicator that has lost no rank yet. Some ranks then fail and go on to other work, and ranks that wait for those
// must learn of it, too. A rank that leaves without a death leaves no rank waiting, as all have come to Finalize.

// lose takes p for dead. After this rank's bye, a connection that a peer ends is no death.
func (w *World) lose(p *peer, cause error) {
	switch {
	case p.gone():
		return
	case w.finalized:
		w.leave(p)
		return
	}
	p.cause = p.after(cause)
	w.dead = append(w.dead, p)
	w.part(p, dead)
	w.stats.Deaths++
	for _, q := range w.peers {
		w.tell(q, p)
	}
}

// tell notifies q of p's death.
func (w *World) tell(q, p *peer) {
	w.queueControl(q, packet{header: header{kind: kindDead, tag: int32(p.rank)}})
}

// tellAll notifies q of the deaths so far, ahead of later ones.
func (w *World) tellAll(q *peer) {
	for _, p := range w.dead {
		w.tell(q, p)
	}
}

// leave handles p's bye. After a death, p may leave operations that the dead rank had no part in, so p counts as
// dead, too.
func (w *World) leave(p *peer) {
	switch {
	case p.gone():
	case p.told != nil && !w.finalized:
		w.lose(p, errLeft)
	default:
		p.cause = p.after(errLeft)
		w.part(p, left)
	}
}

// after adds to cause the death after which p left, if p has reported one.
func (p *peer) after(cause error) error {
	if p.told == nil || p.told == p {
		return cause
	}
	return fmt.Errorf("%w, having told that %w", cause, p.told.lost())
}

// part ends everything with p, whose state becomes how.
func (w *World) part(p *peer, how condition) {
	was, l := p.state, p.link
	p.state, p.link = how, nil
	p.moving = 0
	err := p.lost()
	fail := func(r *Request) {
		if l != nil && r.movesByRDMA() {
			l.failLater(r, err)
		} else {
			w.complete(r, err)
		}
	}
	p.control = fifo[packet]{}
	p.sends.drain(fail)
	p.streams.drain(fail)
	p.moves.drain(fail)
	for _, r := range w.numbered {
		if r.peer == p.rank {
			fail(r)
		}
	}
	var failed []*Request
	w.posted = slices.DeleteFunc(w.posted, func(r *Request) bool {
		needs := r.needs(p)
		if needs {
			failed = append(failed, r)
		}
		return needs
	})
	for _, r := range failed {
		fail(r)
	}
	if how == dead {
		w.abandonCollective(p, err)
	}
	for i := len(w.unexpected) - 1; i >= 0; i-- { // messages whose data will not come
		if m := w.unexpected[i]; m.source == p.rank && m.offer.protocol != Auto {
			w.unkeep(i)
		}
	}
	if l != nil && was == joined { // an admission under way sees to its link itself
		w.retire(l)
	}
	w.announce() // probes, too
}

// abandonCollective ends sends and receives with live ranks that belong to collective operations with p: those ranks
// may never reach that step.
func (w *World) abandonCollective(p *peer, err error) {
	hit := func(r *Request) bool { return r.collective() && r.comm.rankOf(p.rank) >= 0 }
	for _, r := range w.numbered {
		if hit(r) {
			w.abandon(r, err)
		}
	}
	for _, q := range w.peers {
		q.sends.filter(func(r *Request) bool { // nothing of them has been sent
			if hit(r) {
				w.complete(r, err)
				return false
			}
			return true
		})
	}
}

// needs reports whether a receive that waits cannot go on without p.
func (r *Request) needs(p *peer) bool {
	if r.peer == p.rank {
		return true
	}
	return (r.peer == AnySource || r.collective()) && p.state == dead && r.comm.rankOf(p.rank) >= 0
}

// hopeless returns why a request that involves p cannot succeed, or nil.
func (r *Request) hopeless(p *peer) error {
	if r.collective() {
		if err := r.comm.firstDeath(nil); err != nil {
			return err
		}
	}
	if p.gone() {
		return p.lost()
	}
	return nil
}

// collective reports whether the request is part of a collective operation.
func (r *Request) collective() bool { return r.context == r.comm.context+1 }

// takeDead takes the news of a death.
func (w *World) takeDead(from *peer, h *header) {
	rank := int(h.tag)
	if rank < 0 || rank >= len(w.peers) || rank == w.rank {
		return
	}
	p := w.peers[rank]
	w.lose(p, fmt.Errorf("rank %d says so", from.rank))
	if from.told == nil {
		from.told = p
	}
}

// Stop ends all operations of this rank, those that wait and later ones, with err; the other ranks see it die. It is for a
// program that is told to end while other goroutines may be in calls: close the NIC after they have returned, since its
// memory goes with it. Any goroutine may call it, at any time after Init; after Finalize it does nothing.
func (w *World) Stop(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stop(err)
}

func (w *World) stop(err error) {
	if w.gone == nil && !w.finalized {
		w.collapse(err)
		w.announce()
	}
}

// collapse ends everything: the NIC is gone, for the reason err.
func (w *World) collapse(err error) {
	w.gone = err
	for _, p := range w.peers {
		if p.rank != w.rank {
			w.lose(p, err)
		}
	}
	w.endWaiting(err) // what this rank has to do with itself
}

// endWaiting ends receives without a message, and sends of this rank to itself that it has not received.
func (w *World) endWaiting(err error) {
	posted := w.posted
	w.posted = nil
	for _, r := range posted {
		w.complete(r, err)
	}
	for _, m := range w.unexpected {
		if m.local != nil {
			w.complete(m.local, err)
		}
	}
	w.unexpected = slices.DeleteFunc(w.unexpected, func(m *message) bool { return m.local != nil })
}

// Dead lists the ranks of the communicator that are dead, or have left after a death, as far as this rank knows.
func (c *Comm) Dead() (ranks []int) {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	for i, rank := range c.group {
		if c.w.peers[rank].state == dead {
			ranks = append(ranks, i)
		}
	}
	return ranks
}

// Acknowledge records that the program knows of the death of ranks, which Dead has listed; live ranks in the list are
// skipped. Receives from AnySource fail while a member is dead that the program has not acknowledged, even one that
// died after the call of Dead. Otherwise they work again.
func (c *Comm) Acknowledge(ranks []int) {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	for _, i := range ranks {
		if i >= 0 && i < len(c.group) && c.w.peers[c.group[i]].state == dead {
			c.known[i] = true
		}
	}
}

// unacknowledged is the error for receives from AnySource while a member is dead that the program has not
// acknowledged.
func (c *Comm) unacknowledged() error { return c.firstDeath(c.known) }

// firstDeath returns the loss of the member that died first, of those not in known; nil if there is none.
func (c *Comm) firstDeath(known []bool) error {
	for _, p := range c.w.dead {
		if i := c.rankOf(p.rank); i >= 0 && (known == nil || !known[i]) {
			return p.lost()
		}
	}
	return nil
}
