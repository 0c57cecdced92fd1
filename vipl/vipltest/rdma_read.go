package vipltest

import (
	"slices"

	"viaxdp/vipl"
)

var rdmaReadRules = slices.Concat([]Rule{
	{
		ID: "rdma-read/sizes", Text: "An RDMA read of 0 bytes to MaxTransferSize gets what the remote memory holds.",
		Choice: "RDMA read is there at both reliable levels",
		run:    eachReliable(readSizes),
	},
	{
		ID: "rdma-read/scatter", Text: "An RDMA read is scattered to up to 252 data segments behind its address segment, in ascending order.",
		run: readScatter,
	},
	{
		ID: "rdma-read/alignment", Text: "Neither the source nor the segments of an RDMA read have an alignment rule.",
		run: readAlignment,
	},
	{
		ID: "rdma-read/own-memory", Text: "RDMA reads go between memory of the NIC's arena and any other memory of the programs, in all combinations.",
		run: readMemory,
	},
	{
		ID: "rdma-read/region-edges", Text: "An RDMA read may take the remote region from its first byte to its last.",
		run: readEdges,
	},
	{
		ID: "rdma-read/nothing-beyond", Text: "An RDMA read writes the bytes of its segments and no others, and changes nothing at the target.",
		run: readNothingBeyond,
	},
	{
		ID: "rdma-read/status", Text: "A completed RDMA read has DONE with operation RDMA_READ, and its other fields as they were.",
		run: eachReliable(readStatus),
	},
	{
		ID: "rdma-read/complete-when-here", Text: "An RDMA read is complete when its data is in the reader's memory, at every level.",
		run: eachReliable(readCompleteWhenHere),
	},
	{
		ID: "rdma-read/silent", Text: "An RDMA read takes no receive, and the remote consumer is not told.",
		run: readSilent,
	},
	{
		ID: "rdma-read/asleep-target", Text: "RDMA reads are served while the target program neither posts nor polls.",
		run: readAsleep,
	},
	{
		ID: "rdma-read/zero-length-checks-no-address", Text: "An RDMA read of length 0 needs neither a valid handle nor a valid address.",
		Choice: "only the target VI's attribute is checked",
		run:    readZeroWild,
	},
	{
		ID: "rdma-read/needs-attribute-of-own-vi", Text: "An RDMA read needs EnableRdmaRead of the reading VI, too: else PROTECTION_ERROR.",
		run: eachReliable(readOwnAttribute),
	},
	{
		ID: "rdma-read/not-on-unreliable-vis", Text: "An unreliable VI has no RDMA read: FORMAT_ERROR, and the connection lives.",
		run: readUnreliable,
	},
	{
		ID: "rdma-read/attribute-on-unreliable-vis", Text: "EnableRdmaRead with Unreliable Delivery is INVALID_RDMAREAD.",
		run: func(t *T) {
			_, err := t.A.CreateVi(vipl.ViAttributes{Level: vipl.UnreliableDelivery, EnableRdmaRead: true}, nil, nil)
			t.wantErr("CreateVi", err, vipl.ErrInvalidRDMARead)
		},
	},
	{
		ID: "rdma-read/levels-are-told", Text: "The NIC's attributes tell at which levels it has RDMA read.",
		Choice: "Reliable Delivery and Reliable Reception",
		run: func(t *T) {
			if got := t.A.Query().RDMAReadLevels; got != vipl.ReliableDelivery|vipl.ReliableReception {
				t.Errorf("RDMAReadLevels %#x", got)
			}
		},
	},
	{
		ID: "rdma-read/into-wrong-memory", Text: "An RDMA read into memory of another protection tag than the reading VI's is PROTECTION_ERROR.",
		run: readIntoWrong,
	},
	{
		ID: "rdma-read/every-frame-is-checked", Text: "An RDMA read that runs over the end of the region gets nothing from behind it, however long it is.",
		run: eachReliable(readOverEnd),
	},
	{
		ID: "rdma-read/refused-zero-length", Text: "An RDMA read of length 0 from a VI without EnableRdmaRead is refused.",
		Choice: "the VI's attribute is checked for each read",
		run:    readRefusedZero,
	},
	{
		ID: "rdma-read/refused-leaves-earlier-ones", Text: "RDMA reads that were posted before a refused one are done, those behind it are flushed.",
		run: eachReliable(readRefusedLater),
	},
	{
		ID: "rdma-read/done-before-a-refused-write", Text: "RDMA reads that were posted before a refused RDMA write are done, what is behind it is flushed.",
		run: eachReliable(readWriteRefused),
	},
}, readOrderRules, refusedReadRules())

