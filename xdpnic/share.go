package xdpnic

// Share opens one more socket on the same queue. It has an RX and a TX ring of
// its own; the fill and completion rings and the chunks are those of q, for
// the kernel keeps one pair for a queue (XDP_SHARED_UMEM, net/xdp/xsk.c). The
// program decides by the XSKMAP entry which socket gets a frame.
//
// All sockets that share belong to one owner: completions of all of them come
// mixed on one ring, and each one's Flush and Reap take them for all. A chunk
// that one has received may be recycled through another. They may be closed in
// any order.
//
// Owner only.
func (q *Queue) Share() (*Queue, error) {
	if q.fd < 0 {
		return nil, ErrClosed
	}
	cfg := q.cfg
	cfg.Share = q
	s := newQueue(cfg)
	s.pool = q.pool
	s.pool.users++
	if err := s.openShared(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (q *Queue) openShared() error {
	if err := q.socket(); err != nil {
		return err
	}
	if err := q.socketRings(); err != nil {
		return err
	}
	if err := q.bind(); err != nil {
		return err
	}
	return q.describe()
}

// reclaim brings back the chunks that a closed socket's rings hold while other
// sockets go on using the pool: entries that the kernel will not send any
// more, and frames that were not received. What the kernel had taken before
// comes by the completion ring.
func (q *Queue) reclaim() {
	p := q.pool
	p.reap()
	first := q.tx.cons.Load()
	if q.tx.head-first > q.tx.mask+1 {
		first = q.tx.head // scribbled on: nobody knows which they are
	}
	for i := first; i != q.tx.head+q.pend; i++ {
		// The kernel may publish its index late (xskq_cons_release): an entry
		// that has been completed is not ours any more.
		if addr := q.tx.desc[i&q.tx.mask].Addr; q.InFlight(addr) {
			p.complete(addr)
		}
	}
	for n := q.rx.peek(^uint32(0)); n > 0; n-- {
		d := q.rx.desc[q.rx.tail&q.rx.mask]
		q.rx.tail++
		addr := plainAddr(d.Addr)
		if i := p.chunk(addr); i < p.rx && p.own[i] == ownFill {
			p.returned++
			p.own[i] = ownLeased
			p.recycle(addr)
		}
	}
	p.refill()
}
