package xdpnic

// This file holds the two ends of receiving: step 6, a lease on a batch of
// frames, and step 10, recycling.

// Receive takes segments off the RX ring, at most len(frames), and returns how
// many. It never splits a frame of several segments: what does not fit whole
// stays for the next call. A frame with more segments than len(frames) is
// dropped and counted as RxTooManySegs; 40 segments are enough for any MTU.
//
// The chunk of each segment is the caller's until Recycle.
//
// Owner only; no allocation.
func (q *Queue) Receive(frames []Frame) int {
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
		p.own[i] = ownLeased
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

// take releases n entries of packets frames.
func (q *Queue) take(n int, packets uint64) {
	q.rx.release(uint32(n))
	q.pool.returned += uint64(n)
	q.n.rxFrames += packets
	q.n.rxSegs += uint64(n)
}

// receiveOdd ends a Receive that met the beginning of a frame only (segments
// whole to n), or an entry that is not one of ours (number n < avail).
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
// caller's batch or has an entry outside of the chunks given to the kernel.
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
				p.own[i] = ownLeased
				p.returned++
				p.recycle(addr)
			} else {
				p.violated("receive", addr)
				bad = true
			}
		}
		q.rx.release(n + 1)
		if bad {
			q.n.rxBadEntries++
		} else {
			q.n.rxTooManySegs++
		}
		return
	}
}

// Recycle gives the chunk of a received segment back. The kernel gets it with
// the next Refill. Recycling a chunk twice is noted for Audit and does nothing
// else.
//
// Owner only.
func (q *Queue) Recycle(addr uint64) { q.pool.recycle(addr) }

func (p *pool) recycle(addr uint64) {
	i := p.chunk(addr)
	if i >= p.rx || p.own[i] != ownLeased {
		p.violated("recycle", addr)
		return
	}
	p.own[i] = ownFill
	// There is room: the ring holds all RX chunks, and this one was not in it.
	p.fill.addr[(p.fill.head+p.recycled)&p.fill.mask] = p.addr(i)
	p.recycled++
}

// Refill publishes the recycled chunks on the fill ring, and in zero-copy mode wakes
// a driver that sleeps for want of chunks. A driver may raise the flag that it sleeps
// only after the Refill that would have woken it, and Wait looks at the flag only as
// it begins. So call Refill now and then although nothing was recycled, also while
// another goroutine is in Wait.
//
// Owner only.
func (q *Queue) Refill() {
	if q.pool.recycled != 0 {
		q.pool.refill()
	}
	if q.zc {
		q.fence.Add(1) // see flushZeroCopy
		if q.pool.fill.needWakeup() {
			q.n.rxKicks++
			kickRX(q.fd)
		}
	}
}

// FrameCap is the largest frame in one chunk, in bytes: for sending the whole
// chunk, for receiving what the kernel's headroom leaves. Any goroutine.
func (q *Queue) FrameCap() (tx, rx int) {
	return q.cfg.ChunkSize, q.cfg.ChunkSize - PacketHeadroom - q.cfg.Headroom
}

// MaxSegs is the largest number of segments of a frame, 1 without multi-buffer.
// Any goroutine.
func (q *Queue) MaxSegs() int { return q.maxSegs }

// RxChunks is the number of RX chunks: how many segments can arrive before
// anything is recycled. Any goroutine.
func (q *Queue) RxChunks() int { return q.cfg.RxChunks }
