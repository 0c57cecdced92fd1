package vipl

// snapshot is a descriptor as it was posted, but for Next and NextHandle, which
// some programs use all the time, and the status.
//
// It is taken field by field, each as wide as the program has just written it: a
// load of several stores that are still on their way to the cache waits for them.
type snapshot struct {
	segCount  uint16
	control   Control
	reserved  uint32
	immediate uint32
	length    uint32
	segments  [2]DataSegment // those that are used
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

// of says whether d is as it was. Segments that are not used do not count, nor
// those past the second.
func (s *snapshot) of(d *Descriptor) bool {
	return s.segCount == d.SegCount && s.control == d.Control &&
		s.reserved == d.Reserved && s.immediate == d.ImmediateData && s.length == d.Length &&
		(s.segCount == 0 || s.segments[0] == d.segments[0]) && (s.segCount < 2 || s.segments[1] == d.segments[1])
}

// remote is the address segment, of RDMA.
func (s *snapshot) remote() AddressSegment {
	return AddressSegment{Data: s.segments[0].Data, Handle: s.segments[0].Handle, Reserved: s.segments[0].Length}
}

// segment is segment i of d, of which the first two are here.
func (s *snapshot) segment(d *Descriptor, i int) DataSegment {
	if i < len(s.segments) {
		return s.segments[i]
	}
	return *d.Segment(i)
}

// copy makes s what from is, field by field, see snapshot.
func (s *DataSegment) copy(from *DataSegment) {
	s.Data, s.Handle, s.Length = from.Data, from.Handle, from.Length
}
