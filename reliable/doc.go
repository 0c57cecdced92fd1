// Package reliable makes an ordered, exactly-once stream of numbered frames
// out of a network that loses, reorders and repeats them. It is two pure state
// machines, a [Sender] and a [Receiver]: time is an argument, frames are tags
// that the caller chose, nothing here sends or receives.
//
//	      caller's frames                        caller's frames
//	            | Send(now, tag)                       ^ InOrder, Pop
//	+-----------v-----------+               +----------+-----------+
//	| Sender                |  seq ------>  | Receiver             |
//	| una ....... nxt       |               | next .. held .. high |
//	| lost, sacked, timers  |  <------ ack, | duplicates, gaps     |
//	+-----------------------+  window,      +----------------------+
//	                           ranges
//
// How a loss is found: by sequence (three later frames arrived, as long as no
// reordering was seen), by time (a frame sent a round trip's quarter later
// arrived), by a tail probe (silence after the last frame), and at last by the
// retransmission timer, which doubles each time. A frame that is sent again says so: where
// the gaps of a receiver are filled by others, which were only late, it does not hurry to
// tell of a gap.
//
// How much may be in flight: never more than the peer's window, which keeps
// its rings from overflowing, and never more than the congestion window, which
// grows while frames arrive, and shrinks by a frame for each one that is lost, by
// 3/10 for a round trip in which a fifth is lost, by 1/8 for one in which delay stood
// far above its minimum, and to a few frames when a retransmission timer ran out. It
// grows by up to four frames in a round trip, so that losses by chance, one frame in
// twenty, do not hold a stream down. It is no good neighbour of kernel TCP on a
// congested link: a network for VIs is one's own.
//
// The peer tells its window in every frame, larger or smaller than before as it has
// room. What it takes back of the window counts from when the Sender hears of it: the
// peer keeps room for what was sent until then, and what finds none is lost and sent again.
//
// Sequence numbers are 32 bits and wrap; all comparisons are modulo 2^32 and
// windows are at most MaxWindow frames, so a frame would have to be delayed by
// four thousand million others to be taken for another.
//
// Nothing allocates after the constructors, but a Sender whose peer takes more than
// ever before. One goroutine at a time.
//
// The methods follow RFC 6298 (timer), RFC 6675 (selective acknowledgement)
// and RFC 8985 (RACK-TLP), with the floors of a local network.
package reliable

// MaxWindow is the largest number of frames in flight of one connection.
const MaxWindow = 1024

// Times in nanoseconds of a monotonic clock with any origin; the clock must
// never read 0 or less.
const (
	minTimeout   = 200_000        // least time before a tail probe or retransmission
	maxTimeout   = 200_000_000    // greatest interval between retransmissions
	firstRTT     = 1_000_000      // taken for the round trip before one was measured
	delayCeiling = 1_000_000      // queueing above twice the least round trip that asks for slowing down
	minRTTWindow = 10_000_000_000 // a least round trip older than this is measured anew

	initialWindow = 64 // congestion window at the start, frames
	growthShare   = 16 // in a round without losses the congestion window grows by this part,
	mostGrowth    = 4  // and by no more frames
	heavyShare    = 5  // a round of which a fifth is lost is no chance,
	heavyLeast    = 9  // unless that is less than so many frames
	leastWindow   = 4  // congestion window after a timeout
	dupThreshold  = 3  // later arrivals that tell a loss while no reordering was seen
	reorderRounds = 16 // rounds of losses after which a reordering is forgotten (RFC 8985)
	lateRow       = 8  // late frames in a row after which a gap is no loss to the receiver, either
	maxBackoff    = 20 // doublings of the timer, enough to reach maxTimeout from any start
)

// before says whether sequence number a comes before b.
func before(a, b uint32) bool { return int32(a-b) < 0 }

func roundUp(n int) int {
	size := 1
	for size < n {
		size *= 2
	}
	return size
}
