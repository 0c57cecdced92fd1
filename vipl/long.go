package vipl

// Steps 2 and 3 of the table in ARCHITECTURE.md for frames that are longer than a chunk (XDP multi-buffer, if the MTU allows them). Such a frame is
// several entries of the TX ring, and is sent and received as one frame. The first entry has the headers.
//
//	by reference:  | headers |  | data in the program's memory, in the arena |
//	               TX chunk     one entry per chunk size
//
//	copied:        | headers, data |  | data |  | data |
//	               TX chunk           TX chunk  TX chunk
//
// Data that lies in the arena is sent by reference: the kernel reads it in place, and nothing is copied here. A
// retransmission needs the data again. So such a descriptor is done only when the peer has acknowledged it, also at
// Reliable Delivery, and when its frames have been read (byref.go). Other data is copied: data outside of the
// arena or of a region with CopySends, data in too many segments, data of an unreliable VI, and answers to RDMA
// reads, since the program may write to that memory at any time. For a connection with a key the kernel gets sealed
// copies in either case (seal.go).

import (
	"viaxdp/internal/base/wire"
	"viaxdp/xdpnic"
)

// leastSegs is the number of segments that a queue must accept for long frames: one for the headers, and two for
// data that ends in the middle of a page.
const leastSegs = 3

// longFrames is the state of long frames that are sent.
type longFrames struct {
	now   longFrame // the one that is being built
	parts [][]byte  // its bytes behind the lower headers
	most  int       // most segments of a frame
	kept  keptFrames
	seal  sealBuffer
}

func (l *longFrames) init(most int) {
	l.most = most
	l.now.segs = make([]xdpnic.Desc, 0, most)
	l.parts = make([][]byte, 0, most)
	l.seal.init(most)
}

// dropLong gives up the frame that is being built.
func (p *port) dropLong() { p.giveUp(&p.long.now) }

// fits reports whether the peer's window and the congestion window admit a frame with n bytes of data now. There is
// room for a short frame.
func (c *conn) fits(n int) bool {
	size := c.template.Len() + wire.HeaderLen + n + c.overhead
	return size <= wire.WindowUnit || c.sender == nil || c.sender.Fits(wire.Units(size))
}

// quickFrame is the most data in a frame of a message that is sent alone, so that the peer copies one frame while
// the kernel passes on the next. A frame with the kernel's overhead then fits in 32 KB; larger allocations are slow
// (PAGE_ALLOC_COSTLY_ORDER, include/linux/mmzone.h).
const quickFrame = 6 * 4096

// frameFor returns the most data in a frame of a message that begins now. In a stream the longest frames are the
// fastest.
func (c *conn) frameFor() int {
	if c.sender != nil && c.sender.Idle() {
		return min(c.payload, quickFrame)
	}
	return c.payload
}

// sendLong is sendPiece for n bytes that do not fit in one chunk.
func (p *port) sendLong(c *conn, e *posted, n int, now int64) bool {
	if !p.beginLong(c, n) {
		return false
	}
	moved, seg, off := e.moved, e.seg, e.off
	byRef := c.sender != nil && p.byReference(e, n)
	if !byRef {
		if !p.roomForLong(c, n) {
			return false
		}
		l := &p.long
		e.gather(l.parts[0][wire.HeaderLen:], false)
		for _, b := range l.parts[1:] {
			e.gather(b, false)
		}
	}
	e.byRef = e.byRef || byRef
	if byRef && c.secure == nil {
		p.long.now.vi, p.long.now.at = c.vi, c.vi.send.current
	}
	c.describe(e, moved)
	if !p.launchLong(c, n, now) {
		e.moved, e.seg, e.off = moved, seg, off
		return false
	}
	if byRef {
		c.byRef = true
		if c.secure == nil {
			e.unread++
			p.stats.ByReference++
		}
	}
	return true
}

// beginLong allocates a chunk for the headers of a frame with n bytes of data.
func (p *port) beginLong(c *conn, n int) bool {
	addr, chunk, ok := p.chunk(c)
	if !ok {
		return false
	}
	lower := c.template.Len()
	c.template.PutHead(chunk, wire.HeaderLen+n)
	l := &p.long
	l.now.segs = append(l.now.segs[:0], xdpnic.Desc{Addr: addr, Len: uint32(lower + wire.HeaderLen)})
	l.now.own, l.now.vi = 1, nil
	l.parts = append(l.parts[:0], chunk[lower:lower+wire.HeaderLen])
	return true
}

