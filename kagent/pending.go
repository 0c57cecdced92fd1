package kagent

import "container/list"

// pending is the requests that are not answered, in queues or with programs, by the
// user who has them, in the order in which they got there. Guarded by Manager.mu.
type pending map[uint32]*list.List // of *Incoming

func (p pending) total() (n int) {
	for user := range p {
		n += p.of(user)
	}
	return n
}

// of counts those of a user.
func (p pending) of(user uint32) int {
	if all := p[user]; all != nil {
		return all.Len()
	}
	return 0
}

// add makes an Incoming a user's, whosever it was.
func (p pending) add(in *Incoming, user uint32) {
	p.remove(in)
	all := p[user]
	if all == nil {
		all = list.New()
		p[user] = all
	}
	in.user, in.place = user, all.PushBack(in)
}

// remove takes an Incoming out, if it is there.
func (p pending) remove(in *Incoming) {
	if in.place == nil {
		return
	}
	all := p[in.user]
	all.Remove(in.place)
	in.place = nil
	if all.Len() == 0 {
		delete(p, in.user)
	}
}

// makeRoom sees to it that there is room for one more request at d, and tells whether
// there is. When there are as many as there may be, the user who has the most pays: with
// the oldest where the most wait, and if none waits with the oldest that the user's
// programs have taken. Who has as many as anybody pays with what waits; with what was
// taken only for a program that waits for the next one, and is refused otherwise: so a
// user who wants a share gets it, whatever the others' listeners are flooded with.
// Caller holds m.mu.
func (m *Manager) makeRoom(d *door) bool {
	if m.pending.total() < maxPending {
		return true
	}
	mine, waits := d.user, len(d.waiters) > 0
	if waits {
		mine = d.waiters[0].user
	}
	user := mine
	for u := range m.pending {
		if m.pending.of(u) > m.pending.of(user) {
			user = u
		}
	}
	longest := d
	if user != mine {
		longest = &door{}
	}
	for e := m.pending[user].Front(); e != nil; e = e.Next() {
		if in := e.Value.(*Incoming); in.door != nil && len(in.door.queue) > len(longest.queue) {
			longest = in.door
		}
	}
	var victim *Incoming
	switch {
	case len(longest.queue) > 0:
		victim = longest.queue[0]
	case user != mine || waits:
		victim = m.pending[user].Front().Value.(*Incoming)
	default:
		return false
	}
	m.counters.Refused++
	victim.end(ErrCancelled, refusal)
	return true
}
