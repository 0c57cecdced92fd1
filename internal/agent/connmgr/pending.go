package connmgr

import (
	"container/list"

	"viaxdp/internal/agent/kagent"
)

// pending is the unanswered requests of each user, in queues or returned to programs. Requests in
// the queue of a door count for the door's user. Guarded by Manager.mu.
type pending struct {
	users map[uint32]*share
	all   int
}

// share is the requests of one user.
type share struct {
	list  list.List                 // of *incoming, in the order of arrival there
	doors [maxBacklog + 1]list.List // of *door, by the length of its queue, which is not 0
}

func newPending() pending { return pending{users: make(map[uint32]*share)} }

// of returns the number of a user's requests.
func (p *pending) of(user uint32) int {
	if s := p.users[user]; s != nil {
		return s.list.Len()
	}
	return 0
}

// add counts an Incoming for a user, and for no other.
func (p *pending) add(in *incoming, user uint32) {
	p.remove(in)
	s := p.users[user]
	if s == nil {
		s = new(share)
		p.users[user] = s
	}
	in.user, in.place = user, s.list.PushBack(in)
	p.all++
}

// remove removes an Incoming, if it is there.
func (p *pending) remove(in *incoming) {
	if in.place == nil {
		return
	}
	s := p.users[in.user]
	s.list.Remove(in.place)
	in.place = nil
	p.all--
	if s.list.Len() == 0 {
		delete(p.users, in.user)
	}
}

// addDoor adds a door to its user's doors of the same queue length; removeDoor removes it, and must be called
// before the length changes.
func (p *pending) addDoor(d *door) {
	if n := len(d.queue); n > 0 {
		d.place = p.users[d.user].doors[n].PushBack(d)
	}
}

func (p *pending) removeDoor(d *door) {
	if d.place != nil {
		p.users[d.user].doors[len(d.queue)].Remove(d.place)
		d.place = nil
	}
}

// longest returns a user's door with the longest queue, or nil if all are empty. It takes at most maxBacklog
// steps.
func (p *pending) longest(user uint32) *door {
	if s := p.users[user]; s != nil {
		for n := maxBacklog; n > 0; n-- {
			if e := s.doors[n].Front(); e != nil {
				return e.Value.(*door)
			}
		}
	}
	return nil
}

// isFull reports whether a request at d takes the place of another. Caller holds m.mu.
func (m *Manager) isFull(d *door) bool {
	return m.pending.all >= maxPending || len(d.queue) >= maxBacklog
}

// makeRoom makes room for one more request at d. It reports whether there is room. At maxPending,
// it evicts a request of the user with the most: the oldest one in that user's longest queue or,
// if none is queued, the oldest one that the user's programs have taken. If no user has more than
// d's, it evicts a queued request of d's user. It evicts a taken one only if a program waits for
// the next one; otherwise there is no room. So a user gets a share even if other users' listeners
// are flooded. Caller holds m.mu.
func (m *Manager) makeRoom(d *door) bool {
	if m.pending.all < maxPending {
		return true
	}
	user := d.user
	for u := range m.pending.users {
		if m.pending.of(u) > m.pending.of(user) {
			user = u
		}
	}
	longest := m.pending.longest(user)
	if user == d.user && len(d.queue) > 0 && (longest == nil || len(d.queue) >= len(longest.queue)) {
		longest = d
	}
	var victim *incoming
	switch {
	case longest != nil:
		victim = longest.victim()
	case user != d.user || len(d.waiters) > 0:
		victim = m.pending.users[user].list.Front().Value.(*incoming)
	default:
		return false
	}
	m.counters.Refused++
	victim.end(kagent.ErrCancelled, refusal)
	return true
}
