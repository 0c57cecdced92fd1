package vipltest

import "viaxdp/vipl"

// wrong is an error in a descriptor that is accepted when posted and completes with that error.
type wrong struct {
	id, text string
	in       int         // inBoth, inSend, inReceive
	status   vipl.Status // with the operation of a send
	spoil    func(d *vipl.Descriptor, x wrongEnds)
	choice   string
}

// The descriptors in which it is wrong.
const (
	inBoth = iota
	inSend
	inReceive
)

// wrongEnds has what is needed to make a descriptor wrong. The VI has a protection tag and takes 40,000 bytes.
type wrongEnds struct {
	*end               // with a block of the VI's tag
	other *vipl.Region // with another tag
	to    vipl.AddressSegment
	gone  vipl.DataSegment // of memory that is deregistered
}

const wrongMost = 40_000

var wrongs = []wrong{
	{"reserved-field", "Reserved other than 0: FORMAT_ERROR.", inBoth, vipl.StatusFormatError, func(d *vipl.Descriptor, _ wrongEnds) { d.Reserved = 1 }, ""},
	{"reserved-control-bits", "A reserved bit in Control: FORMAT_ERROR.", inBoth, vipl.StatusFormatError, func(d *vipl.Descriptor, _ wrongEnds) { d.Control |= 0x10 }, ""},
	{"highest-control-bit", "Any reserved bit in Control: FORMAT_ERROR.", inBoth, vipl.StatusFormatError, func(d *vipl.Descriptor, _ wrongEnds) { d.Control |= 0x8000 }, ""},
	{"operation-3", "An operation that does not exist: FORMAT_ERROR.", inBoth, vipl.StatusFormatError, func(d *vipl.Descriptor, _ wrongEnds) { d.Control |= 3 }, ""},
	{"rdma-in-a-receive", "An RDMA operation on the receive queue: FORMAT_ERROR.", inReceive, vipl.StatusFormatError, func(d *vipl.Descriptor, x wrongEnds) { d.SetRDMAWrite(x.to, x.seg(0, 16)) }, ""},
	{"too-many-segments", "More than 252 data segments: FORMAT_ERROR.", inBoth, vipl.StatusFormatError, func(d *vipl.Descriptor, _ wrongEnds) { d.SegCount = vipl.MaxSegments + 1 }, ""},
	{"far-too-many-segments", "SegCount 65535: FORMAT_ERROR.", inBoth, vipl.StatusFormatError, func(d *vipl.Descriptor, _ wrongEnds) { d.SegCount = 65535 }, ""},
	{"handle-0", "A segment with handle 0: PROTECTION_ERROR.", inBoth, vipl.StatusProtectionError, func(d *vipl.Descriptor, _ wrongEnds) { d.Segment(0).Handle = 0 }, ""},
	{"unknown-handle", "A segment with a handle that names nothing: PROTECTION_ERROR.", inBoth, vipl.StatusProtectionError, func(d *vipl.Descriptor, _ wrongEnds) { d.Segment(0).Handle ^= 0x5a5a5a5a }, ""},
	{"deregistered-segment", "A segment in memory that is deregistered: PROTECTION_ERROR.", inBoth, vipl.StatusProtectionError, func(d *vipl.Descriptor, x wrongEnds) { d.SetSegments(x.gone) }, ""},
	{"tag-of-a-segment", "A segment in memory of another protection tag than the VI's: PROTECTION_ERROR.", inBoth, vipl.StatusProtectionError, func(d *vipl.Descriptor, x wrongEnds) { *d.Segment(0) = x.other.Segment(0, 64) }, ""},
	{"segment-begins-too-early", "A segment that begins a byte before its region: PROTECTION_ERROR.", inBoth, vipl.StatusProtectionError, func(d *vipl.Descriptor, x wrongEnds) { d.Segment(0).Data = x.Addr() - 1 }, ""},
	{"segment-ends-too-late", "A segment of a send that ends a byte behind its region: PROTECTION_ERROR.", inSend, vipl.StatusProtectionError, func(d *vipl.Descriptor, x wrongEnds) { d.Segment(0).Data = x.Addr() + uint64(len(x.Bytes())) - 63 }, ""},
	{"segment-begins-at-the-end", "A segment that begins where its region ends: PROTECTION_ERROR.", inBoth, vipl.StatusProtectionError, func(d *vipl.Descriptor, x wrongEnds) { d.Segment(0).Data = x.Addr() + uint64(len(x.Bytes())) }, "in a receive, too, whatever the length of the message"},
	{"segment-wraps-around", "A segment that wraps around the end of the address space: PROTECTION_ERROR.", inBoth, vipl.StatusProtectionError, func(d *vipl.Descriptor, _ wrongEnds) { d.Segment(0).Data = ^uint64(0) - 10 }, ""},
	{"length-too-small", "Length below the sum of a send's segments: LENGTH_ERROR.", inSend, vipl.StatusLengthError, func(d *vipl.Descriptor, _ wrongEnds) { d.Length-- }, ""},
	{"length-too-large", "Length above the sum of a send's segments: LENGTH_ERROR.", inSend, vipl.StatusLengthError, func(d *vipl.Descriptor, _ wrongEnds) { d.Length++ }, ""},
	{"beyond-max-transfer-size", "A send longer than the VI's MaxTransferSize: LENGTH_ERROR.", inSend, vipl.StatusLengthError, func(d *vipl.Descriptor, x wrongEnds) { d.SetSegments(x.Segment(0, wrongMost+1)) }, ""},
	{"write-beyond-max-transfer-size", "An RDMA write longer than the VI's MaxTransferSize: LENGTH_ERROR.", inSend, vipl.StatusOpRDMAWrite | vipl.StatusLengthError, func(d *vipl.Descriptor, x wrongEnds) { d.SetRDMAWrite(x.to, x.Segment(0, wrongMost+1)) }, ""},
	{"write-without-address", "An RDMA write with SegCount 0, without its address segment: FORMAT_ERROR.", inSend, vipl.StatusOpRDMAWrite | vipl.StatusFormatError, func(d *vipl.Descriptor, x wrongEnds) {
		d.SetRDMAWrite(x.to)
		d.SegCount = 0
	}, ""},
	{"write-reserved-of-address", "Reserved of the address segment other than 0: FORMAT_ERROR.", inSend, vipl.StatusOpRDMAWrite | vipl.StatusFormatError, func(d *vipl.Descriptor, x wrongEnds) {
		d.SetRDMAWrite(x.to, x.seg(0, 16))
		d.AddressSegment().Reserved = 1
	}, ""},
	{"write-too-many-segments", "An RDMA write with more than an address segment and 252 data segments: FORMAT_ERROR.", inSend, vipl.StatusOpRDMAWrite | vipl.StatusFormatError, func(d *vipl.Descriptor, x wrongEnds) {
		d.SetRDMAWrite(x.to, x.seg(0, 16))
		d.SegCount = vipl.MaxSegments + 2
	}, ""},
	{"write-length-wrong", "Length of an RDMA write other than the sum of its data segments: LENGTH_ERROR.", inSend, vipl.StatusOpRDMAWrite | vipl.StatusLengthError, func(d *vipl.Descriptor, x wrongEnds) {
		d.SetRDMAWrite(x.to, x.seg(0, 16))
		d.Length = 32
	}, ""},
	{"write-from-wrong-memory", "An RDMA write from memory of another protection tag: PROTECTION_ERROR at the writer.", inSend, vipl.StatusOpRDMAWrite | vipl.StatusProtectionError, func(d *vipl.Descriptor, x wrongEnds) { d.SetRDMAWrite(x.to, x.other.Segment(0, 16)) }, ""},
	{"read-with-immediate-data", "An RDMA read with immediate data: FORMAT_ERROR.", inSend, vipl.StatusOpRDMARead | vipl.StatusFormatError, func(d *vipl.Descriptor, x wrongEnds) {
		d.SetRDMARead(x.to, x.seg(0, 16))
		d.SetImmediate(1)
	}, "immediate data has no meaning in a read"},
	{"read-without-address", "An RDMA read with SegCount 0: FORMAT_ERROR.", inSend, vipl.StatusOpRDMARead | vipl.StatusFormatError, func(d *vipl.Descriptor, x wrongEnds) {
		d.SetRDMARead(x.to)
		d.SegCount = 0
	}, ""},
}

