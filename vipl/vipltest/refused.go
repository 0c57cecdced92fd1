package vipltest

import (
	"slices"

	"viaxdp/vipl"
)

// refusal is an RDMA operation on memory or a VI that the target has not opened for it.
type refusal struct {
	id, text string
	// spoil changes an operation on target, 3000 bytes that are open, into one that is refused.
	spoil func(t *T, target *vipl.Region) vipl.AddressSegment
	// vi makes the target's VI refuse; nil: the VI is an ordinary one.
	vi func(a *vipl.VIAttributes)
}

const refusedSize = 3000

// refusals are the ways in which both RDMA operations can be refused. Each operation has two more, by its
// attributes.
var refusals = []refusal{
	{"handle-0", "on handle 0", func(_ *T, r *vipl.Region) vipl.AddressSegment { return vipl.AddressSegment{Data: r.Addr()} }, nil},
	{"unknown-handle", "on a handle that names nothing", func(_ *T, r *vipl.Region) vipl.AddressSegment {
		return vipl.AddressSegment{Data: r.Addr(), Handle: r.Handle() ^ 0x5a5a5a5a}
	}, nil},
	{"handle-of-other-memory", "on an address with the handle of other memory", func(t *T, r *vipl.Region) vipl.AddressSegment {
		return vipl.AddressSegment{Data: r.Addr(), Handle: t.alloc(t.B, refusedSize, t.attributes(r)).Handle()}
	}, nil},
	{"deregistered", "on memory that is deregistered", func(t *T, r *vipl.Region) vipl.AddressSegment {
		gone := t.register(t.B, r.Bytes(), t.attributes(r))
		defer func() { t.must(gone.Deregister()) }()
		return gone.Remote(0)
	}, nil},
	{"tag", "on memory of another protection tag than the target VI's", func(t *T, r *vipl.Region) vipl.AddressSegment {
		return t.register(t.B, r.Bytes(), openMemory).Remote(0)
	}, nil},
	{"begins-too-early", "on a range that begins a byte before its region", func(_ *T, r *vipl.Region) vipl.AddressSegment { return r.Remote(-1) }, nil},
	{"ends-too-late", "on a range that ends a byte behind its region", func(_ *T, r *vipl.Region) vipl.AddressSegment { return r.Remote(1) }, nil},
	{"beyond", "on what lies behind the region", func(_ *T, r *vipl.Region) vipl.AddressSegment { return r.Remote(len(r.Bytes())) }, nil},
	{"wraps-around", "on a range that wraps around the end of the address space", func(_ *T, r *vipl.Region) vipl.AddressSegment {
		return vipl.AddressSegment{Data: ^uint64(0) - 10, Handle: r.Handle()}
	}, nil},
	{"null", "on address 0", func(_ *T, r *vipl.Region) vipl.AddressSegment { return vipl.AddressSegment{Handle: r.Handle()} }, nil},
}

// byVI returns a refusal by the target VI's attributes, and byRegion one by its memory's.
func byVI(text string, change func(*vipl.VIAttributes)) refusal {
	return refusal{"vi-attribute", text, func(_ *T, r *vipl.Region) vipl.AddressSegment { return r.Remote(0) }, change}
}

func byRegion(text string, change func(*vipl.MemAttributes)) refusal {
	return refusal{"region-attribute", text, withAttributes(change), nil}
}

// withAttributes changes the region's attributes.
func withAttributes(change func(*vipl.MemAttributes)) func(t *T, r *vipl.Region) vipl.AddressSegment {
	return func(t *T, r *vipl.Region) vipl.AddressSegment {
		attrs := t.attributes(r)
		change(&attrs)
		t.must(r.SetAttributes(attrs))
		return r.Remote(0)
	}
}

func (t *T) attributes(r *vipl.Region) vipl.MemAttributes {
	attrs, err := r.Query()
	t.must(err)
	return attrs
}

// ends makes a connected pair of VIs, b with a protection tag, and the
// memory that refuses.
func (f refusal) ends(t *T, level vipl.ReliabilityLevel) (a, b *end, to vipl.AddressSegment, target *vipl.Region) {
	theirs := open(level)
	theirs.Ptag = t.tag(t.B)
	memory := vipl.MemAttributes{Ptag: theirs.Ptag, EnableRDMAWrite: true, EnableRDMARead: true}
	if f.vi != nil {
		f.vi(&theirs)
	}
	a, b = t.endsOf(open(level), theirs, 4, 3, refusedSize)
	target = t.register(t.B, make([]byte, refusedSize), memory)
	return a, b, f.spoil(t, target), target
}

