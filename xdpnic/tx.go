package xdpnic

// This file holds steps 3 and 4 of a message's path: the doorbell, and the
// completions that return chunks.

import (
	"golang.org/x/sys/unix"
)

// Alloc takes a TX chunk off the free stack: the one that was freed last, which is
// most likely in the cache. addr is its address in the UMEM, and buf is the whole
// chunk. It is the caller's until Send or Release. ok is false if no chunk is
// free; Reap or Flush may free some.
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

// Send puts a frame of n bytes, which starts at addr in a chunk that the caller
// holds, on the TX ring. Flush publishes it. Without retain the chunk is free on
// completion. With retain it is the caller's again on completion (see InFlight):
// the caller may send it again, until Release.
//
// Send returns false, and the chunk stays the caller's, if the ring is full. It
// also returns false, counted as TxRefused, if the chunk is not the caller's (its
// last transmission is still in flight), or n is less than MinFrame or reaches
// past the chunk.
//
// Owner only.
func (q *Queue) Send(addr uint64, n int, retain bool) bool {
	p := q.pool
	i := p.chunk(addr)
	if i-p.txAt >= p.tx || p.own[i] != ownHeld ||
		n < MinFrame || addr+uint64(n) > p.addr(i)+p.size {
		q.n.TxRefused++
		return false
	}
	if !q.tx.reserve(q.pend + 1) {
		return false
	}
	q.tx.desc[(q.tx.head+q.pend)&q.tx.mask] = Desc{Addr: addr, Len: uint32(n)}
	p.setInFlight(i, q.tx.head+q.pend)
	q.pend++
	p.end[i] = q.tx.head + q.pend
	if retain {
		p.own[i] = ownKept
	} else {
		p.own[i] = ownTX
	}
	p.txOut++
	q.n.TxFrames++
	return true
}

