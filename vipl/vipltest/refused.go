package vipltest

import (
	"slices"

	"viaxdp/vipl"
)

// refusal is RDMA on what the target has not opened for it.
type refusal struct {
	id, text string
	// spoil makes an operation on target, 3000 bytes that are open, one that is
	// refused.
	spoil func(t *T, target *vipl.Region) vipl.AddressSegment
	// vi makes the target's VI one that refuses; nil if it is an ordinary one.
	vi func(a *vipl.VIAttributes)
}

const refusedSize = 3000

// refusals are the ways in which both RDMA operations are refused. The two
// attributes of each operation come on top.
var refusals = []refusal{
	{"handle-0", "on handle 0", func(_ *T, r *vipl.Region) vipl.AddressSegment { return vipl.AddressSegment{Data: r.Addr()} }, nil},
	{"unknown-handle", "on a handle that names nothing", func(_ *T, r *vipl.Region) vipl.AddressSegment {
		return vipl.AddressSegment{Data: r.Addr(), Handle: r.Handle() ^ 0x5a5a5a5a}
	}, nil},
	{"handle-of-other-memory", "on an address with the handle of other memory", func(t *T, r *vipl.Region) vipl.AddressSegment {
		attrs, err := r.Query()
		t.must(err)
		return vipl.AddressSegment{Data: r.Addr(), Handle: t.alloc(t.B, refusedSize, attrs).Handle()}
	}, nil},
	{"deregistered", "on memory that is deregistered", func(t *T, r *vipl.Region) vipl.AddressSegment {
		attrs, err := r.Query()
		t.must(err)
		gone := t.register(t.B, r.Bytes(), attrs)
		defer func() { t.must(gone.Deregister()) }()
		return gone.Remote(0)
	}, nil},
	{"tag", "on memory of another protection tag than the target VI's", func(t *T, r *vipl.Region) vipl.AddressSegment { return t.register(t.B, r.Bytes(), open).Remote(0) }, nil},
	{"begins-too-early", "on a range that begins a byte before its region", func(_ *T, r *vipl.Region) vipl.AddressSegment { return r.Remote(-1) }, nil},
	{"ends-too-late", "on a range that ends a byte behind its region", func(_ *T, r *vipl.Region) vipl.AddressSegment { return r.Remote(1) }, nil},
	{"beyond", "on what lies behind the region", func(_ *T, r *vipl.Region) vipl.AddressSegment { return r.Remote(len(r.Bytes())) }, nil},
	{"wraps-around", "on a range that wraps around the end of the address space", func(_ *T, r *vipl.Region) vipl.AddressSegment {
		return vipl.AddressSegment{Data: ^uint64(0) - 10, Handle: r.Handle()}
	}, nil},
	{"null", "on address 0", func(_ *T, r *vipl.Region) vipl.AddressSegment { return vipl.AddressSegment{Handle: r.Handle()} }, nil},
}

// same leaves the address as it is: the VI refuses.
func same(_ *T, r *vipl.Region) vipl.AddressSegment { return r.Remote(0) }

// withAttributes changes the region's attributes.
func withAttributes(change func(*vipl.MemAttributes)) func(t *T, r *vipl.Region) vipl.AddressSegment {
	return func(t *T, r *vipl.Region) vipl.AddressSegment {
		t.Helper()
		attrs, err := r.Query()
		t.must(err)
		change(&attrs)
		t.must(r.SetAttributes(attrs))
		return r.Remote(0)
	}
}

// pair makes a connected pair of VIs, b with a protection tag, and the
// memory that refuses.
func (f refusal) pair(t *T, level vipl.ReliabilityLevel) (va, vb *vipl.VI, a, b *block, to vipl.AddressSegment, target *vipl.Region) {
	t.Helper()
	tag := t.tag(t.B)
	attrs := vipl.VIAttributes{Level: level, EnableRDMAWrite: true, EnableRDMARead: level != vipl.UnreliableDelivery}
	theirs := attrs
	theirs.Ptag = tag
	if f.vi != nil {
		f.vi(&theirs)
	}
	va, vb = t.pairOf(attrs, theirs)
	a, b = t.block(t.A, 4, refusedSize), t.blockOf(t.B, tag, 3, 2, refusedSize)
	target = t.register(t.B, make([]byte, refusedSize), vipl.MemAttributes{Ptag: tag, EnableRDMAWrite: true, EnableRDMARead: true})
	return va, vb, a, b, f.spoil(t, target), target
}

