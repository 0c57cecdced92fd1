package mvich

import "viaxdp/vipl"

// RDMA, of both RGET and RPUT: a message moves in pieces of what one transfer
// takes, a bounded number of them at a time. Pieces of the messages of a peer
// go in order. RDMA takes no receive of the peer, and so no credit.

// move posts the next piece of the oldest message that moves by RDMA.
func (w *World) move(p *peer) error {
	r := p.moves.peek()
	v, err := w.pool.get()
	if err != nil {
		return err
	}
	n := min(r.size-r.begun, vipl.MaxTransferSize)
	ours := r.reg.region.Segment(r.reg.at(addressOf(r.buf))+r.begun, n)
	theirs := r.remote.remote
	theirs.Data += uint64(r.begun)
	if r.send {
		v.desc.SetRDMAWrite(theirs, ours)
	} else {
		v.desc.SetRDMARead(theirs, ours)
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
	if r.send { // it follows the writes on the VI, so it comes after them
		w.queueControl(p, packet{header: header{kind: kindFinish, to: r.partner}})
	}
	return nil
}

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
