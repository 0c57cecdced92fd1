package connmgr

import (
	"encoding/binary"
	"net/netip"
	"time"
)

// TimeDoors measures how long m's lock is held while n discriminators of a user are taken, each for a host of its own, and while
// all expire. same: they are one discriminator.
func (m *Manager) TimeDoors(n int, same bool) (take, expire time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	start := time.Now()
	for i := range n {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(i))
		key := doorKey{host: netip.AddrFrom4(b)}
		if !same {
			key.disc = string(b[:])
		}
		d, _, err := m.claim(key, 7, start)
		if err != nil {
			panic(err)
		}
		d.open = start.Add(graceTime)
	}
	taken := time.Now()
	for _, d := range m.doors {
		m.expireDoor(d, start.Add(graceTime))
	}
	return taken.Sub(start), time.Since(taken)
}

// TimePeers measures how long n peer requests of a user take to queue up, while m's lock is held. same: they have the same addresses.
func (m *Manager) TimePeers(n int, same bool) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	start := time.Now()
	for i := range n {
		r := &request{m: m, id: uint64(i), user: 7, turn: make(chan struct{}), result: make(chan struct{})}
		if !same {
			r.peers.from = string(binary.BigEndian.AppendUint32(nil, uint32(i)))
		}
		if m.ofAnother(r) {
			panic("another user's")
		}
		m.lineUp(r)
	}
	took := time.Since(start)
	clear(m.peers)
	return took
}

// Remembered counts what the manager keeps in memory.
func (m *Manager) Remembered() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	stray := -len(m.doors) // doors that only discs still has
	for _, doors := range m.discs {
		stray += len(doors)
	}
	asked := len(m.asked)
	for _, f := range m.asked {
		asked += len(f.list)
	}
	return len(m.requests) + len(m.peers) + len(m.incoming) + len(m.answered.list) + len(m.connected.list) +
		len(m.unprovenEnded.list) + len(m.refusedBy) + len(m.refused.list) + asked + len(m.doors) + stray +
		len(m.kept) + len(m.hellos) + m.pending.all
}

// Pending counts the requests of a user that are not answered.
func (m *Manager) Pending(user uint32) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pending.of(user)
}

// MaxFinished bounds each list of finished exchanges.
const MaxFinished = maxFinished

// Hold keeps the manager from reading messages until resume.
func (m *Manager) Hold() (resume func()) {
	m.mu.Lock()
	return m.mu.Unlock
}
