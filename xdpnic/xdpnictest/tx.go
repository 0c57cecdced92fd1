package xdpnictest

import (
	"slices"
	"time"

	"viaxdp/internal/base/wire"
	"viaxdp/xdpnic"
)

// Alloc allocates the TX chunk that came back last.
func (q *Queue) Alloc() (addr uint64, buf []byte, ok bool) {
	q.wire.mu.Lock()
	defer q.wire.mu.Unlock()
	n := len(q.stack)
	if n == 0 || q.closed {
		return 0, nil, false
	}
	addr = q.stack[n-1]
	q.stack = q.stack[:n-1]
	i := q.number(addr)
	q.thaw(i)
	q.move(i, held, "Alloc")
	return addr, q.bytes(i), true
}

// TxFree returns the number of free TX chunks.
func (q *Queue) TxFree() int {
	q.wire.mu.Lock()
	defer q.wire.mu.Unlock()
	return len(q.stack)
}

// Release gives back a TX chunk that was allocated and not sent, or one that was sent with retain. If the
// kernel still has it, it is freed on completion.
func (q *Queue) Release(addr uint64) {
	q.wire.mu.Lock()
	defer q.wire.mu.Unlock()
	i := q.number(addr)
	switch {
	case q.closed:
	case i >= 0 && q.chunks[i].state == held:
		q.give(i, "Release")
	case i >= 0 && q.chunks[i].state == queued && q.chunks[i].retain:
		q.chunks[i].retain = false
	default:
		q.wrongChunk("Release", addr)
	}
}

// give puts a TX chunk on the stack.
func (q *Queue) give(i int, op string) {
	q.move(i, free, op)
	q.spoil(i)
	q.stack = append(q.stack, q.addr(i))
}

// InFlight reports whether the kernel still has a TX chunk.
func (q *Queue) InFlight(addr uint64) bool {
	q.wire.mu.Lock()
	defer q.wire.mu.Unlock()
	i := q.number(addr)
	return i >= 0 && q.chunks[i].state == queued
}

// Reading reports whether the kernel, or with Config.ZeroCopy the NIC, may still read the
// memory of the frame that begins at addr.
func (q *Queue) Reading(addr uint64) bool {
	q.wire.mu.Lock()
	defer q.wire.mu.Unlock()
	i := q.number(addr)
	return i >= 0 && q.chunks[i].state == queued && (q.cfg.ZeroCopy || len(q.onRing(addr)) > 0)
}

// Cancel removes the program's memory, and the Ethernet header, from a frame that begins at addr and that the
// kernel has not taken. It reports whether that memory is no longer read. With Config.ZeroCopy the first Cancel
// of a frame never reports that.
func (q *Queue) Cancel(addr uint64) bool {
	q.wire.mu.Lock()
	defer q.wire.mu.Unlock()
	i := q.number(addr)
	if i < 0 || q.chunks[i].state != queued {
		return true
	}
	q.thaw(i)
	clear(q.mem[addr:min(addr+minFrame, q.addr(i)+q.size)])
	q.freeze(i)
	segs := q.onRing(addr)
	if len(segs) == 0 {
		return !q.cfg.ZeroCopy
	}
	unread := true
	for _, e := range segs {
		if q.number(e.addr) < 0 {
			unread = unread && (e.blank || !q.cfg.ZeroCopy)
			e.blank = true
		}
	}
	return unread
}

// onRing returns the segments of the frame on the TX ring that begins at addr, or none.
func (q *Queue) onRing(addr uint64) (segs []*entry) {
	for k := range q.tx.n {
		e := q.tx.peek(k)
		if len(segs) > 0 || e.addr == addr {
			if segs = append(segs, e); !e.more {
				return segs
			}
		}
	}
	return nil
}

// Pending returns the number of TX entries that the kernel has not taken.
func (q *Queue) Pending() int {
	q.wire.mu.Lock()
	defer q.wire.mu.Unlock()
	return q.tx.n
}

