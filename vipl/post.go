package vipl

import (
	"errors"
	"fmt"
	"math"
	"time"

	"viaxdp/memreg"
)

// Step 1 of the path of a message: post. The descriptor is read once, checked and translated; the engine works on
// the copy.

var (
	errAlignment = fmt.Errorf("a descriptor's address must be a multiple of %d", DescriptorAlignment)
	errNil       = errors.New("nil descriptor")
	errOverrun   = fmt.Errorf("%d descriptors are posted", MaxDescriptorsPerQueue)
	errAltered   = errors.New("the descriptor was changed while it was posted")
	errRetagged  = errors.New("the protection tag of the descriptor's memory was changed while it was posted")
	errCQBound   = errors.New("the queue is bound to a completion queue: wait there")
)

// post puts d on q.
func (v *VI) post(op string, q *workQueue, d *Descriptor, h MemHandle) error {
	p := v.port
	p.mu.Lock()
	err := v.join(op, q, d, h)
	if err == nil && !q.isRecv {
		v.sendPosted(false)
	}
	p.mu.Unlock()
	return err
}

// join puts d at the tail of q. Wrong contents complete the descriptor in error; the returned error is about the
// descriptor itself. Under the lock.
func (v *VI) join(op string, q *workQueue, d *Descriptor, h MemHandle) error {
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
	if err := v.read(e, d, h); err != nil {
		v.reportDescriptor(ErrorPostDesc, d, 0, err)
		return opError(op, v, ErrInvalidParameter, err)
	}
	d.setStatus(0)
	e.status = v.translate(e, d, q.isRecv)
	q.commit()

	p := v.port
	switch {
	case q.isRecv && v.state == Error, !q.isRecv && v.state != Connected:
		if q.current != q.tail.Load()-1 {
			break // a Disconnect that is under way flushes it after the earlier ones
		}
		q.current++
		e.status, e.over = StatusFlushed|e.status, true
		p.settleQueue(q) // after the earlier ones, whose memory may still be read
	case q.isRecv:
		if e.status.Failed() {
			p.settleReceives(v)
		}
	}
	return nil
}

// sendPosted sends what was posted, as far as possible now, and processes frames that have arrived. later delays
// the doorbell until Ring. Under the lock.
func (v *VI) sendPosted(later bool) {
	if v.state != Connected {
		return
	}
	p := v.port
	p.influx.posts++
	arrived := p.arrived()
	if c := v.conn; c != nil && !arrived && !later && p.alone(c) {
		p.sendAlone(c)
		return
	}
	now := p.now()
	if arrived {
		p.receiveAll(now)
	}
	if v.conn != nil {
		p.posting(v.conn, now)
		p.pump(v.conn, now)
		p.lazy = p.mayWait(v.conn, now) || later && p.mayRingLater()
	}
	p.finish(now, false)
	p.lazy = false
	if v.conn != nil {
		p.posted(v.conn, now)
	}
}

// read copies d's control segment and first segments, and finds and pins the region in which d lies. The control
// segment comes first, since it determines the descriptor's length.
func (v *VI) read(e *posted, d *Descriptor, h MemHandle) error {
	if d == nil {
		return errNil
	}
	if d.Addr()%DescriptorAlignment != 0 {
		return errAlignment
	}
	_, home, err := v.nic.mem.Resolve(h, d.Addr(), uint32(DescriptorAlignment), v.tag)
	if err == memreg.ErrRange {
		home, err = v.readShort(d, h)
	}
	if err != nil {
		return err
	}
	e.asPosted.take(d)
	if n := e.asPosted.segCount; n > 2 && n <= MaxSegments+1 {
		_, home, err = v.nic.mem.Resolve(h, d.Addr(), ControlSegmentSize+uint32(n)*DataSegmentSize, v.tag)
		if err != nil {
			return err
		}
	}
	home.Pin()
	e.desc, e.home = d, home
	return nil
}

// readShort finds the region of a descriptor if the region ends before the descriptor's second segment. Such a
// descriptor has one segment or none.
func (v *VI) readShort(d *Descriptor, h MemHandle) (home *memreg.Region, err error) {
	if _, home, err = v.nic.mem.Resolve(h, d.Addr(), ControlSegmentSize, v.tag); err != nil {
		return nil, err
	}
	switch d.SegCount {
	case 0:
		return home, nil
	case 1:
		_, home, err = v.nic.mem.Resolve(h, d.Addr(), ControlSegmentSize+DataSegmentSize, v.tag)
		return home, err
	}
	return nil, memreg.ErrRange
}

