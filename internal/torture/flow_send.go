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

// mayLead says whether an unreliable flow may send more than one message in a round.
// Nobody tells it what the way can take: it does not lead the peer, who does the
// same and whom it hears, by more than a few rounds, so that two of them on a slow
// machine leave time to others.
func (f *flow) mayLead() bool {
	return f.cfg.Flood || int64(f.next-f.expect) < 4*int64(f.cfg.Depth)
}

// sendHello tells the peer of our memory.
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
	switch {
	case p < 55 || f.cfg.Full:
		if f.sendPlain(head{kind: kindData, seq: f.next}) {
			f.next++
		}
	case p < 65:
		d, _ := f.sends.next()
		d.SetSegments()
		d.SetImmediate(uint32(f.next))
		if f.post(opSend) {
			f.next++
		}
	case p < 80:
		if f.write(true) {
			f.next++
		}
	case p < 92:
		if f.write(false) && f.sendPlain(head{kind: kindWritten, seq: f.next}) {
			f.next++
		}
	case f.reads < maxReads:
		f.read()
	}
}

// sendPlain posts a message of its own bytes. It says whether it was posted.
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

// stamp fills in what every message tells.
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

// takeSend dequeues the oldest send if it is complete.
func (f *flow) takeSend() bool {
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
		case opSend:
			t.Sends++
		case opWrite:
			t.Writes++
		case opRead:
			t.Reads++
		}
	})
	return true
}

// failed takes a descriptor that completed in error. What a connection's end
// does to it is right, anything else is not.
func (f *flow) failed(d *vipl.Descriptor, what string) {
	f.over = true
	if d.Status()&vipl.StatusErrorMask&^(vipl.StatusFlushed|vipl.StatusTransportError) != 0 {
		f.violation("a %s completed with %v", what, d.Status())
	}
}

// violation notes a broken promise.
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
