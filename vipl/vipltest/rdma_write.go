package vipltest

import (
	"slices"

	"viaxdp/vipl"
)

var rdmaWriteRules = slices.Concat([]Rule{
	rule("rdma-write/sizes", "An RDMA write of 0 bytes to MaxTransferSize lands whole where its address segment says.", eachLevel(writeSizes)),
	rule("rdma-write/gather", "An RDMA write is gathered from up to 252 data segments behind its address segment.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		const size = 20_000
		va, vb := t.pair(level)
		a, b := t.blockOf(t.A, nil, 2, vipl.MaxSegments+1, size), t.block(t.B, 2, size)
		for k, n := range []int{0, 1, 2, 3, 17, 18, 100, 251, 252} {
			b.wipe(0, vb)
			length := size - 977*k
			if n == 0 {
				length = 0
			}
			fill(a.buf(0)[:length], k)
			a.writeSegments(va, 0, b.remote(0), cut(a.Region, a.at(0), length, n)...)
			t.sent(va, vipl.StatusOpRDMAWrite)
			t.behind(va, a, vb, b)
			t.coalesces("target", b.buf(0)[:length], k)
			t.untouched("behind it", b.buf(0)[length:])
		}
	})),
	rule("rdma-write/alignment", "Neither the data nor the target of an RDMA write has an alignment rule.", func(t *T) {
		const size = 3100
		va, vb, a, b := t.ends(vipl.ReliableDelivery, 2, 2, size+64)
		for k := range 16 {
			from, to, n := k, (k*5+3)%17, size-k
			b.wipe(0, vb)
			fill(a.buf(0)[from:from+n], k)
			a.writeSegments(va, 0, b.Remote(b.at(0)+to), a.Segment(a.at(0)+from, n))
			t.sent(va, vipl.StatusOpRDMAWrite)
			t.behind(va, a, vb, b)
			t.untouched("before it", b.buf(0)[:to])
			t.coalesces("target", b.buf(0)[to:to+n], k)
			t.untouched("behind it", b.buf(0)[to+n:])
		}
	}),
	rule("rdma-write/own-memory", "RDMA writes go between memory of the NIC's arena and any other memory of the programs, in all combinations.", func(t *T) {
		const size = 50_001
		va, vb := t.pair(t.levels()[0])
		a, b := t.block(t.A, 2, 64), t.block(t.B, 2, 64)
		k := 0
		for _, from := range []*vipl.Region{t.alloc(t.A, size, open), t.register(t.A, make([]byte, size+1)[1:], open)} {
			for _, to := range []*vipl.Region{t.alloc(t.B, size, open), t.register(t.B, make([]byte, size+3)[3:], open)} {
				k++
				fill(from.Bytes(), k)
				a.writeSegments(va, 0, to.Remote(0), from.Segment(0, size))
				t.sent(va, vipl.StatusOpRDMAWrite)
				t.behind(va, a, vb, b)
				t.coalesces("target", to.Bytes(), k)
			}
		}
	}),
	rule("rdma-write/region-edges", "An RDMA write may take the target region from its first byte to its last, and writes no byte beside it.", func(t *T) {
		va, vb := t.pair(vipl.ReliableDelivery)
		a, b := t.block(t.A, 2, 3000), t.block(t.B, 2, 64)
		around := make([]byte, 4000)
		to := t.register(t.B, around[500:3500], open)
		fill(a.buf(0), 1)
		for _, piece := range [][2]int{{0, 3000}, {0, 1}, {2999, 1}, {3000, 0}} {
			a.writeSegments(va, 0, to.Remote(piece[0]), a.Segment(a.at(0)+piece[0], piece[1]))
			t.sent(va, vipl.StatusOpRDMAWrite)
		}
		t.behind(va, a, vb, b)
		t.untouched("before the region", around[:500])
		t.coalesces("region", to.Bytes(), 1)
		t.untouched("behind the region", around[3500:])
	}),
	rule("rdma-write/status", "A completed RDMA write has DONE with operation RDMA_WRITE, and its other fields as they were.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb, a, b := t.ends(level, 2, 2, 64)
		d := a.write(va, 0, 64, b.remote(0))
		t.same(t.sent(va, vipl.StatusOpRDMAWrite), d)
		t.errorIf(d.SegCount != 2 || d.Length != 64 || d.Control != vipl.ControlRDMAWrite || *d.AddressSegment() != b.remote(0) || *d.Segment(1) != a.seg(0, 64), "the descriptor became %+v", *d)
		t.behind(va, a, vb, b)
	})),
	rule("rdma-write/silent", "An RDMA write without immediate data takes no receive, and the remote consumer is not told.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb, a, b := t.ends(level, 2, 2, 3000)
		d := b.recv(vb, 1, 3000)
		for range 3 {
			a.writeDone(va, 0, 3000, b.remote(0))
		}
		t.nothingReceived(vb)
		a.send(va, 0, 5)
		got := t.received(vb, 0)
		t.errorIf(got != d || got.Length != 5, "the message after the writes: length %d", got.Length)
		t.sent(va, 0)
	})),
	rule("rdma-write/needs-no-receive", "An RDMA write without immediate data needs no receive to be posted.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb, a, b := t.ends(level, 2, 2, 3000)
		for range 5 {
			a.writeDone(va, 0, 3000, b.remote(0))
		}
		t.behind(va, a, vb, b)
		t.asyncErrors(vb)
		t.states(vipl.Connected, va, vb)
	})),
	rule("rdma-write/immediate-data", "An RDMA write with immediate data takes one receive: REMOTE_RDMA_WRITE with IMMEDIATE, Length the bytes written, its segments untouched.", eachLevel(writeImmediate)),
	rule("rdma-write/immediate-to-empty-receive", "A receive without segments takes the immediate data of an RDMA write of any length.", func(t *T) {
		va, vb, a, b := t.ends(vipl.ReliableDelivery, 1, 2, 5000)
		b.recvSegments(vb, 1)
		fill(a.buf(0), 1)
		a.writeImmediate(va, 0, 5000, b.remote(0), 9)
		d := t.received(vb, remoteWrite)
		t.errorIf(d.Length != 5000 || d.ImmediateData != 9, "length %d, immediate data %d", d.Length, d.ImmediateData)
		t.sent(va, vipl.StatusOpRDMAWrite)
		t.coalesces("target", b.buf(0), 1)
	}),
	rule("rdma-write/attribute-is-for-incoming", "EnableRDMAWrite of a VI is about what comes in: the writing side does not need it.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.pairOf(at(level), vipl.VIAttributes{Level: level, EnableRDMAWrite: true})
		a, b := t.block(t.A, 2, 64), t.block(t.B, 2, 64)
		fill(a.buf(0), 1)
		a.writeDone(va, 0, 64, b.remote(0))
		t.behind(va, a, vb, b)
		t.coalesces("target", b.buf(0), 1)
	})),
	rule("rdma-write/handle-decides", "Of memory that is registered several times the handle says which attributes hold.", func(t *T) {
		va, vb, a, b := t.ends(vipl.ReliableReception, 2, 2, 64)
		memory := make([]byte, 64)
		may, mayNot := t.register(t.B, memory, open), t.register(t.B, memory, vipl.MemAttributes{EnableRDMARead: true})
		fill(a.buf(0), 1)
		a.writeDone(va, 0, 64, may.Remote(0))
		t.behind(va, a, vb, b)
		t.coalesces("target", memory, 1)
		fill(a.buf(0), 2)
		a.write(va, 0, 64, mayNot.Remote(0))
		t.sent(va, vipl.StatusOpRDMAWrite|vipl.StatusRemoteRDMAError)
		t.state(vb, vipl.Error)
		t.coalesces("target", memory, 1)
	}),
	rule("rdma-write/any-tag-without-tag", "A target VI without a protection tag takes RDMA writes to memory of any tag.", func(t *T) {
		va, vb, a, b := t.ends(vipl.ReliableDelivery, 2, 2, 64)
		fill(a.buf(0), 1)
		one, two := t.alloc(t.B, 64, open), t.alloc(t.B, 64, open) // a tag each
		for _, to := range []*vipl.Region{one, two} {
			a.writeDone(va, 0, 64, to.Remote(0))
		}
		t.behind(va, a, vb, b)
		t.coalesces("target", one.Bytes(), 1)
		t.coalesces("target", two.Bytes(), 1)
	}),
	rule("rdma-write/target-tag", "A target VI with a protection tag takes RDMA writes to memory of that tag.", func(t *T) {
		tag := t.tag(t.B)
		va, vb := t.pairOf(at(vipl.ReliableDelivery),
			vipl.VIAttributes{Level: vipl.ReliableDelivery, Ptag: tag, EnableRDMAWrite: true})
		a, b := t.block(t.A, 2, 64), t.blockOf(t.B, tag, 2, 2, 64)
		fill(a.buf(0), 1)
		a.writeDone(va, 0, 64, b.remote(0))
		t.behind(va, a, vb, b)
		t.coalesces("target", b.buf(0), 1)
	}),
	choice("rdma-write/zero-length-checks-no-address", "An RDMA write of length 0 needs neither a valid handle nor a valid address.", "only the target VI's attribute is checked", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb, a, b := t.ends(level, 2, 2, 64)
		for _, to := range []vipl.AddressSegment{{}, {Data: ^uint64(0), Handle: 0x12345}, {Data: b.Addr() - 1, Handle: b.Handle()}} {
			a.writeDone(va, 0, 0, to)
			b.recv(vb, 0, 64)
			a.writeImmediate(va, 0, 0, to, 3)
			d := t.received(vb, remoteWrite)
			t.errorIf(d.Length != 0 || d.ImmediateData != 3, "length %d, immediate data %d", d.Length, d.ImmediateData)
			t.sent(va, vipl.StatusOpRDMAWrite)
		}
		t.behind(va, a, vb, b)
	})),
	rule("rdma-write/attributes-change", "Attributes of target memory hold from when they are set: an RDMA write that was allowed before is refused after, and the other way round.", func(t *T) {
		va, vb, a, b := t.ends(vipl.ReliableReception, 2, 2, 64)
		to := t.alloc(t.B, 64, vipl.MemAttributes{})
		attrs, err := to.Query()
		t.must(err)
		attrs.EnableRDMAWrite = true
		t.must(to.SetAttributes(attrs))
		fill(a.buf(0), 1)
		a.writeDone(va, 0, 64, to.Remote(0))
		t.behind(va, a, vb, b)
		t.coalesces("target", to.Bytes(), 1)
		attrs.EnableRDMAWrite = false
		t.must(to.SetAttributes(attrs))
		fill(a.buf(0), 2)
		a.write(va, 0, 64, to.Remote(0))
		t.sent(va, vipl.StatusOpRDMAWrite|vipl.StatusRemoteRDMAError)
		t.asyncError(vb, vipl.ErrorRDMAWriteProtection)
		t.coalesces("target", to.Bytes(), 1)
	}),
	rule("rdma-write/every-frame-is-checked", "Of an RDMA write that runs over the end of its region no byte lands behind the region, however long it is.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		const size = 40_000
		va, vb := t.pair(level)
		a, b := t.block(t.A, 2, size), t.block(t.B, 2, 64)
		around := make([]byte, 2*size)
		to := t.register(t.B, around[:size-1], open)
		fill(a.buf(0), 1)
		a.write(va, 0, size, to.Remote(0))
		t.asyncError(vb, vipl.ErrorRDMAWriteProtection)
		if level == vipl.UnreliableDelivery {
			t.sent(va, vipl.StatusOpRDMAWrite)
			t.behind(va, a, vb, b)
		} else {
			t.states(vipl.Error, va, vb)
		}
		t.untouched("behind the region", around[size-1:])
		t.untouched("the last frame", around[size-9:size-1])
	})),
	rule("rdma-write/refused-immediate", "A refused RDMA write with immediate data takes no receive.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb, a, b := t.ends(level, 2, 2, 5000)
		closed := t.alloc(t.B, 5000, vipl.MemAttributes{})
		d := b.recv(vb, 0, 64)
		a.writeImmediate(va, 0, 5000, closed.Remote(0), 1)
		t.asyncError(vb, vipl.ErrorRDMAWriteProtection)
		t.untouched("target", closed.Bytes())
		if level != vipl.UnreliableDelivery {
			t.received(vb, vipl.StatusFlushed)
			return
		}
		a.sendImmediate(va, 1, 64, 2)
		got := t.received(vb, vipl.StatusImmediate)
		t.errorIf(got != d || got.ImmediateData != 2, "immediate data %d", got.ImmediateData)
		t.sent(va, vipl.StatusOpRDMAWrite)
		t.sent(va, 0)
	})),
	rule("rdma-write/immediate-without-receive", "An RDMA write with immediate data that finds no receive is an empty receive queue: unreliable it is dropped, reliable the connection breaks.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb, a, b := t.ends(level, 2, 2, 5000)
		a.writeImmediate(va, 0, 5000, b.remote(0), 1)
		t.asyncError(vb, vipl.ErrorRecvQueueEmpty)
		if level == vipl.UnreliableDelivery {
			t.sent(va, vipl.StatusOpRDMAWrite)
			t.behind(va, a, vb, b)
			t.state(va, vipl.Connected)
			return
		}
		t.states(vipl.Error, va, vb)
		if level == vipl.ReliableReception {
			t.sent(va, vipl.StatusOpRDMAWrite|vipl.StatusRemoteDescError)
		}
	})),
}, writeOrderRules, refusedWriteRules())

