package vipl

import (
	"unsafe"

	"viaxdp/internal/ordered"
)

// What Done looks at before it takes a lock, as words, for a caller who pays to
// get here: a program in C (cmd/libvipl) looks at them itself, and calls only when
// there is something. All are to be read atomically; they stay readable for as
// long as what they were asked of can be reached by the collector.

// PortWatch is what a poll that finds no completion looks at. It has nothing to do
// as long as all of these hold: Produced and Consumed are equal; Waits is 0, or Idle
// is less than HeldPolls beyond IdleAtPost; Lanes is 0. Each such poll adds 1 to
// Idle, by which the library's own goroutine sees that somebody polls and stays out
// of the way. It also calls Tend at least every 50 us, since some work comes with
// time alone.
type PortWatch struct {
	Produced, Consumed *uint32 // indices of the RX ring
	Idle               *uint32 // polls in vain, of all threads; an update may get lost
	Taken              *uint32 // descriptors taken, likewise
	Waits, IdleAtPost  *uint32 // whether something waits for company, and Idle at the last post
	// Lanes is not 0 while there are connections with other queues of the interface.
	// Their frames do not come by the RX ring, so that every poll has to enter Go.
	Lanes *uint64
	// Rests is not 0 in a stream, where each look at the indices costs the sender
	// time: then only one poll in sixteen looks at them.
	Rests *uint64
}

// Lanes is the word of an atomic pointer.
var _ [8]struct{} = [unsafe.Sizeof(port{}.lanes)]struct{}{}

// HeldPolls is how many polls in vain after a post say that the program has
// nothing more to send.
const HeldPolls = heldPolls

// Watch gives the words of the NIC handle's port; ok is false where its Port has no
// ring indices to look at, as a Port in memory.
func (n *Nic) Watch() (w PortWatch, ok bool) {
	p := n.port
	ring, ok := p.nic.(interface {
		RxIndices() (produced, consumed *uint32)
	})
	if !ok {
		return w, false
	}
	w.Produced, w.Consumed = ring.RxIndices()
	w.Idle, w.Waits, w.IdleAtPost = word32(&p.idle), word32(&p.waits), word32(&p.idleAtPost)
	w.Taken = word32(&p.taken)
	w.Lanes, w.Rests = (*uint64)(unsafe.Pointer(&p.lanes)), word64(&p.rests)
	return w, true
}

// Tend does what has become due with time, such as retransmissions and keepalives.
// It never waits and may be called concurrently.
func (n *Nic) Tend() {
	p := n.port
	if (p.overdue() || p.lanes.Load() != nil && p.laneReady()) && p.mu.TryLock() {
		p.progress(p.now(), false)
		p.mu.Unlock()
	}
}

// QueueWatch has the counts of one work queue's descriptors since the VI was made.
// A completed descriptor waits where Completed is more than Dequeued; none is posted
// where Posted and Dequeued are equal. Completed may be read one behind Dequeued.
// Settling runs ahead of Completed while a status is being written: where Settling is
// more than Dequeued, and Completed is not, the program may have seen that status
// already, and must call Done.
//
// Ring is the address of the completed descriptors, in 64-bit words:
//
//	0     number of entries less 1; the number is a power of two
//	1     unused
//	2...  the entries, two words each: a descriptor's address, its status
//
// The descriptor that completed as number i, from 0, is in entry i modulo their
// number. To take number Dequeued, read Completed, then Ring, then the entry, and
// then advance Dequeued by 1 with a compare-and-swap; where that fails, somebody else
// has taken it. Whoever has taken one adds 1 to PortWatch.Taken.
type QueueWatch struct{ Posted, Completed, Settling, Dequeued, Ring *uint64 }

// Watch gives the words of both work queues. From then on descriptors may be taken
// off them by way of Dequeued as well as by the calls.
func (v *VI) Watch() (send, recv QueueWatch) {
	v.port.mu.Lock()
	defer v.port.mu.Unlock()
	return v.send.watch(), v.recv.watch()
}

func (q *workQueue) watch() QueueWatch {
	q.open()
	return QueueWatch{word64(&q.tail), word64(&q.completed), word64(&q.settling), word64(&q.dequeued), word64(&q.outside.at)}
}

// Watch gives two words: the number of entries, and one to be read before it. Where
// settling is not 0, a program may have seen the status of a descriptor whose entry is
// not there yet, and must call Done.
func (c *CQ) Watch() (entries, settling *uint64) { return word64(&c.waiting), word64(&c.settling) }

func addressOfWords(w []uint64) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(w)))) }

func word32(u *ordered.Uint32) *uint32 { return (*uint32)(unsafe.Pointer(u)) }

func word64(u *ordered.Uint64) *uint64 { return (*uint64)(unsafe.Pointer(u)) }
