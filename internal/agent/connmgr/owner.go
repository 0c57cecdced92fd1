package connmgr

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
	"viaxdp/internal/agent/kagent"
)

// A discriminator is one user's at a time, whatever host is named with it: of the user who
// listens or waits, and for graceTime after a Wait. Root is a user as any other. So nobody
// gets the requests that another user's program waits for, neither by a listener at a more
// special host nor by a Wait beside its Wait.

// errOtherUser refuses a discriminator.
var errOtherUser = fmt.Errorf("%w: a program of another user listens or waits there", kagent.ErrListening)

// claim makes the door for key a user's, unless the discriminator is another user's. What it
// returns is to be sent without m.mu. Caller holds m.mu.
func (m *Manager) claim(key doorKey, user uint32, now time.Time) (d *door, out []datagram, err error) {
	if k, ok := m.kept[key.disc]; ok && k.user != user {
		return nil, nil, errOtherUser
	}
	for _, d := range slices.Clone(m.discs[key.disc]) {
		switch {
		case d.owner == user:
		case d.takes(now):
			return nil, out, errOtherUser
		default: // nobody has been there for long enough, and sweep has not been there yet
			out = append(out, m.expireDoor(d, now)...)
		}
	}
	d = m.door(key)
	d.owner = user
	return d, out, nil
}

// disown takes a door that is forgotten from its discriminator. Caller holds m.mu.
func (m *Manager) disown(d *door) {
	rest := slices.DeleteFunc(m.discs[d.key.disc], func(x *door) bool { return x == d })
	if len(rest) == 0 {
		delete(m.discs, d.key.disc)
		return
	}
	m.discs[d.key.disc] = rest
}

// keptDisc is a discriminator that programs of a user listened at when the agent before this
// one ended, and how many listeners of it have not been opened again.
type keptDisc struct {
	user  uint32
	times int
}

// keep has a discriminator be the user's until unkeep.
func (m *Manager) KeepDisc(disc string, user uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k, ok := m.kept[disc]; !ok || k.user == user {
		m.kept[disc] = keptDisc{user, k.times + 1}
	}
}

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

// ofAnother reports whether a peer request with r's addresses waits that is of another user:
// the two would take each other's place. Caller holds m.mu.
func (m *Manager) ofAnother(r *request) bool {
	at := r.peers
	for _, at.local = range []netip.Addr{r.peers.local, {}} {
		if slices.ContainsFunc(m.peers[at], func(x *request) bool { return x.user != r.user }) {
			return true
		}
	}
	return false
}
