package vipl

import "time"

// PostSend is VipPostSend: puts a send on the send queue. d lies in registered
// memory with handle h. The data may be read until the descriptor completes.
//
// As far as window and rings allow, the frames are built and handed to the NIC
// before it returns; the rest follows, in order, as room comes free. It never waits.
//
// ErrInvalidParameter for a descriptor that is nil, not aligned to 64 bytes or
// not in memory of handle h with the VI's protection tag; ErrResource when
// MaxDescriptorsPerQueue are posted. A descriptor with wrong contents is
// accepted and completes in error, and so does one posted while the VI is not
// connected.
func (v *VI) PostSend(d *Descriptor, h MemHandle) error { return v.post("PostSend", &v.send, d, h) }

// SendDone is VipSendDone: takes the head of the send queue if it is complete, and
// does not wait for that. ErrNotDone: it is not complete. ErrDescriptor: it
// completed in error, see its Status; with a nil descriptor, the queue is empty.
func (v *VI) SendDone() (*Descriptor, error) { return v.dequeue(&v.send) }

// SendWait is VipSendWait: like SendDone, but waits for the head to complete,
// at most timeout (negative: for ever). ErrTimeout when it does not.
// ErrInvalidParameter when the queue is bound to a CQ, and when the VI is
// destroyed or the NIC closed, also meanwhile.
func (v *VI) SendWait(timeout time.Duration) (*Descriptor, error) {
	return v.await("SendWait", &v.send, timeout)
}
