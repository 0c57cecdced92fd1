package kagent

// Remembered counts what the manager keeps in memory.
func (m *Manager) Remembered() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.requests) + len(m.peers) + len(m.incoming) + len(m.answered.list) + len(m.asked.list) + len(m.doors) + len(m.hellos) + m.pending.total()
}

// ListenAs is Listen of a program of a user.
func (m *Manager) ListenAs(user uint32, local Address) (*Listener, error) {
	return m.listen(local, user)
}

// Pending counts the requests of a user that are not answered.
func (m *Manager) Pending(user uint32) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pending.of(user)
}
