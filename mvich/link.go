package mvich

import (
	"errors"
	"fmt"

	"viaxdp/vipl"
)

// condition of the connection with a peer.
//
//	                                               BYE, the world's end, or
//	          call, or the peer's call             broken after Finalize
//	apart ---------> admitting, joined ---------------------------> left
//	                      |  broken, unreachable
//	                      +-------------------------------> dead
type condition uint8

const (
	apart condition = iota
	admitting
	joined
	left // it has sent bye, or is not needed any more
	dead
)

// peer is another rank as this one sees it. The world's mutex guards it.
type peer struct {
	rank  int
	host  netAddress
	state condition
	cause error // why it is gone
	told  *peer // the first rank whose death it has reported
	link  *link // when admitting or joined

	calling  bool  // a goroutine tries to connect
	expected bool  // callExpected will run
	probes   int   // calls of Probe that wait for it
	iprobes  int   // calls of Iprobe in vain, before it is called
	checks   vigil // of checkAlive
	canRead  bool  // RDMA reads work, both ways
	canWrite bool  // it takes RDMA writes

	// Credits; send.go has the rules.
	credits int  // receives that it has posted for us (remote_credit)
	acksDue int  // receives that we have posted and not announced to it (credit_update)
	granted int  // receives that we have announced, and it has not used
	full    bool // it asks for envelopes only

	// What waits to be sent, by class.
	control fifo[packet]
	sends   fifo[*Request] // messages not begun
	streams fifo[*Request] // R3: data to send
	moves   fifo[*Request] // RDMA to post
	moving  int            // RDMA operations posted and not complete

	unexpected int  // bytes of its messages without a receive
	envelopes  int  // of those without data
	late       int  // of those with data that came when there were too many bytes
	dirty      bool // in World.dirty
}

// packet is a control packet that waits to be sent.
type packet struct {
	header header
	offer  offer // of kindReady and kindRequest
}

// idle reports whether nothing waits to be sent.
func (p *peer) idle() bool {
	return p.control.len()+p.sends.len()+p.streams.len()+p.moves.len()+p.moving == 0
}

// gone reports whether nothing will come from it or go to it any more.
func (p *peer) gone() bool { return p.state == left || p.state == dead }

// lost is the error of operations that involve a peer that is gone.
func (p *peer) lost() error { return &RankError{Rank: p.rank, Err: p.cause} }

// link is a VI and what is posted on it. A peer may have had several; the last one counts.
type link struct {
	peer  *peer
	vi    *vipl.VI
	recvs fifo[*vbuf]
	sends fifo[*vbuf]
	heard bool // a packet has come
	held  []heldRequest
}

// heldRequest is a request that fails with err when the VI of its link is disconnected.
type heldRequest struct {
	request *Request
	err     error
}

// newLink makes a VI for p.
func (w *World) newLink(p *peer) (*link, error) {
	vi, err := w.nic.CreateVI(vipl.VIAttributes{
		Level: vipl.ReliableDelivery, Ptag: w.tag, EnableRDMARead: w.set.read, EnableRDMAWrite: w.set.write,
	}, w.cq, w.cq)
	if err != nil {
		return nil, err
	}
	l := &link{peer: p, vi: vi}
	vi.SetValue(l)
	return l, nil
}

// stock posts receives until there are as many as there should be.
func (w *World) stock(l *link) error {
	for l.recvs.len() < w.set.credits {
		v, err := w.pool.get()
		if err != nil {
			return err
		}
		if err := w.postRecv(l, v); err != nil {
			w.pool.put(v)
			return err
		}
	}
	return nil
}

func (w *World) postRecv(l *link, v *vbuf) error {
	v.desc.Control = 0
	v.desc.SetSegments(v.place)
	if err := l.vi.PostRecv(v.desc, v.home); err != nil {
		return err
	}
	l.recvs.push(v)
	return nil
}

// post puts v, whose descriptor is ready, on the send queue.
func (w *World) post(l *link, v *vbuf) error {
	if err := l.vi.PostSend(v.desc, v.home); err != nil {
		w.pool.put(v)
		return err
	}
	l.sends.push(v)
	return nil
}

// failLater fails a request when the VI is disconnected. Until then RDMA may still read or write its buffer. The
// peer controls when posted operations go on, and would read what the program writes there next.
func (l *link) failLater(r *Request, err error) {
	if !r.held { // it may have waited in more than one place
		r.held = true
		l.held = append(l.held, heldRequest{r, err})
	}
}

// retire ends a link in the background: it disconnects, takes the vbufs back, destroys the VI and fails the requests
// that were held for it.
func (w *World) retire(l *link) {
	w.tasks.Go(func() {
		l.vi.Disconnect()
		w.mu.Lock()
		defer w.mu.Unlock()
		for d, _ := l.vi.SendDone(); d != nil; d, _ = l.vi.SendDone() {
			w.pool.put(l.sends.pop())
		}
		for d, _ := l.vi.RecvDone(); d != nil; d, _ = l.vi.RecvDone() {
			w.pool.put(l.recvs.pop())
		}
		l.vi.Destroy()
		for _, h := range l.held {
			w.complete(h.request, h.err)
		}
		l.held = nil
	})
}

