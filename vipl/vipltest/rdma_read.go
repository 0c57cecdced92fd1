package vipltest

import (
	"slices"

	"viaxdp/vipl"
)

var rdmaReadRules = slices.Concat([]Rule{
	choice("rdma-read/sizes", "An RDMA read of 0 bytes to MaxTransferSize gets what the remote memory holds.", "RDMA read is there at both reliable levels", eachReliable(readSizes)),
	rule("rdma-read/scatter", "An RDMA read is scattered to up to 252 data segments behind its address segment, in ascending order.", func(t *T) {
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
			a.readSegments(va, 0, b.remote(0), cut(a.Region, a.at(0), length, n)...)
			t.sent(va, vipl.StatusOpRDMARead)
			t.coalesces("read", a.buf(0)[:length], 1)
			t.untouched("behind it", a.buf(0)[length:])
		}
	}),
	rule("rdma-read/alignment", "Neither the source nor the segments of an RDMA read have an alignment rule.", func(t *T) {
		const size = 3100
		va, _, a, b := t.ends(vipl.ReliableDelivery, 1, 1, size+64)
		fill(b.buf(0), 1)
		for k := range 16 {
			from, to, n := k, (k*5+3)%17, size-k
			clear(a.buf(0))
			a.readSegments(va, 0, b.Remote(b.at(0)+from), a.Segment(a.at(0)+to, n))
			t.sent(va, vipl.StatusOpRDMARead)
			t.untouched("before it", a.buf(0)[:to])
			t.holdsFrom("read", a.buf(0)[to:to+n], from, 1)
			t.untouched("behind it", a.buf(0)[to+n:])
		}
	}),
	rule("rdma-read/own-memory", "RDMA reads go between memory of the NIC's arena and any other memory of the programs, in all combinations.", func(t *T) {
		const size = 50_001
		va, _ := t.pair(vipl.ReliableReception)
		a := t.block(t.A, 1, 64)
		k := 0
		for _, to := range []*vipl.Region{t.alloc(t.A, size, open), t.register(t.A, make([]byte, size+1)[1:], open)} {
			for _, from := range []*vipl.Region{t.alloc(t.B, size, open), t.register(t.B, make([]byte, size+3)[3:], open)} {
				k++
				fill(from.Bytes(), k)
				a.readSegments(va, 0, from.Remote(0), to.Segment(0, size))
				t.sent(va, vipl.StatusOpRDMARead)
				t.coalesces("read", to.Bytes(), k)
			}
		}
	}),
	rule("rdma-read/region-edges", "An RDMA read may take the remote region from its first byte to its last.", func(t *T) {
		va, _ := t.pair(vipl.ReliableDelivery)
		a := t.block(t.A, 1, 3000)
		from := t.register(t.B, fill(make([]byte, 4000), 1)[500:3500], open)
		for _, piece := range [][2]int{{0, 3000}, {0, 1}, {2999, 1}, {3000, 0}} {
			clear(a.buf(0))
			a.readDone(va, 0, piece[1], from.Remote(piece[0]))
			t.holdsFrom("read", a.buf(0)[:piece[1]], 500+piece[0], 1)
		}
	}),
	rule("rdma-read/nothing-beyond", "An RDMA read writes the bytes of its segments and no others, and changes nothing at the target.", func(t *T) {
		va, _ := t.pair(vipl.ReliableDelivery)
		a, b := t.blockOf(t.A, nil, 1, 3, 6000), t.block(t.B, 1, 6000)
		fill(b.buf(0), 1)
		a.readSegments(va, 0, b.remote(0), a.Segment(a.at(0)+5, 1000), a.Segment(a.at(0)+1010, 4000))
		t.sent(va, vipl.StatusOpRDMARead)
		x := a.buf(0)
		t.untouched("before", x[:5])
		t.coalesces("first segment", x[5:1005], 1)
		t.untouched("between", x[1005:1010])
		t.holdsFrom("second segment", x[1010:5010], 1000, 1)
		t.untouched("behind", x[5010:])
		t.coalesces("source", b.buf(0), 1)
	}),
	rule("rdma-read/status", "A completed RDMA read has DONE with operation RDMA_READ, and its other fields as they were.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		va, _, a, b := t.ends(level, 1, 1, 64)
		d := a.read(va, 0, 64, b.remote(0))
		t.same(t.sent(va, vipl.StatusOpRDMARead), d)
		t.errorIf(d.SegCount != 2 || d.Length != 64 || d.Control != vipl.ControlRDMARead || *d.AddressSegment() != b.remote(0) || *d.Segment(1) != a.seg(0, 64), "the descriptor became %+v", *d)
	})),
	rule("rdma-read/complete-when-here", "An RDMA read is complete when its data is in the reader's memory, at every level.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		const size = 100_000
		va, _, a, b := t.ends(level, 1, 1, size)
		fill(b.buf(0), 1)
		for range 5 {
			clear(a.buf(0))
			d := a.read(va, 0, size, b.remote(0))
			t.until("the read", func() bool { return d.Status()&vipl.StatusDone != 0 })
			t.coalesces("read", a.buf(0), 1)
			t.sent(va, vipl.StatusOpRDMARead)
		}
	})),
	rule("rdma-read/silent", "An RDMA read takes no receive, and the remote consumer is not told.", func(t *T) {
		va, vb, a, b := t.ends(vipl.ReliableDelivery, 2, 2, 3000)
		d := b.recv(vb, 0, 3000)
		for range 3 {
			a.readDone(va, 0, 3000, b.remote(1))
		}
		t.nothingReceived(vb)
		a.send(va, 1, 5)
		got := t.received(vb, 0)
		t.errorIf(got != d || got.Length != 5, "the message after the reads: length %d", got.Length)
		t.sent(va, 0)
		t.asyncErrors(vb)
	}),
	rule("rdma-read/asleep-target", "RDMA reads are served while the target program neither posts nor polls.", func(t *T) {
		const size = 30_000
		va, _, a, b := t.ends(vipl.ReliableReception, 1, 2, size)
		fill(b.buf(0), 1)
		fill(b.buf(1), 2)
		for k := range 10 { // nothing is called on b
			a.readDone(va, 0, size, b.remote(k%2))
			t.coalesces("read", a.buf(0), 1+k%2)
		}
	}),
	choice("rdma-read/zero-length-checks-no-address", "An RDMA read of length 0 needs neither a valid handle nor a valid address.", "only the target VI's attribute is checked", func(t *T) {
		va, _, a, b := t.ends(vipl.ReliableDelivery, 1, 1, 64)
		for _, from := range []vipl.AddressSegment{{}, {Data: ^uint64(0), Handle: 0x12345}, {Data: b.Addr() - 1, Handle: b.Handle()}} {
			a.readDone(va, 0, 0, from)
		}
		t.untouched("buffer", a.buf(0))
	}),
	rule("rdma-read/needs-attribute-of-own-vi", "An RDMA read needs EnableRDMARead of the reading VI, too: else PROTECTION_ERROR.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.pairOf(at(level), vipl.VIAttributes{Level: level, EnableRDMARead: true})
		a, b := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
		fill(b.buf(0), 1)
		a.read(va, 0, 64, b.remote(0))
		t.sent(va, vipl.StatusOpRDMARead|vipl.StatusProtectionError)
		t.untouched("buffer", a.buf(0))
		t.states(vipl.Error, va, vb)
	})),
	rule("rdma-read/not-on-unreliable-vis", "An unreliable VI has no RDMA read: FORMAT_ERROR, and the connection lives.", func(t *T) {
		va, vb, a, b := t.ends(vipl.UnreliableDelivery, 1, 1, 64)
		a.read(va, 0, 64, b.remote(0))
		t.sent(va, vipl.StatusOpRDMARead|vipl.StatusFormatError)
		t.stays(va, vipl.Connected)
		t.state(vb, vipl.Connected)
	}),
	rule("rdma-read/attribute-on-unreliable-vis", "EnableRDMARead with Unreliable Delivery is INVALID_RDMAREAD.", func(t *T) {
		t.wantErr("CreateVI", errOf(t.A.CreateVI(vipl.VIAttributes{Level: vipl.UnreliableDelivery, EnableRDMARead: true}, nil, nil)), vipl.ErrInvalidRDMARead)
	}),
	choice("rdma-read/levels-are-told", "The NIC's attributes tell at which levels it has RDMA read.", "Reliable Delivery and Reliable Reception", func(t *T) {
		equal(t, "RDMAReadLevels", t.A.Query().RDMAReadLevels, vipl.ReliableDelivery|vipl.ReliableReception)
	}),
	rule("rdma-read/into-wrong-memory", "An RDMA read into memory of another protection tag than the reading VI's is PROTECTION_ERROR.", func(t *T) {
		tag := t.tag(t.A)
		attrs := vipl.VIAttributes{Level: vipl.ReliableReception, EnableRDMARead: true}
		tagged := attrs
		tagged.Ptag = tag
		va, _ := t.pairOf(tagged, attrs)
		a, b := t.blockOf(t.A, tag, 1, 2, 64), t.block(t.B, 1, 64)
		other := t.alloc(t.A, 64, open)
		fill(b.buf(0), 1)
		a.readSegments(va, 0, b.remote(0), other.Segment(0, 64))
		t.sent(va, vipl.StatusOpRDMARead|vipl.StatusProtectionError)
		t.untouched("memory of another tag", other.Bytes())
	}),
	rule("rdma-read/every-frame-is-checked", "An RDMA read that runs over the end of the region gets nothing from behind it, however long it is.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
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
	})),
	choice("rdma-read/refused-zero-length", "An RDMA read of length 0 from a VI without EnableRDMARead is refused.", "the VI's attribute is checked for each read", func(t *T) {
		va, vb := t.pairOf(vipl.VIAttributes{Level: vipl.ReliableDelivery, EnableRDMARead: true}, at(vipl.ReliableDelivery))
		a, b := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
		a.read(va, 0, 0, b.remote(0))
		t.sent(va, vipl.StatusOpRDMARead|vipl.StatusRemoteRDMAError)
		t.asyncError(vb, vipl.ErrorRDMAReadProtection)
	}),
	rule("rdma-read/refused-leaves-earlier-ones", "RDMA reads that were posted before a refused one are done, those behind it are flushed.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		const count, bad = 8, 4
		va, vb, a, b := t.ends(level, count, count, 2000)
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
			d, _ := va.SendWait(ackDelay)
			if d != a.desc[i] {
				t.Fatalf("read %d: another descriptor", i)
			}
			s := d.Status() &^ vipl.StatusOpMask
			switch {
			case i < bad && s == vipl.StatusDone:
				t.coalesces("read", a.buf(i), i)
			case i == bad && s == vipl.StatusDone|vipl.StatusRemoteRDMAError:
			case i > bad && s == vipl.StatusDone|vipl.StatusFlushed:
			default:
				t.Errorf("read %d of %d, number %d refused: status %#x (%v)", i, count, bad, uint32(s), s)
			}
		}
		t.state(va, vipl.Error)
	})),
	rule("rdma-read/done-before-a-refused-write", "RDMA reads that were posted before a refused RDMA write are done, what is behind it is flushed.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		const count, bad = 6, 4
		va, vb, a, b := t.ends(level, count, count, 2000)
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
			t.coalesces("read", a.buf(i), i)
		}
		refused := vipl.StatusOpRDMAWrite // handed to the network
		if level == vipl.ReliableReception {
			refused |= vipl.StatusRemoteRDMAError
		}
		t.sent(va, refused)
		t.sent(va, vipl.StatusOpRDMARead|vipl.StatusFlushed)
		t.state(va, vipl.Error)
	})),
}, readOrderRules, refusedReadRules())

