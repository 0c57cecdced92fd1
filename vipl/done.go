package vipl

// Step 11 of the table in ARCHITECTURE.md: the program dequeues, or waits for, completed descriptors.

import (
	"errors"
	"time"
)

var errCQBound = errors.New("the queue is bound to a completion queue: wait there")

// dequeue is Done for one queue.
func (v *VI) dequeue(q *workQueue) (*Descriptor, error) {
	if !v.lockReady(q) {
		return nil, q.notReady()
	}
	d, s := q.pop()
	v.port.mu.Unlock()
	switch {
	case d == nil:
		return nil, q.notReady()
	case s.Failed():
		return d, ErrDescriptor
	}
	return d, nil
}

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

// lockReady takes the lock if a completed descriptor is on q, or if progress that it makes completes one. It
// waits for the lock only if a descriptor is complete or its status is already written.
func (v *VI) lockReady(q *workQueue) bool {
	p := v.port
	if q.ready() {
		p.mu.Lock()
		p.poller.tookOne()
	} else if q.isSettling() {
		p.mu.Lock()
		if q.ready() {
			p.poller.tookOne()
		}
	} else {
		if !p.busy() || !p.mu.TryLock() {
			return false
		}
		p.poller.foundWork()
		p.progress(p.now(), false)
	}
	if !q.ready() {
		p.mu.Unlock()
		return false
	}
	return true
}

// notReady distinguishes an empty queue from one whose head is not complete.
func (q *workQueue) notReady() error {
	if q.empty() {
		return ErrDescriptor
	}
	return ErrNotDone
}

// await is Wait for one queue.
func (v *VI) await(op string, q *workQueue, timeout time.Duration) (*Descriptor, error) {
	if q.cq != nil {
		return nil, opError(op, v, ErrInvalidParameter, errCQBound)
	}
	end := v.port.deadline(timeout)
	for {
		if err := v.port.wait(q, end); err != nil {
			return nil, waitError(op, v, err)
		}
		if d, err := v.dequeue(q); d != nil {
			return d, err
		}
	}
}
