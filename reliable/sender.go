package reliable

type frameState uint8

const (
	stateFree frameState = iota
	stateSent
	stateSacked
	stateLost
)

type sentFrame struct {
	tag    uint64
	sentAt int64
	units  uint16 // of the peer's window
	tries  uint8  // retransmissions so far
	state  frameState
}

// Sender numbers frames, remembers them until they are acknowledged, and says
// which to send again and when.
type Sender struct {
	una, nxt uint32 // oldest frame not acknowledged; number of the next new frame
	// Of all frames ever: units sent, acknowledged, and how many the peer's
	// window takes.
	used, freed, limit uint32
	granted            int // the window, as the peer told it last

	mask   uint32
	frames []sentFrame

	sacked, lost int    // of the frames in [una, nxt)
	high         uint32 // one past the highest number known to have arrived
	scanLost     uint32 // no lost frame below this number

	congestion
	rtt
	recoveryEnd int64 // frames sent after this time are of a new round of losses
	rackSent    int64 // when the most recently sent frame that arrived had been sent
	reordered   uint8 // rounds of losses for which a reordering that was seen counts

	timer   int64 // 0: off
	silent  uint8 // time-outs since a frame arrived
	backoff uint8 // doublings of the timer, kept until a round trip was measured
	stats   SenderStats
}

// SenderStats counts events of a Sender since its start.
type SenderStats struct {
	Sent, Resent      uint64 // frames: first transmissions, retransmissions
	Probes, Timeouts  uint64 // tail probes; retransmission time-outs
	LossRounds, Slows uint64 // window reductions by loss and by delay
}

// NewSender makes a sender whose first frame has number first, with frames of
// at most window units in flight until the peer says otherwise, and at most MaxWindow.
func NewSender(first uint32, window int) *Sender {
	s := &Sender{una: first, nxt: first, high: first, scanLost: first}
	s.congestion.init(first)
	s.take(max(1, window))
	return s
}

// Room is the number of new frames of one unit that may be sent now.
func (s *Sender) Room() int {
	room := int(int32(s.limit - s.used))
	if c := s.window() - s.inFlight(); c < room {
		room = c
	}
	return max(room, 0)
}

// Fits says whether a new frame of so many units may be sent now. One that is
// larger than the whole window may when it is the only one.
func (s *Sender) Fits(units int) bool {
	return s.Room() > 0 && (int(int32(s.limit-s.used)) >= units || s.Idle())
}

// Outstanding is the number of frames that were sent and are not acknowledged.
func (s *Sender) Outstanding() int { return int(s.nxt - s.una) }

// inFlight is how many of them are on the way, as far as is known.
func (s *Sender) inFlight() int { return int(s.nxt-s.una) - s.sacked - s.lost }

// Idle says that every frame sent was acknowledged.
func (s *Sender) Idle() bool { return s.una == s.nxt }

// Next is the number that Send will give.
func (s *Sender) Next() uint32 { return s.nxt }

// Unacked is the number of the oldest frame that was not acknowledged.
func (s *Sender) Unacked() uint32 { return s.una }

// Stats returns the counters.
func (s *Sender) Stats() SenderStats { return s.stats }

// Closes says whether behind a new frame of so many units there is no room for
// another one like it.
func (s *Sender) Closes(units int) bool {
	return s.Room() <= 1 || int(int32(s.limit-s.used)) < 2*units
}

// Send takes note of a new frame of so many units of the peer's window, which
// the caller sends with the returned number. There must be Room, and it must
// fit.
func (s *Sender) Send(now int64, tag uint64, units int) uint32 {
	seq := s.nxt
	s.frames[seq&s.mask] = sentFrame{tag: tag, sentAt: now, units: uint16(units), state: stateSent}
	s.nxt++
	s.used += uint32(units)
	s.bounded = s.bounded || int(int32(s.limit-s.used)) < units
	s.stats.Sent++
	if s.timer == 0 {
		s.timer = now + s.timeout(s.backoff)
	}
	return seq
}

// Tag is what the caller gave to Send for frame seq, valid until the frame's
// place is taken by a new Send.
func (s *Sender) Tag(seq uint32) uint64 { return s.frames[seq&s.mask].tag }

