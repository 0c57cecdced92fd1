package vipl

// Step 1 of the path of a message: the posted descriptor is read once, checked and translated.

import (
	"errors"
	"fmt"
	"math"

	"viaxdp/memreg"
)

var (
	errAlignment = fmt.Errorf("a descriptor's address must be a multiple of %d", DescriptorAlignment)
	errNil       = errors.New("nil descriptor")
	errOverrun   = fmt.Errorf("%d descriptors are posted", MaxDescriptorsPerQueue)
	errAltered   = errors.New("the descriptor was changed while it was posted")
	errRetagged  = errors.New("the protection tag of the descriptor's memory was changed while it was posted")
)

// snapshot is a descriptor as it was posted, except for the status and for Next and NextHandle, which some programs
// use at any time.
//
// It is copied field by field, each load as wide as the program's store. A load that spans several stores in the
// store buffer would wait until they reach the cache.
type snapshot struct {
	segCount  uint16
	control   Control
	reserved  uint32
	immediate uint32
	length    uint32
	segments  [2]DataSegment // only those that SegCount covers
}

func (s *snapshot) take(d *Descriptor) {
	s.segCount, s.control = d.SegCount, d.Control
	s.reserved, s.immediate, s.length = d.Reserved, d.ImmediateData, d.Length
	if s.segCount > 0 {
		s.segments[0].copy(&d.segments[0])
	}
	if s.segCount > 1 {
		s.segments[1].copy(&d.segments[1])
	}
}

// of reports whether d is unchanged. Unused segments and segments past the second are not compared.
func (s *snapshot) of(d *Descriptor) bool {
	return s.segCount == d.SegCount && s.control == d.Control &&
		s.reserved == d.Reserved && s.immediate == d.ImmediateData && s.length == d.Length &&
		(s.segCount == 0 || s.segments[0] == d.segments[0]) && (s.segCount < 2 || s.segments[1] == d.segments[1])
}

// remote returns the address segment of an RDMA descriptor.
func (s *snapshot) remote() AddressSegment {
	return AddressSegment{Data: s.segments[0].Data, Handle: s.segments[0].Handle, Reserved: s.segments[0].Length}
}

// segment returns segment i of d; the first two are in s.
func (s *snapshot) segment(d *Descriptor, i int) DataSegment {
	if i < len(s.segments) {
		return s.segments[i]
	}
	return *d.Segment(i)
}

// copy copies from to s field by field, see snapshot.
func (s *DataSegment) copy(from *DataSegment) {
	s.Data, s.Handle, s.Length = from.Data, from.Handle, from.Length
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
