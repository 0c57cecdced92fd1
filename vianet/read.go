package vianet

import (
	"io"
	"net"
	"os"
	"time"

	"viaxdp/vipl"
)

// The receive path:
//
//  1. Messages come (arrived, in session.go): takeData queues the bytes of a data message, takeInRing those that the
//     peer has written to the ring, takeTransfer begins a transfer.
//  2. Read copies what is queued (consume), and gives buffers and the ring back.
//  3. If there is nothing and a transfer is open, it asks for bytes of it: into its own buffer (fetchDirect) if that
//     is large, else into staging buffers ahead of the program (fetchAhead).
//  4. A landing is over when its RDMA read has completed, or the peer's write (landed): a staging buffer joins the
//     queue, a direct one ends its Read.
//  5. closeTransfer sends taken when all of the transfer has come.

// directMin is the least that a Read must ask for to get a transfer's bytes into its own buffer; smaller Reads use
// staging buffers, which are filled ahead of the program. So do transfers that take several Reads, unless each is so
// long that a round trip between them does not matter.
const directMin = stageSize

// Read reads what has arrived into b, at least one byte, and waits until there is something. If b has 64 KiB or more,
// a peer that reports writes it has not made can make Read return the old content of b.
//
// Errors: [io.EOF] when the peer has closed its side and everything is read; else [*net.OpError]: a deadline, Close,
// a connection that broke.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.read(b)
	if err != nil && err != io.EOF {
		err = c.opError("read", err)
	}
	return n, err
}

func (c *Conn) read(b []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	for {
		n, direct, bytes, err := c.readNow(b)
		if direct != nil {
			if n = c.finishDirect(direct); n == 0 {
				continue // the peer has withdrawn it, or the connection broke
			}
		}
		if n > 0 || err != nil || len(b) == 0 {
			return n, err
		}
		if err := c.await(c.readable, &c.readDeadline, &c.readSpin, bytes); err != nil {
			return 0, err
		}
	}
}

// readNow reads what has arrived. If there is nothing, it asks for more, possibly directly into b (direct). bytes is
// how many are, or may be, on their way elsewhere.
func (c *Conn) readNow(b []byte) (n int, direct *landing, bytes int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	lower(c.readable)
	if c.isClosed {
		return 0, nil, 0, net.ErrClosed
	}
	if c.readDeadline.passed() {
		return 0, nil, 0, os.ErrDeadlineExceeded
	}
	if len(b) == 0 {
		return 0, nil, 0, nil
	}
	if c.noReads {
		return 0, nil, 0, io.EOF
	}
	if n = c.consume(b); n > 0 && !c.in.open && !c.due.ring && len(c.spent) <= c.dataBuffers()/4 {
		return n, nil, 0, nil // the program has its data; the rest has time
	}
	c.restock()
	c.urge() // what is read next may be the answer
	if n == 0 && c.ring.lease != nil && c.ring.freed >= ringPart(c.ring.size) {
		c.due.ring = true // the peer may hold a tail until then
	}
	if c.mayFetch() {
		switch {
		case len(b) < directMin || c.in.read && len(b) < min(c.in.length-c.in.asked, stagesAhead*stageSize):
			err = c.fetchAhead()
		case n == 0 && c.in.flight == 0:
			direct, err = c.fetchDirect(b)
		}
	}
	c.push()
	switch {
	case n > 0:
		return n, nil, 0, nil
	case direct != nil || err != nil:
		return 0, direct, 0, err
	case !c.queue.empty(): // it came just now
		n = c.consume(b)
		if c.due.ring || len(c.spent) > c.dataBuffers()/4 {
			c.restock()
			c.push()
		}
		return n, nil, 0, nil
	case c.fin:
		return 0, nil, 0, io.EOF
	}
	return 0, nil, max(c.in.flight*stageSize, c.ring.last), c.err
}

// consume copies what has arrived. Under mu.
func (c *Conn) consume(b []byte) (n int) {
	for n < len(b) && !c.queue.empty() {
		s := c.queue.first()
		k := copy(b[n:], s.data)
		n += k
		if s.data = s.data[k:]; len(s.data) > 0 {
			break
		}
		switch {
		case s.land != nil:
			c.unstage(s.land)
		case s.ring > 0:
			c.readFromRing(s.ring)
		default:
			c.held--
			c.spent = append(c.spent, s.buffer)
		}
		c.queue.drop()
	}
	c.counts.Received += uint64(n)
	c.tail.stream = c.tail.stream && n == 0
	return n
}