// Ack takes a cumulative acknowledgement: the peer has everything before cum
// and takes window units from there. It returns the range of numbers that are
// done with; the caller releases their tags. An acknowledgement of what was
// never sent, or an old one, gives an empty range; valid is false for the
// former.
func (s *Sender) Ack(now int64, cum uint32, window int) (from, to uint32, valid bool) {
	from = s.una
	n := cum - from
	if n > s.nxt-from {
		return from, from, int32(n) < 0
	}
	if n == 0 {
		s.take(window)
		return from, from, true
	}
	sentAt, again := int64(0), false // of the newest that was not known; was any sent again?
	for seq := from; seq != cum; seq++ {
		f := &s.frames[seq&s.mask]
		again = again || f.tries > 0
		s.freed += uint32(f.units)
		if f.state == stateSacked {
			s.sacked--
		} else {
			s.arrived(now, seq, f)
			sentAt = f.sentAt
		}
		f.state = stateFree
	}
	if sentAt != 0 && !again { // frames behind one that was sent again waited for it
		s.measured(now, now-sentAt)
	}
	if before(s.high, cum) {
		s.high = cum
	}
	if before(s.scanLost, cum) {
		s.scanLost = cum
	}
	s.una = cum
	s.take(window)
	if s.grow(int(n), cum, s.nxt, s.least) {
		s.stats.Slows++
	}
	s.progress(now)
	return from, cum, true
}

// take takes the peer's window behind what is acknowledged, which the peer may also
// make smaller: what was sent by then stays sent.
func (s *Sender) take(window int) {
	window = max(0, min(window, MaxWindow))
	if window != s.granted {
		s.resize(window)
	}
	s.limit = s.freed + uint32(window)
}

// resize makes room for the frames of a window.
func (s *Sender) resize(window int) {
	s.granted = window
	size := roundUp(window)
	s.bound(size)
	if size <= len(s.frames) {
		return
	}
	frames, mask := make([]sentFrame, size), uint32(size-1)
	for i := range uint32(len(s.frames)) { // also those just released: the caller asks for their tags
		seq := s.nxt - 1 - i
		frames[seq&mask] = s.frames[seq&s.mask]
	}
	s.frames, s.mask = frames, mask
}

// AckRange takes a selective acknowledgement of [start, end). Frames in it
// stay remembered until the cumulative acknowledgement passes them. What was
// never sent, or was released before, is ignored.
func (s *Sender) AckRange(now int64, start, end uint32) {
	first, last := start-s.una, end-s.una
	if int32(first) < 0 {
		first = 0
	}
	if last > s.nxt-s.una || first >= last {
		return
	}
	sentAt, moved := int64(0), false // sentAt of the newest that was not known and was sent once
	for seq := s.una + first; seq != end; seq++ {
		f := &s.frames[seq&s.mask]
		if f.state == stateSacked {
			continue
		}
		s.arrived(now, seq, f)
		if f.tries == 0 {
			sentAt = f.sentAt
		}
		f.state = stateSacked
		s.sacked++
		moved = true
	}
	if before(s.high, end) {
		s.high = end
	}
	if sentAt != 0 {
		s.measured(now, now-sentAt)
	}
	if moved {
		s.progress(now)
	}
}

// arrived takes the arrival of a frame into the measures of time and order.
func (s *Sender) arrived(now int64, seq uint32, f *sentFrame) {
	if f.state == stateLost {
		s.lost--
	}
	echo := f.tries > 0 && now-f.sentAt < s.least // of an earlier transmission
	if (f.tries == 0 || echo) && before(seq+1, s.high) {
		s.reordered = reorderRounds
	}
	if !echo && f.sentAt > s.rackSent {
		s.rackSent = f.sentAt
	}
}

// measured takes a round trip of a frame that was sent once. Only such a one
// ends the doubling of the timer (Karn): else a path that became slower than
// the timer would see every frame sent twice for ever.
func (s *Sender) measured(now, t int64) {
	s.rtt.sample(now, t)
	s.congestion.sample(t)
	s.backoff = 0
}

// progress restarts the timer after an arrival.
func (s *Sender) progress(now int64) {
	s.silent = 0
	s.timer = 0
	if s.una != s.nxt {
		s.timer = now + s.timeout(s.backoff)
	}
}