func refusedWriteRules() (rules []Rule) {
	for _, f := range append(slices.Clone(refusals), refusal{
		id: "vi-attribute", text: "on a VI without EnableRDMAWrite", spoil: same,
		vi: func(a *vipl.VIAttributes) { a.EnableRDMAWrite = false },
	}, refusal{
		id: "region-attribute", text: "on memory without EnableRDMAWrite",
		spoil: withAttributes(func(a *vipl.MemAttributes) { a.EnableRDMAWrite = false }),
	}) {
		rules = append(rules, Rule{
			ID:   "rdma-write/refused-" + f.id,
			Text: "An RDMA write " + f.text + " is refused: RDMAW_PROT at the target, nothing is written; unreliable both stay connected, reliable the connection breaks.",
			run:  eachLevel(f.write),
		})
	}
	return append(rules, Rule{
		ID:     "rdma-write/refused-zero-length",
		Text:   "An RDMA write of length 0 to a VI without EnableRDMAWrite is refused.",
		Choice: "the VI's attribute is checked for each write",
		run:    eachLevel(refusedZeroWrite),
	})
}

// write writes where it may, where it may not, and where it may again.
func (f refusal) write(t *T, level vipl.ReliabilityLevel) {
	va, vb, a, b, to, target := f.pair(t, level)
	b.recv(vb, 0, 64)
	fill(a.buf(0), 1)
	if f.vi == nil {
		a.writeDone(va, 0, refusedSize, b.remote(1))
	}
	a.write(va, 1, refusedSize, to)
	a.write(va, 2, refusedSize, b.remote(2))
	e := t.asyncError(vb, vipl.ErrorRDMAWriteProtection)
	t.errorIf(e.NIC != t.B || e.Op != vipl.StatusOpRDMAWrite, "asynchronous error %+v", e)
	if level == vipl.UnreliableDelivery {
		t.sent(va, vipl.StatusOpRDMAWrite)
		t.sent(va, vipl.StatusOpRDMAWrite)
		a.send(va, 3, 64)
		t.received(vb, 0)
		t.sent(va, 0)
		t.untouched("refused target", target.Bytes())
		t.states(vipl.Connected, va, vb)
		return
	}
	t.states(vipl.Error, vb, va)
	t.received(vb, vipl.StatusFlushed)
	t.untouched("refused target", target.Bytes())
	t.untouched("target of the next write", b.buf(2))
	if f.vi == nil {
		t.coalesces("target of the write before", b.buf(1), 1)
	}
	if level == vipl.ReliableReception {
		t.same(t.sent(va, vipl.StatusOpRDMAWrite|vipl.StatusRemoteRDMAError), a.desc[1])
		t.sent(va, vipl.StatusOpRDMAWrite|vipl.StatusFlushed)
		return
	}
	t.handedOver(va, 2)
}

// handedOver dequeues count completions of a Reliable Delivery VI whose connection one of the
// sends broke: sends that the network had are done, the rest are flushed.
func (t *T) handedOver(v *vipl.VI, count int) {
	t.Helper()
	flushed := false
	for i := range count {
		d, err := v.SendWait(ackDelay)
		if d == nil {
			t.Fatalf("send %d: %v", i, err)
		}
		switch s := d.Status() &^ vipl.StatusOpMask; {
		case s == vipl.StatusDone|vipl.StatusFlushed:
			flushed = true
		case s != vipl.StatusDone || flushed:
			t.Errorf("send %d: status %#x (%v), flushed before: %v", i, uint32(s), s, flushed)
		}
	}
}

func refusedZeroWrite(t *T, level vipl.ReliabilityLevel) {
	va, vb := t.pairOf(at(level), at(level))
	a, b := t.block(t.A, 2, 64), t.block(t.B, 2, 64)
	a.write(va, 0, 0, b.remote(0))
	t.asyncError(vb, vipl.ErrorRDMAWriteProtection)
	if level == vipl.UnreliableDelivery {
		t.sent(va, vipl.StatusOpRDMAWrite)
		t.behind(va, a, vb, b)
		return
	}
	t.states(vipl.Error, va, vb)
}
