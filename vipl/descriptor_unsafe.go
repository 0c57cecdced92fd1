package vipl

import "unsafe"

// The layout that VIPL programs were compiled against.
var (
	_ [64]struct{} = [unsafe.Sizeof(Descriptor{})]struct{}{}
	_ [16]struct{} = [unsafe.Sizeof(DataSegment{})]struct{}{}
	_ [16]struct{} = [unsafe.Sizeof(AddressSegment{})]struct{}{}
	_ [12]struct{} = [unsafe.Offsetof(Descriptor{}.SegCount)]struct{}{}
	_ [28]struct{} = [unsafe.Offsetof(Descriptor{}.status)]struct{}{}
	_ [32]struct{} = [unsafe.Offsetof(Descriptor{}.segments)]struct{}{}
)

// Segment returns segment i, 0 to SegCount-1. Segments after the second lie behind the descriptor; memory must have
// been reserved for them. In a descriptor for RDMA the first one is the address segment.
func (d *Descriptor) Segment(i int) *DataSegment {
	return (*DataSegment)(unsafe.Add(unsafe.Pointer(d), ControlSegmentSize+i*DataSegmentSize))
}

// AddressSegment returns the first segment of a descriptor for RDMA.
func (d *Descriptor) AddressSegment() *AddressSegment {
	return (*AddressSegment)(unsafe.Pointer(&d.segments))
}

// Addr returns the descriptor's virtual address.
func (d *Descriptor) Addr() uint64 { return uint64(uintptr(unsafe.Pointer(d))) }

// descriptorAt lays a descriptor over memory; b is aligned and long enough.
func descriptorAt(b []byte) *Descriptor { return (*Descriptor)(unsafe.Pointer(unsafe.SliceData(b))) }

// addressOf returns the virtual address of b's first byte.
func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
