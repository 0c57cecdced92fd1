package vipl_test

import (
	"slices"

	"viaxdp/vipl"
)

// The reference model: VIs, work queues, completion queues and memory of two NICs, according to the rules. It
// has no wire and no time: an operation has happened when postSend returns, so the model knows every completion
// before the library does. Where the rules leave something to timing, it lists the allowed outcomes: several
// statuses, or several bytes.
//
// Nothing here calls the library.

// wrongs is what is wrong with a descriptor. Of several things, the library may
// name any.
func (v *refVI) wrongs(d *refDesc) (s []vipl.Status) {
	recv, reads := d.op == vipl.StatusOpReceive, d.op == vipl.StatusOpRDMARead
	if d.format != 0 || len(d.segs) > vipl.MaxSegments || reads && (!v.reliable() || d.hasImm) {
		s = append(s, vipl.StatusFormatError)
	}
	bad := func(x refSegment) bool { return x.n > 0 && !x.usable(v.tag) && !(recv && x.begins(v.tag)) }
	if reads && !v.read || slices.ContainsFunc(d.segs, bad) {
		s = append(s, vipl.StatusProtectionError)
	}
	if !recv && (d.sum || d.size() > v.most) {
		s = append(s, vipl.StatusLengthError)
	}
	return s
}

// flushed returns the statuses of a descriptor that is flushed. A wrong one may report its error as well, or
// instead.
func (d *refDesc) flushed() []vipl.Status {
	s := []vipl.Status{vipl.StatusFlushed}
	for _, f := range d.flaws {
		s = append(s, f, f|vipl.StatusFlushed)
	}
	return s
}

// report expects an asynchronous error.
func (v *refVI) report(code vipl.ErrorCode, d *refDesc) {
	e := refError{vi: v.real, code: code}
	if d != nil {
		e.desc = d.real
	}
	v.nic.errors = append(v.nic.errors, e)
}

// complete completes the head of q, which is d.
func (q *refQueue) complete(d *refDesc, status ...vipl.Status) {
	v := q.vi
	d.status = slices.Clone(status)
	if d.altered {
		v.report(vipl.ErrorPostDesc, d)
	}
	if v.tag != nil && d.home.tag != v.tag {
		v.report(vipl.ErrorCompletionProtection, d)
		for i := range d.status {
			d.status[i] |= vipl.StatusProtectionError
		}
	}
	q.done++
	switch {
	case q.cq != nil:
		q.cq.entries = append(q.cq.entries, refEntry{v.real, q.isRecv, v.nic.model.flight})
	case q.armed > 0:
		q.armed--
		q.handed = append(q.handed, q.pop())
	}
}

// postRecv posts a receive.
func (v *refVI) postRecv(d *refDesc) {
	d.flaws = v.wrongs(d)
	v.recv.items = append(v.recv.items, d)
	if v.state == vipl.Error {
		v.recv.complete(d, d.flushed()...)
		return
	}
	v.wrongReceives()
}

// wrongReceives completes receives that were wrong when posted and are at the
// head now. On a reliable VI that breaks the connection.
func (v *refVI) wrongReceives() {
	for d := v.recv.head(); d != nil && len(d.flaws) > 0; d = v.recv.head() {
		v.recv.complete(d, d.flaws...)
		if v.state == vipl.Connected && v.reliable() {
			v.peer.mayBeUnanswered(nil)
			v.peer.ending = remote
			v.breakUp()
			return
		}
	}
}

// postSend posts a send, an RDMA write or an RDMA read, and carries it out.
func (v *refVI) postSend(d *refDesc) {
	q := &v.send
	d.flaws, d.life = v.wrongs(d), v.lives
	q.items = append(q.items, d)
	switch {
	case v.state != vipl.Connected:
		s := d.flushed()
		if v.ending == remote && v.level == vipl.ReliableDelivery && d.op != vipl.StatusOpRDMARead {
			s = append(s, 0)
		}
		q.complete(d, s...)
	case len(d.flaws) > 0:
		q.complete(d, d.flaws...)
		if v.reliable() {
			v.ending = local
			v.breakUp()
		}
	default:
		v.flight = append(v.flight, d)
		v.carryOut(d)
	}
}

// faultDecision is the outcome of a descriptor without errors.
type faultDecision int

const (
	arrives faultDecision = iota
	meetsNoReceive
	isTooLong
	isPastRegion // of the receive, which names more memory than there is
	isRefused    // RDMA on what is not open for it
)

// decisionOf returns it, with head as the receive at the head of the peer's queue.
func (v *refVI) decisionOf(d, head *refDesc) faultDecision {
	p, n := v.peer, d.size()
	target := d.remote
	target.n = n
	reads := d.op == vipl.StatusOpRDMARead
	switch {
	case d.op == vipl.StatusOpSend:
	case reads && !p.read, !reads && !p.write:
		return isRefused
	case n > 0 && (!target.usable(p.tag) || reads && !target.region.read || !reads && !target.region.write):
		return isRefused
	}
	switch {
	case !d.consumes():
		return arrives
	case head == nil:
		return meetsNoReceive
	case d.op != vipl.StatusOpSend || n <= head.room():
	case head.room() < head.size():
		return isPastRegion
	default:
		return isTooLong
	}
	return arrives
}

// consumes reports whether the operation needs a receive of the peer.
func (d *refDesc) consumes() bool {
	return d.op == vipl.StatusOpSend || d.op == vipl.StatusOpRDMAWrite && d.hasImm
}

