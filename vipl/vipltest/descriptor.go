package vipltest

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"

	"viaxdp/vipl"
)

var descriptorRules = slices.Concat([]Rule{
	rule("descriptors/layout", "A descriptor is 64 bytes, its fields lie where the VIPL's headers have them, and further segments follow it.", func(t *T) {
		r := t.alloc(t.A, 192, vipl.MemAttributes{})
		d, err := r.Descriptor(64, 3)
		t.must(err)
		d.Next, d.NextHandle, d.SegCount, d.Control = 0x0102030405060708, 0x11121314, 0x2122, 0x3132
		d.Reserved, d.ImmediateData, d.Length = 0x41424344, 0x51525354, 0x61626364
		*d.Segment(0) = vipl.DataSegment{Data: 0x7172737475767778, Handle: 0x81828384, Length: 0x91929394}
		*d.Segment(2) = vipl.DataSegment{Data: 0xa1a2a3a4a5a6a7a8, Handle: 0xb1b2b3b4, Length: 0xc1c2c3c4}
		b := r.Bytes()[64:]
		le := binary.NativeEndian
		for _, f := range []struct {
			name      string
			got, want uint64
		}{
			{"Next", le.Uint64(b), d.Next},
			{"NextHandle", uint64(le.Uint32(b[8:])), 0x11121314},
			{"SegCount", uint64(le.Uint16(b[12:])), 0x2122},
			{"Control", uint64(le.Uint16(b[14:])), 0x3132},
			{"Reserved", uint64(le.Uint32(b[16:])), 0x41424344},
			{"ImmediateData", uint64(le.Uint32(b[20:])), 0x51525354},
			{"Length", uint64(le.Uint32(b[24:])), 0x61626364},
			{"Status", uint64(le.Uint32(b[28:])), uint64(d.Status())},
			{"first segment", le.Uint64(b[32:]), 0x7172737475767778},
			{"its handle", uint64(le.Uint32(b[40:])), 0x81828384},
			{"its length", uint64(le.Uint32(b[44:])), 0x91929394},
			{"third segment", le.Uint64(b[64:]), 0xa1a2a3a4a5a6a7a8},
			{"address", d.Addr(), r.Addr() + 64},
			{"remote address", d.AddressSegment().Data, 0x7172737475767778},
			{"remote handle", uint64(d.AddressSegment().Handle), 0x81828384},
			{"reserved of the address segment", uint64(d.AddressSegment().Reserved), 0x91929394},
		} {
			t.errorIf(f.got != f.want, "%s: %#x, want %#x", f.name, f.got, f.want)
		}
		le.PutUint32(b[28:], 0x80001)
		equal(t, "status", d.Status(), vipl.StatusDone|vipl.StatusImmediate)
	}),
	rule("descriptors/bits", "The bits of Control and Status have the VIPL's values.", func(t *T) {
		for _, b := range []struct {
			name      string
			got, want uint64
		}{
			{"operation send/receive", uint64(vipl.ControlSendRecv), 0},
			{"operation RDMA write", uint64(vipl.ControlRDMAWrite), 1},
			{"operation RDMA read", uint64(vipl.ControlRDMARead), 2},
			{"immediate", uint64(vipl.ControlImmediate), 4},
			{"queue fence", uint64(vipl.ControlQFence), 8},
			{"DONE", uint64(vipl.StatusDone), 1},
			{"FORMAT", uint64(vipl.StatusFormatError), 2},
			{"PROTECTION", uint64(vipl.StatusProtectionError), 4},
			{"LENGTH", uint64(vipl.StatusLengthError), 8},
			{"PARTIAL", uint64(vipl.StatusPartialPacket), 0x10},
			{"DESC_FLUSHED", uint64(vipl.StatusFlushed), 0x20},
			{"TRANSPORT", uint64(vipl.StatusTransportError), 0x40},
			{"RDMA_PROT", uint64(vipl.StatusRemoteRDMAError), 0x80},
			{"REMOTE_DESC", uint64(vipl.StatusRemoteDescError), 0x100},
			{"errors", uint64(vipl.StatusErrorMask), 0x1fe},
			{"operation mask", uint64(vipl.StatusOpMask), 0x70000},
			{"SEND", uint64(vipl.StatusOpSend), 0},
			{"RECEIVE", uint64(vipl.StatusOpReceive), 0x10000},
			{"RDMA_WRITE", uint64(vipl.StatusOpRDMAWrite), 0x20000},
			{"REMOTE_RDMA_WRITE", uint64(vipl.StatusOpRemoteRDMAWrite), 0x30000},
			{"RDMA_READ", uint64(vipl.StatusOpRDMARead), 0x40000},
			{"IMMEDIATE", uint64(vipl.StatusImmediate), 0x80000},
			{"alignment", vipl.DescriptorAlignment, 64},
			{"control segment", vipl.ControlSegmentSize, 32},
			{"data segment", vipl.DataSegmentSize, 16},
		} {
			t.errorIf(b.got != b.want, "%s: %#x, want %#x", b.name, b.got, b.want)
		}
	}),
	rule("descriptors/setters", "What fills in a descriptor sets operation, SegCount and Length, the address segment of RDMA first.", func(t *T) {
		x := t.blockOf(t.A, nil, 1, 4, 64)
		d := x.desc[0]
		remote := vipl.AddressSegment{Data: 12345, Handle: 67}
		d.SetImmediate(5)
		t.errorIf(d.Control != vipl.ControlImmediate || d.ImmediateData != 5, "immediate: %+v", *d)
		d.SetRDMAWrite(remote, x.seg(0, 10), x.seg(0, 20), x.seg(0, 30))
		if d.Control != vipl.ControlRDMAWrite || d.SegCount != 4 || d.Length != 60 || *d.AddressSegment() != remote ||
			*d.Segment(1) != x.seg(0, 10) || *d.Segment(3) != x.seg(0, 30) {
			t.Errorf("write: %+v", *d)
		}
		d.Control |= vipl.ControlQFence
		d.SetRDMARead(remote, x.seg(0, 7))
		t.errorIf(d.Control != vipl.ControlRDMARead || d.SegCount != 2 || d.Length != 7 || *d.AddressSegment() != remote || *d.Segment(1) != x.seg(0, 7), "read: %+v", *d)
		d.SetSegments(x.seg(0, 1), x.seg(0, 2))
		t.errorIf(d.Control != vipl.ControlSendRecv || d.SegCount != 2 || d.Length != 3 || *d.Segment(0) != x.seg(0, 1), "send: %+v", *d)
		d.SetRDMAWrite(remote)
		t.errorIf(d.SegCount != 1 || d.Length != 0, "empty write: %+v", *d)
		r := x.Remote(17)
		t.errorIf(r.Data != x.Addr()+17 || r.Handle != x.Handle() || r.Reserved != 0, "Remote: %+v", r)
	}),
	rule("descriptors/room", "A descriptor can be laid over registered memory at multiples of 64 with room for 253 segments, and nowhere else.", func(t *T) {
		const size = vipl.ControlSegmentSize + (vipl.MaxSegments+1)*vipl.DataSegmentSize
		r := t.alloc(t.A, size, vipl.MemAttributes{})
		for _, c := range []struct {
			off, segs int
			ok        bool
		}{
			{0, 0, true}, {0, 2, true}, {0, vipl.MaxSegments + 1, true}, {64, 1, true}, {size&^63 - 64, 2, true},
			{0, vipl.MaxSegments + 2, false}, {0, -1, false}, {-64, 1, false}, {32, 1, false}, {1, 1, false},
			{64, vipl.MaxSegments + 1, false}, {size, 0, false}, {size &^ 63, 2, false}, {1 << 40, 1, false}, {math.MaxInt &^ 63, 1, false},
		} {
			err := errOf(r.Descriptor(c.off, c.segs))
			t.errorIf(c.ok != (err == nil) || !c.ok && !errors.Is(err, vipl.ErrInvalidParameter), "%+v: %v", c, err)
		}
	}),
	rule("descriptors/crosses-a-page", "A descriptor may cross a page.", descriptorsAtEnds),
	rule("descriptors/refused", "A descriptor that is nil, unaligned, or not wholly in memory of its handle with the VI's tag is refused with INVALID_PARAMETER, and nothing is queued.", refusedDescriptors),
	choice("descriptors/next-is-the-programs", "Next and NextHandle may hold anything.", "the provider never looks at them, posted or not", func(t *T) {
		a, b := t.ends(vipl.ReliableDelivery, 1, 1, 64)
		b.desc[0].Next, b.desc[0].NextHandle = ^uint64(0), 0xffffffff
		a.desc[0].Next = a.desc[0].Addr()
		a.message(b, 64, 1)
		if b.desc[0].Next != ^uint64(0) || b.desc[0].NextHandle != 0xffffffff || a.desc[0].Next != a.desc[0].Addr() {
			t.Error("Next was changed")
		}
		t.noErrors(a.v, b.v)
	}),
	choice("descriptors/altered", "A program that changes a posted descriptor harms nobody: the descriptor does what it said when it was posted.", "descriptors are read once, at post; the change is told as POST_DESC when the descriptor completes", eachLevel(alteredDescriptor)),
	rule("descriptors/fence-is-legal", "The QFENCE bit is legal in a send and an RDMA write, also where no RDMA read is under way.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		a, b := t.ends(level, 2, 2, 64)
		b.recv(0, 64)
		a.desc[0].SetRDMAWrite(b.remote(1), a.seg(0, 64))
		a.fenced(0)
		a.prepare(1, 64)
		a.fenced(1)
		b.received()
		a.sent(vipl.StatusOpRDMAWrite, 0)
	})),
	rule("descriptors/tag-of-the-vi", "A VI uses memory of its own protection tag.", func(t *T) {
		ta, tb := t.tag(t.A), t.tag(t.B)
		a, b := t.endsOf(vipl.VIAttributes{Level: vipl.ReliableDelivery, Ptag: ta}, vipl.VIAttributes{Level: vipl.ReliableDelivery, Ptag: tb}, 1, 1, 64)
		own := t.register(t.A, fill(make([]byte, 64), 1), vipl.MemAttributes{Ptag: ta})
		carryMessage(a, b, one(own, 0, 64), one(b.Region, b.at(0), 64))
		t.holds("message", b.buf(0), 1)
	}),
	rule("descriptors/no-tag", "A VI without a protection tag uses memory of any tag of its NIC handle.", anyMemory),
	choice("descriptors/length-of-a-receive", "A receive takes what its segments hold, whatever its Length says when it is posted.", "Length of a posted receive is not looked at", func(t *T) {
		a, b := t.ends(vipl.ReliableDelivery, 1, 1, 64)
		for k, length := range []uint32{0, 1, 63, 65, 0xffffffff} {
			b.prepare(0, 64).Length = length
			b.postRecv(b.desc[0])
			a.carries(b, 64, k)
		}
	}),
}, wrongRules())

