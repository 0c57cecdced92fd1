package reliable

// Verdict is the result of Arrive for a frame.
type Verdict uint8

const (
	InOrder       Verdict = iota // the next frame: deliver it, then ask Pop
	OutOfOrder                   // a frame before it is missing: keep it with Buffer
	Duplicate                    // arrived before: drop it
	OutsideWindow                // beyond the window: drop it; the peer violates the window
)

// Receiver puts frames in order and decides what to acknowledge.
type Receiver struct {
	next  uint32   // next number in order
	limit uint32   // frames that the window covers
	held  seqSet   // frames that wait, out of order
	tags  []uint64 // their tags; as many places as held has

	recent [recentRuns]uint32 // frames of the runs that changed last, see Ranges
	noted  int                // frames noted so far: the newest is recent[(noted-1)%recentRuns]

	high   uint32 // one past the highest number that arrived out of order
	behind int    // out-of-order frames that arrived in a row behind the last gap
	late   int    // gaps in a row that were filled by a late frame, not by a retransmission

	unacked int    // frames that arrived since the last acknowledgement
	marks   uint32 // frames that arrived with a mark
	unheard bool   // some of them arrived since the last acknowledgement
	urgent  bool   // acknowledge at once: gap, duplicate, closed gap
	stats   ReceiverStats
}

// ReceiverStats counts events of a Receiver since its start.
type ReceiverStats struct {
	InOrder, OutOfOrder, Duplicate, OutsideWindow uint64 // frames
}

// recentRuns is how many of the runs that changed last a Receiver remembers.
const recentRuns = 32

// NewReceiver makes a receiver that expects number first. It buffers out-of-order frames within window, which is
// rounded up to a power of two and bounded by MaxWindow. Memory for them is allocated when the first frame arrives
// that needs it.
func NewReceiver(first uint32, window int) *Receiver {
	return &Receiver{next: first, limit: uint32(roundUp(max(1, min(window, MaxWindow))))}
}

// Next returns the cumulative acknowledgement: the number of the first missing frame.
func (r *Receiver) Next() uint32 { return r.next }

// Buffered returns the number of out-of-order frames that wait.
func (r *Receiver) Buffered() int { return r.held.n }

// Stats returns the counters.
func (r *Receiver) Stats() ReceiverStats { return r.stats }

// Arrive classifies frame seq. again means that the peer has marked it as a retransmission. InOrder moves Next past
// the frame.
func (r *Receiver) Arrive(seq uint32, again bool) Verdict {
	if seq == r.next && r.held.n == 0 {
		r.next++
		r.unacked++
		r.stats.InOrder++
		return InOrder
	}
	return r.arriveSlow(seq, again)
}

// arriveSlow classifies a frame that shows a gap, closes one, or should not have arrived. In each case the peer
// should get an acknowledgement at once. Frames in a row behind a gap show it again. After enough
// acknowledgements for the peer to retransmit, further frames are acknowledged like any other frame.
//
// A frame that fills a gap and is not a retransmission was late, not lost. If that is the rule on this path, the
// peer has seen the reordering, too, and waits a round trip before it retransmits. Neither a gap nor its end is
// then acknowledged at once.
func (r *Receiver) arriveSlow(seq uint32, again bool) Verdict {
	ahead := seq - r.next
	switch {
	case int32(ahead) < 0, r.holds(seq):
		if int32(ahead) > 0 {
			r.note(seq) // the peer does not know that it is here
		}
		r.urgent = true
		r.stats.Duplicate++
		return Duplicate
	case ahead >= r.limit:
		r.urgent = true
		r.stats.OutsideWindow++
		return OutsideWindow
	}
	news := r.late < lateRow
	switch {
	case ahead > 0 && r.held.n > 0 && seq == r.high:
		r.high++
		r.behind++
		news = news && r.behind <= dupThreshold
	case ahead > 0 && (r.held.n == 0 || before(r.high, seq)):
		r.high, r.behind = seq+1, 1
	case again:
		r.late = 0
	default:
		r.late = min(r.late+1, lateRow)
	}
	r.unacked++
	r.urgent = r.urgent || again || news
	if ahead > 0 {
		r.stats.OutOfOrder++
		return OutOfOrder
	}
	r.next++
	r.stats.InOrder++
	return InOrder
}

// holds reports whether frame seq waits.
func (r *Receiver) holds(seq uint32) bool {
	return seq-r.next < uint32(len(r.tags)) && r.held.has(seq)
}

