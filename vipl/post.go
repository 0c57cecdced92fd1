package vipl

import (
	"errors"
	"fmt"
	"math"
	"time"

	"viaxdp/memreg"
	"viaxdp/wire"
)

// Step 1 of the way of a message: post. The descriptor is read once, checked
// and translated; the engine works on what was read.

var (
	errAlignment = fmt.Errorf("a descriptor's address must be a multiple of %d", DescriptorAlignment)
	errNil       = errors.New("nil descriptor")
	errOverrun   = fmt.Errorf("%d descriptors are posted", MaxDescriptorsPerQueue)
	errAltered   = errors.New("the descriptor was changed while it was posted")
	errRetagged  = errors.New("the protection tag of the descriptor's memory was changed while it was posted")
	errCQBound   = errors.New("the queue is bound to a completion queue: wait there")
)

// post puts d on q. Wrong contents complete the descriptor in error; what is
// returned is about the descriptor itself.
func (v *VI) post(op string, q *workQueue, d *Descriptor, h MemHandle) error {
	p := v.port
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turns.Store(p.turns.Load() + 1)
	switch {
	case v.gone.Load():
		return opError(op, v, ErrInvalidParameter, errDestroyed)
	case v.nic.closing():
		return closedError(op)
	}
	e := q.push()
	if e == nil {
		v.reportDescriptor(ErrorVIOverrun, d, 0, errOverrun)
		return opError(op, v, ErrResource, errOverrun)
	}
	home, err := v.home(d, h)
	if err != nil {
		v.reportDescriptor(ErrorPostDesc, d, 0, err)
		return opError(op, v, ErrInvalidParameter, err)
	}
	e.desc, e.home = d, home
	e.asPosted.take(d)
	d.setStatus(0)
	e.status = v.translate(e, d, q.isRecv)
	q.commit()

	switch {
	case q.isRecv && v.state == Error, !q.isRecv && v.state != Connected:
		if q.completed.Load() != q.current {
			break // Disconnect, which is under way, flushes it behind those before
		}
		q.current++
		p.complete(v, q, e, StatusFlushed|e.status)
	case q.isRecv:
		if e.status.Failed() {
			p.settleReceives(v)
		}
	default:
		now := p.now()
		if p.nic.Ready() {
			p.receiveAll(now)
		}
		if v.conn != nil {
			p.posting(v.conn, now)
			p.pump(v.conn, now)
			p.lazy = p.mayWait(v.conn, now)
		}
		p.finish(now, false)
		p.lazy = false
		if v.conn != nil {
			p.posted(v.conn, now)
		}
	}
	return nil
}

// home finds and holds the region that the descriptor itself lies in. The
// control segment comes first: it says how long the descriptor is.
func (v *VI) home(d *Descriptor, h MemHandle) (*memreg.Region, error) {
	if d == nil {
		return nil, errNil
	}
	if d.Addr()%DescriptorAlignment != 0 {
		return nil, errAlignment
	}
	_, home, err := v.nic.mem.Resolve(h, d.Addr(), uint32(DescriptorAlignment), v.tag)
	if err == nil && d.SegCount > 2 && d.SegCount <= MaxSegments+1 {
		_, home, err = v.nic.mem.Resolve(h, d.Addr(), ControlSegmentSize+uint32(d.SegCount)*DataSegmentSize, v.tag)
	}
	if err == nil && !home.Hold() {
		err = memreg.ErrHandle
	}
	return home, err
}

// sendOps are the operations as the status tells them; 3 is none.
var sendOps = [...]Status{
	ControlSendRecv: StatusOpSend, ControlRDMAWrite: StatusOpRDMAWrite, ControlRDMARead: StatusOpRDMARead,
	controlOperation: StatusOpSend,
}

