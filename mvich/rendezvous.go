package mvich

import (
	"fmt"

	"viaxdp/vipl"
)

// Rendezvous: a message whose data goes when its receive is known. The package's comment has a picture.
//
//  1. The sender sends the envelope (request), with the address of its memory if it is to be read.
//  2. When a receive matches, the receiver answers: it reads, or sends ready, with its address if it is to be
//     written.
//  3. The sender takes ready (takeReady), and sends pieces as packets (sendPiece) or by RDMA (move).
//  4. The receiver is done with the last piece (takeData), the last write or finish (takeFinish), or its own last read
//     (moved), which it confirms (takeDone).
//
// A side that cannot register its memory falls back to R3, so the receiver accepts data even after it has offered
// its memory.

// maxMoving is how many RDMA operations for a peer are posted at a time.
const maxMoving = 16

// request sends the envelope of a message.
func (w *World) request(p *peer, r *Request, h header, protocol Protocol) error {
	o := offer{protocol: protocol}
	if protocol == RGET {
		if w.register(r, r.buf, remoteRead) != nil {
			w.stats.Fallbacks++
			o.protocol = R3
		} else {
			o.remote = r.reg.remote(r.buf)
		}
	}
	w.assign(r)
	r.offered = o.protocol
	h.kind, h.from = kindRequest, r.number
	err := w.sendControl(p, packet{header: h, offer: o})
	if err != nil {
		w.complete(r, &RankError{Rank: p.rank, Err: err})
	}
	return err
}

// answer begins to move the data of a message into its receive, up to the length of its buffer.
func (w *World) answer(p *peer, r *Request, e *envelope, number uint32, o offer) {
	r.truncated = r.accept(e)
	r.partner = number
	r.peer = p.rank // which must live, also where the receive is for AnySource
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
		if w.register(r, into, need) != nil {
			w.stats.Fallbacks++
		} else {
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
		ready.offer.remote = r.reg.remote(into)
	}
	w.queueControl(p, ready)
	if r.size == 0 {
		w.complete(r, r.truncated)
	}
}

// find returns the request that a packet of p names.
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
	// The answer is what was offered, or R3; a message that has gone as a whole has no ready.
	asked := r.offered != Eager && (o.protocol == R3 || o.protocol == RPUT && r.offered == RPUT)
	if !asked || h.size > uint64(len(r.buf)) || h.from == 0 || r.partner != 0 {
		return fmt.Errorf("%w: ready for %d bytes of %d by %v", ErrProtocol, h.size, len(r.buf), o.protocol)
	}
	w.unregister(r) // it was to be read, and is not
	r.size, r.partner, r.remote = int(h.size), h.from, o
	if r.size == 0 {
		w.stats.R3++
		w.complete(r, nil)
		return nil
	}
	if o.protocol == RPUT && !r.abandoned { // else the buffer is the program's again
		if w.register(r, r.buf[:r.size], localOnly) == nil {
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
func (w *World) takeFinish(p *peer, number uint32) error {
	r, err := w.find(p, number, false)
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
	case r.partner == 0 && r.offered == RGET:
		w.stats.RGET++
	case r.offered != Eager:
		return fmt.Errorf("%w: the end of a message that is not being read", ErrProtocol)
	}
	w.complete(r, nil)
	return nil
}

// move posts the next piece of the oldest message that moves by RDMA, RGET or RPUT. A piece is what one transfer
// takes. Pieces of the messages of a peer go in order. The last write of a message has the number of the peer's request
// as immediate data, which takes a receive of the peer, and so a credit. It may not take the last one, as it brings no
// credits: then finish follows. Other RDMA takes no credit.
func (w *World) move(p *peer) error {
	r := p.moves.peek()
	v, err := w.pool.get()
	if err != nil {
		return err
	}
	n := min(r.size-r.begun, vipl.MaxTransferSize)
	ours := r.reg.region.Segment(r.reg.at(r.buf)+r.begun, n)
	theirs := r.remote.remote
	theirs.Data += uint64(r.begun)
	finishes := r.send && r.begun+n == r.size && p.credits > 1
	if r.send {
		v.desc.SetRDMAWrite(theirs, ours)
	} else {
		v.desc.SetRDMARead(theirs, ours)
	}
	if finishes {
		v.desc.SetImmediate(r.partner)
		p.credits--
	}
	v.op = operation{request: r, bytes: n}
	if err := w.post(p.link, v); err != nil {
		return err
	}
	p.moving++
	if r.begun += n; r.begun < r.size {
		return nil
	}
	p.moves.pop()
	if r.send && !finishes { // it follows the writes on the VI, so it comes after them
		w.queueControl(p, packet{header: header{kind: kindFinish, to: r.partner}})
	}
	return nil
}

// movesByRDMA reports whether operations on r's buffer are posted and not complete.
func (r *Request) movesByRDMA() bool { return r.reg != nil && r.begun > r.moved }

// moved takes the completion of a piece.
func (w *World) moved(p *peer, op operation) {
	p.moving--
	w.touch(p)
	r := op.request
	if r.moved += op.bytes; r.moved < r.size {
		return
	}
	if !r.send {
		w.confirm(p, r.partner)
	}
	w.complete(r, r.truncated)
}