func refusedWriteRules() (rules []Rule) {
	for _, f := range append(slices.Clone(refusals),
		byVI("on a VI without EnableRDMAWrite", func(a *vipl.VIAttributes) { a.EnableRDMAWrite = false }),
		byRegion("on memory without EnableRDMAWrite", func(a *vipl.MemAttributes) { a.EnableRDMAWrite = false }),
	) {
		rules = append(rules, rule("rdma-write/refused-"+f.id,
			"An RDMA write "+f.text+" is refused: RDMAW_PROT at the target, nothing is written; unreliable both stay connected, reliable the connection breaks.",
			eachLevel(f.write)))
	}
	return append(rules, choice("rdma-write/refused-zero-length", "An RDMA write of length 0 to a VI without EnableRDMAWrite is refused.", "the VI's attribute is checked for each write", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		a, b := t.endsOf(at(level), at(level), 2, 2, 64)
		a.write(0, 0, b.remote(0))
		a.failsAtTarget(b, level, vipl.ErrorRDMAWriteProtection)
	})))
}

func refusedReadRules() (rules []Rule) {
	for _, f := range append(slices.Clone(refusals),
		byVI("on a VI without EnableRDMARead", func(a *vipl.VIAttributes) { a.EnableRDMARead = false }),
		byRegion("on memory without EnableRDMARead", func(a *vipl.MemAttributes) { a.EnableRDMARead = false }),
	) {
		rules = append(rules, rule("rdma-read/refused-"+f.id,
			"An RDMA read "+f.text+" is refused: RDMAR_PROT at the target, RDMA_PROT in its descriptor, nothing is read, and the connection breaks.",
			eachReliable(f.read)))
	}
	return rules
}

// write writes to memory that is open, to memory that is not, and again to memory that is.
func (f refusal) write(t *T, level vipl.ReliabilityLevel) {
	a, b, to, target := f.ends(t, level)
	b.recv(0, 64)
	fill(a.buf(0), 1)
	if f.vi == nil {
		a.writeWait(0, refusedSize, b.remote(1))
	}
	a.write(1, refusedSize, to)
	a.write(2, refusedSize, b.remote(2))
	e := t.asyncError(b.v, vipl.ErrorRDMAWriteProtection)
	t.errorIf(e.NIC != t.B || e.Op != vipl.StatusOpRDMAWrite, "asynchronous error %+v", e)
	if level == vipl.UnreliableDelivery {
		a.sent(vipl.StatusOpRDMAWrite, vipl.StatusOpRDMAWrite)
		a.send(3, 64)
		b.received()
		a.sent()
		t.untouched("refused target", target.Bytes())
		t.states(vipl.Connected, a.v, b.v)
		return
	}
	t.states(vipl.Error, b.v, a.v)
	b.received(vipl.StatusFlushed)
	t.untouched("refused target", target.Bytes())
	t.untouched("target of the next write", b.buf(2))
	if f.vi == nil {
		t.holds("target of the write before", b.buf(1), 1)
	}
	if level == vipl.ReliableReception {
		t.same(a.sent(writeRefused), a.desc[1])
		a.sent(vipl.StatusOpRDMAWrite | vipl.StatusFlushed)
		return
	}
	t.handedOver(a, vipl.StatusOpRDMAWrite, a.desc[1:3])
}

// read reads from memory that is not open.
func (f refusal) read(t *T, level vipl.ReliabilityLevel) {
	a, b, from, target := f.ends(t, level)
	fill(target.Bytes(), 1)
	b.recv(0, 64)
	a.recv(3, 64)
	a.read(0, refusedSize, from)
	t.same(a.sent(readRefused), a.desc[0])
	e := t.asyncError(b.v, vipl.ErrorRDMAReadProtection)
	t.errorIf(e.NIC != t.B || e.Op != vipl.StatusOpRDMARead, "asynchronous error %+v", e)
	t.states(vipl.Error, a.v, b.v)
	a.received(vipl.StatusFlushed)
	b.received(vipl.StatusFlushed)
	t.untouched("reader's memory", a.buf(0))
	a.send(1, 64)
	a.sent(vipl.StatusFlushed)
}

// handedOver dequeues sends of a Reliable Delivery VI after one of them broke the connection. Those that were
// passed to the network are done, the rest flushed.
func (t *T) handedOver(a *end, op vipl.Status, list []*vipl.Descriptor) {
	t.doneThenFlushed(func() (*vipl.Descriptor, error) { return a.v.SendWait(limit) }, op, list)
}
