package reliable

type sentFrame struct {
	tag    uint64
	sentAt int64
	units  uint16 // of the peer's window
	tries  uint8  // retransmissions so far
}

// resentFrame is a retransmission.
type resentFrame struct {
	seq uint32
	at  int64
}

// Sender numbers frames, remembers them until they are acknowledged, and decides which to retransmit and when.
type Sender struct {
	una, nxt uint32 // oldest frame not acknowledged; number of the next new frame
	// Totals since the start, in units: sent, acknowledged, and permitted by the peer's window.
	used, freed, limit uint32
	granted            int // the window that the peer sent last

	mask   uint32
	frames []sentFrame // by number; grows with the frames that are outstanding

	// Of the frames in [una, nxt), sacked have arrived, lost must be sent again, and the others are in flight. Each of
	// those was sent once and is not below once, or is in resent.
	sacked, lost seqSet
	once         uint32
	resent       []resentFrame // in the order of retransmission; also some that are no longer in flight
	high         uint32        // one past the highest number known to have arrived

	congestion
	pacer
	rtt
	recoveryEnd int64 // frames sent after this time belong to a new round of losses
	rackSent    int64 // send time of the most recently sent frame that has arrived
	rackTrip    int64 // its round trip
	reordered   uint8 // loss rounds for which an observed reordering still counts

	seenMarks uint32 // the peer's count of marked frames

	timer   int64 // 0: off, as when nothing is in flight
	idleAt  int64 // when that began
	silent  uint8 // timeouts since a frame arrived
	backoff uint8 // doublings of the timer, kept until a round trip is measured
	hasty   uint8 // timeouts before a first silence may be longer than maxTimeout again, see firstTimeout
	stats   SenderStats
	looked  uint64 // frames that AckRange has examined
}

// SenderStats counts events of a Sender since its start.
type SenderStats struct {
	Sent, Resent      uint64 // frames: first transmissions, retransmissions
	Probes, Timeouts  uint64 // tail probes; retransmission timeouts
	LossRounds, Slows uint64 // window reductions by loss and by delay
}

// NewSender makes a sender whose first frame has number first. At most window units are in flight, bounded by
// MaxWindow, until the peer changes it.
func NewSender(first uint32, window int) *Sender {
	s := &Sender{una: first, nxt: first, high: first, once: first}
	s.enlarge(leastPlaces)
	s.congestion.init(first)
	s.take(max(1, window))
	return s
}

// Room returns the number of new frames of one unit that may be sent now.
func (s *Sender) Room() int {
	if s.pacer.due != 0 {
		return 0
	}
	return s.room()
}

// room is Room without pacing.
func (s *Sender) room() int {
	room := int(int32(s.limit - s.used))
	if c := s.window() - s.inFlight(); c < room {
		room = c
	}
	return max(room, 0)
}

// Admits reports whether n new frames of the given units each may be sent now.
func (s *Sender) Admits(n, units int) bool {
	return s.Room() >= n && int(int32(s.limit-s.used)) >= n*units
}

// Fits reports whether a new frame of the given units may be sent now. A frame larger than the whole window may be
// sent if it is the only one.
func (s *Sender) Fits(units int) bool {
	return s.Admits(1, units) || s.Idle() && s.Room() > 0
}

// Outstanding returns the number of frames that were sent and are not acknowledged.
func (s *Sender) Outstanding() int { return int(s.nxt - s.una) }

// inFlight returns how many of them are on the path, as far as is known.
func (s *Sender) inFlight() int { return int(s.nxt-s.una) - s.sacked.n - s.lost.n }

// Idle reports whether every frame sent was acknowledged.
func (s *Sender) Idle() bool { return s.una == s.nxt }

// Next returns the number that Send will assign.
func (s *Sender) Next() uint32 { return s.nxt }

// Unacked returns the number of the oldest frame that is not acknowledged.
func (s *Sender) Unacked() uint32 { return s.una }

// Stats returns the counters.
func (s *Sender) Stats() SenderStats { return s.stats }

// RTT returns the smoothed round trip, in nanoseconds; 0: not measured.
func (s *Sender) RTT() int64 { return s.smooth }

// Closes reports whether a new frame of the given units leaves no room for another one like it.
func (s *Sender) Closes(units int) bool {
	return s.room() <= 1 || int(int32(s.limit-s.used)) < 2*units
}

// Send records a new frame that takes the given units of the peer's window. The caller sends it with the returned
// number. There must be Room, and the frame must fit.
func (s *Sender) Send(now int64, tag uint64, units int) uint32 {
	seq := s.nxt
	if s.Outstanding() == len(s.frames) {
		s.enlarge(2 * len(s.frames))
	}
	s.frames[seq&s.mask] = sentFrame{tag: tag, sentAt: now, units: uint16(units)}
	s.nxt++
	s.used += uint32(units)
	s.bounded = s.bounded || int(int32(s.limit-s.used)) < units
	s.stats.Sent++
	s.paced(now)
	if s.timer == 0 { // nothing was in flight
		s.idled(now - s.idleAt)
		s.timer = now + s.firstTimeout()
	}
	return seq
}

// Tag returns the tag that was passed to Send for frame seq. It is valid until a new Send reuses the frame's place.
func (s *Sender) Tag(seq uint32) uint64 { return s.frames[seq&s.mask].tag }