// restock posts again the buffers that were read, and counts them as credits due to the peer. It runs where it delays
// nothing: after a message, before a wait, and when the peer might soon run out of credits. Under mu.
func (c *Conn) restock() {
	for _, i := range c.spent {
		c.repost(i)
	}
	c.acksDue += len(c.spent)
	c.spent = c.spent[:0]
}

// fetchDirect asks for bytes of the transfer to come into b. It returns nil without an error if it must wait or b
// cannot be registered. Under mu.
func (c *Conn) fetchDirect(b []byte) (*landing, error) {
	n := min(len(b), c.in.length-c.in.asked, vipl.MaxTransferSize)
	lease, err := c.stack.regs.lease(b[:n], c.tag, c.landingAccess())
	if err != nil {
		return nil, c.fetchAhead()
	}
	l := &landing{lease: lease, n: n}
	if !c.fetch(l) {
		lease.end()
		return nil, nil
	}
	return l, nil
}

// releaseTime is how long the peer may take to release the buffer of a Read or Write that is about to return.
const releaseTime = 2 * time.Second

// finishDirect waits for the bytes that are on their way into the program's buffer, however long they take; after the
// deadline and after Close, for releaseTime at most.
func (c *Conn) finishDirect(l *landing) int {
	for leave := false; ; {
		c.mu.Lock()
		done := l.done
		leave = leave || c.isClosed || c.noReads
		c.mu.Unlock()
		if done {
			break
		}
		if leave {
			c.awaitRelease(c.readable, &c.readSpin, l.n, func() bool { return l.done })
			break
		}
		leave = c.await(c.readable, &c.readDeadline, &c.readSpin, l.n) != nil
	}
	l.lease.end()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts.Received += uint64(l.came)
	return l.came
}

// awaitRelease waits until done, which it calls under mu, reports true. If the peer does not do its part in time,
// awaitRelease breaks the connection, which makes done true. It does not if the peer was in time and this side was
// descheduled. bytes is how many are on their way.
func (c *Conn) awaitRelease(sig chan struct{}, p *spinner, bytes int, done func() bool) {
	past := &limit{signal: sig}
	past.set(time.Now().Add(releaseTime))
	defer past.set(time.Time{})
	for {
		c.mu.Lock()
		ok := done()
		c.mu.Unlock()
		if ok {
			return
		}
		if c.await(sig, past, p, bytes) != nil {
			past.set(time.Time{})
			c.mu.Lock()
			if c.progressLocked(); !done() {
				c.fail(resetError(errSlow))
			}
			c.mu.Unlock()
		}
	}
}

