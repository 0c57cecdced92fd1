package mvich

import "fmt"

// The send path:
//
//  1. Send, Isend: check the arguments, fill in a [Request] (begin).
//  2. startSend: a message to this rank itself is matched here (sendSelf). Any other joins the queue of its peer,
//     which is called if there is no connection (connect.go).
//  3. push, for each peer with something to send: control packets that others wait for, then messages and pieces of
//     messages in turns, then RDMA, then credits if no packet has carried them.
//  4. launch chooses the protocol (choose). An eager message goes as one packet and is complete; any other begins
//     with its envelope and goes on in rendezvous.go.
//  5. postPacket posts a vbuf on the VI of the peer. Its completion gives the vbuf back (progress.go).
//
// Each packet needs a credit; the rules are at the end of this file.

// Send sends buf to rank dst and returns when buf may be used again, which may be before a receive was posted.
// ErrCount when buf is longer than MaxMessage; so with all that send.
func (c *Comm) Send(buf []byte, dst, tag int) error { return c.sendNow(buf, dst, tag, false) }

// Ssend sends buf to rank dst and returns when a receive has taken it.
func (c *Comm) Ssend(buf []byte, dst, tag int) error { return c.sendNow(buf, dst, tag, true) }

// Isend begins to send buf to rank dst. buf must not be changed before the request is complete.
func (c *Comm) Isend(buf []byte, dst, tag int) (*Request, error) {
	return c.sendLater(buf, dst, tag, false, nil)
}

// Issend begins to send buf as Ssend does. buf must not be changed before the request is complete, which it is when a
// receive has taken the message.
func (c *Comm) Issend(buf []byte, dst, tag int) (*Request, error) {
	return c.sendLater(buf, dst, tag, true, nil)
}

func (c *Comm) sendNow(buf []byte, dst, tag int, sync bool) error {
	if err := c.checkSend(buf, dst, tag); err != nil {
		return err
	}
	w := c.w
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.fresh()
	defer w.recycle(r)
	c.begin(r, buf, c.context, dst, tag)
	r.send, r.sync, r.awaited = true, sync, true
	w.startSend(r)
	r.wait()
	return r.err
}

// sendLater begins a send. mem is what buf was borrowed with, or nil; it is given back when the request completes.
func (c *Comm) sendLater(buf []byte, dst, tag int, sync bool, mem *scratch) (*Request, error) {
	if err := c.checkSend(buf, dst, tag); err != nil {
		return nil, err
	}
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	r := &Request{scratch: mem}
	c.begin(r, buf, c.context, dst, tag)
	r.send, r.sync = true, sync
	c.w.startSend(r)
	return r, nil
}

func (c *Comm) checkSend(buf []byte, dst, tag int) error {
	switch {
	case dst != ProcNull && (dst < 0 || dst >= len(c.group)):
		return fmt.Errorf("%w: %d of %d", ErrRank, dst, len(c.group))
	case tag < 0 || tag > MaxTag:
		return fmt.Errorf("%w: %d", ErrTag, tag)
	}
	return checkLength(len(buf))
}

func checkLength(size int) error {
	if size > MaxMessage {
		return fmt.Errorf("%w: %d bytes, at most %d in one message", ErrCount, size, MaxMessage)
	}
	return nil
}

// begin fills in what sends and receives have in common. rank is of c.
func (c *Comm) begin(r *Request, buf []byte, context uint32, rank, tag int) {
	r.w, r.comm, r.context, r.tag = c.w, c, context, tag
	r.buf, r.size, r.room, r.peer = buf, len(buf), len(buf), rank
	if rank >= 0 {
		r.peer = c.group[rank]
	}
}

func (w *World) startSend(r *Request) {
	switch {
	case r.peer == ProcNull:
		w.complete(r, nil)
		return
	case w.finalized:
		w.complete(r, ErrFinalized)
		return
	case w.gone != nil:
		w.complete(r, w.gone)
		return
	case r.peer == w.rank:
		w.sendSelf(r)
		return
	}
	p := w.peers[r.peer]
	if err := r.hopeless(p); err != nil {
		w.complete(r, err)
		return
	}
	p.sends.push(r)
	if p.state == joined {
		w.touch(p)
		w.pushDirty()
	} else {
		w.call(p)
	}
}

// sendSelf gives a message to this rank itself. Large ones and synchronous ones stay in the program's buffer until
// they are received.
func (w *World) sendSelf(r *Request) {
	w.stats.Local++
	e := envelope{context: r.context, source: w.rank, tag: r.tag, size: len(r.buf)}
	if x := w.matchPosted(&e); x != nil {
		w.fill(x, &e, r.buf)
		w.complete(r, nil)
		return
	}
	if r.sync || len(r.buf) > w.set.threshold {
		w.keep(&message{envelope: e, local: r})
		return
	}
	m := w.freshMessage()
	m.envelope, m.data = e, append(m.data, r.buf...)
	w.keep(m)
	w.complete(r, nil)
}

// push sends to p what can go.
func (w *World) push(p *peer) {
	if p.state != joined {
		return
	}
	if err := w.pushAll(p); err != nil {
		w.lose(p, err)
	}
}

