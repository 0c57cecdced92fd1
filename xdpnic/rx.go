package xdpnic

// This file holds two steps of receiving: step 6, which leases a batch of
// frames, and step 10, which recycles them.

// Receive takes at most len(frames) segments off the RX ring and returns their
// number. It never splits a frame of several segments: a frame that does not fit
// whole stays for the next call. A frame with more segments than len(frames) is
// dropped and counted as RxTooManySegs; 40 segments are enough for any MTU.
//
// The chunk of each segment is the caller's until Recycle.
//
// Owner only; no allocation.
func (q *Queue) Receive(frames []Frame) int {
	if q.extra != nil {
		if n := q.receiveExtra(frames); n != 0 {
			return n
		}
	}
	p := q.pool
	avail := int(q.rx.peek(uint32(len(frames))))
	whole, packets := 0, uint64(0) // segments of whole frames; frames
	n := 0
	for ; n < avail; n++ {
		d := &q.rx.desc[(q.rx.tail+uint32(n))&q.rx.mask]
		addr := plainAddr(d.Addr)
		end := addr + uint64(d.Len)
		i := p.chunk(addr)
		if i >= p.rx || p.own[i] != ownFill || end > p.addr(i)+p.size {
			break
		}
		p.lease(i)
		f := &frames[n]
		f.Addr, f.Data, f.More = addr, p.mem[addr:end:end], d.Options&pktContd != 0
		if !f.More {
			whole, packets = n+1, packets+1
		}
	}
	if whole < n || n < avail {
		return q.receiveOdd(frames, n, avail, whole, packets)
	}
	if n != 0 {
		q.take(n, packets)
	}
	return n
}

// take releases n entries, which hold the given number of frames.
func (q *Queue) take(n int, packets uint64) {
	q.rx.release(uint32(n))
	q.pool.returned += uint64(n)
	q.n.RxFrames += packets
	q.n.Received += uint64(n)
}

// receiveOdd completes a Receive that found only the beginning of a frame
// (segments whole to n) or an entry outside our chunks (number n < avail).
func (q *Queue) receiveOdd(frames []Frame, n, avail, whole int, packets uint64) int {
	p := q.pool
	for k := whole; k < n; k++ {
		p.own[p.chunk(frames[k].Addr)] = ownFill
	}
	if whole > 0 {
		q.take(whole, packets)
		return whole
	}
	if n < avail || n == len(frames) {
		q.discard()
	}
	return 0
}

// discard drops the frame at the head of the RX ring, which does not fit the
// caller's batch or has an entry outside the chunks given to the kernel.
func (q *Queue) discard() {
	p := q.pool
	have := q.rx.peek(^uint32(0))
	for n := uint32(0); n < have; n++ {
		d := q.rx.desc[(q.rx.tail+n)&q.rx.mask]
		if d.Options&pktContd != 0 && n+1 < have {
			continue
		}
		bad := false
		for k := range n + 1 {
			addr := plainAddr(q.rx.desc[(q.rx.tail+k)&q.rx.mask].Addr)
			if i := p.chunk(addr); i < p.rx && p.own[i] == ownFill {
				p.lease(i)
				p.returned++
				p.recycle(addr)
			} else {
				p.violated("receive", addr)
				bad = true
			}
		}
		q.rx.release(n + 1)
		if bad {
			q.n.RxBadEntries++
		} else {
			q.n.RxTooManySegs++
		}
		return
	}
}

// Recycle returns the chunk of a received segment. The kernel gets it with the
// next Refill. Recycling a chunk twice is noted for Audit and has no other
// effect.
//
// Owner only.
func (q *Queue) Recycle(addr uint64) {
	if q.extra != nil {
		q.poolOf(addr).recycle(addr)
		return
	}
	q.pool.recycle(addr)
}

func (p *pool) recycle(addr uint64) {
	i := p.chunk(addr)
	if i >= p.rx || p.own[i] != ownLeased {
		p.violated("recycle", addr)
		return
	}
	p.own[i] = ownFill
	if p.shared != nil {
		p.back = append(p.back, i)
		p.recycled++
		return
	}
	// There is room: the ring can hold all RX chunks, and this one is not in it.
	p.fill.addr[(p.fill.head+p.recycled)&p.fill.mask] = p.addr(i)
	p.recycled++
}

// Refill publishes the recycled chunks on the fill ring. In zero-copy mode it wakes a
// driver that sleeps because it has no chunks. A driver may set its need-wakeup flag
// after the Refill that would have woken it, and Wait checks the flag only when it
// begins. So call Refill now and then although nothing was recycled, also while
// another goroutine is in Wait.
//
// Owner only.
func (q *Queue) Refill() {
	if q.pool.recycled != 0 {
		q.pool.refill()
	}
	for _, a := range q.extra {
		a.Refill()
	}
	if q.zc {
		q.fence.Add(1) // see flushZeroCopy
		if q.pool.fill.needWakeup() {
			q.n.RxKicks++
			kickRX(q.fd)
		}
	}
}

// FrameCap returns the largest frame in one chunk, in bytes: the whole chunk for
// sending, and the chunk less the kernel's headroom for receiving. Any goroutine.
func (q *Queue) FrameCap() (tx, rx int) {
	return q.cfg.ChunkSize, q.cfg.ChunkSize - PacketHeadroom - q.cfg.Headroom
}

// MaxSegs is the largest number of segments of a frame, 1 without multi-buffer.
// Any goroutine.
func (q *Queue) MaxSegs() int { return q.info.MaxSegs }

// RxChunks is the number of RX chunks: this many segments can arrive before any
// is recycled. If processes share the queue, it is what this process may have leased at
// a time; with more, others could get less than their part. Each of Config.ExtraQueues has as many again. Any goroutine.
func (q *Queue) RxChunks() int { return q.cfg.rxChunks() }
