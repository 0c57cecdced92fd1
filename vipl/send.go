package vipl

// The program's calls on send queues. tx.go is what a post does, done.go what Done and Wait do.
//
// A list call does what single calls would do, but takes the lock, reads the time, processes arrived frames and
// rings the doorbell once. VIPL has no lists; RDMA verbs do (lists of work requests).

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

// PostSends posts ds in order, each as PostSend would. All lie in memory with handle h. It takes the lock, reads
// the time and rings the doorbell once, so that a descriptor costs a fraction of a single post. It stops at the
// first descriptor that PostSend would refuse: n descriptors are posted, and err is about ds[n]. It never waits.
func (v *VI) PostSends(ds []*Descriptor, h MemHandle) (n int, err error) {
	return v.postList("PostSends", &v.send, ds, h)
}

// PostSendLater is PostSend without the doorbell. The program should soon call [NIC.Ring]. Any other doorbell of
// this NIC also covers this send: posts, polls that find something, waits, and the fourth waiting frame ring it. If
// the program does none of these, a goroutine of the library rings within milliseconds.
func (v *VI) PostSendLater(d *Descriptor, h MemHandle) error {
	p := v.port
	p.mu.Lock()
	err := v.join("PostSendLater", &v.send, d, h)
	if err == nil {
		v.sendPosted(true)
	}
	p.mu.Unlock()
	return err
}

// Ring rings the doorbell for what PostSendLater has posted on any VI of the NIC. If it has been rung already, Ring
// costs next to nothing. It may be called concurrently.
func (n *NIC) Ring() {
	p := n.port
	if p.doorbell.unrung.Load() == 0 {
		return
	}
	p.mu.Lock()
	if p.doorbell.unrung.Load() != 0 {
		p.finish(p.now(), false)
	}
	p.mu.Unlock()
}

// SendDone is VipSendDone: it removes the head of the send queue if it is complete. It does not wait. ErrNotDone:
// the head is not complete. ErrDescriptor: it completed in error, see its Status; with a nil descriptor, the queue
// is empty.
func (v *VI) SendDone() (*Descriptor, error) { return v.dequeue(&v.send) }

// SendDones removes up to len(ds) completed descriptors from the head of the send queue, as SendDone does one by
// one, and returns how many it stored in ds. It stops after a descriptor that completed in error: ErrDescriptor
// with n > 0 means that ds[n-1] did. If n is 0, the errors are those of SendDone. It does not wait.
func (v *VI) SendDones(ds []*Descriptor) (n int, err error) { return v.dequeueList(&v.send, ds) }

// SendWait is VipSendWait: like SendDone, but it waits for the head to complete, at most timeout (negative: for
// ever). ErrTimeout if it does not. ErrInvalidParameter if the queue is bound to a CQ, and if the VI is or gets
// destroyed or the NIC closed.
func (v *VI) SendWait(timeout time.Duration) (*Descriptor, error) {
	return v.await("SendWait", &v.send, timeout)
}
