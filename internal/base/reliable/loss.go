package reliable

import (
	"math"
	"slices"
)

// DetectLosses marks the frames as lost that selective acknowledgements show to be lost. Call it after the
// acknowledgement and the ranges of one frame have been processed.
//
// It examines the frames in flight in the order of their transmission, those that were sent once and the
// retransmissions, until one is not lost: those behind it were sent later, and have higher numbers if they were sent
// once. So the cost of an acknowledgement does not depend on the window.
func (s *Sender) DetectLosses(now int64) {
	if s.sacked.n == 0 {
		return
	}
	window := s.smooth/4 + s.varied // how much later a frame may arrive than one that was sent after it
	if s.reordered > 0 {
		window = s.smooth + 4*s.varied
	}
	below := s.high // dupThreshold frames from here on have arrived
	for range dupThreshold {
		if below = s.sacked.prev(s.una, below); below == s.una {
			break // fewer
		}
		below--
	}
	wake := int64(0)
	lost := func(seq uint32, f *sentFrame) bool {
		trip := s.smooth
		if f.tries > 0 { // it measures no round trip, so the smoothed one may be of a time before a queue grew
			trip = max(trip, s.rackTrip)
		}
		due := f.sentAt + trip + window
		switch {
		case f.sentAt > s.rackSent:
			return false
		case f.tries == 0 && s.reordered == 0 && before(seq, below), f.sentAt+window <= s.rackSent, due <= now:
			s.markLost(now, seq, f)
			return true
		}
		// Sent before a frame that arrived, but not by much. It is lost if it is still missing after that time.
		if wake == 0 || due < wake {
			wake = due
		}
		return false
	}
	for before(s.once, s.high) {
		f := &s.frames[s.once&s.mask]
		if !s.sacked.has(s.once) && !s.lost.has(s.once) && f.tries == 0 && !lost(s.once, f) {
			break
		}
		s.once++
	}
	n := 0
	for _, r := range s.resent {
		if s.inFlightSince(r) && !lost(r.seq, &s.frames[r.seq&s.mask]) {
			break
		}
		n++
	}
	s.resent = s.resent[:copy(s.resent, s.resent[n:])]
	if wake != 0 && (s.timer == 0 || wake < s.timer) {
		s.timer = wake
	}
}

// inFlightSince reports whether frame r.seq is in flight since that retransmission.
func (s *Sender) inFlightSince(r resentFrame) bool {
	return r.seq-s.una < s.nxt-s.una && s.frames[r.seq&s.mask].sentAt == r.at && !s.sacked.has(r.seq) && !s.lost.has(r.seq)
}

func (s *Sender) markLost(now int64, seq uint32, f *sentFrame) {
	s.lost.add(seq)
	if f.sentAt > s.recoveryEnd {
		s.recoveryEnd = now
		s.reordered = max(s.reordered, 1) - 1
		s.lossRound(now, s.inFlight())
		s.stats.LossRounds++
	}
	s.lostOne()
}

// NextLost returns the first frame that must be retransmitted and may be sent now. The caller sends it and calls
// Resent, or tries later.
func (s *Sender) NextLost() (seq uint32, ok bool) {
	if s.lost.n == 0 || s.inFlight() >= s.window() || s.pacer.due != 0 {
		return 0, false
	}
	return s.lost.next(s.una, s.nxt), true
}

// Resent records that frame seq, which NextLost or Timeout returned, was retransmitted.
func (s *Sender) Resent(now int64, seq uint32) {
	if seq-s.una >= s.nxt-s.una {
		return // acknowledged in the meantime
	}
	f := &s.frames[seq&s.mask]
	if s.lost.has(seq) {
		s.lost.remove(seq)
	}
	f.sentAt = now
	if len(s.resent) == cap(s.resent) {
		s.resent = slices.DeleteFunc(s.resent, func(r resentFrame) bool { return !s.inFlightSince(r) })
	}
	s.resent = append(s.resent, resentFrame{seq, now})
	s.paced(now)
	if f.tries < 255 {
		f.tries++
	}
	s.stats.Resent++
}

// Deadline returns the time at which Timeout should be called; 0: none. Frames may be sent after it.
func (s *Sender) Deadline() int64 {
	if due := s.pacer.due; due != 0 && (s.timer == 0 || due < s.timer) {
		return due
	}
	return s.timer
}

// firstTimeout returns the silence before a tail probe. After a backoff it may be as long as slowTimeout: a frame that is
// sent again before its acknowledgement comes measures no round trip, and a path slower than maxTimeout would stay unknown.
func (s *Sender) firstTimeout() int64 {
	if s.hasty > 0 {
		return s.timeout(s.backoff)
	}
	return min(s.silence()<<s.backoff, slowTimeout)
}

// Timeout handles what is due at now. If probe is true, the caller retransmits frame seq at once, asking for an
// acknowledgement, and calls Resent. NextLost returns the frames that Timeout has marked as lost.
func (s *Sender) Timeout(now int64) (seq uint32, probe bool) {
	s.Pace(now)
	if s.timer == 0 || now < s.timer {
		return 0, false
	}
	s.timer = 0
	if s.sacked.n > 0 && s.silent == 0 {
		// The time that DetectLosses allowed reordered frames is over, or nothing has arrived for long: frames that
		// are overdue are lost.
		known := s.lost.n
		s.DetectLosses(now)
		if s.lost.n > known && s.timer == 0 {
			s.timer = now + s.timeout(s.backoff)
		}
		if s.timer != 0 {
			return 0, false
		}
	}
	switch {
	case s.hasty > 0:
		s.hasty--
	case s.silent == 0 && s.firstTimeout() == slowTimeout:
		s.hasty = math.MaxUint8 // even that did not help: frames are lost here, not late
	}
	s.backoff = min(s.backoff+1, maxBackoff)
	s.timer = now + s.timeout(s.backoff)
	if s.inFlight() == 0 {
		return 0, false // all missing frames are marked lost and wait for NextLost
	}
	s.silent = min(s.silent+1, maxBackoff)
	if s.silent == 1 {
		for seq = s.nxt - 1; s.sacked.has(seq) || s.lost.has(seq); seq-- {
		}
		s.stats.Probes++
		return seq, true
	}
	for seq = s.una; seq != s.nxt; seq++ {
		if !s.sacked.has(seq) && !s.lost.has(seq) {
			s.lost.add(seq)
		}
	}
	s.resent = s.resent[:0]
	s.collapse(s.smooth != 0)
	s.stats.Timeouts++
	return 0, false
}
