package vipl

import (
	"viaxdp/internal/base/ordered"
	"viaxdp/internal/base/wire"
	"viaxdp/memreg"
)

// MaxDescriptorsPerQueue is the number of descriptors that may be posted on one work queue.
const MaxDescriptorsPerQueue = 4096

// segment is a data segment, checked and translated when posted.
type segment struct {
	data   []byte
	region *memreg.Region
}

// posted is a descriptor on a work queue, with everything that the engine needs of it. It is read once at post, so
// later writes of the program to the descriptor have no effect. It takes three cache lines; a message in one
// segment uses little of the third.
type posted struct {
	desc   *Descriptor
	home   *memreg.Region // where the descriptor lies
	inline [1]segment     // the segment of a message in one piece
	op     Status         // StatusOp value
	status Status         // set on completion
	length uint32         // sum of the segments' lengths in the descriptor
	moved  uint32         // bytes sent or placed

	off     int    // position of moved: offset in segment seg
	seg     uint16 //
	count   uint16 // segments
	control Control
	begun   bool   // a frame was sent
	packed  bool   // in a frame with others
	byRef   bool   // frames name parts of its memory: done when they are acknowledged
	done    bool   // RDMA read: all data has arrived
	over    bool   // completes with status once none of its memory is read
	unread  uint16 // frames that name its memory, see byref.go
	first   uint32 // sequence number of the message's first frame
	last    uint32 // sequence number of its last frame
	imm     uint32
	arrived uint32 // receive: bytes that arrived

	asPosted snapshot // the descriptor, for detecting changes by the program

	many *[MaxSegments]segment // the segments of a message in several pieces, kept for reuse
}

// segs returns the data segments.
func (e *posted) segs() []segment {
	if e.count > 1 {
		return e.many[:e.count]
	}
	return e.inline[:e.count]
}

// workQueue is a send or receive queue. The port's lock guards everything; the counters are atomic, so that Done
// can read them without it.
//
//	dequeued       completed          current          posted
//	   |---- done ----|--- in flight ----|--- waiting ----|
type workQueue struct {
	ring    []posted // power of two, doubles up to MaxDescriptorsPerQueue
	current uint64

	tail      ordered.Uint64
	completed ordered.Uint64
	settling  ordered.Uint64 // like completed, but advanced before a descriptor's status is written, for a program that has seen the status
	dequeued  ordered.Uint64
	userRing  *userRing // for dequeueing without the lock; nil: not in use

	cq     *CQ
	listed uint64 // entries in cq, used while cq drops some
	isRecv bool
	vi     *VI
	signal signal

	handlers []func(*VI, *Descriptor) // waiting for completions
	calls    caller
}

const firstRing = 16

func (q *workQueue) init(v *VI, cq *CQ, isRecv bool) {
	q.ring = make([]posted, firstRing)
	q.vi, q.cq, q.isRecv = v, cq, isRecv
	q.calls.over = &v.nic.shut
	q.signal.init()
}

func (q *workQueue) at(i uint64) *posted { return &q.ring[i&uint64(len(q.ring)-1)] }

// push makes room for one more descriptor at the tail, or returns nil if the queue is full. The entry joins the
// queue with commit.
func (q *workQueue) push() *posted {
	head := q.dequeued.Load()
	if q.tail.Load()-head == uint64(len(q.ring)) {
		if len(q.ring) == MaxDescriptorsPerQueue {
			return nil
		}
		q.grow(head)
	}
	e := q.at(q.tail.Load())
	e.moved, e.seg, e.off, e.count, e.arrived, e.status = 0, 0, 0, 0, 0, 0
	e.begun, e.packed, e.byRef, e.done, e.over = false, false, false, false, false
	return e
}

func (q *workQueue) commit() { q.tail.Store(q.tail.Load() + 1) }

func (q *workQueue) grow(head uint64) {
	ring := make([]posted, 2*len(q.ring))
	for i := head; i != q.tail.Load(); i++ {
		to, from := &ring[i&uint64(len(ring)-1)], q.at(i)
		*to = *from
	}
	q.ring = ring
	if q.userRing != nil {
		q.userRing.grow(len(ring), head, q.completed.Load())
	}
}

// waiting returns the first descriptor that the engine has not finished, or nil.
func (q *workQueue) waiting() *posted {
	if q.current == q.tail.Load() {
		return nil
	}
	return q.at(q.current)
}

// place copies the next bytes of a message into the segments, in ascending order, and returns how many fit.
func (e *posted) place(b []byte) int {
	n := 0
	for segs := e.segs(); n < len(b) && int(e.seg) < len(segs); {
		s := segs[e.seg].data
		k := copy(s[e.off:], b[n:])
		n += k
		if e.off += k; e.off == len(s) {
			e.seg++
			e.off = 0
		}
	}
	e.moved += uint32(n)
	return n
}

// placeAll places a frame's part of a message. False: it does not fit.
func (e *posted) placeAll(pkt *wire.Packet) bool {
	if e.place(pkt.Payload) < len(pkt.Payload) {
		return false
	}
	for _, b := range pkt.Rest {
		if e.place(b) < len(b) {
			return false
		}
	}
	return true
}