// Ack handles a cumulative acknowledgement: the peer has everything before cum and accepts window units from there.
// It returns the range of numbers that are acknowledged now; the caller releases their tags. An acknowledgement of
// frames that were never sent, or an old one, yields an empty range. valid is false for the former.
func (s *Sender) Ack(now int64, cum uint32, window int) (from, to uint32, valid bool) {
	s.Pace(now) // before the window opens, here or in AckRanges
	from = s.una
	n := cum - from
	if n > s.nxt-from {
		return from, from, int32(n) < 0
	}
	if n == 0 {
		s.take(window)
		return from, from, true
	}
	sentAt, again := int64(0), false // send time of the newest frame that was not known to have arrived; whether any was retransmitted
	for seq := from; seq != cum; seq++ {
		f := &s.frames[seq&s.mask]
		again = again || f.tries > 0
		s.freed += uint32(f.units)
		if s.sacked.has(seq) {
			s.sacked.remove(seq)
		} else {
			s.arrived(now, seq, f)
			sentAt = f.sentAt
		}
	}
	if sentAt != 0 && !again { // frames behind a retransmission waited for it
		s.measured(now, now-sentAt)
	}
	if before(s.high, cum) {
		s.high = cum
	}
	if before(s.once, cum) {
		s.once = cum
	}
	s.una = cum
	s.take(window)
	s.repairing = s.lost.n > 0
	if s.grow(now, int(n), cum, s.nxt, s.least) {
		s.stats.Slows++
	}
	if s.newLeast != 0 {
		s.least, s.leastAt, s.newLeast = s.newLeast, now, 0
	}
	s.pacer.set(s.cwnd, s.paceTrip(), now)
	s.progress(now)
	return from, cum, true
}

// Marked takes the peer's count of frames that arrived with a mark (ECN). Call it before Ack. An older count is
// ignored.
func (s *Sender) Marked(total uint32) {
	if n := int32(total - s.seenMarks); n > 0 {
		s.seenMarks = total
		s.marked(int(n), s.nxt)
	}
}

// take applies the peer's window from the cumulative acknowledgement on. The peer may also shrink it; frames that
// were sent before stay outstanding.
func (s *Sender) take(window int) {
	window = max(0, min(window, MaxWindow))
	if window != s.granted {
		s.granted = window
		s.bound(roundUp(window))
	}
	s.limit = s.freed + uint32(window)
}

// enlarge makes room for size outstanding frames.
func (s *Sender) enlarge(size int) {
	frames, mask := make([]sentFrame, size), uint32(size-1)
	for i := range uint32(len(s.frames)) { // also those just released, since the caller asks for their tags
		seq := s.nxt - 1 - i
		frames[seq&mask] = s.frames[seq&s.mask]
	}
	s.frames, s.mask = frames, mask
	s.resent = append(make([]resentFrame, 0, size), s.resent...)
	s.sacked.grow(size, s.una)
	s.lost.grow(size, s.una)
}

// AckRanges handles the selective acknowledgements that came with the cumulative one of cum, after Ack. They must be ascending
// and disjoint, as Receiver.Ranges writes them. It stops at the first that is not, and returns false. So it
// examines each frame in flight once, however many ranges there are.
func (s *Sender) AckRanges(now int64, cum uint32, ranges []Range) (valid bool) {
	at := uint32(0)
	for _, r := range ranges {
		start, end := r.Start-cum, r.End-cum
		if start < at || end <= start || int32(end) < 0 {
			return false
		}
		s.AckRange(now, r.Start, r.End)
		at = end
	}
	return true
}

// AckRange handles a selective acknowledgement of [start, end). Frames in it are remembered until the cumulative
// acknowledgement passes them. Frames that were never sent, or were released before, are ignored.
func (s *Sender) AckRange(now int64, start, end uint32) {
	first, last := start-s.una, end-s.una
	if int32(first) < 0 {
		first = 0
	}
	if last > s.nxt-s.una || first >= last {
		return
	}
	s.looked += uint64(last - first)
	sentAt, moved := int64(0), false // send time of the newest frame that was not known to have arrived and was sent once
	for seq := s.sacked.gap(s.una+first, end); seq != end; seq = s.sacked.gap(seq+1, end) {
		f := &s.frames[seq&s.mask]
		s.arrived(now, seq, f)
		if f.tries == 0 {
			sentAt = f.sentAt
		}
		s.sacked.add(seq)
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

// arrived updates the measures of time and order for a frame that arrived.
func (s *Sender) arrived(now int64, seq uint32, f *sentFrame) {
	if s.lost.has(seq) {
		s.lost.remove(seq)
	}
	// What arrives much sooner than the least round trip is an earlier transmission. A little sooner may be a retransmission,
	// which meets no queue and whose acknowledgement waits for no other frame. The answer to a probe is the probe's:
	// the peer does not delay it, and may have delayed each acknowledgement of the round trips that are known.
	echo := f.tries > 0 && s.silent != 1 && now-f.sentAt < s.least-s.least/32
	if (f.tries == 0 || echo) && before(seq+1, s.high) {
		s.reordered = reorderRounds
	}
	if !echo && f.sentAt >= s.rackSent {
		s.rackSent, s.rackTrip = f.sentAt, min(now-f.sentAt, mostTrip)
	}
}

// measured records the round trip of a frame that was sent once. Only such a frame ends the doubling of the timer
// (Karn). Otherwise, on a path that became slower than the timer, every frame would be sent twice for ever.
func (s *Sender) measured(now, t int64) {
	t = min(t, mostTrip)
	window := int64(minRTTWindow)
	if s.competing {
		window *= 6 // there is a queue for as long
	}
	s.rtt.sample(now, t, window)
	s.congestion.sample(t)
	s.backoff = 0
}

// progress restarts the timer after an arrival.
func (s *Sender) progress(now int64) {
	s.silent = 0
	s.timer = 0
	if s.una != s.nxt {
		s.timer = now + s.firstTimeout()
	} else {
		s.idleAt = now
	}
}
