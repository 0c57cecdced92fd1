//go:build race

package vipl

// With the race detector a poll takes about a microsecond.
func init() { spinPolls = 1 << 10 }
