package kagent

// Remembered counts what the manager keeps in memory.
func (m *Manager) Remembered() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.requests) + len(m.peers) + len(m.incoming) + len(m.answered.list) + len(m.asked.list) + len(m.doors) + len(m.hellos) + m.pending
}
