package xdpnic

// This file holds steps 3 and 4 of a message's way: the doorbell, and the
// completions that give chunks back.

import (
	"golang.org/x/sys/unix"
)

// Alloc takes a TX chunk off the free stack: the one that came back last,
// which is the likeliest to be in the cache. addr is its address in the UMEM,
// buf all of it (chunk size bytes). It is the caller's until Send or Release.
// ok is false when no chunk is free; Reap or Flush may bring some back.
//
// Owner only; no allocation of Go memory.
func (q *Queue) Alloc() (addr uint64, buf []byte, ok bool) {
	p := q.pool
	if p.nfree == 0 {
		return 0, nil, false
	}
	p.nfree--
	addr = p.free[p.nfree]
	p.own[p.chunk(addr)] = ownHeld
	return addr, p.mem[addr : addr+p.size : addr+p.size], true
}

// Send puts a frame of n bytes, which starts at addr in a chunk that the
// caller holds, on the TX ring. It is not published before Flush. Without
// retain the chunk is free again on completion. With retain it is the caller's
// again on completion (see InFlight), to be sent again, until Release.
//
// It returns false, and the chunk stays the caller's, when the ring is full;
// also, counted as TxRefused, when the chunk is not the caller's (its last
// transmission is still in flight) or n is less than MinFrame or reaches past
// the chunk.
//
// Owner only.
func (q *Queue) Send(addr uint64, n int, retain bool) bool {
	p := q.pool
	i := p.chunk(addr)
	if i-p.rx >= p.tx || p.own[i] != ownHeld ||
		n < MinFrame || addr+uint64(n) > p.addr(i)+p.size {
		q.n.txRefused++
		return false
	}
	if !q.tx.reserve(q.pend + 1) {
		return false
	}
	q.tx.desc[(q.tx.head+q.pend)&q.tx.mask] = Desc{Addr: addr, Len: uint32(n)}
	q.pend++
	if retain {
		p.own[i] = ownKept
	} else {
		p.own[i] = ownTX
	}
	p.txOut++
	q.n.txFrames++
	return true
}

// SendSegs puts one frame of several segments on the TX ring, in their order;
// Options of the entries are ignored. At most Info().MaxSegs segments, more
// than one only with Config.MultiBuffer. Segments in TX chunks follow the
// rules of Send (retain holds for all of them, a chunk may occur once).
// Segments anywhere else in the UMEM are the caller's registered memory: the
// bytes must stay until the frame has left, which InFlight of a TX chunk of
// the same frame tells. In an aligned UMEM no segment may cross a multiple of
// the chunk size, and in zero-copy mode none may cross a page.
//
// It returns false with nothing changed when the ring has no room for all
// segments or, counted as TxRefused, when a rule is broken.
//
// Owner only.
func (q *Queue) SendSegs(segs []Desc, retain bool) bool {
	n := uint32(len(segs))
	if n == 0 || len(segs) > q.maxSegs {
		q.n.txRefused++
		return false
	}
	if !q.tx.reserve(q.pend + n) {
		return false
	}
	p := q.pool
	own := ownTX
	if retain {
		own = ownKept
	}
	total := uint64(0)
	at := q.tx.head + q.pend
	for k := range segs {
		s := &segs[k]
		i := p.chunk(s.Addr)
		pooled := i-p.rx < p.tx
		if !q.segOK(s) || pooled && p.own[i] != ownHeld {
			q.takeBack(segs[:k])
			return false
		}
		if pooled {
			p.own[i] = own
			p.txOut++
		}
		total += uint64(s.Len)
		q.tx.desc[at&q.tx.mask] = Desc{Addr: s.Addr, Len: s.Len, Options: unix.XDP_PKT_CONTD}
		at++
	}
	if total < MinFrame {
		q.takeBack(segs)
		return false
	}
	q.tx.desc[(at-1)&q.tx.mask].Options = 0
	q.pend += n
	q.n.txFrames++
	return true
}

// segOK applies the kernel's rules for a TX entry (net/xdp/xsk_queue.h,
// xp_validate_desc): one that breaks them would be dropped without a
// completion. Pages side by side need not be so for a NIC (xp_desc_crosses_non_contig_pg,
// include/net/xsk_buff_pool.h).
func (q *Queue) segOK(s *Desc) bool {
	p := q.pool
	n := uint64(s.Len)
	size := uint64(len(p.mem))
	if n == 0 || n > p.size || s.Addr >= size || n > size-s.Addr {
		return false
	}
	if q.cfg.Unaligned {
		return !q.zc || s.Addr%pageSize+n <= pageSize
	}
	return s.Addr&(p.size-1)+n <= p.size
}

// takeBack undoes what SendSegs has done for segs and counts the refusal.
func (q *Queue) takeBack(segs []Desc) {
	p := q.pool
	for k := range segs {
		if i := p.chunk(segs[k].Addr); i-p.rx < p.tx {
			p.own[i] = ownHeld
			p.txOut--
		}
	}
	q.n.txRefused++
}

// Release gives a TX chunk back that was allocated and not sent, or retained.
// If the kernel still has it, it is free on completion. Releasing a chunk that
// is free already is noted for Audit and does nothing else.
//
// Owner only.
func (q *Queue) Release(addr uint64) {
	p := q.pool
	i := p.chunk(addr)
	if i-p.rx >= p.tx {
		p.violated("release", addr)
		return
	}
	switch p.own[i] {
	case ownHeld:
		p.push(i)
	case ownKept:
		p.own[i] = ownTX
	default:
		p.violated("release", addr)
	}
}

// InFlight reports whether a TX chunk that was sent is still the kernel's, as
// of the last Reap or Flush.
//
// Owner only.
func (q *Queue) InFlight(addr uint64) bool {
	p := q.pool
	i := p.chunk(addr)
	return i-p.rx < p.tx && (p.own[i] == ownTX || p.own[i] == ownKept)
}

// Void makes a frame that begins at addr, in a TX chunk, and has not left one that
// nobody takes, because other segments of it are about to change: it loses its Ethernet header. It
// comes too late for a frame that is being read.
//
// Owner only.
func (q *Queue) Void(addr uint64) {
	if p := q.pool; q.InFlight(addr) {
		clear(p.mem[addr:min(addr+MinFrame, p.addr(p.chunk(addr))+p.size)])
	}
}

// Pending is the number of TX entries that the kernel has not taken: those of
// Send since the last Flush and those that the last Flush could not hand over.
//
// Owner only.
func (q *Queue) Pending() int { return int(q.pend + q.tx.left()) }

// Reap drains the completion ring and returns how many entries it held.
//
// Owner only.
func (q *Queue) Reap() int { return q.pool.reap() }

// TxFree is the number of free TX chunks. Owner only.
func (q *Queue) TxFree() int { return q.pool.nfree }
