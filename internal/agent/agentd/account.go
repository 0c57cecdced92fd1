package agentd

import (
	"fmt"

	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/kagent"
)

// account is what one user has of the agent. Guarded by Server.mu.
type account struct {
	uid         uint32
	quota       Quota
	connections int
	queues      int
	vis         int
	pinned      int
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

// forget drops an account that is empty, so that many users who come and go are
// no burden. Caller holds s.mu.
func (s *Server) forget(u *account) {
	if u.connections == 0 && u.queues == 0 && u.vis == 0 && u.pinned == 0 {
		delete(s.users, u.uid)
	}
}

// charge books what a user wants more of, if the quota allows it, where need be
// after what programs that are dead had is taken back. It looks at what this user has,
// which the quota bounds: being refused again and again is no work for the others.
func (s *Server) charge(uid uint32, queues, vis, pinned int) error {
	err := s.tryCharge(uid, queues, vis, pinned)
	if err != nil {
		s.reapDead(func(n *session) bool { return n.uid == uid }) // or others have just done so
		if s.hasPinned(uid) {
			s.collect()
		}
		err = s.tryCharge(uid, queues, vis, pinned)
	}
	if err != nil {
		s.count(func(c *kagent.DaemonCounter) { c.Quota++ })
	}
	return err
}

func (s *Server) tryCharge(uid uint32, queues, vis, pinned int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.account(uid)
	for _, c := range []struct {
		what            string
		more, has, most int
		err             error
	}{
		{"queues", queues, u.queues, u.quota.Queues, agentproto.ErrQueueQuota},
		{"VIs", vis, u.vis, u.quota.VIs, agentproto.ErrQuota},
		{"bytes of registered memory, rings and shared-memory links", pinned, u.pinned, u.quota.PinnedBytes, agentproto.ErrQuota},
	} {
		if c.most > 0 && c.more > 0 && c.more > c.most-c.has {
			s.forget(u)
			return fmt.Errorf("%w: %d %s more than the %d that user %d has, of at most %d; "+
				"end one of its programs or ask for less, or raise it in the agent's settings ([quota], [user.NAME])", c.err, c.more, c.what, c.has, uid, c.most)
		}
	}
	u.book(queues, vis, pinned)
	return nil
}

// refund gives back.
func (s *Server) refund(uid uint32, queues, vis, pinned int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.account(uid)
	u.book(-queues, -vis, -pinned)
	s.forget(u)
}

// book is for what a user has, whatever the quota says.
func (u *account) book(queues, vis, pinned int) {
	u.queues += queues
	u.vis += vis
	u.pinned += pinned
}

func (u *account) status() kagent.UserStatus {
	return kagent.UserStatus{
		UID: u.uid, Sessions: u.connections, Queues: u.queues, VIs: u.vis, PinnedBytes: u.pinned,
		MaxSessions: u.quota.Connections, MaxQueues: u.quota.Queues, MaxVIs: u.quota.VIs, MaxPinned: u.quota.PinnedBytes,
	}
}