func readSizes(t *T, level vipl.ReliabilityLevel) {
	va, vb := t.pair(level)
	most := t.A.Query().MaxTransferSize
	a, b := t.block(t.A, 1, most), t.block(t.B, 1, most)
	fill(b.buf(0), 1)
	_, err := vb.Query() // what serves the reads has seen it
	t.must(err)
	for _, size := range append(sizesToTry, most-1, most) {
		clear(a.buf(0))
		a.read(va, 0, size, b.remote(0))
		t.sent(va, vipl.StatusOpRDMARead)
		t.holds("read", a.buf(0)[:size], 1)
		t.untouched("behind it", a.buf(0)[size:])
	}
}

func readScatter(t *T) {
	const size = 20_000
	va, _ := t.pair(vipl.ReliableDelivery)
	a, b := t.blockOf(t.A, nil, 1, vipl.MaxSegments+1, size), t.block(t.B, 1, size)
	fill(b.buf(0), 1)
	for k, n := range []int{0, 1, 2, 3, 17, 18, 100, 251, 252} {
		clear(a.buf(0))
		length := size - 977*k
		if n == 0 {
			length = 0
		}
		a.desc[0].SetRDMARead(b.remote(0), cut(a.Region, a.at(0), length, n)...)
		a.post(va, a.desc[0])
		t.sent(va, vipl.StatusOpRDMARead)
		t.holds("read", a.buf(0)[:length], 1)
		t.untouched("behind it", a.buf(0)[length:])
	}
}

func readAlignment(t *T) {
	const size = 3100
	va, _ := t.pair(vipl.ReliableDelivery)
	a, b := t.block(t.A, 1, size+64), t.block(t.B, 1, size+64)
	fill(b.buf(0), 1)
	for k := range 16 {
		from, to, n := k, (k*5+3)%17, size-k
		clear(a.buf(0))
		a.desc[0].SetRDMARead(b.Remote(b.at(0)+from), a.Segment(a.at(0)+to, n))
		a.post(va, a.desc[0])
		t.sent(va, vipl.StatusOpRDMARead)
		t.untouched("before it", a.buf(0)[:to])
		t.holdsFrom("read", a.buf(0)[to:to+n], from, 1)
		t.untouched("behind it", a.buf(0)[to+n:])
	}
}

func readMemory(t *T) {
	const size = 50_001
	va, _ := t.pair(vipl.ReliableReception)
	a := t.block(t.A, 1, 64)
	k := 0
	for _, to := range []*vipl.Region{t.alloc(t.A, size, open), t.register(t.A, make([]byte, size+1)[1:], open)} {
		for _, from := range []*vipl.Region{t.alloc(t.B, size, open), t.register(t.B, make([]byte, size+3)[3:], open)} {
			k++
			fill(from.Bytes(), k)
			a.desc[0].SetRDMARead(from.Remote(0), to.Segment(0, size))
			a.post(va, a.desc[0])
			t.sent(va, vipl.StatusOpRDMARead)
			t.holds("read", to.Bytes(), k)
		}
	}
}

func readEdges(t *T) {
	va, _ := t.pair(vipl.ReliableDelivery)
	a := t.block(t.A, 1, 3000)
	from := t.register(t.B, fill(make([]byte, 4000), 1)[500:3500], open)
	for _, piece := range [][2]int{{0, 3000}, {0, 1}, {2999, 1}, {3000, 0}} {
		clear(a.buf(0))
		a.read(va, 0, piece[1], from.Remote(piece[0]))
		t.sent(va, vipl.StatusOpRDMARead)
		t.holdsFrom("read", a.buf(0)[:piece[1]], 500+piece[0], 1)
	}
}

func readNothingBeyond(t *T) {
	va, _ := t.pair(vipl.ReliableDelivery)
	a, b := t.blockOf(t.A, nil, 1, 3, 6000), t.block(t.B, 1, 6000)
	fill(b.buf(0), 1)
	a.desc[0].SetRDMARead(b.remote(0), a.Segment(a.at(0)+5, 1000), a.Segment(a.at(0)+1010, 4000))
	a.post(va, a.desc[0])
	t.sent(va, vipl.StatusOpRDMARead)
	x := a.buf(0)
	t.untouched("before", x[:5])
	t.holds("first segment", x[5:1005], 1)
	t.untouched("between", x[1005:1010])
	t.holdsFrom("second segment", x[1010:5010], 1000, 1)
	t.untouched("behind", x[5010:])
	t.holds("source", b.buf(0), 1)
}

func readStatus(t *T, level vipl.ReliabilityLevel) {
	va, _ := t.pair(level)
	a, b := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
	d := a.read(va, 0, 64, b.remote(0))
	if got := t.sent(va, vipl.StatusOpRDMARead); got != d {
		t.Error("another descriptor")
	}
	if d.SegCount != 2 || d.Length != 64 || d.Control != vipl.ControlRDMARead || *d.AddressSegment() != b.remote(0) || *d.Segment(1) != a.seg(0, 64) {
		t.Errorf("the descriptor became %+v", *d)
	}
}

