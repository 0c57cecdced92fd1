package mvich

import "fmt"

// Rendezvous: a message whose data goes when its receive is known.
//
//	      R3                     RGET                     RPUT
//	S            R        S            R          S            R
//	|--request-->|        |--request-->| address  |--request-->|
//	|<--ready----|        |<===read====|          |<--ready----| address
//	|--data----->|        |            |          |===write===>|
//	|--data----->|        |<--done-----|          |--finish--->|
//
// Whoever finds that it cannot register its memory says R3, or does it: the
// receiver takes data where it has offered its memory, too.

// maxMoving is how many RDMA operations for a peer are posted at a time.
const maxMoving = 16

// request sends the envelope of a message.
func (w *World) request(p *peer, r *Request, h header, protocol Protocol) error {
	o := offer{protocol: protocol}
	if protocol == RGET {
		reg, err := w.regs.acquire(r.buf, remoteRead)
		if err != nil {
			w.stats.Fallbacks++
			o.protocol = R3
		} else {
			r.reg = reg
			o.remote = reg.region.Remote(reg.at(addressOf(r.buf)))
		}
	}
	w.assign(r)
	h.kind, h.from = kindRequest, r.number
	err := w.sendControl(p, packet{header: h, offer: o})
	if err != nil {
		w.complete(r, p.failed(err))
	}
	return err
}

// takeRequest takes an envelope of p.
func (w *World) takeRequest(p *peer, h *header, o offer) {
	e := h.envelope(p)
	if r := w.matchPosted(&e); r != nil {
		w.answer(p, r, &e, h.from, o)
		return
	}
	w.keep(&message{envelope: e, number: h.from, offer: o})
}

// answer begins to move the data of a message into its receive, of as much as
// that takes.
func (w *World) answer(p *peer, r *Request, e *envelope, number uint32, o offer) {
	r.truncated = r.settle(e)
	r.partner = number
	r.peer = p.rank // who must live, also where the receive was for anybody
	r.remote = offer{protocol: R3}
	into := r.buf[:r.size]
	if r.size == 0 && o.protocol == RGET {
		w.confirm(p, number)
		w.complete(r, r.truncated)
		return
	}
	if r.size > 0 && o.protocol != R3 {
		need := localOnly
		if o.protocol == RPUT {
			need = remoteWrite
		}
		if reg, err := w.regs.acquire(into, need); err != nil {
			w.stats.Fallbacks++
		} else {
			r.reg = reg
			r.remote = o
		}
	}
	w.assign(r)
	if r.remote.protocol == RGET {
		p.moves.push(r)
		w.touch(p)
		return
	}
	ready := packet{
		header: header{kind: kindReady, size: uint64(r.size), from: r.number, to: number},
		offer:  offer{protocol: r.remote.protocol},
	}
	if r.reg != nil {
		ready.offer.remote = r.reg.region.Remote(r.reg.at(addressOf(into)))
	}
	w.queueControl(p, ready)
	if r.size == 0 {
		w.complete(r, r.truncated)
	}
}

// find gives the request that a packet of p names.
func (w *World) find(p *peer, number uint32, send bool) (*Request, error) {
	r := w.numbered[number]
	if r == nil || r.peer != p.rank || r.send != send {
		return nil, errNoMatch
	}
	return r, nil
}

// takeReady begins to send the data of a message.
func (w *World) takeReady(p *peer, h *header, o offer) error {
	r, err := w.find(p, h.to, true)
	if err != nil {
		return err
	}
	if h.size > uint64(len(r.buf)) || o.protocol == RGET || h.from == 0 || r.partner != 0 {
		return fmt.Errorf("%w: ready for %d bytes of %d by %v", ErrProtocol, h.size, len(r.buf), o.protocol)
	}
	if r.reg != nil { // it was to be read, and is not
		w.regs.release(r.reg)
		r.reg = nil
	}
	r.size, r.partner, r.remote = int(h.size), h.from, o
	if r.size == 0 {
		w.stats.R3++
		w.complete(r, nil)
		return nil
	}
	if o.protocol == RPUT {
		if r.reg, err = w.regs.acquire(r.buf[:r.size], localOnly); err == nil {
			w.stats.RPUT++
			p.moves.push(r)
			return nil
		}
		w.stats.Fallbacks++
	}
	w.stats.R3++
	p.streams.push(r)
	return nil
}

// sendPiece sends the next piece of the oldest message that goes by R3.
func (w *World) sendPiece(p *peer) error {
	r := p.streams.peek()
	n := min(r.size-r.begun, w.set.vbufSize()-headerSize)
	data := r.buf[r.begun : r.begun+n]
	if r.abandoned { // the other side has to get as much, and the buffer is the program's again
		data = make([]byte, n)
	}
	h := header{kind: kindData, size: uint64(r.begun), to: r.partner}
	if err := w.sendData(p, h, data); err != nil {
		return err
	}
	if r.begun += n; r.begun == r.size {
		p.streams.pop()
		w.complete(r, nil)
	}
	return nil
}

// takeData takes a piece of a message that goes by R3.
func (w *World) takeData(p *peer, h *header, data []byte) error {
	r, err := w.find(p, h.to, false)
	if err != nil {
		return err
	}
	if h.size != uint64(r.moved) || len(data) == 0 || len(data) > r.size-r.moved || r.remote.protocol == RGET {
		return fmt.Errorf("%w: %d bytes at %d of a message of which %d of %d have come",
			ErrProtocol, len(data), h.size, r.moved, r.size)
	}
	if !r.abandoned {
		copy(r.buf[r.moved:], data)
	}
	if r.moved += len(data); r.moved == r.size {
		w.complete(r, r.truncated)
	}
	return nil
}

// takeFinish ends a message that was written.
func (w *World) takeFinish(p *peer, h *header) error {
	r, err := w.find(p, h.to, false)
	if err != nil {
		return err
	}
	if r.remote.protocol != RPUT || r.moved != 0 {
		return fmt.Errorf("%w: the end of a message that is not being written", ErrProtocol)
	}
	w.complete(r, r.truncated)
	return nil
}

// takeDone ends a send: the peer has read it, or matched it.
func (w *World) takeDone(p *peer, h *header) error {
	r, err := w.find(p, h.to, true)
	if err != nil {
		return err
	}
	switch {
	case r.partner == 0 && r.reg != nil:
		w.stats.RGET++
	case r.partner != 0 || !r.sync:
		return fmt.Errorf("%w: the end of a message that is not being read", ErrProtocol)
	}
	w.complete(r, nil)
	return nil
}