// SendSegs puts one frame of several segments on the TX ring, in their order. It
// ignores Options of the entries. A frame has at most Info().MaxSegs segments, and
// more than one only with Config.MultiBuffer. Segments in TX chunks follow the
// rules of Send (retain applies to all of them, and a chunk may occur once).
// Segments elsewhere in the UMEM are the caller's registered memory: their bytes
// must stay unchanged until the frame has left. If the first segment is a TX
// chunk, Reading reports that. In an aligned UMEM no segment may cross a multiple
// of the chunk size, and in zero-copy mode none may cross a page.
//
// SendSegs returns false and changes nothing if the ring has no room for all
// segments or, counted as TxRefused, if a rule is broken.
//
// Owner only.
func (q *Queue) SendSegs(segs []Desc, retain bool) bool {
	n := uint32(len(segs))
	if n == 0 || len(segs) > q.info.MaxSegs {
		q.n.TxRefused++
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
		pooled := i-p.txAt < p.tx
		if !q.segOK(s) || pooled && p.own[i] != ownHeld || !pooled && p.shared != nil && i < p.total {
			q.takeBack(segs[:k])
			return false
		}
		if pooled {
			p.own[i] = own
			p.setInFlight(i, at)
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
	if i := p.chunk(segs[0].Addr); i-p.txAt < p.tx {
		p.end[i] = at
	}
	q.pend += n
	q.n.TxFrames++
	return true
}

// segOK applies the kernel's rules for a TX entry (net/xdp/xsk_queue.h,
// xp_validate_desc), which drops an entry that breaks them without a completion.
// Pages that are adjacent in memory need not be contiguous for a NIC
// (xp_desc_crosses_non_contig_pg, include/net/xsk_buff_pool.h).
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

// takeBack undoes SendSegs' changes for segs and counts the refusal.
func (q *Queue) takeBack(segs []Desc) {
	p := q.pool
	for k := range segs {
		if i := p.chunk(segs[k].Addr); i-p.txAt < p.tx {
			p.own[i] = ownHeld
			p.setFree(i)
			p.txOut--
		}
	}
	q.n.TxRefused++
}

// Release returns a TX chunk that was allocated and not sent, or retained. If the
// kernel still has it, it becomes free on completion. Releasing a free chunk is
// noted for Audit and has no other effect.
//
// Owner only.
func (q *Queue) Release(addr uint64) {
	p := q.pool
	i := p.chunk(addr)
	if i-p.txAt >= p.tx {
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
	return i-p.txAt < p.tx && (p.own[i] == ownTX || p.own[i] == ownKept)
}

// Reading reports whether the kernel or the NIC may still read the memory of the frame
// that begins at addr, in a TX chunk. Other segments of the frame may be the caller's
// memory. If the kernel copies (Info.TxCopied), it has read an entry once it has taken it
// off the TX ring. Otherwise it has once the entry completes, as of the last Reap or
// Flush.
//
// Owner only.
func (q *Queue) Reading(addr uint64) bool {
	if !q.InFlight(addr) {
		return false
	}
	return !q.info.TxCopied || int32(q.tx.cons.Load()-q.pool.end[q.pool.chunk(addr)]) < 0
}

// Cancel takes the caller's memory out of a frame that begins at addr, in a TX chunk, and
// has not left. Entries that the kernel has not taken no longer name that memory, and the
// frame's Ethernet header is cleared, so that no host accepts it. The chunks complete as
// before.
//
// Cancel returns true if neither the kernel nor the NIC will read the memory. If it
// returns false, entries have left the ring: wait until Reading returns false. In
// zero-copy mode a driver may have read an entry before it moves its index. There the
// first Cancel returns false, and a later one may return true; give the driver time in
// between.
//
// Owner only; a system call in copy mode.
func (q *Queue) Cancel(addr uint64) bool {
	if !q.InFlight(addr) {
		return true
	}
	p := q.pool
	i := p.chunk(addr)
	clear(p.mem[addr:min(addr+MinFrame, p.addr(i)+p.size)])
	first, renamed := q.blank(p.end[i], addr)
	if q.zc {
		q.fence.Add(1)
		return !renamed && int32(q.tx.cons.Load()-first) <= 0
	}
	// poll(2) in another thread may be sending. The kernel sends under the socket's mutex,
	// which this system call takes too. After it the kernel reads the changed entries.
	_, _ = kernelStats(q.fd)
	p.reap()
	return q.info.TxCopied || int32(q.tx.cons.Load()-first) <= 0 || !q.InFlight(addr)
}

// blank redirects those entries of a frame that the kernel has not taken and that name
// the caller's memory. The frame begins with the entry of addr and ends before TX ring
// index end. blank returns the index of the frame's first entry that named or still names
// such memory, and whether it changed any entry.
func (q *Queue) blank(end uint32, addr uint64) (first uint32, renamed bool) {
	p := q.pool
	taken := q.tx.cons.Load()
	first = end
	for at := end - 1; ; at-- {
		d := &q.tx.desc[at&q.tx.mask]
		if d.Addr == addr || end-at > uint32(q.info.MaxSegs) {
			return first, renamed
		}
		if i := p.chunk(d.Addr); i-p.txAt < p.tx {
			continue
		}
		first = at
		if sink := p.addr(0); int32(at-taken) >= 0 && d.Addr != sink {
			// The kernel leaves the first bytes of an RX chunk free (PacketHeadroom).
			// Completions of addresses there belong to no TX chunk.
			d.Addr, d.Len = sink, 1
			renamed = true
		}
	}
}

// Pending is the number of TX entries that the kernel has not taken: those that
// Send added since the last Flush, and those that the last Flush could not hand
// over.
//
// Owner only.
func (q *Queue) Pending() int { return int(q.pend + q.tx.left()) }

// Reap drains the completion ring and returns how many entries it held.
//
// Owner only.
func (q *Queue) Reap() int { return q.pool.reap() }

// TxFree is the number of free TX chunks. Owner only.
func (q *Queue) TxFree() int { return q.pool.nfree }
