package vipl

import (
	"sync/atomic"

	"viaxdp/internal/base/ordered"
)

// userRing lets a program take completed descriptors off a work queue without a call and without the lock, as
// programs in C do (cmd/libvipl). It lists the completed descriptors and their status. The thread that advances
// workQueue.dequeued by one, with a compare-and-swap, owns the descriptor at that index. Once a queue has a
// userRing, the library takes descriptors in the same way.
//
// The words are a ring: the number of entries less one, one unused word, and for each entry the descriptor's
// address and its status. A reader reads the entry before the compare-and-swap, which fails if the entry may have
// been overwritten.
type userRing struct {
	words []uint64
	old   [][]uint64     // earlier rings, which a reader may still be reading
	at    ordered.Uint64 // the address of words
}

// open allows dequeueing from q without the lock from now on. Under the lock.
func (q *workQueue) open() {
	if q.userRing != nil {
		return
	}
	q.userRing = &userRing{}
	q.userRing.grow(len(q.ring), 0, 0)
	for i := q.dequeued.Load(); i != q.completed.Load(); i++ {
		q.userRing.put(i, q.at(i).desc, q.at(i).status)
	}
}

// put records the descriptor that completes as number i. Under the lock.
func (o *userRing) put(i uint64, d *Descriptor, s Status) {
	e := userRingEntry(o.words, i)
	ordered.StoreUint64(&e[0], d.Addr())
	ordered.StoreUint64(&e[1], uint64(s))
}

// grow makes room for entries, a power of two, and keeps those from head to completed. Under the lock.
func (o *userRing) grow(entries int, head, completed uint64) {
	words := make([]uint64, 2+2*entries)
	words[0] = uint64(entries - 1)
	for i := head; i != completed; i++ {
		*userRingEntry(words, i) = *userRingEntry(o.words, i)
	}
	o.old = append(o.old, o.words)
	o.words = words
	o.at.Store(addressOfWords(words))
}

func userRingEntry(words []uint64, i uint64) *[2]uint64 {
	return (*[2]uint64)(words[2+2*(i&words[0]):])
}

// claim dequeues number head; false: another thread has done so.
func (q *workQueue) claim(head uint64) bool {
	if q.userRing == nil { // without a userRing the caller's lock suffices
		q.dequeued.Store(head + 1)
		return true
	}
	return atomic.CompareAndSwapUint64(word64(&q.dequeued), head, head+1)
}
