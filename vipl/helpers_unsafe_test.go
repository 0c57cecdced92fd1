package vipl_test

import (
	"sync/atomic"
	"unsafe"

	"viaxdp/vipl"
)

// misaligned is a descriptor at an address that is no multiple of 64.
func misaligned(r *vipl.Region) *vipl.Descriptor {
	return (*vipl.Descriptor)(unsafe.Pointer(&r.Bytes()[32]))
}

// wordOf is the word of 8 bytes that b begins with, which is aligned.
func wordOf(b []byte) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&b[0])) }

// dequeueUser dequeues the oldest completed descriptor of a queue as QueueWatch describes; address 0: there is
// none.
func dequeueUser(p vipl.PortWatch, q vipl.QueueWatch) (address uint64, s vipl.Status) {
	for {
		head := atomic.LoadUint64(q.Dequeued)
		if int64(atomic.LoadUint64(q.Completed)-head) <= 0 {
			return 0, 0
		}
		ring := atomic.LoadPointer((*unsafe.Pointer)(unsafe.Pointer(q.Ring)))
		word := func(i uint64) uint64 { return atomic.LoadUint64((*uint64)(unsafe.Add(ring, 8*i))) }
		entry := 2 + 2*(head&word(0))
		address, s = word(entry), vipl.Status(word(entry+1))
		if atomic.CompareAndSwapUint64(q.Dequeued, head, head+1) {
			if p.Taken != nil {
				atomic.AddUint32(p.Taken, 1)
			}
			return address, s
		}
	}
}
