package reliable

// Verdict is the result of Arrive for a frame.
type Verdict uint8

const (
	InOrder       Verdict = iota // the next frame: deliver it, then ask Pop
	OutOfOrder                   // a frame before it is missing: keep it with Buffer
	Duplicate                    // arrived before: drop it
	OutsideWindow                // beyond the window: drop it; the peer violates the window
)

type bufferedFrame struct {
	tag      uint64
	buffered bool
}

// Receiver puts frames in order and decides what to acknowledge.
type Receiver struct {
	next     uint32 // next number in order
	mask     uint32
	buffered int
	frame    []bufferedFrame

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

// NewReceiver makes a receiver that expects number first. It buffers out-of-order frames within window, which is
// rounded up to a power of two and bounded by MaxWindow.
func NewReceiver(first uint32, window int) *Receiver {
	size := roundUp(max(1, min(window, MaxWindow)))
	return &Receiver{next: first, mask: uint32(size - 1), frame: make([]bufferedFrame, size)}
}

// Next returns the cumulative acknowledgement: the number of the first missing frame.
func (r *Receiver) Next() uint32 { return r.next }

// Buffered returns the number of out-of-order frames that wait.
func (r *Receiver) Buffered() int { return r.buffered }

// Stats returns the counters.
func (r *Receiver) Stats() ReceiverStats { return r.stats }

// Arrive classifies frame seq. again means that the peer has marked it as a retransmission. InOrder moves Next past
// the frame.
func (r *Receiver) Arrive(seq uint32, again bool) Verdict {
	if seq == r.next && r.buffered == 0 {
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
	case int32(ahead) < 0, ahead <= r.mask && r.frame[seq&r.mask].buffered:
		r.urgent = true
		r.stats.Duplicate++
		return Duplicate
	case ahead > r.mask:
		r.urgent = true
		r.stats.OutsideWindow++
		return OutsideWindow
	}
	news := r.late < lateRow
	switch {
	case ahead > 0 && r.buffered > 0 && seq == r.high:
		r.high++
		r.behind++
		news = news && r.behind <= dupThreshold
	case ahead > 0 && (r.buffered == 0 || before(r.high, seq)):
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

// Buffer keeps the tag of an OutOfOrder frame until the frames before it have arrived.
func (r *Receiver) Buffer(seq uint32, tag uint64) {
	r.frame[seq&r.mask] = bufferedFrame{tag, true}
	r.buffered++
}

// Pop returns the buffered frame that is next in order, if there is one, and moves Next past it. Call it after each
// InOrder until ok is false.
func (r *Receiver) Pop() (tag uint64, ok bool) {
	if r.buffered == 0 {
		return 0, false
	}
	f := &r.frame[r.next&r.mask]
	if !f.buffered {
		return 0, false
	}
	f.buffered = false
	r.buffered--
	r.next++
	r.unacked++
	return f.tag, true
}

// Drain returns buffered frames in any order, for releasing them when the connection ends.
func (r *Receiver) Drain() (tag uint64, ok bool) {
	if r.buffered == 0 {
		return 0, false
	}
	for i := range r.frame {
		if f := &r.frame[i]; f.buffered {
			f.buffered = false
			r.buffered--
			return f.tag, true
		}
	}
	return 0, false
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
func (r *Receiver) Bare() bool { return r.buffered > 0 || r.unheard }

// Acked records that an acknowledgement was sent, bare or on a data frame. Do not call it for a data frame while Bare
// is true.
func (r *Receiver) Acked() {
	r.unacked = 0
	r.urgent, r.unheard = false, false
}

// Range is a run of buffered frames [Start, End).
type Range struct{ Start, End uint32 }

// Ranges writes the runs of buffered frames to out, lowest first, and returns their number.
func (r *Receiver) Ranges(out []Range) int {
	n, left := 0, r.buffered
	for seq := r.next; left > 0 && n < len(out); {
		for !r.frame[seq&r.mask].buffered {
			seq++
		}
		start := seq
		for left > 0 && r.frame[seq&r.mask].buffered {
			seq++
			left--
		}
		out[n] = Range{start, seq}
		n++
	}
	return n
}