func (w *World) pushAll(p *peer) error {
	for p.control.len() > 0 && w.mayControl(p) {
		if err := w.sendControl(p, p.control.pop()); err != nil {
			return err
		}
	}
	if p.control.len() > 0 {
		w.assist()
	}
	for p.sends.len()+p.streams.len() > 0 && w.mayData(p) {
		if p.sends.len() > 0 {
			if err := w.launch(p, p.sends.pop()); err != nil {
				return err
			}
		}
		if p.streams.len() > 0 && w.mayData(p) {
			if err := w.sendPiece(p); err != nil {
				return err
			}
		}
	}
	for p.moves.len() > 0 && p.moving < maxMoving {
		if err := w.move(p); err != nil {
			return err
		}
	}
	return w.pushNoop(p)
}

// launch sends the first packet of a message, by the protocol that suits it now.
func (w *World) launch(p *peer, r *Request) error {
	h := header{context: r.context, tag: int32(r.tag), size: uint64(len(r.buf))}
	protocol := w.choose(p, r)
	if protocol != Eager {
		return w.request(p, r, h, protocol)
	}
	w.stats.Eager++
	h.kind = kindEager
	if r.sync {
		w.assign(r)
		r.offered = Eager
		h.from, h.flags = r.number, flagSync
	}
	err := w.sendData(p, h, r.buf)
	switch {
	case err != nil:
		w.complete(r, &RankError{Rank: p.rank, Err: err})
	case !r.sync:
		w.complete(r, nil)
	}
	return err
}

// choose picks the protocol for a message. Everything can go by R3.
func (w *World) choose(p *peer, r *Request) Protocol {
	buf, forced := r.buf, w.set.protocol
	most := w.set.threshold
	switch {
	case p.full:
		most = -1
	case forced == Eager:
		most = w.set.vbufSize() - headerSize
	case forced != Auto:
		most = 0
	}
	switch {
	case len(buf) <= most:
		return Eager
	case len(buf) == 0:
		return R3
	case forced == Auto && p.canWrite && (r.awaited || w.longFrames && w.regs.inArena(buf)):
		return RPUT
	case p.canRead && (forced == Auto || forced == RGET):
		return RGET
	case p.canWrite && (forced == Auto || forced == RPUT):
		return RPUT
	}
	return R3
}

// queueControl sends a control packet as soon as it may go.
func (w *World) queueControl(p *peer, c packet) {
	if p.state == joined || p.state == admitting {
		p.control.push(c)
		w.touch(p)
	}
}

// sendControl sends a packet without data.
func (w *World) sendControl(p *peer, c packet) error {
	v, err := w.pool.get()
	if err != nil {
		return err
	}
	w.spend(p, &c.header)
	c.header.put(v.data)
	n := headerSize
	if c.header.kind == kindRequest || c.header.kind == kindReady {
		c.offer.put(v.data[n:])
		n += offerSize
	}
	return w.postPacket(p, v, n)
}

// sendData sends a packet with data.
func (w *World) sendData(p *peer, h header, data []byte) error {
	v, err := w.pool.get()
	if err != nil {
		return err
	}
	h.length = uint32(len(data))
	w.spend(p, &h)
	h.put(v.data)
	return w.postPacket(p, v, headerSize+copy(v.data[headerSize:], data))
}

func (w *World) postPacket(p *peer, v *vbuf, n int) error {
	v.desc.Control = 0
	v.desc.SetSegments(v.segment(n))
	return w.post(p.link, v)
}

// Credits. A packet that meets no posted receive breaks the connection, so a rank sends a packet only if it has a
// credit: a receive that its peer has posted and announced. Each packet carries the number of receives that its
// sender has posted since its last one (credit_update). If many are due and there is nothing else to send, a noop
// carries them. Three rules prevent a deadlock of two ranks that only send:
//
//  1. Data may not use a reserve of credits, which is kept for packets that other packets wait for.
//  2. The last credit goes only with a packet that brings credits. So if no packet is in flight, two ranks are never
//     both without credit: the last packet gave its receiver at least one.
//  3. noopAt is at most the number of credits due to a peer that has only its reserve left, when fewer vbufs than
//     the reserve wait to be posted (repost).
//
// So if no packet is in flight, at least noopAt credits are due to a rank that waits for credits (rule 3). One of
// the two ranks has a credit to send a noop with (rule 2), and that noop gives the other rank credits.

// mayControl reports whether a packet that others wait for may go to p now.
func (w *World) mayControl(p *peer) bool {
	return p.credits > 1 || p.credits == 1 && p.acksDue > 0
}

// mayData reports whether data, or an envelope, may go to p now.
func (w *World) mayData(p *peer) bool { return p.credits > w.set.reserve() }

// spend fills in the credits of a packet to p.
func (w *World) spend(p *peer, h *header) {
	h.credits = uint16(p.acksDue)
	p.granted += p.acksDue
	p.acksDue = 0
	p.credits--
	if p.unexpected > w.set.unexpected {
		h.flags |= flagFull
	}
}

// earn takes the credits of a packet of p, and the one that it has used.
func (w *World) earn(p *peer, h *header) error {
	if p.granted--; p.granted < 0 {
		return errNoCredit
	}
	if p.credits += int(h.credits); p.credits > w.set.credits {
		return errCredits
	}
	if p.control.len() > 2*w.set.envelopes { // each packet adds one at most, and so does each message that is kept
		return errAnswers
	}
	p.full = h.flags&flagFull != 0
	return nil
}

// pushNoop sends p its credits in a noop if no other packet carries them.
func (w *World) pushNoop(p *peer) error {
	if p.acksDue < w.set.noopAt() || p.credits == 0 {
		return nil
	}
	w.stats.Noops++
	return w.sendControl(p, packet{header: header{kind: kindNoop}})
}