// sendOps maps operations to their status bits; operation 3 does not exist.
var sendOps = [...]Status{
	ControlSendRecv: StatusOpSend, ControlRDMAWrite: StatusOpRDMAWrite, ControlRDMARead: StatusOpRDMARead,
	controlOperation: StatusOpSend,
}

// translate checks the descriptor that was read and pins the memory that it names. It returns the error bits with
// which the descriptor must complete.
//
// A send, an RDMA write and an RDMA read access all bytes of their segments. A receive accesses the bytes that its
// message fills. So if a receive's segment begins in its region and reaches past the end of it, it is cut at the
// end of the region. The segments behind it are kept without bytes, since no message may reach them; their regions
// are pinned all the same. tooLong ends a message that needs more.
func (v *VI) translate(e *posted, d *Descriptor, recv bool) Status {
	s := &e.asPosted
	e.control, e.imm, e.length = s.control, s.immediate, 0
	op := s.control & controlOperation
	e.op = sendOps[op]
	if recv {
		e.op = StatusOpReceive
	}
	first, count := 0, int(s.segCount)
	switch {
	case s.reserved != 0, s.control&^controlKnown != 0, op == controlOperation,
		recv && s.control&^ControlImmediate != 0: // the immediate bit may remain from a send
		return StatusFormatError
	case op == ControlSendRecv:
		if count > MaxSegments {
			return StatusFormatError
		}
	default:
		if status := v.translateRemote(s, op); status != 0 {
			return status
		}
		first = 1
	}
	e.count = uint16(count - first)
	if e.count > 1 && e.many == nil {
		e.many = new([MaxSegments]segment)
	}
	segs := e.segs()
	total := uint64(0)
	cut := false // a receive's segment has reached past the end of its region
	for i := range segs {
		named := s.segment(d, first+i)
		total += uint64(named.Length)
		if named.Length == 0 {
			continue
		}
		data, region, err := v.nic.mem.Resolve(named.Handle, named.Data, named.Length, v.tag)
		if err == memreg.ErrRange && recv {
			data, region, err = v.nic.mem.ResolvePart(named.Handle, named.Data, named.Length, v.tag)
		}
		if err != nil {
			return StatusProtectionError
		}
		if cut {
			data = nil
		}
		cut = len(data) < int(named.Length)
		region.Pin()
		segs[i] = segment{data, region}
	}
	if total > math.MaxUint32 || !recv && (total > uint64(v.attrs.MaxTransferSize) || uint32(total) != s.length) {
		return StatusLengthError
	}
	e.length = uint32(total)
	return 0
}

// translateRemote checks what only RDMA has: the address segment, which comes first.
func (v *VI) translateRemote(s *snapshot, op Control) Status {
	switch {
	case s.segCount < 1, s.segCount > MaxSegments+1, s.remote().Reserved != 0:
		return StatusFormatError
	case op == ControlRDMAWrite:
		return 0
	case v.attrs.Level == UnreliableDelivery, s.control&ControlImmediate != 0:
		return StatusFormatError
	case !v.attrs.EnableRDMARead:
		return StatusProtectionError
	}
	return 0
}

// dequeue is Done for one queue.
func (v *VI) dequeue(q *workQueue) (*Descriptor, error) {
	if !v.lockReady(q) {
		return nil, q.notReady()
	}
	d, s := q.pop()
	v.port.mu.Unlock()
	switch {
	case d == nil:
		return nil, q.notReady()
	case s.Failed():
		return d, ErrDescriptor
	}
	return d, nil
}

// lockReady takes the lock if a completed descriptor is on q, or if progress that it makes completes one. It waits
// for the lock only if a descriptor is complete or its status already says so.
func (v *VI) lockReady(q *workQueue) bool {
	p := v.port
	if q.ready() {
		p.mu.Lock()
		p.taken.Store(p.taken.Load() + 1)
	} else if q.isSettling() {
		p.mu.Lock()
		if q.ready() {
			p.taken.Store(p.taken.Load() + 1)
		}
	} else {
		if !p.busy() || !p.mu.TryLock() {
			return false
		}
		p.turns.Store(p.turns.Load() + 1)
		p.progress(p.now(), false)
	}
	if !q.ready() {
		p.mu.Unlock()
		return false
	}
	return true
}

// notReady distinguishes an empty queue from one whose head is not complete.
func (q *workQueue) notReady() error {
	if q.empty() {
		return ErrDescriptor
	}
	return ErrNotDone
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
