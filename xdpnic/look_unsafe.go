package xdpnic

import "unsafe"

// RxIndices returns the two words that Ready compares: the RX ring's producer
// index, stored by the kernel, and its consumer index, stored by Receive. They
// let programs in other languages poll without calling Ready. Read them
// atomically, never write them, and keep the Queue reachable for the garbage
// collector while they are in use. After Close they are always equal.
func (q *Queue) RxIndices() (produced, consumed *uint32) {
	return (*uint32)(unsafe.Pointer(q.look.prod)), (*uint32)(unsafe.Pointer(q.look.cons))
}
