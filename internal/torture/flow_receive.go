package torture

import (
	"time"

	"viaxdp/vipl"
)

// postReceives posts all receives that are not posted.
func (f *flow) postReceives() error {
	for f.recvs.room() > 0 {
		if err := f.postReceive(); err != nil {
			return err
		}
	}
	return nil
}

func (f *flow) postReceive() error {
	d, _ := f.recvs.next()
	d.SetSegments(f.recvs.segment(f.cfg.MaxBytes))
	if err := f.vi.PostRecv(d, f.recvs.region.Handle()); err != nil {
		return err
	}
	f.recvs.push(opReceive)
	return nil
}

// takeReceive dequeues the oldest receive if it is complete, and checks what
// came in it.
func (f *flow) takeReceive() bool {
	d, err := f.vi.RecvDone()
	if d == nil {
		return false
	}
	_, _, buf, inOrder := f.recvs.pop(d)
	if !inOrder {
		f.violation("a receive completed out of order")
	}
	if err != nil {
		f.failed(d, "receive")
		return true
	}
	f.arrived(d, buf)
	if f.over {
		return true
	}
	if err := f.postReceive(); err != nil {
		f.violation("post receive: %v", err)
		f.over = true
	}
	return true
}

// arrived judges a message.
func (f *flow) arrived(d *vipl.Descriptor, buf []byte) {
	immediate, _ := d.Immediate()
	var h head
	switch {
	case d.Status()&vipl.StatusOpMask == vipl.StatusOpRemoteRDMAWrite:
		if f.numbered(f.whole(immediate)) {
			f.checkSlot(f.expect - 1)
		}
		return
	case d.Length == 0:
		f.numbered(f.whole(immediate))
		return
	}
	if err := h.parse(buf[:d.Length]); err != nil {
		f.violation("%v", err)
		return
	}
	if !f.known(&h) {
		return
	}
	f.tally(func(t *Tally) { t.Bytes += uint64(d.Length) })
	switch h.kind {
	case kindHello:
		f.slotsAt = vipl.AddressSegment{Data: h.slots, Handle: vipl.MemHandle(h.handle)}
		f.sourceAt = vipl.AddressSegment{Data: h.from, Handle: vipl.MemHandle(h.source)}
	case kindData:
		f.numbered(h.seq)
	case kindWritten:
		if f.numbered(h.seq) {
			f.checkSlot(h.seq)
		}
	case kindFinal:
		f.finalCame = true
		if h.seq != f.expect {
			f.violation("the peer has sent %d messages and %d came", h.seq, f.expect)
		}
	case kindBye:
		f.byeCame = true
	}
}

// whole gives the number of which immediate data has the low half: the one that
// is nearest to what is due.
func (f *flow) whole(low uint32) uint64 { return f.expect + uint64(int64(int32(low-uint32(f.expect)))) }

// known checks the incarnation of a message, and takes the credit that it
// carries.
func (f *flow) known(h *head) bool {
	switch {
	case f.peer == 0 && h.session == f.last, f.peer != 0 && h.session != f.peer:
		f.violation("%v: message %d of kind %d", errSession, h.seq, h.kind)
		return false
	case f.peer == 0 && f.reliable() && h.kind != kindHello, f.peer != 0 && h.kind == kindHello:
		f.violation("the first message is of kind %d, or hello came twice", h.kind)
		return false
	case h.taken > f.next:
		f.violation("the peer has taken %d messages of %d", h.taken, f.next)
		return false
	}
	f.peer = h.session
	f.told = max(f.told, h.taken)
	return true
}

// numbered takes the message of a number. False: it may not come now.
func (f *flow) numbered(seq uint64) bool {
	if f.finalCame {
		f.violation("message %d came after the last", seq)
		return false
	}
	if seq < f.expect || f.reliable() && seq != f.expect {
		f.violation("message %d came, %d was due", seq, f.expect)
		return false
	}
	missing := seq - f.expect
	f.expect = seq + 1
	f.sinceAck++
	f.tally(func(t *Tally) {
		t.Taken++
		t.Missing += missing
		t.LastTaken = time.Now()
	})
	if f.cfg.Pause > 0 {
		time.Sleep(f.cfg.Pause)
	}
	return true
}

// checkSlot checks what the peer has written for message seq.
func (f *flow) checkSlot(seq uint64) {
	slot := f.slots.Bytes()[int(seq%uint64(f.cfg.Depth))*f.cfg.MaxBytes:][:f.cfg.MaxBytes]
	var h head
	if err := h.parse(slot[:messageLen(slot)]); err != nil {
		f.violation("RDMA write: %v", err)
		return
	}
	if h.seq != seq {
		f.violation("RDMA write: message %d lies where %d was written", h.seq, seq)
		return
	}
	f.known(&h)
}
