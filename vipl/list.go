package vipl

// Lists: several descriptors, or entries of a completion queue, in one call. VIPL has no such calls; RDMA verbs do
// (lists of work requests, polling several completions). A list does what single calls would do, but takes the
// lock, reads the time, processes arrived frames and rings the doorbell once.

// PostSends posts ds in order, each as PostSend would. All lie in memory with handle h. It takes the lock, reads
// the time and rings the doorbell once, so that a descriptor costs a fraction of a single post. It stops at the
// first descriptor that PostSend would refuse: n descriptors are posted, and err is about ds[n]. It never waits.
func (v *VI) PostSends(ds []*Descriptor, h MemHandle) (n int, err error) {
	return v.postList("PostSends", &v.send, ds, h)
}

// PostRecvs posts ds in order, each as PostRecv would, under one lock. All lie in memory with handle h. Its results
// are those of PostSends.
func (v *VI) PostRecvs(ds []*Descriptor, h MemHandle) (n int, err error) {
	return v.postList("PostRecvs", &v.recv, ds, h)
}

// postList puts ds on q, as post does one by one, under one lock and with one doorbell.
func (v *VI) postList(op string, q *workQueue, ds []*Descriptor, h MemHandle) (n int, err error) {
	p := v.port
	p.mu.Lock()
	for ; n < len(ds); n++ {
		if err = v.join(op, q, ds[n], h); err != nil {
			break
		}
	}
	if n > 0 && !q.isRecv {
		v.sendPosted(false)
	}
	p.mu.Unlock()
	return n, err
}

// SendDones removes up to len(ds) completed descriptors from the head of the send queue, as SendDone does one by
// one, and returns how many it stored in ds. It stops after a descriptor that completed in error: ErrDescriptor
// with n > 0 means that ds[n-1] did. If n is 0, the errors are those of SendDone. It does not wait.
func (v *VI) SendDones(ds []*Descriptor) (n int, err error) { return v.dequeueList(&v.send, ds) }

// RecvDones removes up to len(ds) completed descriptors from the head of the receive queue. Its results are those
// of SendDones.
func (v *VI) RecvDones(ds []*Descriptor) (n int, err error) { return v.dequeueList(&v.recv, ds) }

// dequeueList dequeues several descriptors, up to and including the first that failed.
func (v *VI) dequeueList(q *workQueue, ds []*Descriptor) (n int, err error) {
	if len(ds) == 0 {
		return 0, nil
	}
	if !v.lockReady(q) {
		return 0, q.notReady()
	}
	for n < len(ds) && err == nil {
		d, s := q.pop()
		if d == nil {
			break
		}
		ds[n] = d
		n++
		if s.Failed() {
			err = ErrDescriptor
		}
	}
	v.port.mu.Unlock()
	if n == 0 {
		return 0, q.notReady()
	}
	return n, err
}

// Completion is an entry of a completion queue: the VI and which of its queues.
type Completion struct {
	VI   *VI
	Recv bool
}

// Dones removes up to len(into) entries from the queue under one lock, as Done does one by one, and returns how
// many it stored. If n is 0, the errors are those of Done. It does not wait.
func (c *CQ) Dones(into []Completion) (n int, err error) {
	if len(into) == 0 {
		return 0, nil
	}
	settling := c.settling.Load() != 0
	if !c.some() {
		c.port.poll()
	}
	if c.some() || settling {
		c.port.mu.Lock()
		for ; n < len(into) && c.head != c.tail; n++ {
			e := c.take()
			into[n] = Completion{e.vi, e.recv}
		}
		c.port.mu.Unlock()
	}
	if n > 0 {
		return n, nil
	}
	if err := c.ended("CQDones"); err != nil {
		return 0, err
	}
	return 0, ErrNotDone
}
