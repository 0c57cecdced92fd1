package vipl

import "time"

// PostRecv is VipPostRecv: puts a receive on the receive queue, also before
// the VI is connected. d lies in registered memory with handle h. The next
// message of the peer fills its segments in ascending order. Errors as
// PostSend.
func (v *VI) PostRecv(d *Descriptor, h MemHandle) error { return v.post("PostRecv", &v.recv, d, h) }

// RecvDone is VipRecvDone: takes the head of the receive queue if it is
// complete, and does not wait for that. ErrNotDone: it is not complete.
// ErrDescriptor: it completed in error, see its Status; with a nil descriptor, the
// queue is empty.
func (v *VI) RecvDone() (*Descriptor, error) { return v.dequeue(&v.recv) }

// RecvWait is VipRecvWait: like RecvDone, but waits for the head to complete,
// at most timeout (negative: for ever). ErrTimeout when it does not.
// ErrInvalidParameter when the queue is bound to a CQ, and when the VI is
// destroyed or the NIC closed, also meanwhile.
func (v *VI) RecvWait(timeout time.Duration) (*Descriptor, error) {
	return v.await("RecvWait", &v.recv, timeout)
}
