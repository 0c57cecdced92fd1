package vipl

import (
	"unsafe"

	"viaxdp/internal/base/ordered"
)

// The words that Done reads before it takes a lock, for callers for which a call of Go is expensive: a program in C
// (cmd/libvipl) reads them itself, and calls only if there is something to do. All words must be read atomically.
// They stay readable as long as the object that returned them is reachable.

// PortWatch is what a poll that finds no completion reads. The poll has nothing to do while all of these hold:
// Produced and Consumed are equal; Waits is 0, or Idle is less than CoalescePolls beyond IdleAtPost; ShmLinks is 0.
// Each such poll adds 1 to Idle; the library's own goroutine sees from it that the program polls and stays out of
// the way. The poller also calls Tend at least every 50 us, since some work becomes due with time.
type PortWatch struct {
	Produced, Consumed *uint32 // indices of the RX ring
	Idle               *uint32 // empty polls of all threads; an update may get lost
	Taken              *uint32 // descriptors dequeued; an update may get lost
	Waits, IdleAtPost  *uint32 // whether something is coalesced, and Idle at the last post
	// ShmLinks is not 0 while there are connections with other queues of the interface. Their frames do not arrive
	// on the RX ring, so every poll has to call Go.
	ShmLinks *uint64
	// PollPause is not 0 in a stream, where each read of the indices costs the sender time. Then only one poll in
	// sixteen should read them.
	PollPause *uint64
}

// ShmLinks is the word of an atomic pointer.
var _ [8]struct{} = [unsafe.Sizeof(port{}.links.all)]struct{}{}

// CoalescePolls is the number of empty polls after a post that show that the program has nothing more to send.
const CoalescePolls = coalescePolls

// Watch returns the words of the NIC handle's port. ok is false if its Port has no ring indices, such as a Port in
// memory.
func (n *NIC) Watch() (w PortWatch, ok bool) {
	p := n.port
	ring, ok := p.nic.(interface {
		RxIndices() (produced, consumed *uint32)
	})
	if !ok {
		return w, false
	}
	w.Produced, w.Consumed = ring.RxIndices()
	w.Idle, w.Waits, w.IdleAtPost = word32(&p.poller.idle), word32(&p.coalescer.waiting), word32(&p.coalescer.idleAtPost)
	w.Taken = word32(&p.poller.taken)
	w.ShmLinks, w.PollPause = (*uint64)(unsafe.Pointer(&p.links.all)), word64(&p.poller.pause.until)
	return w, true
}

// Tend does what has become due with time, such as retransmissions and keepalives. If polls have been in vain for 50 us, it yields
// the CPU. It may be called concurrently.
func (n *NIC) Tend() {
	p := n.port
	p.yieldCPU()
	if (p.overdue() || p.links.all.Load() != nil && p.linkReady()) && p.mu.TryLock() {
		p.progress(p.now(), false)
		p.mu.Unlock()
	}
}

// QueueWatch has the counts of one work queue's descriptors since the VI was created. A completed descriptor can be
// dequeued if Completed is more than Dequeued; none is on the queue if Posted and Dequeued are equal. Completed may
// be read one behind Dequeued. Settling runs ahead of Completed while a status is being written. If Settling is
// more than Dequeued but Completed is not, the program may have seen that status already, and must call Done.
//
// Ring is the address of the completed descriptors, in 64-bit words:
//
//	0     number of entries less 1; the number is a power of two
//	1     unused
//	2...  the entries, two words each: a descriptor's address, its status
//
// The descriptor that completed as number i, from 0, is in entry i modulo the number of entries. To dequeue number
// Dequeued, read Completed, then Ring, then the entry, and then advance Dequeued by 1 with a compare-and-swap. If
// that fails, another thread has dequeued it. A thread that has dequeued one adds 1 to PortWatch.Taken.
type QueueWatch struct{ Posted, Completed, Settling, Dequeued, Ring *uint64 }

// Watch returns the words of both work queues. From then on descriptors may be dequeued by way of Dequeued as well
// as by the calls.
func (v *VI) Watch() (send, recv QueueWatch) {
	v.port.mu.Lock()
	defer v.port.mu.Unlock()
	return v.send.watch(), v.recv.watch()
}

func (q *workQueue) watch() QueueWatch {
	q.open()
	return QueueWatch{word64(&q.tail), word64(&q.completed), word64(&q.settling), word64(&q.dequeued), word64(&q.userRing.at)}
}

// Watch returns two words: the number of entries, and settling, which must be read before it. If settling is not 0,
// a program may have seen the status of a descriptor whose entry is not queued yet, and must call Done.
func (c *CQ) Watch() (entries, settling *uint64) { return word64(&c.waiting), word64(&c.settling) }

func addressOfWords(w []uint64) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(w)))) }

func word32(u *ordered.Uint32) *uint32 { return (*uint32)(unsafe.Pointer(u)) }

func word64(u *ordered.Uint64) *uint64 { return (*uint64)(unsafe.Pointer(u)) }
