package mvich

import (
	"fmt"
	"slices"
)

// The receive path:
//
//  1. Recv, Irecv: check the arguments, fill in a [Request]; startRecv looks for the oldest message that has come for
//     it, else posts it.
//  2. A packet has come (handleRecv, in progress.go): receive parses it, counts its credit and calls the function for
//     its kind.
//  3. takeEager, takeRequest: the oldest posted receive that takes the envelope gets the message (matchPosted).
//     Without one, the message is copied and kept, so that its vbuf can be posted again.
//  4. fill copies an eager message and completes the receive. If data follows, answer (rendezvous.go) moves it.
//
// Receives are kept in the order in which they were posted, and messages in the order in which they came, which for
// one rank is the order in which it sent them. So messages of a rank match in order.

// Recv receives a message of rank src, or AnySource, with tag, or AnyTag, into buf. ErrTruncated when it is longer
// than buf: Status.Size is its length.
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

// Irecv begins to receive into buf, which must not be used before the request is complete.
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

// Sendrecv sends to dst and receives from src at the same time, so that ranks which pass data round in a ring do not
// wait for each other. If the send fails, it returns when RDMA no longer uses recv.
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
	out.send, out.awaited = true, true
	w.startSend(out)
	out.wait()
	if out.err != nil {
		in.giveUp(out.err)
		return Status{}, out.err
	}
	in.wait()
	return in.status(), in.err
}

// Probe waits until there is a message that Recv with the same src and tag would get, and describes it without
// receiving it.
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
	w.expectFor(&r)
	if !wait {
		if r.peer >= 0 {
			w.peers[r.peer].iprobes++
		} else {
			w.iprobed = c
		}
		w.progress()
		found()
		return s, there, err
	}
	if r.peer >= 0 {
		p := w.peers[r.peer]
		p.probes++
		defer func() { p.probes-- }()
	} else {
		w.probing = append(w.probing, c)
		defer func() {
			i := slices.Index(w.probing, c)
			w.probing = slices.Delete(w.probing, i, i+1)
		}()
	}
	w.await(found)
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
	err := w.cannotCome(r)
	// After the death of a member, the sender of an envelope of a collective operation gives up, and may make no more
	// calls that send its data.
	i := w.findUnexpected(r)
	if i >= 0 && (err == nil || !r.collective() || w.unexpected[i].offer.protocol == Auto) {
		w.deliver(r, w.unkeep(i))
		w.pushDirty()
		return
	}
	if err != nil {
		w.complete(r, err)
		return
	}
	w.posted = append(w.posted, r)
	w.expectFor(r)
}

// cannotCome returns why no message can come for a receive, or nil.
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

// envelope is what matching and a rendezvous need of a message.
type envelope struct {
	context uint32
	source  int // rank in the world
	tag     int
	size    int // bytes of the message
}

// takes reports whether a receive is for such a message. AnySource matches only members of the communicator, as a
// hostile non-member may use its context.
func (r *Request) takes(e *envelope) bool {
	return r.context == e.context && (r.peer == e.source || r.peer == AnySource && r.comm.rankOf(e.source) >= 0) &&
		(r.tag == e.tag || r.tag == AnyTag)
}

// matchPosted takes the receive for a message that came, or nil.
func (w *World) matchPosted(e *envelope) *Request {
	for i, r := range w.posted {
		if r.takes(e) {
			w.posted = slices.Delete(w.posted, i, i+1)
			return r
		}
	}
	return nil
}

// withdraw removes a posted receive. It returns false if the receive has a message or was never posted.
func (w *World) withdraw(r *Request) bool {
	i := slices.Index(w.posted, r)
	if i >= 0 {
		w.posted = slices.Delete(w.posted, i, i+1)
	}
	return i >= 0
}

// findUnexpected is the place of the message for a receive, or -1.
func (w *World) findUnexpected(r *Request) int {
	return slices.IndexFunc(w.unexpected, func(m *message) bool { return r.takes(&m.envelope) })
}

// receive takes a packet of p. An error breaks the connection.
func (w *World) receive(p *peer, b []byte) error {
	p.link.heard = true
	h, o, data, err := parse(b)
	if err == nil {
		err = w.earn(p, &h)
	}
	if err != nil {
		return err
	}
	w.touch(p)
	switch h.kind {
	case kindEager:
		return w.takeEager(p, &h, data)
	case kindRequest:
		return w.takeRequest(p, &h, o)
	case kindReady:
		return w.takeReady(p, &h, o)
	case kindData:
		return w.takeData(p, &h, data)
	case kindFinish:
		return w.takeFinish(p, h.to)
	case kindDone:
		return w.takeDone(p, &h)
	case kindDead:
		w.takeDead(p, &h)
	case kindBye:
		w.leave(p)
	}
	return nil // kindNoop has only credits
}

