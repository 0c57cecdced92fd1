package vipl

import (
	"viaxdp/internal/ordered"
	"viaxdp/memreg"
	"viaxdp/wire"
)

// MaxDescriptorsPerQueue is the number of descriptors that may be posted on
// one work queue.
const MaxDescriptorsPerQueue = 4096

// segment is a data segment as it was checked and translated at post.
type segment struct {
	data   []byte
	region *memreg.Region
}

// posted is a descriptor on a work queue, with everything that the engine
// needs of it, read once at post: what the program writes to the descriptor
// afterwards changes nothing and can harm nobody. Three lines of the cache, of
// which a message in one segment needs little of the third.
type posted struct {
	desc   *Descriptor
	home   *memreg.Region // where the descriptor lies
	inline [1]segment     // of a message in one piece
	op     Status         // StatusOp value
	status Status         // set on completion
	length uint32         // sum of the segments
	moved  uint32         // bytes sent or placed

	off     int    // where moved stands: offset in segment seg
	seg     uint16 //
	count   uint16 // segments
	control Control
	begun   bool   // a frame was sent
	packed  bool   // in a frame with others
	lent    bool   // frames have parts of its memory, not copies: done when they are acknowledged
	done    bool   // RDMA read: everything has come
	first   uint32 // sequence numbers of the message's first frame
	last    uint32 // and last frame
	imm     uint32
	arrived uint32 // receive: bytes that came

	asPosted snapshot // the descriptor, to notice that the program changes it

	many *[MaxSegments]segment // of a message in several pieces, kept for the next use
}

// segs are the data segments.
func (e *posted) segs() []segment {
	if e.count > 1 {
		return e.many[:e.count]
	}
	return e.inline[:e.count]
}

// workQueue is a send or receive queue. The port's lock guards everything; the
// counters are such that Done can look without it.
//
//	dequeued       completed          current          posted
//	   |---- done ----|--- in flight ----|--- waiting ----|
type workQueue struct {
	ring    []posted // power of two, doubles up to MaxDescriptorsPerQueue
	current uint64

	tail      ordered.Uint64
	completed ordered.Uint64
	settling  ordered.Uint64 // completed, but written before a descriptor's status is, for who has seen that
	dequeued  ordered.Uint64
	outside   *outside // for who takes without the lock; nil: nobody does

	cq     *CQ
	isRecv bool
	vi     *VI
	signal signal

	handlers []func(*VI, *Descriptor) // wait for completions
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

// isSettling says, where ready has said no, whether a descriptor's status may have been written
// that did not count as completed yet: in a moment, or when who writes has a processor again, it does.
func (q *workQueue) isSettling() bool { return int64(q.settling.Load()-q.dequeued.Load()) > 0 }

// ready says whether a completed descriptor waits to be dequeued.
func (q *workQueue) ready() bool { return q.completed.Load() != q.dequeued.Load() }

func (q *workQueue) notify() *signal { return &q.signal }

func (q *workQueue) handle() *Nic { return q.vi.nic }

func (q *workQueue) destroyed() error {
	if q.vi.gone.Load() {
		return errDestroyed
	}
	return nil
}

// empty says whether nothing is on the queue, complete or not.
func (q *workQueue) empty() bool {
	head := q.dequeued.Load() // first: others may post and take meanwhile
	return q.tail.Load() == head
}

// push makes room for one more descriptor at the tail, or returns nil when the
// queue is full. The entry joins the queue with commit.
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
	e.begun, e.packed, e.lent, e.done = false, false, false, false
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
	if q.outside != nil {
		q.outside.grow(len(ring), head, q.completed.Load())
	}
}

// waiting returns the first descriptor that the engine has not finished with,
// or nil.
func (q *workQueue) waiting() *posted {
	if q.current == q.tail.Load() {
		return nil
	}
	return q.at(q.current)
}

// pop dequeues the head; nil: it is not complete (any more, where others take
// without the lock). Under the lock.
func (q *workQueue) pop() (*Descriptor, Status) {
	for {
		head := q.dequeued.Load() // once: who takes without the lock may advance it at any time
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

// place copies the next bytes of a message into the segments, in ascending
// order, and returns how many found room.
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

// placeAll places what a frame has of a message. False: there is no room for it.
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

// gather copies the next len(b) bytes of a message out of the segments.
func (e *posted) gather(b []byte) {
	segs := e.segs()
	for n := 0; n < len(b); {
		s := segs[e.seg].data
		k := copy(b[n:], s[e.off:])
		n += k
		if e.off += k; e.off == len(s) {
			e.seg++
			e.off = 0
		}
	}
	e.moved += uint32(len(b))
}

// rewind forgets what was sent or placed of the message.
func (e *posted) rewind() { e.moved, e.seg, e.off = 0, 0, 0 }

// release lets go of the memory that the descriptor used. It must not be kept
// alive by a place in the ring that nobody uses.
func (e *posted) release() {
	segs := e.segs()
	for i := range segs {
		if r := segs[i].region; r != nil { // nil: an empty segment
			r.Unhold()
		}
		segs[i] = segment{}
	}
	e.count = 0
	if e.home != nil {
		e.home.Unhold()
		e.home = nil
	}
}