func (v *refVI) carryOut(d *refDesc) {
	p, head := v.peer, v.peer.recv.head()
	switch v.decisionOf(d, head) {
	case arrives:
		v.move(d, head)
		v.send.complete(d, 0)
		if d.consumes() {
			p.arrive(head, d)
		}
	case meetsNoReceive:
		if d.op == vipl.StatusOpRDMAWrite {
			v.move(d, nil)
		}
		p.report(vipl.ErrorRecvQueueEmpty, nil)
		v.failed(d, vipl.StatusRemoteDescError)
	case isTooLong:
		p.cutOff(head, d, vipl.StatusLengthError)
		v.failed(d, vipl.StatusLengthError)
		p.wrongReceives()
	case isPastRegion:
		p.cutOff(head, d, vipl.StatusProtectionError)
		v.failed(d, vipl.StatusRemoteDescError)
		p.wrongReceives()
	case isRefused:
		if d.op == vipl.StatusOpRDMARead {
			p.report(vipl.ErrorRDMAReadProtection, nil)
		} else {
			p.report(vipl.ErrorRDMAWriteProtection, nil)
			v.unknownWrite(d)
		}
		v.failed(d, vipl.StatusRemoteRDMAError)
	}
}

// cutOff completes the receive at the head by a message that it has no room for.
func (v *refVI) cutOff(head, d *refDesc, status vipl.Status) {
	head.each(d.gather(), (*refRegion).unknownOutcome)
	head.length, head.partly = head.room(), true
	v.recv.complete(head, status)
}

// move moves the bytes; head is the receive of a send.
func (v *refVI) move(d, head *refDesc) {
	n := d.size()
	switch d.op {
	case vipl.StatusOpSend:
		head.each(d.gather(), (*refRegion).place)
	case vipl.StatusOpRDMAWrite:
		v.peer.nic.writes++
		if n > 0 {
			d.remote.region.place(d.remote.off, d.gather())
		}
	case vipl.StatusOpRDMARead:
		d.before = d.gather()
		if n > 0 {
			d.each(slices.Clone(d.remote.region.bytes[d.remote.off:d.remote.off+n]), (*refRegion).place)
		}
	}
}

// arrive completes the receive at the head by a message or an RDMA write.
func (v *refVI) arrive(head, d *refDesc) {
	head.length = d.size()
	status := vipl.Status(0)
	if d.hasImm {
		status, head.arrived = vipl.StatusImmediate, d.imm
	}
	if d.op == vipl.StatusOpRDMAWrite {
		head.op = vipl.StatusOpRemoteRDMAWrite
	}
	v.recv.complete(head, status)
	v.wrongReceives()
}

// unknownWrite records what a refused write may have written: the part that lies in the region, if it may be
// written at all, since each frame is checked separately.
func (v *refVI) unknownWrite(d *refDesc) {
	p, t := v.peer, d.remote
	if t.n = 0; p.write && t.usable(p.tag) && t.region.write {
		b := d.gather()
		t.region.unknownOutcome(t.off, b[:min(len(b), len(t.region.bytes)-t.off)])
	}
}

// failed completes a descriptor that went wrong at the peer.
func (v *refVI) failed(d *refDesc, status vipl.Status) {
	switch {
	case !v.reliable():
		v.send.complete(d, 0)
		return
	case v.level == vipl.ReliableReception, d.op == vipl.StatusOpRDMARead:
		v.send.complete(d, status)
	default: // it was handed to the network, or was about to be
		v.send.complete(d, 0, vipl.StatusFlushed)
	}
	v.mayBeUnanswered(d)
	v.ending = remote
	v.breakUp()
}

// mayBeUnanswered records that reads under way when the peer broke the connection may have been answered or
// not, and that with Reliable Reception operations behind one of them may not be complete. The status of the
// one that failed, if one did, is certain.
func (v *refVI) mayBeUnanswered(failed *refDesc) {
	from := 0
	for i, d := range v.flight {
		if d.fence { // it was on its way, and so the reads before it are done
			from = i
		}
	}
	waits := false
	for _, d := range v.flight[from:] {
		waits = waits || d.op == vipl.StatusOpRDMARead
		if d != failed && waits && (d.op == vipl.StatusOpRDMARead || v.level == vipl.ReliableReception) {
			d.status = append(d.status, vipl.StatusFlushed)
		}
	}
}

// breakUp ends the connection by an error: both VIs go to Error, and what is
// left on them is flushed.
func (v *refVI) breakUp() {
	p := v.peer
	v.lose()
	p.lose()
}

func (v *refVI) lose() {
	v.state, v.peer = vipl.Error, nil
	v.flush()
	v.report(vipl.ErrorConnLost, nil)
}

func (v *refVI) flush() {
	for d := v.recv.head(); d != nil; d = v.recv.head() {
		v.recv.complete(d, d.flushed()...)
	}
}

// connect connects two Idle VIs.
func (v *refVI) connect(p *refVI) {
	v.state, v.peer = vipl.Connected, p
	p.state, p.peer = vipl.Connected, v
	v.lives++
	p.lives++
}

// disconnect ends the connection in order, if there is one, and gives back what is
// posted.
func (v *refVI) disconnect() {
	p := v.peer
	v.flush()
	if v.state == vipl.Connected {
		p.lose()
	}
	v.state, v.peer = vipl.Idle, nil
}
