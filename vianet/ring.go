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
// for a while, longer if that comes again soon: it may have been the system, which
// had another program run.
//
// Where it has found data for others together with its own nobody polls until one
// of them waits again, which soon one does: until then as many Writes as it has
// woken leave the doorbell to that.

const (
	awayMost   = time.Millisecond
	aloneLeast = 16  // Writes
	aloneMost  = 256 // Writes
	aloneSoon  = 64  // times that others ran and did not keep it away
)

// mayRingLater says whether somebody is about to ring.
func (s *Stack) mayRingLater() bool {
	if !s.spinning.Load() {
		if s.crowd.Load() <= 0 { // Writes at once may take it below
			return false
		}
		s.crowd.Add(-1)
	}
	if s.alone.Load() > 0 { // as above
		s.alone.Add(-1)
		return false
	}
	return true
}

// rings says whether somebody who polls, or is about to, rings for a Write that has
// left it to others.
func (s *Stack) rings() bool { return s.spinning.Load() || s.crowd.Load() > 0 }

// yield lets others run, and looks how long that took. For who polls.
func (s *Stack) yield() {
	start := time.Now()
	runtime.Gosched()
	s.wasAway(time.Since(start))
}

// wasAway decides how many Writes ring by themselves now that others have run.
func (s *Stack) wasAway(took time.Duration) {
	if took <= awayMost {
		s.near++
		return
	}
	if s.near < aloneSoon {
		s.aloneFor = min(2*s.aloneFor, aloneMost)
	} else {
		s.aloneFor = aloneLeast
	}
	s.near = 0
	s.alone.Store(s.aloneFor)
}
