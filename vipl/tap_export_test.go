package vipl

// Captures is how many captures of the handle's queue there are.
func (n *Nic) Captures() int {
	n.port.mu.Lock()
	defer n.port.mu.Unlock()
	return len(n.port.taps)
}
