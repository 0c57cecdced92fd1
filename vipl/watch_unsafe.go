package vipl

import (
	"unsafe"

	"viaxdp/internal/ordered"
)

// What Done looks at before it takes a lock, as words, for a caller who pays to
// get here: a program in C (cmd/libvipl) looks at them itself, and calls only when
// there is something. All are to be read atomically; they stay readable for as
// long as what they were asked of can be reached by the collector.

// PortWatch is what a poll that finds no completion looks at. There is nothing to
// do as long as Produced and Consumed are equal, and Waits is 0 or less than
// HeldPolls polls went by since IdleAtPost, and Lanes is 0. Each such poll adds 1
// to Idle, the sign of life by which the library's own goroutine stays out of the
// way; and calls Tend at least every 50 us, since time makes work, too.
type PortWatch struct {
	Produced, Consumed *uint32 // indices of the RX ring
	Idle               *uint32 // polls in vain, of all threads; an update may get lost
	Taken              *uint32 // descriptors taken, likewise
	Waits, IdleAtPost  *uint32 // whether something waits for company, and Idle at the last post
	// Lanes is not 0 while there are connections with other queues of the interface,
	// whose frames come by another way: every poll calls.
	Lanes *uint64
	// Rests is not 0 in a stream, in which each look at the indices costs the sender:
	// one poll of sixteen does.
	Rests *uint64
}

// Lanes is the word of an atomic pointer.
var _ [8]struct{} = [unsafe.Sizeof(port{}.lanes)]struct{}{}

// HeldPolls is how many polls in vain after a post say that the program has
// nothing more to send.
const HeldPolls = heldPolls

// Watch gives the words of the NIC handle's port; false where its Port has no
// indices to look at, as those in memory.
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

// Tend does what time has made due. It never waits and may be called
// concurrently.
func (n *Nic) Tend() {
	p := n.port
	if (p.overdue() || p.lanes.Load() != nil && p.laneReady()) && p.mu.TryLock() {
		p.progress(p.now(), false)
		p.mu.Unlock()
	}
}

// QueueWatch counts the descriptors of one work queue since the VI was made: a
// completed one waits where Completed is more than Dequeued, none is posted where
// Posted and Dequeued are equal. Completed may be read one behind Dequeued. Settling is
// Completed as it will be when the status that is just being written has been: where it is
// more than Dequeued, and Completed is not, the program may have seen that status, and Done is
// to be called.
//
// Ring says where those that have completed are told: it is the address of a number
// of entries less one, of a word that means nothing, and of so many entries of two
// words, a descriptor's address and its status. Number i, counted from 0, is in entry
// i modulo their number. Who wants to take number Dequeued reads Completed, then
// Ring, then the entry, and then adds 1 to Dequeued by an atomic exchange of the
// number that he has read: where that fails, somebody else has it. He adds 1 to
// PortWatch.Taken.
type QueueWatch struct{ Posted, Completed, Settling, Dequeued, Ring *uint64 }

// Watch gives the words of both work queues, of which descriptors may from then on
// be taken by Dequeued as well as by the calls.
func (v *VI) Watch() (send, recv QueueWatch) {
	v.port.mu.Lock()
	defer v.port.mu.Unlock()
	return v.send.watch(), v.recv.watch()
}

func (q *workQueue) watch() QueueWatch {
	q.open()
	return QueueWatch{word64(&q.tail), word64(&q.completed), word64(&q.settling), word64(&q.dequeued), word64(&q.outside.at)}
}

// Watch gives the number of entries, and a word that is not 0, if looked at before it, where a
// program may have seen the status of a descriptor of which the entry is not there yet: then Done
// is to be called.
func (c *CQ) Watch() (entries, settling *uint64) { return word64(&c.waiting), word64(&c.settling) }

func addressOfWords(w []uint64) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(w)))) }

func word32(u *ordered.Uint32) *uint32 { return (*uint32)(unsafe.Pointer(u)) }

func word64(u *ordered.Uint64) *uint64 { return (*uint64)(unsafe.Pointer(u)) }