// place returns where the tag of frame seq is.
func (r *Receiver) place(seq uint32) *uint64 { return &r.tags[seq&uint32(len(r.tags)-1)] }

// Buffer keeps the tag of an OutOfOrder frame until the frames before it have arrived.
func (r *Receiver) Buffer(seq uint32, tag uint64) {
	if ahead := seq - r.next; ahead >= uint32(len(r.tags)) {
		r.grow(roundUp(max(leastPlaces, int(ahead)+1)))
	}
	r.held.add(seq)
	*r.place(seq) = tag
	r.note(seq)
}

// grow makes room for frames within size of the next one.
func (r *Receiver) grow(size int) {
	old := r.tags
	r.tags = make([]uint64, size)
	for i := range uint32(len(old)) {
		seq := r.next + i
		*r.place(seq) = old[seq&uint32(len(old)-1)]
	}
	r.held.grow(size, r.next)
}

// Pop returns the buffered frame that is next in order, if there is one, and moves Next past it. Call it after each
// InOrder until ok is false.
func (r *Receiver) Pop() (tag uint64, ok bool) {
	if !r.held.has(r.next) {
		return 0, false
	}
	tag = *r.place(r.next)
	r.held.remove(r.next)
	r.next++
	r.unacked++
	return tag, true
}

// Drain returns buffered frames in any order, for releasing them when the connection ends.
func (r *Receiver) Drain() (tag uint64, ok bool) {
	if r.held.n == 0 {
		return 0, false
	}
	seq := r.held.next(r.next, r.next+uint32(len(r.tags)))
	r.held.remove(seq)
	return *r.place(seq), true
}

// Unacked returns the number of frames that arrived, or that Pop returned, since Acked.
func (r *Receiver) Unacked() int { return r.unacked }

// Urgent reports whether the peer should get an acknowledgement at once.
func (r *Receiver) Urgent() bool { return r.urgent }

// AskUrgent makes the next acknowledgement urgent.
func (r *Receiver) AskUrgent() { r.urgent = true }

// Mark records that a frame has arrived that a router has marked (ECN).
func (r *Receiver) Mark() {
	r.marks++
	r.unheard = true
}

// Marks returns the number of marked frames.
func (r *Receiver) Marks() uint32 { return r.marks }

// Bare reports whether the next acknowledgement must be a bare one, which has room for Ranges and Marks.
func (r *Receiver) Bare() bool { return r.held.n > 0 || r.unheard }

// Acked records that an acknowledgement was sent, bare or on a data frame. Do not call it for a data frame while Bare
// is true.
func (r *Receiver) Acked() {
	r.unacked = 0
	r.urgent, r.unheard = false, false
}

// Range is a run of buffered frames [Start, End).
type Range struct{ Start, End uint32 }

// note records that the run of frame seq has changed.
func (r *Receiver) note(seq uint32) {
	if r.noted > 0 && r.recent[(r.noted-1)%recentRuns] == seq-1 {
		r.noted-- // the same run
	}
	r.recent[r.noted%recentRuns] = seq
	r.noted++
}

// Ranges writes runs of buffered frames to out in ascending order, and returns their number. If out does not hold
// all of them, it gets those that changed last, as in RFC 2018. So each change is in several acknowledgements,
// however many runs there are.
func (r *Receiver) Ranges(out []Range) int {
	n, left := 0, r.held.n
	for i := r.noted - 1; i >= max(0, r.noted-recentRuns) && left > 0 && n < len(out); i-- {
		if seq := r.recent[i%recentRuns]; r.holds(seq) {
			if run, ok := r.insert(out[:n+1], seq); ok {
				n++
				left -= int(run.End - run.Start)
			}
		}
	}
	end := r.next + uint32(len(r.tags))
	for seq := r.next; left > 0 && n < len(out); {
		seq = r.held.next(seq, end)
		run, ok := r.insert(out[:n+1], seq)
		if ok {
			n++
			left -= int(run.End - run.Start)
		}
		seq = run.End
	}
	return n
}

// insert puts the run of frame seq into out, whose last place is free. It returns false if the run is there.
func (r *Receiver) insert(out []Range, seq uint32) (run Range, ok bool) {
	i := len(out) - 1
	for i > 0 && before(seq, out[i-1].End) {
		if i--; !before(seq, out[i].Start) {
			return out[i], false
		}
	}
	run = Range{r.held.prevGap(r.next, seq+1), r.held.gap(seq+1, r.next+uint32(len(r.tags)))}
	copy(out[i+1:], out[i:])
	out[i] = run
	return run, true
}