// Send puts the first n bytes from addr in a chunk on the TX ring as a frame. If the ring is full, it refuses
// and the chunk stays the caller's. It also refuses if the program does not own the chunk or the length is
// wrong, which Audit reports as a misuse.
func (q *Queue) Send(addr uint64, n int, retain bool) bool {
	return q.enqueue("Send", []xdpnic.Desc{{Addr: addr, Len: uint32(max(n, 0))}}, retain)
}

// SendSegs puts one frame of several segments on the TX ring. Segments outside
// of the chunks are the program's memory.
func (q *Queue) SendSegs(segs []xdpnic.Desc, retain bool) bool {
	return q.enqueue("SendSegs", segs, retain)
}

// SendFrame builds a frame of a header and a payload, with length and checksum, and sends it at once. It
// reports whether there was room for it.
func (q *Queue) SendFrame(t *wire.Template, h wire.Header, payload []byte) bool {
	h.Length = uint16(len(payload))
	return q.SendBytes(Frame(t, h, payload))
}

// SendBytes is SendFrame for a frame as it is.
func (q *Queue) SendBytes(frame []byte) bool {
	addr, chunk, ok := q.Alloc()
	return ok && q.Send(addr, copy(chunk, frame), false) && q.Flush() == nil
}

// Frame builds a frame of a header, with a length that may be wrong, and a payload. The checksum is right.
func Frame(t *wire.Template, h wire.Header, payload []byte) []byte {
	frame := make([]byte, t.Len()+wire.HeaderLen+len(payload))
	b := t.Put(frame, wire.HeaderLen+len(payload))
	h.Put(b)
	copy(b[wire.HeaderLen:], payload)
	wire.PutChecksum(b)
	return frame
}

// enqueue does what the call op asks for.
func (q *Queue) enqueue(op string, segs []xdpnic.Desc, retain bool) bool {
	q.wire.mu.Lock()
	defer q.wire.mu.Unlock()
	if q.closed {
		return false
	}
	if len(segs) == 0 || len(segs) > maxSegs || len(segs) > 1 && !q.cfg.MultiBuffer {
		return q.refuse("%s of %d segments", op, len(segs))
	}
	total := uint64(0)
	for k, s := range segs {
		i := q.number(s.Addr)
		twice := i >= 0 && slices.ContainsFunc(segs[:k], func(other xdpnic.Desc) bool { return i == q.number(other.Addr) })
		end := s.Addr + uint64(s.Len)
		switch {
		case i < 0 && (op == "Send" || end > uint64(len(q.mem)) || end < s.Addr),
			i >= 0 && q.chunks[i].state != held, twice:
			q.wrongChunk(op, s.Addr)
			return false
		case s.Len == 0:
			return q.refuse("%s of no bytes at %#x", op, s.Addr)
		case i < 0 && s.Addr%q.size+uint64(s.Len) > q.size:
			return q.refuse("%s of %d bytes at %#x, across a multiple of the chunk size", op, s.Len, s.Addr)
		case i >= 0 && end > q.addr(i)+q.size:
			return q.refuse("%s of %d bytes at %#x, past the end of chunk %d", op, s.Len, s.Addr, i)
		}
		total += uint64(s.Len)
	}
	if total < minFrame || q.cfg.MaxFrame > 0 && total > uint64(q.cfg.MaxFrame) {
		return q.refuse("%s of %d bytes, which is no frame of the link", op, total)
	}
	if q.tx.room() < len(segs) {
		q.n.TxFull++
		return false
	}
	if q.lying {
		d := &q.liars[lieSend]
		if d.next(); d.hit(q.lies.RefuseSend) {
			q.n.LiedSend++
			return false
		}
	}
	for k, s := range segs {
		if i := q.number(s.Addr); i >= 0 {
			q.chunks[i].retain = retain
			q.move(i, queued, op)
			q.freeze(i)
		}
		q.tx.put(entry{addr: s.Addr, n: s.Len, more: k < len(segs)-1})
	}
	q.n.TxFrames++
	return true
}

// refuse records a send that breaks a rule, and returns false.
func (q *Queue) refuse(format string, args ...any) bool {
	q.misuse(format, args...)
	return false
}

