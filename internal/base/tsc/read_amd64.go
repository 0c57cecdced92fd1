package tsc

const exists = true

// Read is the counter's value. The processor may read it a little before or
// after what stands around it.
//
//go:noescape
func Read() uint64
