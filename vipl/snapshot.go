package vipl

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
