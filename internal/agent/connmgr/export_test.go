package connmgr

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
