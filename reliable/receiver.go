package reliable

// Verdict on an arriving frame.
type Verdict uint8

const (
	InOrder   Verdict = iota // the next frame: deliver it, then ask Pop
	Early                    // a frame is missing before it: keep it with Hold
	Duplicate                // arrived before: drop it
	Outside                  // beyond the window: drop it; the peer ignores the window
)

type heldFrame struct {
	tag  uint64
	held bool
}

// Receiver puts frames in order and knows what to acknowledge.
type Receiver struct {
	next  uint32 // next number in order
	mask  uint32
	held  int
	frame []heldFrame

	high   uint32 // one past the highest number that came early
	behind int    // early frames that came in a row behind the last gap
	late   int    // gaps in a row that a late frame has filled, none that was sent again

	unacked int  // frames that arrived since the last acknowledgement
	urgent  bool // the peer should hear at once: gap, duplicate, closed gap
	stats   ReceiverStats
}

// ReceiverStats counts events of a Receiver since its start.
type ReceiverStats struct {
	InOrder, Early, Duplicate, Outside uint64 // frames
}

// NewReceiver makes a receiver that expects number first and holds early
// frames of a window of that many frames, rounded up to a power of two and
// bounded by MaxWindow.
func NewReceiver(first uint32, window int) *Receiver {
	size := roundUp(max(1, min(window, MaxWindow)))
	return &Receiver{next: first, mask: uint32(size - 1), frame: make([]heldFrame, size)}
}

// Next is the cumulative acknowledgement: the number of the first frame that
// is missing.
func (r *Receiver) Next() uint32 { return r.next }

// Held is the number of early frames that wait.
func (r *Receiver) Held() int { return r.held }

// Stats returns the counters.
func (r *Receiver) Stats() ReceiverStats { return r.stats }

// Arrive judges frame seq, of which the peer says whether it sends it again. InOrder
// moves Next past it.
func (r *Receiver) Arrive(seq uint32, again bool) Verdict {
	if seq == r.next && r.held == 0 {
		r.next++
		r.unacked++
		r.stats.InOrder++
		return InOrder
	}
	return r.arriveSlow(seq, again)
}

// arriveSlow judges a frame that tells of a gap, closes one, or should not have
// come: in each case the peer should hear of it at once. What comes in a row behind
// a gap tells of it again; when the peer has heard that often enough to send the
// missing frame again, more of it is news like any other.
//
// What fills a gap and was sent once was not lost but late. Where all are, the peer has
// seen that, too, and waits a round trip for them: a gap is no news then, nor is its end.
func (r *Receiver) arriveSlow(seq uint32, again bool) Verdict {
	ahead := seq - r.next
	switch {
	case int32(ahead) < 0, ahead <= r.mask && r.frame[seq&r.mask].held:
		r.urgent = true
		r.stats.Duplicate++
		return Duplicate
	case ahead > r.mask:
		r.urgent = true
		r.stats.Outside++
		return Outside
	}
	news := r.late < lateRow
	switch {
	case ahead > 0 && r.held > 0 && seq == r.high:
		r.high++
		r.behind++
		news = news && r.behind <= dupThreshold
	case ahead > 0 && (r.held == 0 || before(r.high, seq)):
		r.high, r.behind = seq+1, 1
	case again:
		r.late = 0
	default:
		r.late = min(r.late+1, lateRow)
	}
	r.unacked++
	r.urgent = r.urgent || again || news
	if ahead > 0 {
		r.stats.Early++
		return Early
	}
	r.next++
	r.stats.InOrder++
	return InOrder
}

// Hold keeps the tag of an Early frame until the frames before it came.
func (r *Receiver) Hold(seq uint32, tag uint64) {
	r.frame[seq&r.mask] = heldFrame{tag, true}
	r.held++
}

// Pop returns the held frame that is next in order, if it is there, and moves
// Next past it. Call it after each InOrder until it says no.
func (r *Receiver) Pop() (tag uint64, ok bool) {
	if r.held == 0 {
		return 0, false
	}
	f := &r.frame[r.next&r.mask]
	if !f.held {
		return 0, false
	}
	f.held = false
	r.held--
	r.next++
	r.unacked++
	return f.tag, true
}

// Drain returns held frames in any order, to be given back when the
// connection ends.
func (r *Receiver) Drain() (tag uint64, ok bool) {
	if r.held == 0 {
		return 0, false
	}
	for i := range r.frame {
		if f := &r.frame[i]; f.held {
			f.held = false
			r.held--
			return f.tag, true
		}
	}
	return 0, false
}

// Unacked is the number of frames that arrived since Acked, and of those that Pop
// has given.
func (r *Receiver) Unacked() int { return r.unacked }

// Urgent says that the peer should get an acknowledgement at once.
func (r *Receiver) Urgent() bool { return r.urgent }

// AskUrgent makes the next acknowledgement urgent.
func (r *Receiver) AskUrgent() { r.urgent = true }

// Acked says that an acknowledgement was sent, alone or on a data frame. A data
// frame has no place for Ranges: while frames are held it does not count as one.
func (r *Receiver) Acked() {
	r.unacked = 0
	r.urgent = false
}

// Range is a run of frames [Start, End) that are held.
type Range struct{ Start, End uint32 }

// Ranges writes the runs of held frames to out, lowest first, and returns how
// many it wrote.
func (r *Receiver) Ranges(out []Range) int {
	n, left := 0, r.held
	for seq := r.next; left > 0 && n < len(out); {
		for !r.frame[seq&r.mask].held {
			seq++
		}
		start := seq
		for left > 0 && r.frame[seq&r.mask].held {
			seq++
			left--
		}
		out[n] = Range{start, seq}
		n++
	}
	return n
}
