package xdpnic

import "unsafe"

// RxIndices are the two words that Ready compares: the RX ring's producer index,
// stored by the kernel, and its consumer index, stored by Receive. They are for
// programs in other languages, which poll without calling Ready: to be read
// atomically, never written, and only as long as the Queue can be reached by the
// collector; after Close they are equal for ever.
func (q *Queue) RxIndices() (produced, consumed *uint32) {
	return (*uint32)(unsafe.Pointer(q.look.prod)), (*uint32)(unsafe.Pointer(q.look.cons))
}