// wrongRules returns a rule for each.
func wrongRules() (rules []Rule) {
	for _, w := range wrongs {
		rules = append(rules, choice("descriptors/"+w.id, w.text, w.choice, eachLevel(func(t *T, level vipl.ReliabilityLevel) {
			if w.in != inReceive {
				t.sub("send", func(t *T) { w.send(t, level) })
			}
			if w.in != inSend {
				t.sub("receive", func(t *T) { w.receive(t, level) })
			}
		})))
	}
	return append(rules,
		rule("descriptors/wrong-receive-in-idle", "A wrong receive that is posted in Idle completes in error, and the VI stays in Idle.", func(t *T) {
			a := t.block(t.A, 1, 64).on(t.vi(t.A, at(vipl.ReliableDelivery)))
			a.prepare(0, 64).Reserved = 1
			a.postRecv(a.desc[0])
			a.received(vipl.StatusFormatError)
			t.state(a.v, vipl.Idle)
		}),
		lossless("descriptors/wrong-ones-do-not-break-unreliable-vis", "A wrong descriptor on an unreliable VI concerns nothing but itself.", func(t *T) {
			x, b := makeWrongEnds(t, vipl.UnreliableDelivery)
			for _, w := range wrongs {
				if w.in == inReceive || w.status&vipl.StatusOpMask == vipl.StatusOpRDMARead {
					continue
				}
				b.recv(0, 64)
				w.spoil(x.prepare(1, 64), x)
				x.post(x.desc[1])
				x.send(0, 64)
				x.sent(w.status, 0)
				b.received()
			}
			t.states(vipl.Connected, x.v, b.v)
		}))
}

