package vianet

import (
	"runtime"
	"time"
)

// A doorbell costs several times as much as what it tells of. So where a goroutine
// polls for all connections it rings for all, too: whoever writes meanwhile leaves
// that to it. It rings whenever it gets a processor, at once where it has one for
// itself, and else when those have run whom it has woken; the fourth message does
// not wait for it. When others have kept it away for long Writes ring by themselves
// for a while.

const (
	awayMost  = time.Millisecond
	ringAlone = 256 // Writes
)

// mayRingLater says whether somebody is about to ring.
func (s *Stack) mayRingLater() bool {
	if !s.spinning.Load() {
		return false
	}
	if s.alone.Load() > 0 { // Writes at once may take it below
		s.alone.Add(-1)
		return false
	}
	return true
}

// yield lets others run, and looks how long that took.
func (s *Stack) yield() {
	start := time.Now()
	runtime.Gosched()
	if time.Since(start) > awayMost {
		s.alone.Store(ringAlone)
	}
}
