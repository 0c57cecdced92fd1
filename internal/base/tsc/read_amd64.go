package tsc

const exists = true

// Read returns the counter's value. The processor may read it slightly before or after the neighbouring
// instructions.
//
//go:noescape
func Read() uint64
