package vipl

// Lists: several descriptors, or entries of a completion queue, in one call. The
// VIPL has no such thing; its heirs have (a list of work requests, a poll for
// several completions). What a list does is what the calls one by one would do,
// but for what they have together: the lock, the time, the look at what has
// arrived, the doorbell.

// PostSends posts ds in order, each as PostSend would, all in memory with handle
// h. The lock is taken, the time read and the doorbell rung once for all of them, so
// that a descriptor of a list costs a fraction of one that is posted alone. It stops
// at the first that PostSend would refuse: n of them are posted, and err is about
// ds[n]. It never waits.
func (v *VI) PostSends(ds []*Descriptor, h MemHandle) (n int, err error) {
	return v.postList("PostSends", &v.send, ds, h)
}

// PostRecvs posts ds in order, each as PostRecv would, all in memory with handle
// h, under one lock. Its results are those of PostSends.
func (v *VI) PostRecvs(ds []*Descriptor, h MemHandle) (n int, err error) {
	return v.postList("PostRecvs", &v.recv, ds, h)
}

// postList puts ds on q, as post does one after the other, but for what they
// have together: the lock, the time, the look at what has arrived, the doorbell.
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

// SendDones takes up to len(ds) completed descriptors off the head of the send
// queue, as SendDone does one by one, and returns how many it stored in ds. It
// stops behind one that completed in error: ErrDescriptor with n > 0 says that
// ds[n-1] did. With n == 0 the errors are those of SendDone, and like SendDone it
// does not wait.
func (v *VI) SendDones(ds []*Descriptor) (n int, err error) { return v.dequeueList(&v.send, ds) }

// RecvDones takes up to len(ds) completed descriptors off the head of the receive
// queue. Its results are those of SendDones.
func (v *VI) RecvDones(ds []*Descriptor) (n int, err error) { return v.dequeueList(&v.recv, ds) }

// dequeueList is dequeue of several, up to and with the first that failed.
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

// Dones takes up to len(into) entries off the queue, as Done does one by one, and
// returns how many it stored, under one lock. With n == 0 the errors are those of
// Done, and like Done it does not wait.
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