func readCompleteWhenHere(t *T, level vipl.ReliabilityLevel) {
	const size = 100_000
	va, _ := t.pair(level)
	a, b := t.block(t.A, 1, size), t.block(t.B, 1, size)
	fill(b.buf(0), 1)
	for range 5 {
		clear(a.buf(0))
		d := a.read(va, 0, size, b.remote(0))
		t.until("the read", func() bool { return d.Status()&vipl.StatusDone != 0 })
		t.holds("read", a.buf(0), 1)
		t.sent(va, vipl.StatusOpRDMARead)
	}
}

func readSilent(t *T) {
	va, vb := t.pair(vipl.ReliableDelivery)
	a, b := t.block(t.A, 2, 3000), t.block(t.B, 2, 3000)
	d := b.recv(vb, 0, 3000)
	for range 3 {
		a.read(va, 0, 3000, b.remote(1))
		t.sent(va, vipl.StatusOpRDMARead)
	}
	t.nothingReceived(vb)
	a.send(va, 1, 5)
	if got := t.received(vb, 0); got != d || got.Length != 5 {
		t.Errorf("the message after the reads: length %d", got.Length)
	}
	t.sent(va, 0)
	t.asyncErrors(vb)
}

func readAsleep(t *T) {
	const size = 30_000
	va, _ := t.pair(vipl.ReliableReception)
	a, b := t.block(t.A, 1, size), t.block(t.B, 2, size)
	fill(b.buf(0), 1)
	fill(b.buf(1), 2)
	for k := range 10 { // nothing is called on b
		a.read(va, 0, size, b.remote(k%2))
		t.sent(va, vipl.StatusOpRDMARead)
		t.holds("read", a.buf(0), 1+k%2)
	}
}

func readZeroWild(t *T) {
	va, _ := t.pair(vipl.ReliableDelivery)
	a, b := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
	for _, from := range []vipl.AddressSegment{{}, {Data: ^uint64(0), Handle: 0x12345}, {Data: b.Addr() - 1, Handle: b.Handle()}} {
		a.read(va, 0, 0, from)
		t.sent(va, vipl.StatusOpRDMARead)
	}
	t.untouched("buffer", a.buf(0))
}

func readOwnAttribute(t *T, level vipl.ReliabilityLevel) {
	va, vb := t.pairOf(vipl.ViAttributes{Level: level}, vipl.ViAttributes{Level: level, EnableRdmaRead: true})
	a, b := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
	fill(b.buf(0), 1)
	a.read(va, 0, 64, b.remote(0))
	t.sent(va, vipl.StatusOpRDMARead|vipl.StatusProtectionError)
	t.untouched("buffer", a.buf(0))
	t.state(va, vipl.Error)
	t.state(vb, vipl.Error)
}

func readUnreliable(t *T) {
	va, vb := t.pair(vipl.UnreliableDelivery)
	a, b := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
	a.read(va, 0, 64, b.remote(0))
	t.sent(va, vipl.StatusOpRDMARead|vipl.StatusFormatError)
	t.stays(va, vipl.Connected)
	t.state(vb, vipl.Connected)
}

func readIntoWrong(t *T) {
	tag := t.tag(t.A)
	attrs := vipl.ViAttributes{Level: vipl.ReliableReception, EnableRdmaRead: true}
	tagged := attrs
	tagged.Ptag = tag
	va, _ := t.pairOf(tagged, attrs)
	a, b := t.blockOf(t.A, tag, 1, 2, 64), t.block(t.B, 1, 64)
	other := t.alloc(t.A, 64, open)
	fill(b.buf(0), 1)
	a.desc[0].SetRDMARead(b.remote(0), other.Segment(0, 64))
	a.post(va, a.desc[0])
	t.sent(va, vipl.StatusOpRDMARead|vipl.StatusProtectionError)
	t.untouched("memory of another tag", other.Bytes())
}

func readOverEnd(t *T, level vipl.ReliabilityLevel) {
	const size = 40_000
	va, vb := t.pair(level)
	a := t.block(t.A, 1, size)
	secret := make([]byte, 2*size)
	for i := range secret {
		secret[i] = 0x5a
	}
	from := t.register(t.B, secret[:size-1], open)
	clear(from.Bytes())
	a.read(va, 0, size, from.Remote(0))
	t.sent(va, vipl.StatusOpRDMARead|vipl.StatusRemoteRDMAError)
	t.untouched("reader's memory", a.buf(0))
	t.asyncError(vb, vipl.ErrorRDMAReadProtection)
}

