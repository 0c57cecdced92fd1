package vipl

import (
	"sync/atomic"

	"viaxdp/internal/ordered"
)

// outside is what a work queue has for a program that takes completed descriptors
// off it without a call and without the lock, as programs in C do (cmd/libvipl):
// which descriptors have completed, and how. Whoever advances workQueue.dequeued
// by one, by an exchange, has the descriptor that it counted; so have those in here
// from then on.
//
// The words are a ring: how many entries there are less one, one word that is not
// used, and for each entry the descriptor's address and its status. A reader reads
// them before the exchange, which fails where they may have been written since.
type outside struct {
	words []uint64
	old   [][]uint64     // rings before it, which somebody may still be reading
	at    ordered.Uint64 // the address of words
}

// open lets others take descriptors off q, from now on. Under the lock.
func (q *workQueue) open() {
	if q.outside != nil {
		return
	}
	q.outside = &outside{}
	q.outside.grow(len(q.ring), 0, 0)
	for i := q.dequeued.Load(); i != q.completed.Load(); i++ {
		q.outside.put(i, q.at(i).desc, q.at(i).status)
	}
}

// put tells of the descriptor that completes as number i. Under the lock.
func (o *outside) put(i uint64, d *Descriptor, s Status) {
	e := outsideEntry(o.words, i)
	ordered.StoreUint64(&e[0], d.Addr())
	ordered.StoreUint64(&e[1], uint64(s))
}

// grow makes room for entries, a power of two, and keeps those from head to
// completed. Under the lock.
func (o *outside) grow(entries int, head, completed uint64) {
	words := make([]uint64, 2+2*entries)
	words[0] = uint64(entries - 1)
	for i := head; i != completed; i++ {
		*outsideEntry(words, i) = *outsideEntry(o.words, i)
	}
	o.old = append(o.old, o.words)
	o.words = words
	o.at.Store(addressOfWords(words))
}

func outsideEntry(words []uint64, i uint64) *[2]uint64 {
	return (*[2]uint64)(words[2+2*(i&words[0]):])
}

// claim takes number head off the queue; false: somebody else has.
func (q *workQueue) claim(head uint64) bool {
	if q.outside == nil { // whoever takes has the lock
		q.dequeued.Store(head + 1)
		return true
	}
	return atomic.CompareAndSwapUint64(word64(&q.dequeued), head, head+1)
}
