package xdpnic

import (
	"viaxdp/internal/base/ordered"
)

// This file is the only one that touches ring indices.
//
// A ring is a power-of-two array with two free-running 32-bit indices in
// memory shared with the kernel. The kernel is the consumer of the TX and fill
// rings and the producer of the RX and completion rings
// (net/xdp/xsk_queue.h). Each side stores only its own index. The indices are
// read and written through package ordered, whose loads acquire and whose stores
// release, so that an entry is complete before the index that covers it.
//
// Each half keeps a private copy of its own index and of the other side's index
// as last seen. It reads the shared cache line only when the private copies
// indicate a full or an empty ring.

// producer is user space's half of a ring that the kernel consumes.
//
//	 kernel's consumer        head (published)     limit
//	        |                      |                 |
//	--------[ published, not taken ][  free to write  ]--------
type producer struct {
	prod  *ordered.Uint32 // shared, stored here
	cons  *ordered.Uint32 // shared, stored by the kernel
	flags *ordered.Uint32 // shared, stored by the kernel
	head  uint32          // first entry that is not published
	limit uint32          // first entry that may not be written: cons as last seen + size
	mask  uint32          // size - 1
}

// reserve reports whether the n entries from head on may be written. It moves
// nothing.
func (r *producer) reserve(n uint32) bool {
	return r.limit-r.head >= n || r.refresh() >= n
}

// refresh reads the kernel's index and returns the number of free entries.
func (r *producer) refresh() uint32 {
	r.limit = r.cons.Load() + r.mask + 1
	return r.limit - r.head
}

// submit publishes exactly k entries, which the caller has written from head on.
func (r *producer) submit(k uint32) {
	r.head += k
	r.prod.Store(r.head)
}

// left is the number of published entries that the kernel has not taken.
func (r *producer) left() uint32 { return r.head - r.cons.Load() }

// needWakeup reports whether the kernel asks for a kick
// (XDP_RING_NEED_WAKEUP). In copy mode it is always true.
func (r *producer) needWakeup() bool { return r.flags.Load()&ringNeedWakeup != 0 }

// consumer is user space's half of a ring that the kernel produces.
type consumer struct {
	prod *ordered.Uint32 // shared, stored by the kernel
	cons *ordered.Uint32 // shared, stored here
	tail uint32          // first entry that is not released
	seen uint32          // producer index as last seen
	mask uint32          // size - 1
}

// peek returns how many entries from tail on may be read, at most max. It
// moves nothing. If the producer index is ahead by more than the ring holds, the
// shared memory is corrupt: peek then returns 0 until the index is valid.
func (r *consumer) peek(max uint32) uint32 {
	if r.seen-r.tail < max {
		if r.seen = r.prod.Load(); r.seen-r.tail > r.mask+1 {
			r.seen = r.tail
		}
	}
	return min(r.seen-r.tail, max)
}

// release gives exactly k entries back to the kernel.
func (r *consumer) release(k uint32) {
	r.tail += k
	r.cons.Store(r.tail)
}

// ready reports whether the ring holds an entry. Unlike the other methods it may
// be called from any goroutine: it reads only the shared indices.
func (r *consumer) ready() bool { return r.prod.Load() != r.cons.Load() }

// The four rings.
type (
	txRing struct {
		producer
		desc []Desc
	}
	fillRing struct {
		producer
		addr []uint64
	}
	rxRing struct {
		consumer
		desc []Desc
	}
	completionRing struct {
		consumer
		addr []uint64
	}
)

// nowhere replaces the shared indices of a closed ring, which has nothing to
// read and no room to write.
var nowhere ordered.Uint32

// shutProducer is a producer without room, for a queue that is closed.
func shutProducer() producer {
	return producer{prod: &nowhere, cons: &nowhere, flags: &nowhere, mask: ^uint32(0)}
}

// shutConsumer is a consumer without entries, for a queue that is closed.
func shutConsumer() consumer {
	return consumer{prod: &nowhere, cons: &nowhere, mask: ^uint32(0)}
}
