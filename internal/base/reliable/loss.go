package reliable

// DetectLosses marks the frames as lost that selective acknowledgements show to be lost. Call it after the
// acknowledgement and the ranges of one frame have been processed.
func (s *Sender) DetectLosses(now int64) {
	if s.sacked == 0 {
		return
	}
	window := s.smooth/4 + s.varied // how much later a frame may arrive than one that was sent after it
	if s.reordered > 0 {
		window = s.smooth + 4*s.varied
	}
	above := s.sacked // selectively acknowledged frames above seq
	wake := int64(0)
	for seq := s.una; before(seq, s.high) && above > 0; seq++ {
		f := &s.frames[seq&s.mask]
		switch f.state {
		case stateSacked:
			above--
		case stateSent:
			late := f.sentAt + window
			switch {
			case f.sentAt > s.rackSent:
			case s.reordered == 0 && above >= dupThreshold && f.tries == 0, late <= s.rackSent:
				s.markLost(now, seq, f)
			default:
				// Sent before a frame that arrived, but not by much. It is lost if it is still missing after that time.
				if due := f.sentAt + s.smooth + window; due <= now {
					s.markLost(now, seq, f)
				} else if wake == 0 || due < wake {
					wake = due
				}
			}
		}
	}
	if wake != 0 && (s.timer == 0 || wake < s.timer) {
		s.timer = wake
	}
}

func (s *Sender) markLost(now int64, seq uint32, f *sentFrame) {
	f.state = stateLost
	s.lost++
	if before(seq, s.scanLost) {
		s.scanLost = seq
	}
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
	if s.lost == 0 || s.inFlight() >= s.window() {
		return 0, false
	}
	for seq = s.scanLost; seq != s.nxt; seq++ {
		if s.frames[seq&s.mask].state == stateLost {
			s.scanLost = seq
			return seq, true
		}
	}
	return 0, false
}

// Resent records that frame seq, which NextLost or Timeout returned, was retransmitted.
func (s *Sender) Resent(now int64, seq uint32) {
	if seq-s.una >= s.nxt-s.una {
		return // acknowledged in the meantime
	}
	f := &s.frames[seq&s.mask]
	if f.state == stateLost {
		s.lost--
		f.state = stateSent
	}
	f.sentAt = now
	if f.tries < 255 {
		f.tries++
	}
	s.stats.Resent++
}

// Deadline returns the time at which Timeout should be called; 0: none.
func (s *Sender) Deadline() int64 { return s.timer }

// Timeout handles what is due at now. If probe is true, the caller retransmits frame seq at once, asking for an
// acknowledgement, and calls Resent. NextLost returns the frames that Timeout has marked as lost.
func (s *Sender) Timeout(now int64) (seq uint32, probe bool) {
	if s.timer == 0 || now < s.timer {
		return 0, false
	}
	s.timer = 0
	if s.sacked > 0 && s.silent == 0 {
		// The time that DetectLosses allowed reordered frames is over, or nothing has arrived for long: frames that
		// are overdue are lost.
		known := s.lost
		s.DetectLosses(now)
		if s.lost > known && s.timer == 0 {
			s.timer = now + s.timeout(s.backoff)
		}
		if s.timer != 0 {
			return 0, false
		}
	}
	s.backoff = min(s.backoff+1, maxBackoff)
	s.timer = now + s.timeout(s.backoff)
	if s.inFlight() == 0 {
		return 0, false // all missing frames are marked lost and wait for NextLost
	}
	s.silent = min(s.silent+1, maxBackoff)
	if s.silent == 1 {
		for seq = s.nxt - 1; s.frames[seq&s.mask].state != stateSent; seq-- {
		}
		s.stats.Probes++
		return seq, true
	}
	for seq = s.una; seq != s.nxt; seq++ {
		if f := &s.frames[seq&s.mask]; f.state == stateSent {
			f.state = stateLost
			s.lost++
		}
	}
	s.scanLost = s.una
	s.collapse()
	s.stats.Timeouts++
	return 0, false
}
