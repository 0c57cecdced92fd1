package connmgr

import (
	"container/list"
	"viaxdp/internal/agent/kagent"
)

// pending is the requests that are not answered, in queues or with programs, by the
// user who has them. What is in the queue of a door is the door's user's. Guarded by
// Manager.mu.
type pending struct {
	users map[uint32]*share
	all   int
}

// share is what one user has.
type share struct {
	list  list.List                 // of *incoming, in the order in which they got there
	doors [maxBacklog + 1]list.List // of *door, by the length of its queue, which is not 0
}

func newPending() pending { return pending{users: make(map[uint32]*share)} }

func (p *pending) total() int { return p.all }

// of counts those of a user.
func (p *pending) of(user uint32) int {
	if s := p.users[user]; s != nil {
		return s.list.Len()
	}
	return 0
}

// add makes an Incoming a user's, and no other's.
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

// remove takes an Incoming out, if it is there.
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

// addDoor puts a door among its user's by the length of its queue; removeDoor takes it out
// before that changes.
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

// longest is the door of a user with the longest queue, or nil where none has one. It
// takes no more steps than a queue has places.
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
	return m.pending.total() >= maxPending || len(d.queue) >= maxBacklog
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
	for u := range m.pending.users {
		if m.pending.of(u) > m.pending.of(user) {
			user = u
		}
	}
	longest := m.pending.longest(user)
	if user == mine && len(d.queue) > 0 && (longest == nil || len(d.queue) >= len(longest.queue)) {
		longest = d
	}
	var victim *incoming
	switch {
	case longest != nil:
		victim = longest.victim()
	case user != mine || waits:
		victim = m.pending.users[user].list.Front().Value.(*incoming)
	default:
		return false
	}
	m.counters.Refused++
	victim.end(kagent.ErrCancelled, refusal)
	return true
}