// Flush passes the queued frames to the wire, as far as the completion ring has room, and reaps. Without faults
// the frames have arrived when it returns.
func (q *Queue) Flush() error {
	w := q.wire
	w.mu.Lock()
	defer w.mu.Unlock()
	if q.closed {
		return xdpnic.ErrClosed
	}
	if q.lying {
		d := &q.liars[lieFlush]
		d.next()
		if d.hit(q.lies.FlushError) {
			q.n.LiedFlush++
			return xdpnic.ErrLinkDown
		}
		if d.hit(q.lies.Stall) {
			q.n.Stalled++
			if q.cfg.ZeroCopy {
				q.consume()
			}
			q.reap()
			return nil
		}
	}
	for moved := true; moved; q.reap() {
		moved = q.consume()
		q.transmit()
	}
	q.reap()
	return nil
}

// consume takes frames off the TX ring as far as the completion ring has room for them.
func (q *Queue) consume() (moved bool) {
	for q.tx.n > 0 {
		segs := 1
		for q.tx.peek(segs - 1).more {
			segs++
		}
		if q.kern+q.comp.n+segs > len(q.comp.at) {
			break
		}
		for k := range segs {
			q.taken.put(*q.tx.peek(k))
		}
		q.tx.pop(segs)
		q.kern += segs
		moved = true
	}
	return moved
}

// transmit reads and sends the frames that were taken.
func (q *Queue) transmit() {
	for q.taken.n > 0 {
		frame, segs := q.taken.peek(0).bytes(q), 1
		if q.taken.peek(0).more {
			b := append(q.wire.joined[:0], frame...)
			for more := true; more; segs++ {
				e := q.taken.peek(segs)
				b, more = append(b, e.bytes(q)...), e.more
			}
			q.wire.joined, frame = b, b
		}
		q.wire.carry(q, frame)
		for k := range segs {
			e := *q.taken.peek(k)
			if late := q.lies.LateCompletion; late > 0 {
				q.wire.later(&onLine{from: q, entry: e}, time.Duration(late))
			} else {
				q.complete(e)
			}
		}
		q.taken.pop(segs)
	}
}

// bytes returns an entry's part of a frame.
func (e *entry) bytes(q *Queue) []byte {
	if e.blank {
		return nothing
	}
	return q.mem[e.addr : e.addr+uint64(e.n)]
}

var nothing = make([]byte, 1)

// complete puts an entry that the kernel has finished with on the completion ring. Its place there is reserved.
func (q *Queue) complete(e entry) {
	q.kern--
	if !q.lying {
		q.comp.put(e.addr)
		return
	}
	d := &q.liars[lieCompletion]
	d.next()
	lost, twice, wild := d.hit(q.lies.LostCompletion), d.hit(q.lies.DoubleCompletion), d.hit(q.lies.WildCompletion)
	where := d.rng.IntN(3)
	if lost {
		q.n.LiedLostCompletion++
	} else {
		q.comp.put(e.addr)
	}
	if spare := q.comp.room() - q.kern; twice && !lost && spare > 0 {
		q.n.LiedDoubleCompletion++
		q.comp.put(e.addr)
	}
	if spare := q.comp.room() - q.kern; wild && spare > 0 {
		q.n.LiedWildCompletion++
		q.comp.put([]uint64{q.addr(0), uint64(len(q.mem)) + 64, ^uint64(0) - 63}[where])
	}
}

// Reap drains the completion ring and returns how many entries it held.
func (q *Queue) Reap() int {
	q.wire.mu.Lock()
	defer q.wire.mu.Unlock()
	return q.reap()
}

func (q *Queue) reap() int {
	n := q.comp.n
	for range n {
		addr := *q.comp.peek(0)
		q.comp.pop(1)
		q.n.TxCompleted++
		i := q.number(addr)
		switch {
		case i < 0 && addr < uint64(len(q.mem)): // the program's memory
		case i < 0 || q.chunks[i].state != queued:
			q.n.TxBadCompletions++
		case q.chunks[i].retain:
			q.thaw(i)
			q.move(i, held, "completion")
		default:
			q.thaw(i)
			q.give(i, "completion")
		}
	}
	return n
}