// segment is bytes of the stream that have arrived: in a buffer for receiving, or where an RDMA operation has put
// them.
type segment struct {
	data   []byte
	buffer int      // of the pool
	land   *landing // else, or
	ring   int      // bytes of the ring that it takes
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

func (c *Conn) takeData(h *header, payload []byte, i int) error {
	if c.held == c.dataBuffers() {
		return errOverrun
	}
	if c.fin || c.in.open {
		return errOrder
	}
	c.held++
	c.ring.last = 0
	if h.id == ringWish {
		c.wantRing(len(payload))
	}
	c.queue.add(segment{data: payload, buffer: i})
	raise(c.readable)
	return nil
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

// landing is registered memory that receives bytes of a transfer.
type landing struct {
	lease *lease
	n     int
	stage bool // to become a segment; else a Read waits for it
	done  bool // for the Read: it is over
	came  int  // bytes that came, once done
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

// takeFilled handles an RDMA write to the room that the peer was given. The NIC has checked that memory takes the
// bytes, but not that they are in the room: a hostile peer may have written elsewhere.
func (c *Conn) takeFilled(h *header) error {
	l := c.in.roomLand
	if c.in.read || !c.in.open || l == nil || c.due.room || int(h.length) != l.n {
		return errTransfer
	}
	c.in.roomLand = nil
	c.landed(l, true)
	return nil
}

// takeWithdraw ends the transfer, now or when what is under way has come. It does nothing if the transfer is already
// over, because the answer has been sent.
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

// landed records that a landing is complete: with all its bytes if ok, else with none.
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

// closeTransfer ends the transfer if all of it has come, or all that will. It sends taken unless the peer knows
// already. A peer that knows still waits for the acknowledgement of its writes, which the next message carries.
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

// mayFetch reports whether something is left to ask for and may be asked for now: only one room is named at a time.
func (c *Conn) mayFetch() bool {
	in := &c.in
	return in.open && !in.ended && !c.down && in.asked < in.length && (in.read || in.roomLand == nil)
}

// landingAccess: the peer may write landings in write mode; in read mode only this side does.
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

// The ring, for which the package's comment has the reason:
//
//	receiver                                 sender
//	room(0): n bytes of memory from here  -->
//	                                     <--  RDMA write with immediate data: k bytes
//	room(0): a part of the ring is read   -->
//
// Bytes lie in the ring in the order of the stream. The sender does not write across its end. What was read is given
// back when it is half of the ring, or when it is ringPart and a Read finds nothing. Each RDMA write takes one of the
// data buffers. At most ringParts room messages are under way. A data message of such a Write is marked as one that
// would suit a ring.
const (
	ringSize = 256 << 10    // bytes; where the path carries packets it is the whole packets that have as many
	ringMost = ringSize / 2 // bytes of a Write that goes there
	// bytes of the least such Write: one that fits in a frame of an MTU of 1500 goes by a message
	ringLeast = 2 << 10
	ringAfter = ringSize / 2 // bytes of such Writes after which there is one; a transfer is half of them
	ringID    = 0            // in the place of a transfer's
	ringWish  = 1            // in the same place, in a data message that would suit a ring
	maxRings  = 64           // of a stack
	ringParts = 5            // of a ring that is longer than ringSize, each at least a packet
)

// ringPart is the least of a ring that is given back: a half, or a fifth where the path carries packets.
func ringPart(size int) int {
	if size > ringSize {
		return size / ringParts
	}
	return size / 2
}

// ring is memory of this side that the peer writes to. The lock of the connection guards it.
type ring struct {
	lease *lease // nil: none
	size  int
	past  int // bytes that would have gone through it
	at    int // where the next bytes come
	open  int // how many the peer may write
	freed int // bytes read since the last room message
	last  int // length of the last arrival: as many bytes may be on their way
}

// wantRing counts n bytes of a Write that would suit a ring, and offers one after ringAfter bytes. Under mu.
func (c *Conn) wantRing(n int) {
	r := &c.ring
	if r.lease != nil {
		return
	}
	if r.past += n; r.past < ringAfter {
		return
	}
	r.past = 0 // if there is none now, then after as many
	if c.stack.rings.Add(1) > maxRings {
		c.stack.rings.Add(-1)
		return
	}
	size := ringSize
	if n := c.packet(); n > 0 { // the peer's packets are as long
		size = (ringSize + n - 1) / n * n
	}
	lease, err := c.stack.regs.heap(c.tag, size, writable)
	if err != nil {
		c.stack.rings.Add(-1)
		return // it goes on without
	}
	r.lease, r.size, r.freed, c.due.ring = lease, size, size, true
}

// endRing gives the ring back.
func (c *Conn) endRing() {
	if c.ring.lease != nil {
		c.ring.lease.region.Deregister()
		c.ring.lease = nil
		c.stack.rings.Add(-1)
	}
}

// pushRing names the ring, or says how much of it was read.
func (c *Conn) pushRing() bool {
	if !c.due.ring {
		return true
	}
	r := &c.ring
	at := r.lease.remote()
	if !c.control(&c.due.ring, header{kind: kindRoom, id: ringID, length: uint32(r.freed), handle: at.Handle, addr: at.Data}) {
		return false
	}
	r.open += r.freed
	r.freed = 0
	return true
}

// takeInRing takes bytes that the peer has written to the ring. The RDMA write has completed the receive of buffer i. As
// in takeFilled, a hostile peer may have written elsewhere.
func (c *Conn) takeInRing(h *header, i int) error {
	r, n := &c.ring, int64(h.length)
	switch {
	case c.held+len(c.spent) >= c.dataBuffers():
		return errOverrun
	case c.fin || c.in.open:
		return errOrder
	case n > int64(r.open) || n > int64(r.size-r.at):
		return errTransfer
	}
	c.spent = append(c.spent, i)
	c.queue.add(segment{data: r.lease.buf[r.at : r.at+int(n)], ring: int(n)})
	r.at = (r.at + int(n)) % r.size
	r.open -= int(n)
	r.last = int(n)
	raise(c.readable)
	return nil
}

// readFromRing notes that n bytes of the ring were read.
func (c *Conn) readFromRing(n int) {
	c.ring.freed += n
	c.due.ring = c.due.ring || c.ring.freed >= c.ring.size/2
}
