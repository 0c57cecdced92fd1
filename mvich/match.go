package mvich

import "slices"

// Matching: which receive gets which message. Both are kept in the order in
// which they were posted and came; a message goes to the oldest receive that
// takes it, a receive gets the oldest message that it takes. Messages of one
// rank come in the order in which they were sent, so they match in it.

// envelope is what matching looks at, and what a rendezvous needs.
type envelope struct {
	context uint32
	source  int // rank in the world
	tag     int
	size    int // bytes of the message
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

// takes says whether a receive is for such a message. AnySource is any member of the
// communicator: a rank that is none may have used its context.
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

// withdraw takes back a receive that has no message. False: it has one, or never was posted.
func (w *World) withdraw(r *Request) bool {
	i := slices.Index(w.posted, r)
	if i >= 0 {
		w.posted = slices.Delete(w.posted, i, i+1)
	}
	return i >= 0
}

// findUnexpected is the place of the message for a receive, or -1.
func (w *World) findUnexpected(r *Request) int {
	for i, m := range w.unexpected {
		if r.takes(&m.envelope) {
			return i
		}
	}
	return -1
}

// messageCost is what an envelope counts among the bytes that are kept.
const messageCost = 128

// keep puts a message where receives will find it.
func (w *World) keep(m *message) {
	w.stats.Unexpected++
	w.unexpected = append(w.unexpected, m)
	w.count(m, 1)
	w.announce() // somebody may be probing for it
}

// count counts n messages like m among those that are kept of its rank.
func (w *World) count(m *message, n int) {
	p := w.peers[m.source]
	p.unexpected += n * (messageCost + len(m.data))
	if m.offer.protocol != Auto {
		p.envelopes += n
	}
}

// mayKeep says whether one more message of p that nobody has asked for is one that a rank
// sends which follows the rules. When there are too many bytes it may not have heard of that yet:
// but it uses a credit for each message, and what brings credits says so.
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

// unkeep takes it out again.
func (w *World) unkeep(i int) *message {
	m := w.unexpected[i]
	w.unexpected = slices.Delete(w.unexpected, i, i+1)
	w.count(m, -1)
	return m
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
		w.recycleMessage(m)
	}
}

// spareMessages is how many messages, with room for their data, are kept for
// the next ones.
const spareMessages = 64

func (w *World) freshMessage() *message {
	if n := len(w.messages); n > 0 {
		m := w.messages[n-1]
		w.messages = w.messages[:n-1]
		return m
	}
	return &message{}
}

func (w *World) recycleMessage(m *message) {
	if len(w.messages) < spareMessages {
		*m = message{data: m.data[:0]}
		w.messages = append(w.messages, m)
	}
}

// fill completes a receive with a message whose data is here.
func (w *World) fill(r *Request, e *envelope, data []byte) {
	copy(r.buf, data)
	w.complete(r, r.settle(e))
}

// settle notes in a receive which message it gets. The error is what it will
// complete with.
func (r *Request) settle(e *envelope) error {
	r.source, r.got, r.size, r.whole = e.source, e.tag, min(e.size, len(r.buf)), e.size
	if e.size > len(r.buf) {
		return ErrTruncated
	}
	return nil
}

// receive takes a packet of p. An error breaks the connection.
func (w *World) receive(p *peer, b []byte) error {
	p.link.heard = true
	h, o, data, err := parse(b)
	if err == nil {
		err = w.earn(p, &h)
	}
	if err == nil {
		w.touch(p)
		err = w.dispatch(p, &h, o, data)
	}
	return err
}

func (w *World) dispatch(p *peer, h *header, o offer, data []byte) error {
	switch h.kind {
	case kindEager:
		return w.takeEager(p, h, data)
	case kindRequest:
		return w.takeRequest(p, h, o)
	case kindReady:
		return w.takeReady(p, h, o)
	case kindData:
		return w.takeData(p, h, data)
	case kindFinish:
		return w.takeFinish(p, h)
	case kindDone:
		return w.takeDone(p, h)
	case kindDead:
		w.takeDead(p, h)
	case kindBye:
		w.leave(p)
	}
	return nil // kindNoop has said everything
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

// confirm tells p that its request is done: matched, or read.
func (w *World) confirm(p *peer, number uint32) {
	w.queueControl(p, packet{header: header{kind: kindDone, to: number}})
}
