package thread

import (
	"time"

	"golang.org/x/sys/unix"
)

// A Yielder decides how often a poller yields its CPU, which may be needed by what the poller waits for. A yield costs half a
// microsecond or, if other threads of the process look for work, several, in which a message waits. So where no other thread has
// wanted the CPU for many times in a row, yields become rare. The zero value is ready for use, by one goroutine at a time.
type Yielder struct {
	vain int // yields in a row in which no other thread ran
	left int // opportunities that are still left out
}

const (
	yieldAlone  = 3 * time.Microsecond // no other thread runs in as little
	yieldTries  = 64                   // yields in vain before they become rare
	yieldSeldom = 255                  // opportunities that are then left out
)

// Due reports whether to take this opportunity.
func (y *Yielder) Due() bool {
	if y.left > 0 {
		y.left--
		return false
	}
	return true
}

// Yielded records for how long others had the CPU.
func (y *Yielder) Yielded(others time.Duration) {
	if others > yieldAlone {
		y.vain = 0
	} else if y.vain++; y.vain >= yieldTries {
		y.left = yieldSeldom
	}
}

// Yield lets other threads run on this CPU: sched_yield(2), which does not fail.
func Yield() { _, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