// makeWrongEnds makes a connected pair of VIs, the first one with a protection tag.
func makeWrongEnds(t *T, level vipl.ReliabilityLevel) (x wrongEnds, b *end) {
	attrs := open(level)
	attrs.MaxTransferSize = wrongMost
	tagged := attrs
	tagged.Ptag = t.tag(t.A)
	x.end, b = t.endsOf(tagged, attrs, 3, 3, 16_000)
	x.other, x.to = t.alloc(t.A, 4096, vipl.MemAttributes{}), b.remote(2)
	gone := t.alloc(t.A, 4096, vipl.MemAttributes{Ptag: tagged.Ptag})
	x.gone = gone.Segment(0, 64)
	t.must(gone.Deregister())
	return x, b
}

// send posts a valid send, the wrong one and another valid one.
func (w wrong) send(t *T, level vipl.ReliabilityLevel) {
	x, b := makeWrongEnds(t, level)
	b.recvs(2, 64)
	x.send(0, 64)
	if level == vipl.ReliableDelivery {
		b.received() // else it may be under way when the connection breaks
	}
	w.spoil(x.prepare(1, 64), x)
	x.post(x.desc[1])
	if level != vipl.ReliableDelivery {
		b.received()
	}
	t.same(x.sent(0, w.status), x.desc[1])
	t.untouched("the target", b.buf(2))
	if level == vipl.UnreliableDelivery {
		x.send(2, 64)
		b.received()
		x.sent()
		return
	}
	t.states(vipl.Error, x.v, b.v)
	b.received(vipl.StatusFlushed)
	x.send(2, 64)
	x.sent(vipl.StatusFlushed)
}

// receive posts a valid receive, the wrong one and another valid one.
func (w wrong) receive(t *T, level vipl.ReliabilityLevel) {
	x, b := makeWrongEnds(t, level)
	x.recv(0, 64)
	w.spoil(x.prepare(1, 64), x)
	x.postRecv(x.desc[1])
	x.recv(2, 64)
	t.nothingDone(x.v.RecvDone, vipl.ErrNotDone) // before it is at the head
	b.send(0, 64)
	t.same(x.received(0, w.status), x.desc[1])
	if level == vipl.UnreliableDelivery {
		b.sent()
		b.send(0, 64)
		t.same(x.received(), x.desc[2])
		return
	}
	x.received(vipl.StatusFlushed)
	t.states(vipl.Error, x.v, b.v)
	b.sent() // it was delivered
}