// open lets peers write and read.
var open = vipl.MemAttributes{EnableRDMAWrite: true, EnableRDMARead: true}

const remoteWrite = vipl.StatusOpRemoteRDMAWrite | vipl.StatusImmediate

func writeImmediate(t *T, level vipl.ReliabilityLevel) {
	const most = 6000
	va, vb, a, b := t.ends(level, 2, 2, most)
	for k, size := range []int{0, 1, 64, 1500, most} {
		b.wipe(0, vb)
		d := b.recv(vb, 1, most)
		fill(a.buf(0)[:size], k)
		imm := uint32(0xfffffff0 + k)
		a.writeImmediate(va, 0, size, b.remote(0), imm)
		got := t.received(vb, remoteWrite)
		t.errorIf(got != d || int(got.Length) != size || got.ImmediateData != imm, "%d bytes: length %d, immediate data %#x, want %#x", size, got.Length, got.ImmediateData, imm)
		t.sent(va, vipl.StatusOpRDMAWrite)
		t.coalesces("target", b.buf(0)[:size], k)
		t.untouched("behind it", b.buf(0)[size:])
		t.untouched("the receive's segments", b.buf(1))
	}
}

func writeSizes(t *T, level vipl.ReliabilityLevel) {
	va, vb := t.pair(level)
	most := t.A.Query().MaxTransferSize
	a, b := t.block(t.A, 2, most), t.block(t.B, 2, most)
	for k, size := range t.sizes(level, most) {
		b.wipe(0, vb)
		fill(a.buf(0)[:size], k)
		a.writeDone(va, 0, size, b.remote(0))
		t.behind(va, a, vb, b)
		t.coalesces("target", b.buf(0)[:size], k)
		t.untouched("behind it", b.buf(0)[size:])
	}
}
