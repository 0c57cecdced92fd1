package vipl

import "io"

// Captures is how many captures of the handle's queue there are.
func (n *Nic) Captures() int {
	n.port.mu.Lock()
	defer n.port.mu.Unlock()
	return len(n.port.taps)
}

// FillTap makes a capture's buffers full of frames of that size, until so many were left
// out, and returns what its writer takes out of them.
func FillTap(size, lost int) (drain func() []byte) {
	t := newTap(size, 1)
	for frame := make([]byte, size); t.lost < uint64(lost); {
		t.put(1, frame)
	}
	return t.drain
}

// LockedWriter is what the captures of several queues write to.
func LockedWriter(w io.Writer) io.Writer { return &lockedWriter{w: w} }