// gather copies the next len(b) bytes of a message out of the segments. It returns their checksum if sums is set.
func (e *posted) gather(b []byte, sums bool) (sum uint32) {
	segs := e.segs()
	for n := 0; n < len(b); {
		s := segs[e.seg].data
		k := min(len(b)-n, len(s)-e.off)
		if sums {
			sum = wire.CopyPayload(sum, b[n:], s[e.off:e.off+k])
		} else {
			copy(b[n:], s[e.off:e.off+k])
		}
		n += k
		if e.off += k; e.off == len(s) {
			e.seg++
			e.off = 0
		}
	}
	e.moved += uint32(len(b))
	return sum
}

// rewind resets the position in the message.
func (e *posted) rewind() { e.moved, e.seg, e.off = 0, 0, 0 }

// rewindHead resets the position in the receive at the head, which will receive another message: nothing of one
// message may precede the next.
func (q *workQueue) rewindHead() {
	if e := q.waiting(); e != nil {
		e.rewind()
	}
}

// settleQueue completes the descriptors at the head of a send queue that are done or were flushed.
func (p *port) settleQueue(q *workQueue) {
	c := q.vi.conn
	for i := q.completed.Load(); i != q.current; i++ {
		e := q.at(i)
		if e.unread > 0 || !e.over && (c == nil || !c.isDone(e)) {
			return
		}
		p.complete(q.vi, q, e, e.status)
	}
}

// isDone reports whether a descriptor is done. All of its frames are on the ring.
func (c *conn) isDone(e *posted) bool {
	if e.op == StatusOpRDMARead {
		return e.done
	}
	return !e.byRef && c.vi.attrs.Level != ReliableReception || int32(c.sender.Unacked()-e.last) > 0
}

// settleReceives completes receives that were wrong when posted and are now at the head. On a reliable VI that
// breaks the connection, unless Disconnect is already ending it.
func (p *port) settleReceives(v *VI) {
	q := &v.recv
	for {
		e := q.waiting()
		if e == nil || !e.status.Failed() {
			return
		}
		if c := v.conn; c != nil && c.open && c.sender != nil && !c.ending.begun {
			p.refuse(c, wire.ReasonClosed, errDescriptor, p.now())
			return // teardown completed it, or the end of the connect will
		}
		q.current++
		p.complete(v, q, e, e.status)
	}
}

// complete completes e, the first descriptor of q that is not complete: length and immediate data, then the status
// with DONE last, then the CQ entry and the waiters. Under the lock.
func (p *port) complete(v *VI, q *workQueue, e *posted, s Status) {
	d := e.desc
	s |= StatusDone | e.op
	if !e.asPosted.of(d) {
		v.reportDescriptor(ErrorPostDesc, d, e.op, errAltered)
	}
	if !e.home.Ptag().Matches(v.tag) {
		s |= StatusProtectionError
		v.reportDescriptor(ErrorCompletionProtection, d, e.op, errRetagged)
	}
	if q.isRecv {
		d.Length = e.arrived
		d.ImmediateData = 0
		if s&StatusImmediate != 0 {
			d.ImmediateData = e.imm
		}
	}
	e.status = s
	e.release()
	n := q.completed.Load()
	q.settling.Store(n + 1)
	if q.cq != nil {
		q.cq.settling.Store(1)
	}
	d.setStatus(s)
	if q.userRing != nil {
		q.userRing.put(n, d, s)
	}
	if len(q.handlers) > 0 {
		q.dequeued.Store(n + 1) // first, so that nothing else sees it on the queue
		e.desc = nil
	}
	q.completed.Store(n + 1)
	if q.cq != nil {
		q.cq.push(v, q.isRecv)
		if len(q.cq.handlers) > 0 {
			q.cq.serveHandlers()
		}
		p.raise(&q.cq.signal)
		return
	}
	if len(q.handlers) > 0 {
		p.give(v, q, d)
	}
	p.raise(&q.signal)
}

// release unpins the memory that the descriptor used. An unused place in the ring must not keep memory alive.
func (e *posted) release() {
	segs := e.segs()
	for i := range segs {
		if r := segs[i].region; r != nil { // nil: an empty segment
			r.Unpin()
		}
		segs[i] = segment{}
	}
	e.count = 0
	if e.home != nil {
		e.home.Unpin()
		e.home = nil
	}
}

// isSettling reports, after ready was false, whether a descriptor's status may have been written that does not
// count as completed yet. It will, once the writer has run on.
func (q *workQueue) isSettling() bool { return int64(q.settling.Load()-q.dequeued.Load()) > 0 }

// ready reports whether a completed descriptor is on the queue.
func (q *workQueue) ready() bool { return q.completed.Load() != q.dequeued.Load() }

// empty reports whether the queue has no descriptor, complete or not.
func (q *workQueue) empty() bool {
	head := q.dequeued.Load() // first, since others may post and dequeue concurrently
	return q.tail.Load() == head
}

// pop dequeues the head. It returns nil if the head is not complete, or if a thread without the lock has dequeued
// it. Under the lock.
func (q *workQueue) pop() (*Descriptor, Status) {
	for {
		head := q.dequeued.Load() // read once: a thread without the lock may advance it at any time
		if q.completed.Load() == head {
			return nil, 0
		}
		e := q.at(head)
		d, s := e.desc, e.status
		if q.claim(head) {
			e.desc = nil
			return d, s
		}
	}
}

func (q *workQueue) notify() *signal { return &q.signal }

func (q *workQueue) handle() *NIC { return q.vi.nic }

func (q *workQueue) destroyed() error {
	if q.vi.gone.Load() {
		return errDestroyed
	}
	return nil
}