// translate reads the descriptor into e and holds the memory that it names. It
// returns the error bits with which the descriptor has to complete.
func (v *VI) translate(e *posted, d *Descriptor, recv bool) Status {
	e.control, e.imm, e.length = d.Control, d.ImmediateData, 0
	e.segs = e.inline[:0]
	op := d.Control & controlOperation
	e.op = sendOps[op]
	if recv {
		e.op = StatusOpReceive
	}
	first, count := 0, int(d.SegCount)
	switch {
	case d.Reserved != 0, d.Control&^controlKnown != 0, op == controlOperation, recv && d.Control != 0:
		return StatusFormatError
	case op == ControlSendRecv:
		if count > MaxSegments {
			return StatusFormatError
		}
	default:
		if status := v.translateRemote(e, d, op); status != 0 {
			return status
		}
		first = 1
	}
	if n := count - first; n > len(e.inline) {
		if cap(e.many) < n {
			e.many = make([]segment, 0, MaxSegments)
		}
		e.segs = e.many[:0]
	}
	total := uint64(0)
	for i := first; i < count; i++ {
		s := *d.Segment(i)
		total += uint64(s.Length)
		if s.Length == 0 {
			e.segs = append(e.segs, segment{})
			continue
		}
		data, region, err := v.nic.mem.Resolve(s.Handle, s.Data, s.Length, v.tag)
		if err != nil || !region.Hold() {
			return StatusProtectionError
		}
		e.segs = append(e.segs, segment{data, region})
	}
	if total > math.MaxUint32 || !recv && (total > uint64(v.attrs.MaxTransferSize) || uint32(total) != d.Length) {
		return StatusLengthError
	}
	e.length = uint32(total)
	return 0
}

// translateRemote reads what only RDMA has: the address segment, which comes
// first.
func (v *VI) translateRemote(e *posted, d *Descriptor, op Control) Status {
	count := int(d.SegCount)
	if count < 1 || count > MaxSegments+1 {
		return StatusFormatError
	}
	e.remote = *d.AddressSegment()
	switch {
	case e.remote.Reserved != 0:
		return StatusFormatError
	case op == ControlRDMAWrite:
		return 0
	case v.attrs.Level == UnreliableDelivery, d.Control&ControlImmediate != 0:
		return StatusFormatError
	case !v.attrs.EnableRdmaRead:
		return StatusProtectionError
	}
	return 0
}

// settleReceives completes receives that were wrong when posted, now that they
// are at the head: on a reliable VI that breaks the connection.
func (p *port) settleReceives(v *VI) {
	q := &v.recv
	for {
		e := q.waiting()
		if e == nil || !e.status.Failed() {
			return
		}
		if c := v.conn; c != nil && c.open && c.sender != nil {
			p.refuse(c, wire.ReasonClosed, errDescriptor, p.now())
			return // breakDown completed it
		}
		q.current++
		p.complete(v, q, e, e.status)
	}
}

// dequeue is Done for one queue.
func (v *VI) dequeue(q *workQueue) (*Descriptor, error) {
	p := v.port
	if q.ready() {
		p.mu.Lock()
	} else {
		if !p.busy() || !p.mu.TryLock() {
			return q.notReady()
		}
		p.turns.Store(p.turns.Load() + 1)
		p.progress(p.now(), false)
	}
	if !q.ready() {
		p.mu.Unlock()
		return q.notReady()
	}
	d, s := q.pop()
	p.mu.Unlock()
	if s.Failed() {
		return d, ErrDescriptor
	}
	return d, nil
}

// notReady tells an empty queue from one whose head is not complete.
func (q *workQueue) notReady() (*Descriptor, error) {
	if q.empty() {
		return nil, ErrDescriptor
	}
	return nil, ErrNotDone
}

// await is Wait for one queue.
func (v *VI) await(op string, q *workQueue, timeout time.Duration) (*Descriptor, error) {
	if q.cq != nil {
		return nil, opError(op, v, ErrInvalidParameter, errCQBound)
	}
	end := v.port.deadline(timeout)
	for {
		if err := v.port.wait(q, end); err != nil {
			return nil, waitError(op, v, err)
		}
		if d, err := v.dequeue(q); d != nil {
			return d, err
		}
	}
}