// causeOf is why the VI of a link is in Error.
func causeOf(l *link) error {
	if s, err := l.vi.Query(); err == nil && s.Cause != nil {
		return s.Cause
	}
	return vipl.ErrDescriptor
}

// vbuf is a buffer for one packet, with the descriptor that sends or receives it. For RDMA only the descriptor is
// used. It has one owner at any time: the pool, a work queue of a link, or the code that fills or reads it.
//
//	                 get                      post
//	pool (free) --------> filled or empty --------> a work queue of a VI
//	     ^                                               |
//	     +------------- put ---- handled <---------------+ Done
type vbuf struct {
	desc  *vipl.Descriptor
	home  vipl.MemHandle   // of the region that it lies in
	data  []byte           // the packet
	place vipl.DataSegment // of data
	op    operation        // RDMA: what it is a part of
}

// operation is one RDMA operation of a request.
type operation struct {
	request *Request // nil: none
	bytes   int
}

// segment describes the first n bytes of the packet.
func (v *vbuf) segment(n int) vipl.DataSegment {
	s := v.place
	s.Length = uint32(n)
	return s
}

// poolStep is how many vbufs a pool grows by.
const poolStep = 64

// pool is where the vbufs of a world come from. It grows by a region at a time, of the NIC's arena as long as that
// has room, then of the program's memory, and keeps what it has.
type pool struct {
	nic     *vipl.NIC
	tag     *vipl.Ptag
	size    int // bytes of a packet
	free    []*vbuf
	regions []*vipl.Region
	total   int
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// get takes a vbuf. An error means that the NIC takes no more memory.
func (p *pool) get() (*vbuf, error) {
	if len(p.free) == 0 {
		if err := p.grow(); err != nil {
			return nil, fmt.Errorf("mvich: no buffers for packets beyond %d: %w", p.total, err)
		}
	}
	last := len(p.free) - 1
	v := p.free[last]
	p.free = p.free[:last]
	return v, nil
}

// put gives a vbuf back.
func (p *pool) put(v *vbuf) {
	v.op = operation{}
	p.free = append(p.free, v)
}

func (p *pool) grow() error {
	const align = vipl.DescriptorAlignment
	slot := roundUp(align+p.size, align) // the descriptor, and the packet
	region, err := p.nic.AllocMem(poolStep*slot, vipl.MemAttributes{Ptag: p.tag})
	if errors.Is(err, vipl.ErrResource) {
		region, err = p.nic.RegisterMem(make([]byte, poolStep*slot+align), vipl.MemAttributes{Ptag: p.tag})
	}
	if err != nil {
		return err
	}
	p.regions = append(p.regions, region)
	first := int(-region.Addr() & (align - 1))
	for i := range poolStep {
		at := first + i*slot
		d, err := region.Descriptor(at, 2)
		if err != nil {
			return err
		}
		data := at + align
		p.free = append(p.free, &vbuf{
			desc: d, home: region.Handle(),
			data: region.Bytes()[data : data+p.size : data+p.size], place: region.Segment(data, p.size),
		})
	}
	p.total += poolStep
	return nil
}

// close deregisters everything. A region whose descriptors a VI still holds stays until the NIC is closed, and is
// reported in the error.
func (p *pool) close() error {
	var errs []error
	for _, r := range p.regions {
		errs = append(errs, r.Deregister())
	}
	p.free, p.regions = nil, nil
	return errors.Join(errs...)
}

// fifo is a queue: first in, first out. The zero value is empty. Once it has grown to what it is used for it
// allocates nothing.
type fifo[T any] struct {
	ring []T // a power of two of places
	head int // of the oldest
	n    int
}

func (q *fifo[T]) len() int { return q.n }

func (q *fifo[T]) push(v T) {
	if q.n == len(q.ring) {
		ring := make([]T, max(8, 2*len(q.ring)))
		copy(ring[copy(ring, q.ring[q.head:]):], q.ring[:q.head])
		q.ring, q.head = ring, 0
	}
	q.ring[(q.head+q.n)&(len(q.ring)-1)] = v
	q.n++
}

// pop takes the oldest, which must be there.
func (q *fifo[T]) pop() (v T) {
	slot := &q.ring[q.head]
	v, *slot = *slot, v // the place keeps nothing alive
	q.head = (q.head + 1) & (len(q.ring) - 1)
	q.n--
	return v
}

// peek looks at the oldest, which must be there.
func (q *fifo[T]) peek() T { return q.ring[q.head] }

// each calls f with everything in the queue, the oldest first.
func (q *fifo[T]) each(f func(T)) {
	for i := range q.n {
		f(q.ring[(q.head+i)&(len(q.ring)-1)])
	}
}

// filter keeps what f says yes to.
func (q *fifo[T]) filter(f func(T) bool) {
	for range q.n {
		if v := q.pop(); f(v) {
			q.push(v)
		}
	}
}

// drain empties the queue into f.
func (q *fifo[T]) drain(f func(T)) {
	for q.n > 0 {
		f(q.pop())
	}
}