func refusedReadRules() (rules []Rule) {
	for _, f := range append(slices.Clone(refusals), refusal{
		id: "vi-attribute", text: "on a VI without EnableRDMARead", spoil: same,
		vi: func(a *vipl.VIAttributes) { a.EnableRDMARead = false },
	}, refusal{
		id: "region-attribute", text: "on memory without EnableRDMARead",
		spoil: withAttributes(func(a *vipl.MemAttributes) { a.EnableRDMARead = false }),
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
	t.same(t.sent(va, vipl.StatusOpRDMARead|vipl.StatusRemoteRDMAError), a.desc[0])
	e := t.asyncError(vb, vipl.ErrorRDMAReadProtection)
	t.errorIf(e.NIC != t.B || e.Op != vipl.StatusOpRDMARead, "asynchronous error %+v", e)
	t.states(vipl.Error, va, vb)
	t.received(va, vipl.StatusFlushed)
	t.received(vb, vipl.StatusFlushed)
	t.untouched("reader's memory", a.buf(0))
	a.send(va, 1, 64)
	t.sent(va, vipl.StatusFlushed)
}

func readSizes(t *T, level vipl.ReliabilityLevel) {
	va, vb := t.pair(level)
	most := t.A.Query().MaxTransferSize
	a, b := t.block(t.A, 1, most), t.block(t.B, 1, most)
	fill(b.buf(0), 1)
	_, err := vb.Query() // what serves the reads has seen it
	t.must(err)
	for _, size := range append(sizesToTry, most-1, most) {
		clear(a.buf(0))
		a.readDone(va, 0, size, b.remote(0))
		t.coalesces("read", a.buf(0)[:size], 1)
		t.untouched("behind it", a.buf(0)[size:])
	}
}
