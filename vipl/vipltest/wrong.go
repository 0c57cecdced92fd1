package vipltest

import "viaxdp/vipl"

// wrong is an error in a descriptor that is accepted when posted and completes with that error.
type wrong struct {
	id, text, choice string
	status           vipl.Status
	op               vipl.Status // StatusOp value, of sends
	sends, recvs     bool        // it is wrong in these
	spoil            func(d *vipl.Descriptor, x wrongEnds)
}

// wrongEnds has what is needed to make a descriptor wrong. The VI has a protection tag and takes 40,000 bytes.
type wrongEnds struct {
	*end               // with a block of the VI's tag
	other *vipl.Region // with another tag
	to    vipl.AddressSegment
	gone  vipl.DataSegment // of memory that is deregistered
}

const wrongMost = 40_000

var wrongs = []wrong{
	wrongBoth("reserved-field", "Reserved other than 0: FORMAT_ERROR.", vipl.StatusFormatError, func(d *vipl.Descriptor, _ wrongEnds) { d.Reserved = 1 }),
	wrongBoth("reserved-control-bits", "A reserved bit in Control: FORMAT_ERROR.", vipl.StatusFormatError, func(d *vipl.Descriptor, _ wrongEnds) { d.Control |= 0x10 }),
	wrongBoth("highest-control-bit", "Any reserved bit in Control: FORMAT_ERROR.", vipl.StatusFormatError, func(d *vipl.Descriptor, _ wrongEnds) { d.Control |= 0x8000 }),
	wrongBoth("operation-3", "An operation that does not exist: FORMAT_ERROR.", vipl.StatusFormatError, func(d *vipl.Descriptor, _ wrongEnds) { d.Control |= 3 }),
	wrongReceive("rdma-in-a-receive", "An RDMA operation on the receive queue: FORMAT_ERROR.", vipl.StatusFormatError, func(d *vipl.Descriptor, x wrongEnds) { d.SetRDMAWrite(x.to, x.seg(0, 16)) }),
	wrongBoth("too-many-segments", "More than 252 data segments: FORMAT_ERROR.", vipl.StatusFormatError, func(d *vipl.Descriptor, _ wrongEnds) { d.SegCount = vipl.MaxSegments + 1 }),
	wrongBoth("far-too-many-segments", "SegCount 65535: FORMAT_ERROR.", vipl.StatusFormatError, func(d *vipl.Descriptor, _ wrongEnds) { d.SegCount = 65535 }),
	wrongBoth("handle-0", "A segment with handle 0: PROTECTION_ERROR.", vipl.StatusProtectionError, func(d *vipl.Descriptor, _ wrongEnds) { d.Segment(0).Handle = 0 }),
	wrongBoth("unknown-handle", "A segment with a handle that names nothing: PROTECTION_ERROR.", vipl.StatusProtectionError, func(d *vipl.Descriptor, _ wrongEnds) { d.Segment(0).Handle ^= 0x5a5a5a5a }),
	wrongBoth("deregistered-segment", "A segment in memory that is deregistered: PROTECTION_ERROR.", vipl.StatusProtectionError, func(d *vipl.Descriptor, x wrongEnds) { d.SetSegments(x.gone) }),
	wrongBoth("tag-of-a-segment", "A segment in memory of another protection tag than the VI's: PROTECTION_ERROR.", vipl.StatusProtectionError, func(d *vipl.Descriptor, x wrongEnds) { *d.Segment(0) = x.other.Segment(0, 64) }),
	wrongBoth("segment-begins-too-early", "A segment that begins a byte before its region: PROTECTION_ERROR.", vipl.StatusProtectionError, func(d *vipl.Descriptor, x wrongEnds) { d.Segment(0).Data = x.Addr() - 1 }),
	wrongSend("segment-ends-too-late", "A segment of a send that ends a byte behind its region: PROTECTION_ERROR.", vipl.StatusProtectionError, func(d *vipl.Descriptor, x wrongEnds) { d.Segment(0).Data = x.Addr() + uint64(len(x.Bytes())) - 63 }),
	wrongBoth("segment-begins-at-the-end", "A segment that begins where its region ends: PROTECTION_ERROR.", vipl.StatusProtectionError, func(d *vipl.Descriptor, x wrongEnds) { d.Segment(0).Data = x.Addr() + uint64(len(x.Bytes())) }).choose("in a receive, too, whatever the length of the message"),
	wrongBoth("segment-wraps-around", "A segment that wraps around the end of the address space: PROTECTION_ERROR.", vipl.StatusProtectionError, func(d *vipl.Descriptor, _ wrongEnds) { d.Segment(0).Data = ^uint64(0) - 10 }),
	wrongSend("length-too-small", "Length below the sum of a send's segments: LENGTH_ERROR.", vipl.StatusLengthError, func(d *vipl.Descriptor, _ wrongEnds) { d.Length-- }),
	wrongSend("length-too-large", "Length above the sum of a send's segments: LENGTH_ERROR.", vipl.StatusLengthError, func(d *vipl.Descriptor, _ wrongEnds) { d.Length++ }),
	wrongSend("beyond-max-transfer-size", "A send longer than the VI's MaxTransferSize: LENGTH_ERROR.", vipl.StatusLengthError, func(d *vipl.Descriptor, x wrongEnds) { d.SetSegments(x.Segment(0, wrongMost+1)) }),
	wrongSend("write-beyond-max-transfer-size", "An RDMA write longer than the VI's MaxTransferSize: LENGTH_ERROR.", vipl.StatusOpRDMAWrite|vipl.StatusLengthError, func(d *vipl.Descriptor, x wrongEnds) { d.SetRDMAWrite(x.to, x.Segment(0, wrongMost+1)) }),
	wrongSend("write-without-address", "An RDMA write with SegCount 0, without its address segment: FORMAT_ERROR.", vipl.StatusOpRDMAWrite|vipl.StatusFormatError, func(d *vipl.Descriptor, x wrongEnds) {
		d.SetRDMAWrite(x.to)
		d.SegCount = 0
	}),
	wrongSend("write-reserved-of-address", "Reserved of the address segment other than 0: FORMAT_ERROR.", vipl.StatusOpRDMAWrite|vipl.StatusFormatError, func(d *vipl.Descriptor, x wrongEnds) {
		d.SetRDMAWrite(x.to, x.seg(0, 16))
		d.AddressSegment().Reserved = 1
	}),
	wrongSend("write-too-many-segments", "An RDMA write with more than an address segment and 252 data segments: FORMAT_ERROR.", vipl.StatusOpRDMAWrite|vipl.StatusFormatError, func(d *vipl.Descriptor, x wrongEnds) {
		d.SetRDMAWrite(x.to, x.seg(0, 16))
		d.SegCount = vipl.MaxSegments + 2
	}),
	wrongSend("write-length-wrong", "Length of an RDMA write other than the sum of its data segments: LENGTH_ERROR.", vipl.StatusOpRDMAWrite|vipl.StatusLengthError, func(d *vipl.Descriptor, x wrongEnds) {
		d.SetRDMAWrite(x.to, x.seg(0, 16))
		d.Length = 32
	}),
	wrongSend("write-from-wrong-memory", "An RDMA write from memory of another protection tag: PROTECTION_ERROR at the writer.", vipl.StatusOpRDMAWrite|vipl.StatusProtectionError, func(d *vipl.Descriptor, x wrongEnds) { d.SetRDMAWrite(x.to, x.other.Segment(0, 16)) }),
	wrongSend("read-with-immediate-data", "An RDMA read with immediate data: FORMAT_ERROR.", vipl.StatusOpRDMARead|vipl.StatusFormatError, func(d *vipl.Descriptor, x wrongEnds) {
		d.SetRDMARead(x.to, x.seg(0, 16))
		d.SetImmediate(1)
	}).choose("immediate data has no meaning in a read"),
	wrongSend("read-without-address", "An RDMA read with SegCount 0: FORMAT_ERROR.", vipl.StatusOpRDMARead|vipl.StatusFormatError, func(d *vipl.Descriptor, x wrongEnds) {
		d.SetRDMARead(x.to)
		d.SegCount = 0
	}),
}

