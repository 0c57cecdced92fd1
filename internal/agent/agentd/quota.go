package agentd

import (
	"fmt"
	"sync"
	"time"

	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/kagent"
)

// account is what one user has. Guarded by Server.mu.
type account struct {
	claims
	uid         uint32
	quota       Quota
	connections int
}

// account finds or makes a user's account. Caller holds s.mu.
func (s *Server) account(uid uint32) *account {
	u := s.users[uid]
	if u == nil {
		u = &account{uid: uid, quota: s.cfg.quota(uid)}
		s.users[uid] = u
	}
	return u
}

// forget drops an empty account, so that the table does not grow with every user that ever
// connected. Caller holds s.mu.
func (s *Server) forget(u *account) {
	if u.connections == 0 && u.claims == (claims{}) {
		delete(s.users, u.uid)
	}
}

// charge charges a user if the quota allows it, if necessary after it has reclaimed what the user's dead
// programs had. It checks only this user's objects, which the quota bounds, so that repeated refusals cost
// other users nothing.
func (s *Server) charge(uid uint32, c claims) error {
	err := s.tryCharge(uid, c)
	if err != nil {
		s.reapDead(func(n *session) bool { return n.uid == uid }) // or another goroutine has just done so
		if s.hasPinned(uid) {
			s.collect()
		}
		err = s.tryCharge(uid, c)
	}
	if err != nil {
		s.count(func(c *kagent.DaemonCounter) { c.Quota++ })
	}
	return err
}

func (s *Server) tryCharge(uid uint32, more claims) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.account(uid)
	for _, c := range []struct {
		what            string
		more, has, most int
		err             error
	}{
		{"processes with a NIC handle", more.processes, u.processes, u.quota.Processes, agentproto.ErrQuota},
		{"queues", more.queues, u.queues, u.quota.Queues, agentproto.ErrQueueQuota},
		{"VIs", more.vis, u.vis, u.quota.VIs, agentproto.ErrQuota},
		{"bytes of registered memory, rings and shared-memory links", more.pinned, u.pinned, u.quota.PinnedBytes, agentproto.ErrQuota},
	} {
		if c.most > 0 && c.more > 0 && c.more > c.most-c.has {
			s.forget(u)
			return fmt.Errorf("%w: %d %s more than the %d that user %d has, of at most %d; "+
				"end one of its programs or ask for less, or raise it in the agent's settings ([quota], [user.NAME])", c.err, c.more, c.what, c.has, uid, c.most)
		}
	}
	u.add(more, 1)
	return nil
}

// refund undoes charge.
func (s *Server) refund(uid uint32, c claims) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.account(uid)
	u.add(c, -1)
	s.forget(u)
}

// claims is what a user is charged with.
type claims struct {
	processes, queues, vis int
	pinned                 int // bytes
}

// add adds others, times times. It checks no quota.
func (c *claims) add(others claims, times int) {
	c.processes += times * others.processes
	c.queues += times * others.queues
	c.vis += times * others.vis
	c.pinned += times * others.pinned
}

func (u *account) status() kagent.UserStatus {
	return kagent.UserStatus{
		UID: u.uid, Sessions: u.connections, Processes: u.processes, Queues: u.queues, VIs: u.vis, PinnedBytes: u.pinned,
		MaxSessions: u.quota.Connections, MaxProcs: u.quota.Processes, MaxQueues: u.quota.Queues, MaxVIs: u.quota.VIs, MaxPinned: u.quota.PinnedBytes,
	}
}

// The answer to OpShmLink reveals whether another queue of the interface, of any user, has a VI
// number. A program needs the call only for the peer of a connection, from which it has the
// number. So a legitimate call misses only when the peer has just ended, and the number of misses
// of a user is limited.
const (
	maxMisses  = 64          // burst
	missAgain  = time.Second // time until one more is allowed
	maxMissers = 4096        // users that are recorded individually
)

// misses counts each user's failed requests for links. It is independent of accounts, since empty
// accounts are forgotten. The zero value is ready.
type misses struct {
	mu sync.Mutex
	// until is the time at which a user has all of maxMisses again. An entry in the past has no
	// effect.
	until  map[uint32]time.Time
	others time.Time // until, shared by all users that have no entry
}

// left reports whether a user may miss once more.
func (m *misses) left(user uint32, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	until, ok := m.until[user]
	if !ok && len(m.until) >= maxMissers {
		until = m.others
	}
	return until.Sub(now) <= (maxMisses-1)*missAgain
}

// add records a miss. Concurrent calls may exceed the limit; the user then waits longer.
func (m *misses) add(user uint32, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.until[user]; !ok && len(m.until) >= maxMissers {
		for u, until := range m.until {
			if !until.After(now) {
				delete(m.until, u)
			}
		}
		if len(m.until) >= maxMissers {
			m.others = oneMore(m.others, now)
			return
		}
	}
	if m.until == nil {
		m.until = make(map[uint32]time.Time)
	}
	m.until[user] = oneMore(m.until[user], now)
}

func oneMore(until, now time.Time) time.Time {
	if until.Before(now) {
		until = now
	}
	return until.Add(missAgain)
}