// refusedDescriptors posts invalid descriptors. Each is refused and reported as POST_DESC, and the VI and its
// queues are unchanged.
func refusedDescriptors(t *T) {
	tag := t.tag(t.A)
	a, _ := t.endsOf(vipl.VIAttributes{Level: vipl.UnreliableDelivery, Ptag: tag}, at(vipl.UnreliableDelivery), 2, 1, 256)
	other, gone := t.block(t.A, 1, 64), t.alloc(t.A, 64, vipl.MemAttributes{Ptag: tag})
	tail, err := a.Region.Descriptor(len(a.Bytes())-64, 2)
	t.must(err)
	tail.SegCount = 3 // the third one lies behind the region
	t.must(gone.Deregister())
	for _, c := range []struct {
		name string
		d    *vipl.Descriptor
		h    vipl.MemHandle
	}{
		{"nil", nil, a.Handle()},
		{"unaligned by 4", descriptorAt(a.buf(0)[4:]), a.Handle()},
		{"unaligned by 8", descriptorAt(a.buf(0)[8:]), a.Handle()},
		{"unaligned by 16", descriptorAt(a.buf(0)[16:]), a.Handle()},
		{"unaligned by 32", descriptorAt(a.buf(0)[32:]), a.Handle()},
		{"handle 0", a.desc[0], 0},
		{"unknown handle", a.desc[0], a.Handle() ^ 0x5a5a5a5a},
		{"handle of deregistered memory", a.desc[0], gone.Handle()},
		{"handle of other memory", a.desc[0], other.Handle()},
		{"memory of another tag", other.desc[0], other.Handle()},
		{"memory that is not registered", stray(), a.Handle()},
		{"segments behind the region", tail, a.Handle()},
	} {
		for _, q := range queues(a.v) {
			before := len(t.errors.of(a.v))
			t.wantErr(c.name+", "+q.name, q.post(c.d, c.h), vipl.ErrInvalidParameter)
			list := t.asyncErrors(a.v, slices.Repeat([]vipl.ErrorCode{vipl.ErrorPostDesc}, before+1)...)
			t.errorIf(list[before].Err == nil, "%s: the error says nothing", c.name)
			t.tells(list[before], vipl.ErrorDescriptor{NIC: t.A, VI: a.v, Resource: vipl.ResourceDescriptor, Descriptor: c.d})
		}
	}
	s := t.state(a.v, vipl.Connected)
	t.errorIf(!s.SendEmpty || !s.RecvEmpty, "something was queued: %+v", s)
	for _, off := range []int{1, 4, 8, 16, 32, 63} {
		t.errorIf(errOf(a.Region.Descriptor(off, 1)) == nil, "offset %d: a descriptor is laid there", off)
	}
}

// alteredDescriptor changes a receive that is posted.
func alteredDescriptor(t *T, level vipl.ReliabilityLevel) {
	for _, other := range []bool{false, true} {
		a, b := t.ends(level, 1, 2, 5000)
		d := b.recv(0, 5000)
		d.SegCount, d.Length, d.Reserved, d.Control = 65535, 1<<31, 7, 0xffff
		*d.Segment(0) = vipl.DataSegment{Data: 1, Handle: 2, Length: 1 << 31}
		if other {
			*d.Segment(0) = b.seg(1, 5000)
		}
		a.carries(b, 5000, 3)
		t.untouched("what it said later", b.buf(1))
		t.tells(t.asyncError(b.v, vipl.ErrorPostDesc), vipl.ErrorDescriptor{NIC: t.B, VI: b.v, Resource: vipl.ResourceDescriptor, Descriptor: d})
		t.state(b.v, vipl.Connected)
	}
}
