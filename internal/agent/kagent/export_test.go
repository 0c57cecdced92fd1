package kagent

import "context"

// Remembered counts what the manager keeps in memory.
func (m *Manager) Remembered() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	stray := -len(m.doors) // doors that only discs still has
	for _, doors := range m.discs {
		stray += len(doors)
	}
	return len(m.requests) + len(m.peers) + len(m.incoming) + len(m.answered.list) + len(m.connected.list) + len(m.unprovenEnded.list) + len(m.refusedBy) + len(m.refused.list) + len(m.asked.list) + len(m.doors) + stray + len(m.kept) + len(m.hellos) + m.pending.total()
}

// ListenAs is Listen of a program of a user.
func (m *Manager) ListenAs(user uint32, local Address) (Listener, error) {
	return m.listen(local, user)
}

// Pending counts the requests of a user that are not answered.
func (m *Manager) Pending(user uint32) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pending.of(user)
}

// WaitAs is Wait of a program of a user.
func (m *Manager) WaitAs(ctx context.Context, user uint32, local Address) (Incoming, error) {
	return m.waitFor(ctx, local, user)
}

// RequestPeerAs is RequestPeer of a program of a user.
func (m *Manager) RequestPeerAs(ctx context.Context, user uint32, local, remote Address, o Offer) (*Answer, Incoming, error) {
	return m.requestPeer(ctx, local, remote, o, user)
}