// receiveWritten takes the last write of a message of p, whose immediate data is the number of the receive. It has used
// a credit, as a packet does.
func (w *World) receiveWritten(p *peer, number uint32) error {
	if p.granted--; p.granted < 0 {
		return errNoCredit
	}
	return w.takeFinish(p, number)
}

func (h *header) envelope(p *peer) envelope {
	return envelope{context: h.context, source: p.rank, tag: int(h.tag), size: int(h.size)}
}

func (w *World) takeEager(p *peer, h *header, data []byte) error {
	e := h.envelope(p)
	if r := w.matchPosted(&e); r != nil {
		w.fill(r, &e, data)
		if h.flags&flagSync != 0 {
			w.confirm(p, h.from)
		}
		return nil
	}
	if err := w.mayKeep(p, true); err != nil {
		return err
	}
	m := w.freshMessage()
	m.envelope, m.sync, m.number = e, h.flags&flagSync != 0, h.from
	m.data = append(m.data, data...)
	w.keep(m)
	return nil
}

// takeRequest takes an envelope of p.
func (w *World) takeRequest(p *peer, h *header, o offer) error {
	e := h.envelope(p)
	if r := w.matchPosted(&e); r != nil {
		w.answer(p, r, &e, h.from, o)
		return nil
	}
	if err := w.mayKeep(p, false); err != nil {
		return err
	}
	w.keep(&message{envelope: e, number: h.from, offer: o})
	return nil
}

// fill completes a receive with a message whose data is here.
func (w *World) fill(r *Request, e *envelope, data []byte) {
	copy(r.buf, data)
	w.complete(r, r.accept(e))
}

// accept records in a receive which message it gets. The error is what it will complete with.
func (r *Request) accept(e *envelope) error {
	r.source, r.got, r.size, r.whole = e.source, e.tag, min(e.size, len(r.buf)), e.size
	if e.size > len(r.buf) {
		return ErrTruncated
	}
	return nil
}

// confirm notifies p that its request is done: matched, or read.
func (w *World) confirm(p *peer, number uint32) {
	w.queueControl(p, packet{header: header{kind: kindDone, to: number}})
}

// message is one that came before its receive.
type message struct {
	envelope
	data   []byte   // of an eager message
	sync   bool     // its sender waits until it is matched
	number uint32   // of the sender's request: for sync, and without data
	offer  offer    // rendezvous: how the data may go
	local  *Request // of this rank to itself, whose buffer still has the data
}

const (
	messageCost   = 128 // bytes that an envelope counts among those that are kept
	spareMessages = 64  // that are kept, with room for their data, for the next ones
)

// mayKeep returns an error if p has sent more unexpected messages than the protocol allows. p may not know yet that
// it has exceeded the limit. But each message uses a credit, and the packet that brings new credits carries the order
// to stop.
func (w *World) mayKeep(p *peer, eager bool) error {
	if p.unexpected <= w.set.unexpected {
		p.late = 0
	} else if eager {
		p.late++
	}
	if p.late > w.set.credits || !eager && p.envelopes >= w.set.envelopes {
		return errFull
	}
	return nil
}

// keep puts a message where receives will find it.
func (w *World) keep(m *message) {
	w.stats.Unexpected++
	w.unexpected = append(w.unexpected, m)
	w.count(m, 1)
	w.announce() // a Probe may wait for it
}

// unkeep removes it again.
func (w *World) unkeep(i int) *message {
	m := w.unexpected[i]
	w.unexpected = slices.Delete(w.unexpected, i, i+1)
	w.count(m, -1)
	return m
}

// count counts n messages like m among those that are kept of its rank.
func (w *World) count(m *message, n int) {
	p := w.peers[m.source]
	p.unexpected += n * (messageCost + len(m.data))
	if m.offer.protocol != Auto {
		p.envelopes += n
	}
}

// deliver gives a kept message to its receive.
func (w *World) deliver(r *Request, m *message) {
	p := w.peers[m.source]
	switch {
	case m.local != nil:
		w.fill(r, &m.envelope, m.local.buf)
		w.complete(m.local, nil)
	case m.offer.protocol != Auto:
		w.answer(p, r, &m.envelope, m.number, m.offer)
	default:
		w.fill(r, &m.envelope, m.data)
		if m.sync {
			w.confirm(p, m.number)
		}
		if len(w.messages) < spareMessages {
			*m = message{data: m.data[:0]}
			w.messages = append(w.messages, m)
		}
	}
}

func (w *World) freshMessage() *message {
	if n := len(w.messages); n > 0 {
		m := w.messages[n-1]
		w.messages = w.messages[:n-1]
		return m
	}
	return &message{}
}
