package vipl

// The program's calls on receive queues.

import "time"

// PostRecv is VipPostRecv: it puts a receive on the receive queue, also before the VI is connected. d lies in
// registered memory with handle h. The peer's next message fills its segments in ascending order. Errors are those
// of PostSend.
//
// A segment must begin in its region and may reach past the end of it. A message that fits in the bytes within the
// region completes the receive normally. A message that needs more completes it with StatusProtectionError, and
// breaks the connection of a reliable VI; with Reliable Reception the peer's send completes with
// StatusRemoteDescError.
func (v *VI) PostRecv(d *Descriptor, h MemHandle) error { return v.post("PostRecv", &v.recv, d, h) }

// PostRecvs posts ds in order, each as PostRecv would, under one lock. All lie in memory with handle h. Its results
// are those of PostSends.
func (v *VI) PostRecvs(ds []*Descriptor, h MemHandle) (n int, err error) {
	return v.postList("PostRecvs", &v.recv, ds, h)
}

// RecvDone is VipRecvDone: it removes the head of the receive queue if it is complete. It does not wait.
// ErrNotDone: the head is not complete. ErrDescriptor: it completed in error, see its Status; with a nil
// descriptor, the queue is empty.
func (v *VI) RecvDone() (*Descriptor, error) { return v.dequeue(&v.recv) }

// RecvDones removes up to len(ds) completed descriptors from the head of the receive queue. Its results are those
// of SendDones.
func (v *VI) RecvDones(ds []*Descriptor) (n int, err error) { return v.dequeueList(&v.recv, ds) }

// RecvWait is VipRecvWait: like RecvDone, but it waits for the head to complete, at most timeout (negative: for
// ever). ErrTimeout if it does not. ErrInvalidParameter if the queue is bound to a CQ, and if the VI is or gets
// destroyed or the NIC closed.
func (v *VI) RecvWait(timeout time.Duration) (*Descriptor, error) {
	return v.await("RecvWait", &v.recv, timeout)
}