// wrongSend, wrongReceive and wrongBoth return errors in sends, in receives, and in both. The status of a send
// has the operation.
func wrongSend(id, text string, status vipl.Status, spoil func(*vipl.Descriptor, wrongEnds)) wrong {
	return wrong{id: id, text: text, status: status &^ vipl.StatusOpMask, op: status & vipl.StatusOpMask, sends: true, spoil: spoil}
}

func wrongReceive(id, text string, status vipl.Status, spoil func(*vipl.Descriptor, wrongEnds)) wrong {
	return wrong{id: id, text: text, status: status, recvs: true, spoil: spoil}
}

func wrongBoth(id, text string, status vipl.Status, spoil func(*vipl.Descriptor, wrongEnds)) wrong {
	return wrong{id: id, text: text, status: status, sends: true, recvs: true, spoil: spoil}
}

func (w wrong) choose(choice string) wrong {
	w.choice = choice
	return w
}

// wrongRules returns a rule for each.
func wrongRules() (rules []Rule) {
	for _, w := range wrongs {
		rules = append(rules, choice("descriptors/"+w.id, w.text, w.choice, eachLevel(func(t *T, level vipl.ReliabilityLevel) {
			if w.sends {
				t.sub("send", func(t *T) { w.send(t, level) })
			}
			if w.recvs {
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
				if !w.sends || w.op == vipl.StatusOpRDMARead {
					continue
				}
				b.recv(0, 64)
				w.spoil(x.prepare(1, 64), x)
				x.post(x.desc[1])
				x.send(0, 64)
				x.sent(w.op|w.status, 0)
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
	t.same(x.sent(0, w.op|w.status), x.desc[1])
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
