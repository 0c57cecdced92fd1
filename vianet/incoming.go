package vianet

import (
	"viaxdp/vipl"
)

// segment is bytes of the stream that have arrived: in a buffer for receiving, or where an RDMA operation has put
// them.
type segment struct {
	data   []byte
	buffer int      // of the pool
	land   *landing // else, or
	ring   int      // so many bytes of the ring
}

// segments is a queue of them. The zero value is empty.
type segments struct {
	list []segment
	head int
}

func (q *segments) empty() bool { return q.head == len(q.list) }

func (q *segments) first() *segment { return &q.list[q.head] }

func (q *segments) add(s segment) {
	if q.head > 0 && len(q.list) == cap(q.list) {
		n := copy(q.list, q.list[q.head:])
		clear(q.list[n:])
		q.list, q.head = q.list[:n], 0
	}
	q.list = append(q.list, s)
}

func (q *segments) drop() {
	q.list[q.head] = segment{}
	if q.head++; q.empty() {
		q.list, q.head = q.list[:0], 0
	}
}

// incoming is the peer's transfer. The lock of the connection guards it.
type incoming struct {
	open   bool
	read   bool // announced: this side reads it; else it is written to
	id     uint32
	from   vipl.AddressSegment // read mode: where it lies
	length int
	asked  int  // bytes that have been asked for
	moved  int  // bytes that have come
	ended  bool // the peer has withdrawn it
	flight int  // landings under way

	room      vipl.AddressSegment // write mode: the landing that the peer knows of
	roomLen   int
	roomLand  *landing // nil: none
	staged    int      // staging buffers in use
	slotShort bool     // a Read waits for a buffer to ask with
}

// landing is registered memory that bytes of a transfer are on their way to.
type landing struct {
	lease *lease
	n     int
	stage bool // to become a segment; else a Read waits for it
	done  bool // for the Read: it is over
	came  int  // and so many bytes came
}

// stagesAhead is the number of staging buffers of a connection: while the program empties one the others are filled,
// which takes a round trip.
const stagesAhead = 4

// takeTransfer begins a transfer.
func (c *Conn) takeTransfer(h *header) error {
	if c.in.open || c.fin || h.kind == kindAnnounce && !c.reads {
		return errOrder
	}
	c.in = incoming{
		open: true, read: h.kind == kindAnnounce, id: h.id, length: int(h.length),
		from:   vipl.AddressSegment{Data: h.addr, Handle: h.handle},
		staged: c.in.staged,
	}
	if c.in.length <= ringMost {
		c.wantRing(ringAfter / 2)
	}
	raise(c.readable)
	return nil
}

// takeFilled takes note that the peer has written to the room it was given.
func (c *Conn) takeFilled(h *header) error {
	l := c.in.roomLand
	if c.in.read || !c.in.open || h.id != c.in.id || l == nil || c.due.room || int(h.length) != l.n {
		return errTransfer
	}
	c.in.roomLand = nil
	c.landed(l, true)
	return nil
}

// takeWithdraw ends the transfer, now or when what is under way has come. It may be over already: then the answer is.
func (c *Conn) takeWithdraw(h *header) error {
	if h.id != c.in.id || c.in.ended {
		return errTransfer
	}
	if !c.in.open {
		return nil
	}
	c.in.ended = true
	c.dropRooms()
	c.closeTransfer()
	return nil
}

// dropRooms ends what the peer was to write and will not.
func (c *Conn) dropRooms() {
	if l := c.in.roomLand; l != nil {
		c.in.roomLand, c.due.room = nil, false
		c.landed(l, false)
	}
}

// landed notes that a landing is over: with all its bytes, or none.
func (c *Conn) landed(l *landing, ok bool) {
	c.in.flight--
	if ok {
		l.came = l.n
		c.in.moved += l.n
	}
	switch {
	case !l.stage:
		l.done = true
	case ok:
		c.queue.add(segment{data: l.lease.buf[:l.n], land: l})
	default:
		c.unstage(l)
	}
	raise(c.readable)
	c.closeTransfer()
}

// closeTransfer ends the transfer if all of it has come, or all that will. The peer hears of it where it does not
// know; and where it does, it waits for the acknowledgement of what it has written, which goes with the next message.
func (c *Conn) closeTransfer() {
	in := &c.in
	if !in.open || in.flight > 0 || in.moved < in.length && !in.ended {
		return
	}
	in.open = false
	if in.read || in.ended {
		c.due.taken, c.due.takenID, c.due.takenLen = true, in.id, uint32(in.moved)
	} else {
		c.due.credit = true
	}
}

// fetch asks for the next n bytes of the transfer at l. False: it must wait until there is a buffer. Under mu.
func (c *Conn) fetch(l *landing) bool {
	in := &c.in
	if !in.read {
		in.room, in.roomLen, in.roomLand = l.lease.remote(), l.n, l
		c.due.room = true
	} else {
		i, ok := c.pool.take()
		if in.slotShort = !ok; !ok {
			return false
		}
		from := in.from
		from.Data += uint64(in.asked)
		if c.pool.postRead(i, from, l) != nil {
			c.pool.free = append(c.pool.free, i)
			c.lost()
			return false
		}
	}
	in.asked += l.n
	in.flight++
	return true
}

// mayFetch says whether something is left to ask for, and may be asked for now: the peer is told of one room at a
// time.
func (c *Conn) mayFetch() bool {
	in := &c.in
	return in.open && !in.ended && !c.down && in.asked < in.length && (in.read || in.roomLand == nil)
}

// landings may be written by the peer in write mode, and by nobody but us in read mode.
func (c *Conn) landingAccess() access {
	if c.in.read {
		return closed
	}
	return writable
}

// fetchAhead fills staging buffers. Under mu.
func (c *Conn) fetchAhead() error {
	for c.mayFetch() && c.in.staged < stagesAhead {
		lease, err := c.stack.regs.stage(c.tag, c.landingAccess())
		if err != nil {
			if c.in.staged > 0 {
				return nil // it goes on with what there is
			}
			return systemError(err)
		}
		l := &landing{lease: lease, n: min(stageSize, c.in.length-c.in.asked), stage: true}
		c.in.staged++
		if !c.fetch(l) {
			c.unstage(l)
			return nil
		}
	}
	return nil
}

// unstage gives a staging buffer back.
func (c *Conn) unstage(l *landing) {
	c.in.staged--
	l.lease.end()
}
