package bench

import (
	"errors"

	"viaxdp/vipl"
)

// free is the next descriptor for sending, which is not posted.
func (v *vi) free() (*vipl.Descriptor, error) {
	for v.sends.out() == len(v.sends.descs) {
		if err := v.sent(); err != nil {
			return nil, err
		}
	}
	return v.sends.next(), nil
}

func (v *vi) post(d *vipl.Descriptor) error {
	if err := v.vi.PostSend(d, v.sends.handle); err != nil {
		return v.fail("send", nil, err)
	}
	v.sends.posted++
	// Usually it is complete at once.
	return v.reap()
}

// reap takes completed sends off without waiting.
func (v *vi) reap() error {
	for v.sends.out() > 0 {
		var d *vipl.Descriptor
		var err error
		if v.via == nil {
			d, err = v.vi.SendDone()
		} else {
			d, err = v.via.send(false)
		}
		switch {
		case err == vipl.ErrNotDone:
			return nil
		case err != nil:
			return v.fail("send", d, err)
		}
		if err := v.finished(d); err != nil {
			return err
		}
	}
	return nil
}

// finished takes note of a completed send.
func (v *vi) finished(d *vipl.Descriptor) error {
	v.sends.done++
	if v.round.Check && d.Status()&vipl.StatusOpMask == vipl.StatusOpRDMARead {
		return v.verifyRead(d)
	}
	return nil
}

// sent waits for the oldest send to complete.
func (v *vi) sent() error {
	for {
		var d *vipl.Descriptor
		var err error
		switch {
		case v.via != nil:
			d, err = v.via.send(true)
		case v.sleeps:
			d, err = v.vi.SendWait(maxSleep)
		default:
			d, err = v.vi.SendDone()
		}
		if err == nil {
			v.watch.progress()
			return v.finished(d)
		}
		if err = v.again("send", d, err); err != nil {
			return err
		}
	}
}

// recv waits for the next message, of either sort.
func (v *vi) recv() (*vipl.Descriptor, error) {
	for {
		var d *vipl.Descriptor
		var err error
		switch {
		case v.via != nil:
			d, err = v.via.recv(true)
		case v.sleeps:
			d, err = v.vi.RecvWait(maxSleep)
		default:
			d, err = v.vi.RecvDone()
		}
		if err == nil {
			v.watch.progress()
			v.recvs.done++
			return d, nil
		}
		if r, ok := err.(vipl.Return); ok && r == vipl.ErrNotDone {
			// What a poll in vain costs is part of the latency.
			if err = v.watch.idle(); err == nil {
				continue
			}
			return nil, v.fail("receive", nil, err)
		}
		if err = v.again("receive", d, err); err != nil {
			return nil, err
		}
	}
}

// again returns nil if the wait is to go on.
func (v *vi) again(doing string, d *vipl.Descriptor, err error) error {
	switch {
	case err == vipl.ErrNotDone:
		err = v.watch.idle()
	case errors.Is(err, vipl.ErrTimeout):
		err = v.watch.blocked()
	}
	if err != nil {
		return v.fail(doing, d, err)
	}
	return nil
}

// postRecv posts a receive; without a segment it is for a word.
func (v *vi) postRecv(segs ...vipl.DataSegment) error {
	d := v.recvs.next()
	d.Control, d.ImmediateData = vipl.ControlSendRecv, 0
	d.SetSegments(segs...)
	if err := v.vi.PostRecv(d, v.recvs.handle); err != nil {
		return v.fail("post a receive", nil, err)
	}
	v.recvs.posted++
	return nil
}
