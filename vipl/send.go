package vipl

import "time"

// PostSend is VipPostSend: puts a send on the send queue. d lies in registered
// memory with handle h. The data may be read until the descriptor completes.
//
// The frames are built and handed to the NIC before it returns, as far as
// window and rings allow; the rest goes as they do, in order. It never waits.
//
// ErrInvalidParameter for a descriptor that is nil, not aligned to 64 bytes or
// not in memory of handle h with the VI's protection tag; ErrResource when
// MaxDescriptorsPerQueue are posted. A descriptor with wrong contents is
// accepted and completes in error, and so does one posted while the VI is not
// connected.
func (v *VI) PostSend(d *Descriptor, h MemHandle) error { return v.post("PostSend", &v.send, d, h) }

// SendDone is VipSendDone: takes the head of the send queue if it is complete.
// It does not wait but for who is just writing the head's status. ErrNotDone: it is
// not complete. ErrDescriptor: it completed in error, see its Status, or with a nil
// descriptor: the queue is empty.
func (v *VI) SendDone() (*Descriptor, error) { return v.dequeue(&v.send) }

// SendWait is VipSendWait: like SendDone, but waits for the head to complete,
// at most timeout (negative: for ever). ErrTimeout when it does not.
// ErrInvalidParameter when the queue is bound to a CQ, and when the VI is
// destroyed or the NIC closed, also meanwhile.
func (v *VI) SendWait(timeout time.Duration) (*Descriptor, error) {
	return v.await("SendWait", &v.send, timeout)
}