// byReference adds the next n bytes of a message to the frame without a copy. It returns false, and changes
// nothing, if they are not all in the arena, take too many segments, or are of a region whose data is copied.
func (p *port) byReference(e *posted, n int) bool {
	l := &p.long
	moved, seg, off := e.moved, e.seg, e.off
	size, _ := p.nic.FrameCap()
	for segs := e.segs(); n > 0; {
		s := segs[e.seg].data[e.off:]
		if len(s) == 0 {
			e.seg++
			e.off = 0
			continue
		}
		s = s[:min(n, len(s))]
		addr, inside := placeIn(p.mem, s)
		inside = inside && !segs[e.seg].region.CopySends()
		for k := 0; inside && k < len(s); {
			m := min(len(s)-k, size-int(addr)%size) // an entry does not cross a multiple of the chunk size
			if len(l.now.segs) == l.most {
				inside = false
				break
			}
			l.now.segs = append(l.now.segs, xdpnic.Desc{Addr: addr, Len: uint32(m)})
			addr += uint64(m)
			k += m
		}
		if !inside {
			e.moved, e.seg, e.off = moved, seg, off
			l.now.segs, l.parts = l.now.segs[:1], l.parts[:1]
			return false
		}
		l.parts = append(l.parts, s)
		n -= len(s)
		e.moved += uint32(len(s))
		if e.off += len(s); e.off == len(segs[e.seg].data) {
			e.seg++
			e.off = 0
		}
	}
	return true
}

// roomForLong adds TX chunks for n bytes of data. False: there are not enough; the frame is given up, and c is
// tried again.
func (p *port) roomForLong(c *conn, n int) bool {
	l := &p.long
	size, _ := p.nic.FrameCap()
	first := &l.now.segs[0]
	k := min(n, size-int(first.Len))
	l.parts[0] = l.parts[0][:wire.HeaderLen+k]
	first.Len += uint32(k)
	for n -= k; n > 0; n -= k {
		addr, chunk, ok := p.chunk(c)
		if !ok {
			p.dropLong()
			return false
		}
		k = min(n, size)
		l.now.segs = append(l.now.segs, xdpnic.Desc{Addr: addr, Len: uint32(k)})
		l.now.own++
		l.parts = append(l.parts, chunk[:k])
	}
	return true
}

// launchLong is launch for the frame that was built, with n bytes of data.
func (p *port) launchLong(c *conn, n int, now int64) bool {
	l, h := &p.long, &c.header
	units := wire.Units(c.template.Len() + wire.HeaderLen + n + c.overhead)
	if c.sender != nil && c.asksAck(units) || c.sender == nil && p.asksGSO(c) || p.unheardGSO(c) {
		h.Flags |= wire.FlagAckNow
	}
	h.Seq = c.nextSeq()
	h.Length = uint16(n)
	p.stamp(c)
	h.Put(l.parts[0])
	c.putChecksum(l.parts[0], l.parts[1:]...)
	if !p.sendSegs(c, &l.now, c.sender != nil, true) {
		p.dropLong()
		p.notStamped(c, now)
		return false
	}
	if c.sender == nil {
		c.seq++
	} else {
		c.chunks += l.now.own
		p.remember(c, l.kept.put(&l.now), units, now)
	}
	if p.nic.Pending() >= kickBatch {
		p.flush()
	}
	return true
}

// resendLong puts a long frame on the ring again.
func (p *port) resendLong(c *conn, f *longFrame, more wire.Flags) resendResult {
	for _, s := range f.segs[:f.own] {
		if p.nic.InFlight(s.Addr) {
			if p.flush(); p.nic.InFlight(s.Addr) {
				return notYet
			}
		}
	}
	p.stamp(c)
	l := &p.long
	l.parts = l.parts[:0]
	for _, s := range f.segs {
		l.parts = append(l.parts, p.mem[s.Addr:s.Addr+uint64(s.Len)])
	}
	b := l.parts[0][c.template.Len():]
	l.parts[0] = b
	wire.Restamp(b, c.header.Ack, c.header.Window, more)
	c.putChecksum(b, l.parts[1:]...)
	if !p.sendSegs(c, f, true, false) {
		return portFull
	}
	return resent
}