func readRefusedZero(t *T) {
	va, vb := t.pairOf(vipl.ViAttributes{Level: vipl.ReliableDelivery, EnableRdmaRead: true}, vipl.ViAttributes{Level: vipl.ReliableDelivery})
	a, b := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
	a.read(va, 0, 0, b.remote(0))
	t.sent(va, vipl.StatusOpRDMARead|vipl.StatusRemoteRDMAError)
	t.asyncError(vb, vipl.ErrorRDMAReadProtection)
}

func readRefusedLater(t *T, level vipl.ReliabilityLevel) {
	const count, bad = 8, 4
	va, vb := t.pair(level)
	a, b := t.block(t.A, count, 2000), t.block(t.B, count, 2000)
	closed := t.alloc(t.B, 2000, vipl.MemAttributes{})
	for i := range count {
		fill(b.buf(i), i)
	}
	for i := range count {
		from := b.remote(i)
		if i == bad {
			from = closed.Remote(0)
		}
		a.read(va, i, 2000, from)
	}
	t.state(vb, vipl.Error)
	for i := range count {
		d, _ := va.SendWait(patience)
		if d != a.desc[i] {
			t.Fatalf("read %d: another descriptor", i)
		}
		s := d.Status() &^ vipl.StatusOpMask
		switch {
		case i < bad && s == vipl.StatusDone:
			t.holds("read", a.buf(i), i)
		case i == bad && s == vipl.StatusDone|vipl.StatusRemoteRDMAError:
		case i > bad && s == vipl.StatusDone|vipl.StatusFlushed:
		default:
			t.Errorf("read %d of %d, number %d refused: status %#x (%v)", i, count, bad, uint32(s), s)
		}
	}
	t.state(va, vipl.Error)
}

func readWriteRefused(t *T, level vipl.ReliabilityLevel) {
	const count, bad = 6, 4
	va, vb := t.pair(level)
	a, b := t.block(t.A, count, 2000), t.block(t.B, count, 2000)
	closed := t.alloc(t.B, 64, vipl.MemAttributes{})
	for i := range count {
		fill(b.buf(i), i)
		if i == bad {
			a.write(va, i, 8, closed.Remote(0))
		} else {
			a.read(va, i, 2000, b.remote(i))
		}
	}
	t.asyncError(vb, vipl.ErrorRDMAWriteProtection)
	for i := range bad {
		t.sent(va, vipl.StatusOpRDMARead)
		t.holds("read", a.buf(i), i)
	}
	refused := vipl.StatusOpRDMAWrite // handed to the network
	if level == vipl.ReliableReception {
		refused |= vipl.StatusRemoteRDMAError
	}
	t.sent(va, refused)
	t.sent(va, vipl.StatusOpRDMARead|vipl.StatusFlushed)
	t.state(va, vipl.Error)
}

func refusedReadRules() (rules []Rule) {
	for _, f := range append(slices.Clone(refusals), refusal{
		id: "vi-attribute", text: "on a VI without EnableRdmaRead", spoil: same,
		vi: func(a *vipl.ViAttributes) { a.EnableRdmaRead = false },
	}, refusal{
		id: "region-attribute", text: "on memory without EnableRdmaRead",
		spoil: withAttributes(func(a *vipl.MemAttributes) { a.EnableRdmaRead = false }),
	}) {
		rules = append(rules, Rule{
			ID:   "rdma-read/refused-" + f.id,
			Text: "An RDMA read " + f.text + " is refused: RDMAR_PROT at the target, RDMA_PROT in its descriptor, nothing is read, and the connection breaks.",
			run:  eachReliable(f.read),
		})
	}
	return rules
}

// read reads where it may not.
func (f refusal) read(t *T, level vipl.ReliabilityLevel) {
	va, vb, a, b, from, target := f.pair(t, level)
	fill(target.Bytes(), 1)
	b.recv(vb, 0, 64)
	a.recv(va, 3, 64)
	a.read(va, 0, refusedSize, from)
	if d := t.sent(va, vipl.StatusOpRDMARead|vipl.StatusRemoteRDMAError); d != a.desc[0] {
		t.Error("another descriptor")
	}
	e := t.asyncError(vb, vipl.ErrorRDMAReadProtection)
	if e.Nic != t.B || e.Op != vipl.StatusOpRDMARead {
		t.Errorf("asynchronous error %+v", e)
	}
	t.state(va, vipl.Error)
	t.state(vb, vipl.Error)
	t.received(va, vipl.StatusFlushed)
	t.received(vb, vipl.StatusFlushed)
	t.untouched("reader's memory", a.buf(0))
	a.send(va, 1, 64)
	t.sent(va, vipl.StatusFlushed)
}
