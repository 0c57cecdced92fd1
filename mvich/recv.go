package mvich

import (
	"fmt"
	"slices"
)

// Recv receives a message of rank src, or AnySource, with tag, or AnyTag, into
// buf. ErrTruncated when it is longer than buf: Status.Size says how long.
func (c *Comm) Recv(buf []byte, src, tag int) (Status, error) {
	if err := c.checkRecv(src, tag); err != nil {
		return Status{}, err
	}
	w := c.w
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.fresh()
	defer w.recycle(r)
	c.begin(r, buf, c.context, src, tag)
	w.startRecv(r)
	r.wait()
	return r.status(), r.err
}

// Irecv begins to receive into buf, which must not be used before the request is
// complete.
func (c *Comm) Irecv(buf []byte, src, tag int) (*Request, error) {
	if err := c.checkRecv(src, tag); err != nil {
		return nil, err
	}
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	r := &Request{}
	c.begin(r, buf, c.context, src, tag)
	c.w.startRecv(r)
	return r, nil
}

// Sendrecv sends to dst and receives from src at the same time, so that ranks which
// pass data round in a ring do not wait for each other.
func (c *Comm) Sendrecv(send []byte, dst, sendTag int, recv []byte, src, recvTag int) (Status, error) {
	if err := c.checkRecv(src, recvTag); err != nil {
		return Status{}, err
	}
	if err := c.checkSend(send, dst, sendTag); err != nil {
		return Status{}, err
	}
	w := c.w
	w.mu.Lock()
	defer w.mu.Unlock()
	in, out := w.fresh(), w.fresh()
	defer w.recycle(in)
	defer w.recycle(out)
	c.begin(in, recv, c.context, src, recvTag)
	w.startRecv(in)
	c.begin(out, send, c.context, dst, sendTag)
	out.send = true
	w.startSend(out)
	out.wait()
	if out.err != nil {
		w.withdraw(in)
		w.abandon(in, out.err)
		return Status{}, out.err
	}
	in.wait()
	return in.status(), in.err
}

// Probe waits until there is a message that Recv with the same src and tag would get,
// and describes it without receiving it.
func (c *Comm) Probe(src, tag int) (Status, error) {
	s, _, err := c.probe(src, tag, true)
	return s, err
}

// Iprobe is Probe without waiting; there is false when there is no such message.
func (c *Comm) Iprobe(src, tag int) (s Status, there bool, err error) {
	return c.probe(src, tag, false)
}

func (c *Comm) probe(src, tag int, wait bool) (s Status, there bool, err error) {
	if err := c.checkRecv(src, tag); err != nil {
		return s, false, err
	}
	if src == ProcNull {
		return Status{Source: ProcNull, Tag: AnyTag}, true, nil
	}
	w := c.w
	w.mu.Lock()
	defer w.mu.Unlock()
	var r Request
	c.begin(&r, nil, c.context, src, tag)
	found := func() bool {
		if i := w.findUnexpected(&r); i >= 0 {
			m := w.unexpected[i]
			s, there = Status{Source: c.rankOf(m.source), Tag: m.tag, Bytes: m.size, Size: m.size}, true
			return true
		}
		err = w.cannotCome(&r)
		return err != nil
	}
	if found() {
		return s, there, err
	}
	if r.peer >= 0 {
		p := w.peers[r.peer]
		w.expect(p)
		if wait {
			p.probes++
			defer func() { p.probes-- }()
		} else {
			p.iprobes++
		}
	} else {
		w.expectAnybody()
		if wait {
			w.probing = append(w.probing, c)
			defer func() {
				i := slices.Index(w.probing, c)
				w.probing = slices.Delete(w.probing, i, i+1)
			}()
		} else {
			w.iprobed = c
		}
	}
	if wait {
		w.await(found)
	} else {
		w.progress()
		found()
	}
	return s, there, err
}

func (c *Comm) checkRecv(src, tag int) error {
	switch {
	case src != AnySource && src != ProcNull && (src < 0 || src >= len(c.group)):
		return fmt.Errorf("%w: %d of %d", ErrRank, src, len(c.group))
	case tag != AnyTag && (tag < 0 || tag > MaxTag):
		return fmt.Errorf("%w: %d", ErrTag, tag)
	}
	return nil
}

// startRecv gives a receive the message that waits for it, or posts it.
func (w *World) startRecv(r *Request) {
	if r.peer == ProcNull {
		r.size = 0
		w.complete(r, nil)
		return
	}
	if i := w.findUnexpected(r); i >= 0 {
		m := w.unkeep(i)
		w.deliver(r, m)
		w.pushDirty()
		return
	}
	if err := w.cannotCome(r); err != nil {
		w.complete(r, err)
		return
	}
	w.posted = append(w.posted, r)
	if r.peer >= 0 {
		w.expect(w.peers[r.peer])
	} else {
		w.expectAnybody()
	}
}

// cannotCome says why no message will come for a receive.
func (w *World) cannotCome(r *Request) error {
	switch {
	case w.finalized:
		return ErrFinalized
	case w.gone != nil:
		return w.gone
	case r.peer == AnySource:
		return r.comm.unacknowledged()
	}
	return r.hopeless(w.peers[r.peer])
}
