package kagent

// Counters of connection management: messages from the network that came to
// nothing.
type Counters struct {
	Malformed uint64 `json:"malformed"` // not a message of ours: version, lengths, fields that contradict each other, or damaged
	NoMatch   uint64 `json:"no_match"`  // requests to a discriminator on which nobody waits
	Refused   uint64 `json:"refused"`   // requests that there was no room for, or that had to make room for a later one
	Forged    uint64 `json:"forged"`    // confirmations without the key of the Accept, or the proof of the pre-shared key
	Retries   uint64 `json:"retries"`   // requests that were asked for a cookie: addresses that had not proven that they receive
	Overrun   uint64 `json:"overrun"`   // that the kernel dropped, since those before them were not read; known when the next is read
}

// Counters returns the counters as they are now.
func (m *Manager) Counters() Counters {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.counters
	if t, ok := m.transport.(interface{ Overrun() uint64 }); ok {
		c.Overrun = t.Overrun()
	}
	return c
}
