// Package reliable makes an ordered, exactly-once stream of numbered frames out of a network that loses, reorders
// and duplicates them. It is two pure state machines, a [Sender] and a [Receiver]. Time is an argument, frames are
// tags that the caller chooses, and the package sends and receives nothing.
//
//	      caller's frames                        caller's frames
//	            | Send(now, tag)                       ^ InOrder, Pop
//	+-----------v-----------+               +----------+-----------+
//	| Sender                |  seq ------>  | Receiver             |
//	| una ....... nxt       |               | next . buffered . high|
//	| lost, sacked, timers  |  <------ ack, | duplicates, gaps     |
//	+-----------------------+  window,      +----------------------+
//	                           ranges
//
// A loss is detected in one of four ways: by sequence (three later frames arrived, while no reordering has been
// seen), by time (a frame sent a quarter of a round trip later arrived), by a tail probe (silence after the last
// frame), and finally by the retransmission timer, which doubles each time. A retransmission is marked as such. If
// a receiver's gaps are filled by frames that are not retransmissions, frames were only late, and the receiver
// stops reporting gaps at once.
//
// A window may have MaxWindow frames. One of more than 64 on a path of at least 100 us is paced (pacer.go).
//
// The frames in flight never exceed the peer's window, which keeps its rings from overflowing, nor the congestion
// window (congestion.go). Delay and ECN marks are the first signals of congestion. A loss is one only if round trips
// show a queue: random losses of one frame in twenty do not slow a stream down. Beside a flow that keeps the queue
// full, the window is that of CUBIC.
//
// The peer sends its window in every frame, and may enlarge or shrink it. A smaller window applies once the
// Sender has received it. The peer keeps room for what was sent before; frames that find no room are lost and
// retransmitted.
//
// Sequence numbers are 32 bits and wrap. All comparisons are modulo 2^32 and windows are at most MaxWindow frames.
// So a frame would have to be delayed by about four billion others to be mistaken for another.
//
// Memory is a few KB until more than 64 frames are outstanding or out of order, and then doubles with them. Nothing
// else but the constructors allocates. The cost of an acknowledgement does not depend on the window, except for
// searches in sets that examine 64 frames at once. One goroutine at a time.
//
// The methods follow RFC 6298 (timer), RFC 6675 (selective acknowledgement) and RFC 8985 (RACK-TLP), with minimum
// times for a local network.
package reliable

// MaxWindow is the largest number of frames in flight of one connection: 94 MB at MTU 1500. It is what the 16 bits of
// a frame's window hold.
const MaxWindow = 1<<16 - 1

// Times in nanoseconds of a monotonic clock with any origin; the clock must
// never read 0 or less.
const (
	minTimeout   = 200_000        // least time before a tail probe or retransmission
	maxTimeout   = 200_000_000    // longest interval between retransmissions, unless round trips are longer
	slowTimeout  = 800_000_000    // the same on a path with longer round trips
	mostTrip     = 1_600_000_000  // longest time that counts as a round trip: in a longer one a machine was stopped
	firstRTT     = 1_000_000      // round trip assumed before one was measured
	delayCeiling = 1_000_000      // queueing delay above 5/4 of the least round trip at which the sender slows down
	minRTTWindow = 10_000_000_000 // a least round trip older than this is measured again
	queueShows   = 250_000        // queueing delay above 33/32 of the least round trip at which there is a queue; less on a long path
	shortPath    = 100_000        // least round trip below which the window ends at shortWindow
	longPath     = 1_000_000      // round trip above which a window that doubles goes on after a random loss
	joinFall     = 6_000_000      // fall of the round trip above which a sender that competes joins the dips of others: more than most late wakeups
	dipEvery     = 2_000_000_000  // least time between dips while competing

	dipEveryTrips = 64                  // the same in round trips
	cubicScale    = 0.4                 // C of RFC 9438: frames per cubed second
	cubicMost     = 1000                // s after which the curve is straight
	renoGrowth    = fraction * 53 / 100 // frames a round: with reductions to 7/10 as aggressive as Reno

	initialWindow = 20  // congestion window at the start, frames
	longWindow    = 64  // least window after the first round trip of a long path
	shortWindow   = 256 // frames that fill 25 Gbit/s for shortPath; more only displace each other in caches
	growthShare   = 16  // 1/growthShare of the congestion window is its growth in a round without losses
	mostGrowth    = 4   // most frames of growth in such a round, while the window is short
	wideShare     = 64  // 1/wideShare of a window of more than 256 frames is its growth instead
	longShare     = 32  // the same on a long path, where its share of random losses is made up for
	regrowTenths  = 8   // tenths of the window before a loss in a queue, to which it returns by growthShare on a long path
	chanceRounds  = 4   // rounds without a queue that do not show whether losses are random; then the least that do
	heavyShare    = 5   // losing 1/heavyShare of a round means congestion
	heavyLeast    = 9   // least number of lost frames that means congestion
	leastWindow   = 4   // congestion window after a timeout
	queueWindow   = 2   // least congestion window after a loss while there is a queue
	dipWindow     = 1   // least congestion window during a dip
	smallWindow   = 4   // a window at which the delay ceiling is twice that of a large one
	dipRounds     = 4   // rounds of a dip: the first ends what is in flight, the others show what remains
	highRounds    = 2   // rounds with a queue above the ceiling after which the window dips
	markRounds    = 128 // rounds without marks after which the path is one that does not mark: more than between two marks of a stream
	enough        = 8   // round trips whose least shows a queue before the round ends (RFC 9406)
	vainDips      = 4   // dips that do not empty the queue after which the sender competes; one more if the queue holds more than the path
	tellingWindow = 16  // frames in flight before a dip that shows what others have
	leastRivals   = 8   // frames that others have at least, if dips are in vain
	growingTrip   = 7   // quarters of the round trip of the second dip in vain above which, in the last one, the others fill the queue
	steadyRounds  = 128 // rounds that show that a path has become longer
	lowRounds     = 8   // rounds without a queue after which it no longer does
	dupThreshold  = 3   // later arrivals that mean a loss while no reordering was seen
	reorderRounds = 16  // loss rounds after which a reordering is forgotten (RFC 8985)
	lateRow       = 8   // late frames in a row after which the receiver, too, takes a gap for reordering
	maxBackoff    = 20  // doublings of the timer, enough to reach maxTimeout from any start
)

// before reports whether sequence number a precedes b.
func before(a, b uint32) bool { return int32(a-b) < 0 }

func roundUp(n int) int {
	size := 1
	for size < n {
		size *= 2
	}
	return size
}
