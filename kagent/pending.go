package kagent

import "slices"

// pending is the requests that are not answered, in queues or with programs, by the
// user who has them, in the order in which they got there. Guarded by Manager.mu.
type pending map[uint32][]*Incoming

func (p pending) total() (n int) {
	for _, all := range p {
		n += len(all)
	}
	return n
}

// add makes an Incoming a user's, whosever it was.
func (p pending) add(in *Incoming, user uint32) {
	p.remove(in)
	in.user = user
	p[user] = append(p[user], in)
}

// remove takes an Incoming out, if it is there.
func (p pending) remove(in *Incoming) {
	all := p[in.user]
	i := slices.Index(all, in)
	switch {
	case i < 0:
	case len(all) == 1:
		delete(p, in.user)
	default:
		p[in.user] = slices.Delete(all, i, i+1)
	}
}

// makeRoom sees to it that there is room for one more request at d, and tells whether
// there is. When there are as many as there may be, the user who has the most pays: with
// the oldest where the most wait, and if none waits with the oldest that the user's
// programs have taken. Who has as many as anybody pays with what waits, or is refused:
// so a user who wants a share gets it, whatever the others' listeners are flooded with.
// Caller holds m.mu.
func (m *Manager) makeRoom(d *door) bool {
	if len(d.waiters) > 0 || m.pending.total() < maxPending {
		return true
	}
	user := d.user
	for u, all := range m.pending {
		if len(all) > len(m.pending[user]) {
			user = u
		}
	}
	longest := d
	if user != d.user {
		longest = &door{}
	}
	for _, in := range m.pending[user] {
		if in.door != nil && len(in.door.queue) > len(longest.queue) {
			longest = in.door
		}
	}
	var victim *Incoming
	switch {
	case len(longest.queue) > 0:
		victim = longest.queue[0]
	case user != d.user:
		victim = m.pending[user][0]
	default:
		return false
	}
	m.counters.Refused++
	victim.end(ErrCancelled, refusal)
	return true
}
