package bench

import (
	"errors"

	"viaxdp/vipl"
)

// free is the next descriptor for sending, which is not posted.
func (v *vi) free() *vipl.Descriptor {
	for v.sends.used() == len(v.sends.descs) {
		v.sent()
	}
	return v.sends.next()
}

// post posts the descriptor that free gave, or has it wait for others of its
// list.
func (v *vi) post() {
	if v.sends.staged++; v.sends.staged < v.lists {
		return
	}
	v.pushSends()
}

// pushSends posts the sends that are staged.
func (v *vi) pushSends() {
	if v.sends.staged == 0 {
		return
	}
	if err := v.sends.push(v.vi.PostSend, v.vi.PostSends); err != nil {
		v.fail("send", nil, err)
	}
	// Usually they are complete at once.
	v.reap()
}

// Ways to post.
type (
	postOne  func(*vipl.Descriptor, vipl.MemHandle) error
	postList func([]*vipl.Descriptor, vipl.MemHandle) (int, error)
)

// push posts what is staged: one by itself, more as a list.
func (r *ring) push(one postOne, list postList) error {
	for r.staged > 0 {
		ds, n := r.list(), 1
		var err error
		if len(ds) == 1 {
			err = one(ds[0], r.handle)
		} else {
			n, err = list(ds, r.handle)
		}
		if err != nil {
			return err
		}
		r.posted += n
		r.staged -= n
	}
	return nil
}

// reap takes completed sends off without waiting.
func (v *vi) reap() {
	for v.sends.out() > 0 {
		done := v.scratch[:1]
		var err error
		switch {
		case v.via != nil:
			done[0], err = v.via.next(false, false)
		case v.lists > 1:
			var n int
			n, err = v.vi.SendDones(v.scratch[:])
			done = v.scratch[:n]
		default:
			done[0], err = v.vi.SendDone()
		}
		switch {
		case err == vipl.ErrNotDone:
			return
		case err != nil:
			v.fail("send", last(done), err)
		}
		for _, d := range done {
			v.finished(d)
		}
	}
}

// last is the descriptor that failed, of a list that was taken off, or nil.
func last(ds []*vipl.Descriptor) *vipl.Descriptor {
	if len(ds) == 0 {
		return nil
	}
	return ds[len(ds)-1]
}

// finished takes note of a completed send.
func (v *vi) finished(d *vipl.Descriptor) {
	v.sends.done++
	if v.round.Check && d.Status()&vipl.StatusOpMask == vipl.StatusOpRDMARead {
		v.verifyRead(d)
	}
}

// sent waits for the oldest send to complete.
func (v *vi) sent() {
	if v.pushSends(); v.sends.out() == 0 {
		return
	}
	for {
		var d *vipl.Descriptor
		var err error
		switch {
		case v.via != nil:
			d, err = v.via.next(false, true)
		case v.sleeps:
			d, err = v.vi.SendWait(maxSleep)
		default:
			d, err = v.vi.SendDone()
		}
		if err == nil {
			v.watch.progress()
			v.finished(d)
			return
		}
		v.again("send", d, err)
	}
}

// recv waits for the next message, of either sort.
func (v *vi) recv() *vipl.Descriptor {
	for {
		var d *vipl.Descriptor
		var err error
		switch {
		case v.lists > 1 || len(v.taken) > 0:
			d, err = v.recvListed()
		case v.via != nil:
			d, err = v.via.next(true, true)
		case v.sleeps:
			d, err = v.vi.RecvWait(maxSleep)
		default:
			d, err = v.vi.RecvDone()
		}
		if err == nil {
			v.watch.progress()
			v.recvs.done++
			return d
		}
		if r, ok := err.(vipl.Return); ok && r == vipl.ErrNotDone {
			// What a poll in vain costs is part of the latency.
			if err = v.watch.idle(); err == nil {
				continue
			}
			v.fail("receive", nil, err)
		}
		v.again("receive", d, err)
	}
}

// recvListed takes the next message of a list, which it takes off first if there
// is none.
func (v *vi) recvListed() (*vipl.Descriptor, error) {
	if len(v.taken) == 0 {
		n, err := v.vi.RecvDones(v.arrived[:])
		switch {
		case err == vipl.ErrNotDone && v.sleeps:
			return v.vi.RecvWait(maxSleep)
		case err != nil:
			return last(v.arrived[:n]), err
		}
		v.taken = v.arrived[:n]
	}
	d := v.taken[0]
	v.taken = v.taken[1:]
	return d, nil
}

// again returns if the wait is to go on.
func (v *vi) again(doing string, d *vipl.Descriptor, err error) {
	switch {
	case err == vipl.ErrNotDone:
		err = v.watch.idle()
	case errors.Is(err, vipl.ErrTimeout):
		err = v.watch.blocked()
	}
	if err != nil {
		v.fail(doing, d, err)
	}
}

// postRecv posts a receive; without a segment it is for a word.
func (v *vi) postRecv(segs ...vipl.DataSegment) {
	v.recvs.stage(segs...)
	v.pushRecvs()
}

// pushRecvs posts the receives that are staged.
func (v *vi) pushRecvs() {
	if v.recvs.staged == 0 {
		return
	}
	if err := v.recvs.push(v.vi.PostRecv, v.vi.PostRecvs); err != nil {
		v.fail("post a receive", nil, err)
	}
}
