package vipl

import (
	"strings"
	"sync/atomic"

	"viaxdp/internal/base/ordered"
	"viaxdp/memreg"
)

// MemHandle names registered memory; a valid one is never 0.
type MemHandle = memreg.Handle

// Sizes of descriptors, in bytes.
const (
	DescriptorAlignment = 64 // of a descriptor's address
	ControlSegmentSize  = 32 // the fields before the data segments
	DataSegmentSize     = 16
)

// MaxSegments is the largest number of data segments of a descriptor. RDMA
// operations have an address segment before them.
const MaxSegments = 252

// Control is the control field of a descriptor.
type Control uint16

// Bits of Control. The two lowest are the operation.
const (
	ControlSendRecv  Control = 0
	ControlRDMAWrite Control = 1
	ControlRDMARead  Control = 2
	ControlImmediate Control = 0x4 // send, RDMA write: carries immediate data
	ControlQFence    Control = 0x8 // wait until earlier RDMA reads of the queue are done

	controlOperation Control = 0x3
	controlKnown             = controlOperation | ControlImmediate | ControlQFence
)

// Status is the status field of a descriptor.
type Status uint32

// Bits of Status.
const (
	StatusDone            Status = 0x1
	StatusFormatError     Status = 0x2   // a field violates the descriptor's format
	StatusProtectionError Status = 0x4   // handle, tag or range of a segment is wrong
	StatusLengthError     Status = 0x8   // more data than the descriptor or the VI accepts
	StatusPartialPacket   Status = 0x10  // the message was cut off
	StatusFlushed         Status = 0x20  // the VI was disconnected or broke before
	StatusTransportError  Status = 0x40  // the network failed
	StatusRemoteRDMAError Status = 0x80  // protection error of the target
	StatusRemoteDescError Status = 0x100 // the target's descriptor was missing or wrong

	StatusErrorMask Status = 0x1fe

	StatusOpMask            Status = 0x70000
	StatusOpSend            Status = 0x00000
	StatusOpReceive         Status = 0x10000
	StatusOpRDMAWrite       Status = 0x20000
	StatusOpRemoteRDMAWrite Status = 0x30000 // receive: consumed by the peer's RDMA write with immediate data
	StatusOpRDMARead        Status = 0x40000
	StatusImmediate         Status = 0x80000 // immediate data came with the message
)

var statusErrorNames = [...]string{
	"format", "protection", "length", "partial packet", "flushed", "transport", "remote RDMA protection",
	"remote descriptor",
}

// Failed reports whether an error bit is set.
func (s Status) Failed() bool { return s&StatusErrorMask != 0 }

// String returns the names of the error bits.
func (s Status) String() string {
	if s&StatusDone == 0 {
		return "posted"
	}
	if !s.Failed() {
		return "done"
	}
	var names []string
	for i, name := range statusErrorNames {
		if s&(StatusFormatError<<i) != 0 {
			names = append(names, name)
		}
	}
	return "done, errors: " + strings.Join(names, ", ")
}

// DataSegment describes a piece of registered memory.
type DataSegment struct {
	Data   uint64 // virtual address, no alignment rule
	Handle MemHandle
	Length uint32 // bytes, may be 0
}

// AddressSegment names memory of the peer, by the peer's address and handle. It
// is the first segment of a descriptor for RDMA.
type AddressSegment struct {
	Data     uint64 // virtual address in the peer, no alignment rule
	Handle   MemHandle
	Reserved uint32 // must be 0
}

// Descriptor is VIA's descriptor, byte for byte: a control segment of 32 bytes and two segments; further segments
// follow in memory. It lies in registered memory at a multiple of 64; [Region.Descriptor] makes one.
//
// A posted descriptor belongs to the provider. Status is written last on completion; read it only by
// [Descriptor.Status].
type Descriptor struct {
	Next          uint64 // for use by the program while not posted
	NextHandle    MemHandle
	SegCount      uint16 // segments: data segments, and the address segment of RDMA
	Control       Control
	Reserved      uint32 // must be 0
	ImmediateData uint32 // send: to carry; receive: what arrived, 0 if nothing did
	Length        uint32 // send: sum of the segments; receive: bytes that arrived
	status        uint32
	segments      [2]DataSegment
}

// Status reads the status. It may be called at any time from any goroutine.
func (d *Descriptor) Status() Status { return Status(atomic.LoadUint32(&d.status)) }

func (d *Descriptor) setStatus(s Status) { ordered.StoreUint32(&d.status, uint32(s)) }

// SetSegments makes a send or a receive of these segments: it sets the
// operation, SegCount and Length. The descriptor must have been made with room
// for that many.
func (d *Descriptor) SetSegments(segs ...DataSegment) {
	d.Control &^= controlOperation
	d.setSegments(0, segs)
}

// SetRDMAWrite makes an RDMA write of these segments, in order, to remote. The descriptor must have room for one
// more segment. Set immediate data after it.
func (d *Descriptor) SetRDMAWrite(remote AddressSegment, segs ...DataSegment) {
	d.Control = ControlRDMAWrite
	*d.AddressSegment() = remote
	d.setSegments(1, segs)
}

// SetRDMARead makes an RDMA read from remote into these segments, in ascending order. The descriptor must have room
// for one more segment.
func (d *Descriptor) SetRDMARead(remote AddressSegment, segs ...DataSegment) {
	d.Control = ControlRDMARead
	*d.AddressSegment() = remote
	d.setSegments(1, segs)
}

func (d *Descriptor) setSegments(first int, segs []DataSegment) {
	total := uint32(0)
	for i := range segs {
		d.Segment(first + i).copy(&segs[i])
		total += segs[i].Length
	}
	d.SegCount, d.Length = uint16(first+len(segs)), total
}

// SetImmediate makes a send or an RDMA write carry v as immediate data.
func (d *Descriptor) SetImmediate(v uint32) {
	d.Control |= ControlImmediate
	d.ImmediateData = v
}

// Immediate returns the immediate data that arrived with a message; ok is false if there was none.
func (d *Descriptor) Immediate() (v uint32, ok bool) {
	return d.ImmediateData, d.Status()&StatusImmediate != 0
}
