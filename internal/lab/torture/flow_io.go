package torture

import (
	"fmt"
	"time"

	"viaxdp/vipl"
)

// maxReads is how many RDMA reads a flow has under way at most.
const maxReads = 4

// send posts what may be sent now.
func (f *flow) send(stopping bool) {
	if !f.reliable() {
		for n := 0; !stopping && !f.over && f.sends.room() > 0 && (n == 0 || f.mayLead()); n++ {
			f.sendNumbered()
		}
		time.Sleep(f.cfg.Gap)
		return
	}
	if f.peer == 0 {
		return // until its hello has come
	}
	// After its bye the peer may disconnect, and need not answer what is read any more.
	if f.finalSent && f.finalCame && f.reads == 0 && !f.byeSent && f.sends.room() > 0 {
		f.byeSent = f.sendPlain(head{kind: kindBye})
	}
	if f.sinceAck >= uint64(f.cfg.Depth/2) && f.sends.room() > 0 {
		f.sendPlain(head{kind: kindCredit})
	}
	if stopping {
		if !f.finalSent && f.sends.room() > 0 {
			f.finalSent = f.sendPlain(head{kind: kindFinal, seq: f.next})
		}
		return
	}
	sent := false
	// Two places for a write and its announcement, two for what needs no credit.
	for !f.over && f.next-f.told < uint64(f.cfg.Depth) && f.sends.room() >= 4 {
		f.sendNumbered()
		sent = true
	}
	if sent && f.cfg.Gap > 0 {
		time.Sleep(f.cfg.Gap)
	}
}

// mayLead reports whether an unreliable flow may send more than one message in a round. It has no
// flow control: it leads the peer by a few rounds at most, and so does the peer, so that both leave
// CPU time to others on a slow machine.
func (f *flow) mayLead() bool {
	return f.cfg.Flood || int64(f.next-f.expect) < 4*int64(f.cfg.Depth)
}

// sendHello sends the peer the addresses of our memory.
func (f *flow) sendHello() bool {
	slots, source := f.slots.Remote(0), f.source.Remote(0)
	return f.sendPlain(head{
		kind: kindHello, handle: uint32(slots.Handle), source: uint32(source.Handle),
		slots: slots.Data, from: source.Data,
	})
}

// size draws the length of a message: mostly small, now and then the largest.
func (f *flow) size() int {
	if f.cfg.Full {
		return f.cfg.MaxBytes
	}
	room := f.cfg.MaxBytes - headLen
	switch p := f.rng.IntN(100); {
	case p < 60:
		return headLen + f.rng.IntN(min(room, 200)+1)
	case p < 90:
		return headLen + f.rng.IntN(min(room, 4000)+1)
	}
	return headLen + f.rng.IntN(room+1)
}

// sendNumbered posts the next message, in one of the ways that there are, or a
// read.
func (f *flow) sendNumbered() {
	p := f.rng.IntN(100)
	if !f.cfg.RDMA {
		p = p * 65 / 100
	}
	posted := false
	switch {
	case p < 55 || f.cfg.Full:
		posted = f.sendPlain(head{kind: kindData, seq: f.next})
	case p < 65:
		d, _ := f.sends.next()
		d.SetSegments()
		d.SetImmediate(uint32(f.next))
		posted = f.post(opSend)
	case p < 80:
		posted = f.write(true)
	case p < 92:
		posted = f.write(false) && f.sendPlain(head{kind: kindWritten, seq: f.next})
	case f.reads < maxReads:
		f.read()
	}
	if posted {
		f.next++
	}
}

// sendPlain posts a message of its own bytes. It reports whether it was posted.
func (f *flow) sendPlain(h head) bool {
	n := headLen
	if h.kind == kindData {
		n = f.size()
	}
	d, buf := f.sends.next()
	f.stamp(&h)
	h.fill(buf[:n])
	d.SetSegments(f.sends.segment(n))
	if !f.post(opSend) {
		return false
	}
	f.sinceAck = 0
	return true
}

// stamp fills in what every message carries.
func (f *flow) stamp(h *head) { h.session, h.taken = f.session, f.expect }

// write posts an RDMA write of the next message to its slot in the peer, which
// the peer learns of by immediate data, or by a message after it.
func (f *flow) write(immediate bool) bool {
	n := f.size()
	d, buf := f.sends.next()
	h := head{kind: kindData, seq: f.next}
	f.stamp(&h)
	h.fill(buf[:n])
	to := f.slotsAt
	to.Data += f.next % uint64(f.cfg.Depth) * uint64(f.cfg.MaxBytes)
	d.SetRDMAWrite(to, f.sends.segment(n))
	if immediate {
		d.SetImmediate(uint32(f.next))
	}
	return f.post(opWrite)
}

// read posts an RDMA read of a part of the peer's source.
func (f *flow) read() {
	n := min(8*sourceWords, f.cfg.MaxBytes)
	n = 1 + f.rng.IntN(n)
	first := f.rng.IntN((8*sourceWords-n)/8 + 1)
	d, buf := f.sends.next()
	clear(buf[:n])
	from := f.sourceAt
	from.Data += 8 * uint64(first)
	d.SetRDMARead(from, f.sends.segment(n))
	f.sends.note(readNote{first: first, bytes: n})
	if f.post(opRead) {
		f.reads++
	}
}

// post posts the descriptor that the ring's next has given. In Error everything
// completes as flushed, so that a refusal is always wrong.
func (f *flow) post(o op) bool {
	d, _ := f.sends.next()
	if err := f.vi.PostSend(d, f.sends.region.Handle()); err != nil {
		f.violation("post send: %v", err)
		f.over = true
		return false
	}
	f.sends.push(o)
	return true
}

// dequeueSend dequeues the oldest send if it is complete.
func (f *flow) dequeueSend() bool {
	d, err := f.vi.SendDone()
	if d == nil {
		return false
	}
	o, read, buf, inOrder := f.sends.pop(d)
	if !inOrder {
		f.violation("a send completed out of order")
	}
	if o == opRead {
		f.reads--
	}
	if err != nil {
		f.failed(d, "send")
		return true
	}
	if o == opRead {
		if at, ok := checkPatternAt(buf[:read.bytes], f.peer, uint64(read.first)); !ok {
			f.violation("RDMA read of %d bytes from word %d: byte %d is wrong", read.bytes, read.first, at)
		}
	}
	f.tally(func(t *Tally) {
		switch o {
		case opWrite:
			t.Writes++
		case opRead:
			t.Reads++
		}
	})
	return true
}

// failed takes a descriptor that completed in error. Only the errors of a connection's end are
// allowed.
func (f *flow) failed(d *vipl.Descriptor, what string) {
	f.over = true
	if d.Status()&vipl.StatusErrorMask&^(vipl.StatusFlushed|vipl.StatusTransportError) != 0 {
		f.violation("a %s completed with %v", what, d.Status())
	}
}

// violation records a broken promise.
func (f *flow) violation(format string, args ...any) {
	text := fmt.Sprintf("%s: ", f.disc) + fmt.Sprintf(format, args...)
	f.tally(func(t *Tally) {
		t.Violated++
		if len(t.Violations) < mostViolations {
			t.Violations = append(t.Violations, text)
		}
	})
}

func (f *flow) tally(change func(*Tally)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.n)
}

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

// dequeueReceive dequeues the oldest receive if it is complete, and checks what
// came in it.
func (f *flow) dequeueReceive() bool {
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

// whole extends the low half of a number, from immediate data, to the number nearest to the
// expected one.
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
