package vipl

import "time"

// PostSend is VipPostSend: it puts a send on the send queue. d lies in registered memory with handle h. The data
// may be read until the descriptor completes.
//
// As far as window and rings allow, PostSend builds the frames and passes them to the NIC before it returns; the
// others follow in order when there is room. It never waits.
//
// Errors: ErrInvalidParameter for a descriptor that is nil, not aligned to 64 bytes or not in memory of handle h
// with the VI's protection tag; ErrResource if MaxDescriptorsPerQueue are posted. A descriptor with wrong contents
// is accepted and completes in error, and so does one that is posted while the VI is not connected.
func (v *VI) PostSend(d *Descriptor, h MemHandle) error { return v.post("PostSend", &v.send, d, h) }

// SendDone is VipSendDone: it removes the head of the send queue if it is complete. It does not wait. ErrNotDone:
// the head is not complete. ErrDescriptor: it completed in error, see its Status; with a nil descriptor, the queue
// is empty.
func (v *VI) SendDone() (*Descriptor, error) { return v.dequeue(&v.send) }

// SendWait is VipSendWait: like SendDone, but it waits for the head to complete, at most timeout (negative: for
// ever). ErrTimeout if it does not. ErrInvalidParameter if the queue is bound to a CQ, and if the VI is or gets
// destroyed or the NIC closed.
func (v *VI) SendWait(timeout time.Duration) (*Descriptor, error) {
	return v.await("SendWait", &v.send, timeout)
}
