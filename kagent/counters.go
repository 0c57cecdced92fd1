package kagent

// Counters of connection management: messages from the network that came to
// nothing.
type Counters struct {
	Malformed uint64 // not a message of ours: version, lengths, fields that contradict each other, or damaged
	NoMatch   uint64 // requests to a discriminator on which nobody waits
	Refused   uint64 // requests that there was no room for, or that had to make room for a later one
	Forged    uint64 // confirmations without the proof of the pre-shared key
}

// Counters returns the counters as they are now.
func (m *Manager) Counters() Counters {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.counters
}

// ConnectCounters are those of the interface's connection management, of all
// agents of this process that share it.
func (l *Local) ConnectCounters() Counters { return l.manager.Counters() }
