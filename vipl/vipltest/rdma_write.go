package vipltest

import (
	"slices"

	"viaxdp/vipl"
)

var rdmaWriteRules = slices.Concat([]Rule{
	{
		ID: "rdma-write/sizes", Text: "An RDMA write of 0 bytes to MaxTransferSize lands whole where its address segment says.",
		run: eachLevel(writeSizes),
	},
	{
		ID: "rdma-write/gather", Text: "An RDMA write is gathered from up to 252 data segments behind its address segment.",
		run: eachLevel(writeGather),
	},
	{
		ID: "rdma-write/alignment", Text: "Neither the data nor the target of an RDMA write has an alignment rule.",
		run: writeAlignment,
	},
	{
		ID: "rdma-write/own-memory", Text: "RDMA writes go between memory of the NIC's arena and any other memory of the programs, in all combinations.",
		run: writeMemory,
	},
	{
		ID: "rdma-write/region-edges", Text: "An RDMA write may take the target region from its first byte to its last, and writes no byte beside it.",
		run: writeEdges,
	},
	{
		ID: "rdma-write/status", Text: "A completed RDMA write has DONE with operation RDMA_WRITE, and its other fields as they were.",
		run: eachLevel(writeStatus),
	},
	{
		ID: "rdma-write/silent", Text: "An RDMA write without immediate data takes no receive, and the remote consumer is not told.",
		run: eachLevel(writeSilent),
	},
	{
		ID: "rdma-write/needs-no-receive", Text: "An RDMA write without immediate data needs no receive to be posted.",
		run: eachLevel(writeNeedsNoReceive),
	},
	{
		ID: "rdma-write/immediate-data", Text: "An RDMA write with immediate data takes one receive: REMOTE_RDMA_WRITE with IMMEDIATE, Length the bytes written, its segments untouched.",
		run: eachLevel(writeImmediate),
	},
	{
		ID: "rdma-write/immediate-to-empty-receive", Text: "A receive without segments takes the immediate data of an RDMA write of any length.",
		run: writeImmediateNoSegments,
	},
	{
		ID: "rdma-write/attribute-is-for-incoming", Text: "EnableRdmaWrite of a VI is about what comes in: the writing side does not need it.",
		run: eachLevel(writeOneWay),
	},
	{
		ID: "rdma-write/handle-decides", Text: "Of memory that is registered several times the handle says which attributes hold.",
		run: writeHandleDecides,
	},
	{
		ID: "rdma-write/any-tag-without-tag", Text: "A target VI without a protection tag takes RDMA writes to memory of any tag.",
		run: writeAnyTag,
	},
	{
		ID: "rdma-write/target-tag", Text: "A target VI with a protection tag takes RDMA writes to memory of that tag.",
		run: writeTargetTag,
	},
	{
		ID: "rdma-write/zero-length-checks-no-address", Text: "An RDMA write of length 0 needs neither a valid handle nor a valid address.",
		Choice: "only the target VI's attribute is checked",
		run:    eachLevel(writeZeroWild),
	},
	{
		ID: "rdma-write/attributes-change", Text: "Attributes of target memory hold from when they are set: an RDMA write that was allowed before is refused after, and the other way round.",
		run: writeAttributesChange,
	},
	{
		ID: "rdma-write/every-frame-is-checked", Text: "Of an RDMA write that runs over the end of its region no byte lands behind the region, however long it is.",
		run: writeOverEnd,
	},
	{
		ID: "rdma-write/refused-immediate", Text: "A refused RDMA write with immediate data takes no receive.",
		run: writeRefusedImmediate,
	},
	{
		ID: "rdma-write/immediate-without-receive", Text: "An RDMA write with immediate data that finds no receive is an empty receive queue: unreliable it is dropped, reliable the connection breaks.",
		run: writeImmediateNoReceive,
	},
}, writeOrderRules, refusedWriteRules())

func writeSizes(t *T, level vipl.ReliabilityLevel) {
	va, vb := t.pair(level)
	most := t.A.Query().MaxTransferSize
	a, b := t.block(t.A, 2, most), t.block(t.B, 2, most)
	for k, size := range t.sizes(level, most) {
		b.wipe(0, vb)
		fill(a.buf(0)[:size], k)
		a.write(va, 0, size, b.remote(0))
		t.sent(va, vipl.StatusOpRDMAWrite)
		t.behind(va, a, vb, b)
		t.holds("target", b.buf(0)[:size], k)
		t.untouched("behind it", b.buf(0)[size:])
	}
}

func writeGather(t *T, level vipl.ReliabilityLevel) {
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
		a.desc[0].SetRDMAWrite(b.remote(0), cut(a.Region, a.at(0), length, n)...)
		a.post(va, a.desc[0])
		t.sent(va, vipl.StatusOpRDMAWrite)
		t.behind(va, a, vb, b)
		t.holds("target", b.buf(0)[:length], k)
		t.untouched("behind it", b.buf(0)[length:])
	}
}

func writeAlignment(t *T) {
	const size = 3100
	va, vb := t.pair(vipl.ReliableDelivery)
	a, b := t.block(t.A, 2, size+64), t.block(t.B, 2, size+64)
	for k := range 16 {
		from, to, n := k, (k*5+3)%17, size-k
		b.wipe(0, vb)
		fill(a.buf(0)[from:from+n], k)
		a.desc[0].SetRDMAWrite(b.Remote(b.at(0)+to), a.Segment(a.at(0)+from, n))
		a.post(va, a.desc[0])
		t.sent(va, vipl.StatusOpRDMAWrite)
		t.behind(va, a, vb, b)
		t.untouched("before it", b.buf(0)[:to])
		t.holds("target", b.buf(0)[to:to+n], k)
		t.untouched("behind it", b.buf(0)[to+n:])
	}
}

// open lets peers write and read.
var open = vipl.MemAttributes{EnableRdmaWrite: true, EnableRdmaRead: true}

func writeMemory(t *T) {
	const size = 50_001
	va, vb := t.pair(t.levels()[0])
	a, b := t.block(t.A, 2, 64), t.block(t.B, 2, 64)
	k := 0
	for _, from := range []*vipl.Region{t.alloc(t.A, size, open), t.register(t.A, make([]byte, size+1)[1:], open)} {
		for _, to := range []*vipl.Region{t.alloc(t.B, size, open), t.register(t.B, make([]byte, size+3)[3:], open)} {
			k++
			fill(from.Bytes(), k)
			a.desc[0].SetRDMAWrite(to.Remote(0), from.Segment(0, size))
			a.post(va, a.desc[0])
			t.sent(va, vipl.StatusOpRDMAWrite)
			t.behind(va, a, vb, b)
			t.holds("target", to.Bytes(), k)
		}
	}
}

func writeEdges(t *T) {
	va, vb := t.pair(vipl.ReliableDelivery)
	a, b := t.block(t.A, 2, 3000), t.block(t.B, 2, 64)
	around := make([]byte, 4000)
	to := t.register(t.B, around[500:3500], open)
	fill(a.buf(0), 1)
	for _, piece := range [][2]int{{0, 3000}, {0, 1}, {2999, 1}, {3000, 0}} {
		a.desc[0].SetRDMAWrite(to.Remote(piece[0]), a.Segment(a.at(0)+piece[0], piece[1]))
		a.post(va, a.desc[0])
		t.sent(va, vipl.StatusOpRDMAWrite)
	}
	t.behind(va, a, vb, b)
	t.untouched("before the region", around[:500])
	t.holds("region", to.Bytes(), 1)
	t.untouched("behind the region", around[3500:])
}

func writeStatus(t *T, level vipl.ReliabilityLevel) {
	va, vb := t.pair(level)
	a, b := t.block(t.A, 2, 64), t.block(t.B, 2, 64)
	d := a.write(va, 0, 64, b.remote(0))
	if got := t.sent(va, vipl.StatusOpRDMAWrite); got != d {
		t.Error("another descriptor")
	}
	if d.SegCount != 2 || d.Length != 64 || d.Control != vipl.ControlRDMAWrite || *d.AddressSegment() != b.remote(0) || *d.Segment(1) != a.seg(0, 64) {
		t.Errorf("the descriptor became %+v", *d)
	}
	t.behind(va, a, vb, b)
}

func writeSilent(t *T, level vipl.ReliabilityLevel) {
	va, vb := t.pair(level)
	a, b := t.block(t.A, 2, 3000), t.block(t.B, 2, 3000)
	d := b.recv(vb, 1, 3000)
	for range 3 {
		a.write(va, 0, 3000, b.remote(0))
		t.sent(va, vipl.StatusOpRDMAWrite)
	}
	t.nothingReceived(vb)
	a.send(va, 0, 5)
	if got := t.received(vb, 0); got != d || got.Length != 5 {
		t.Errorf("the message after the writes: length %d", got.Length)
	}
	t.sent(va, 0)
}

func writeNeedsNoReceive(t *T, level vipl.ReliabilityLevel) {
	va, vb := t.pair(level)
	a, b := t.block(t.A, 2, 3000), t.block(t.B, 2, 3000)
	for range 5 {
		a.write(va, 0, 3000, b.remote(0))
		t.sent(va, vipl.StatusOpRDMAWrite)
	}
	t.behind(va, a, vb, b)
	t.asyncErrors(vb)
	t.state(va, vipl.Connected)
	t.state(vb, vipl.Connected)
}

const remoteWrite = vipl.StatusOpRemoteRDMAWrite | vipl.StatusImmediate

func writeImmediate(t *T, level vipl.ReliabilityLevel) {
	const most = 6000
	va, vb := t.pair(level)
	a, b := t.block(t.A, 2, most), t.block(t.B, 2, most)
	for k, size := range []int{0, 1, 64, 1500, most} {
		b.wipe(0, vb)
		d := b.recv(vb, 1, most)
		fill(a.buf(0)[:size], k)
		imm := uint32(0xfffffff0 + k)
		a.writeImmediate(va, 0, size, b.remote(0), imm)
		if got := t.received(vb, remoteWrite); got != d || int(got.Length) != size || got.ImmediateData != imm {
			t.Errorf("%d bytes: length %d, immediate data %#x, want %#x", size, got.Length, got.ImmediateData, imm)
		}
		t.sent(va, vipl.StatusOpRDMAWrite)
		t.holds("target", b.buf(0)[:size], k)
		t.untouched("behind it", b.buf(0)[size:])
		t.untouched("the receive's segments", b.buf(1))
	}
}

func writeImmediateNoSegments(t *T) {
	va, vb := t.pair(vipl.ReliableDelivery)
	a, b := t.block(t.A, 1, 5000), t.block(t.B, 2, 5000)
	b.desc[1].SetSegments()
	b.postRecv(vb, b.desc[1])
	fill(a.buf(0), 1)
	a.writeImmediate(va, 0, 5000, b.remote(0), 9)
	if d := t.received(vb, remoteWrite); d.Length != 5000 || d.ImmediateData != 9 {
		t.Errorf("length %d, immediate data %d", d.Length, d.ImmediateData)
	}
	t.sent(va, vipl.StatusOpRDMAWrite)
	t.holds("target", b.buf(0), 1)
}

func writeOneWay(t *T, level vipl.ReliabilityLevel) {
	va, vb := t.pairOf(vipl.ViAttributes{Level: level}, vipl.ViAttributes{Level: level, EnableRdmaWrite: true})
	a, b := t.block(t.A, 2, 64), t.block(t.B, 2, 64)
	fill(a.buf(0), 1)
	a.write(va, 0, 64, b.remote(0))
	t.sent(va, vipl.StatusOpRDMAWrite)
	t.behind(va, a, vb, b)
	t.holds("target", b.buf(0), 1)
}

func writeHandleDecides(t *T) {
	va, vb := t.pair(vipl.ReliableReception)
	a, b := t.block(t.A, 2, 64), t.block(t.B, 2, 64)
	memory := make([]byte, 64)
	may, mayNot := t.register(t.B, memory, open), t.register(t.B, memory, vipl.MemAttributes{EnableRdmaRead: true})
	fill(a.buf(0), 1)
	a.write(va, 0, 64, may.Remote(0))
	t.sent(va, vipl.StatusOpRDMAWrite)
	t.behind(va, a, vb, b)
	t.holds("target", memory, 1)
	fill(a.buf(0), 2)
	a.write(va, 0, 64, mayNot.Remote(0))
	t.sent(va, vipl.StatusOpRDMAWrite|vipl.StatusRemoteRDMAError)
	t.state(vb, vipl.Error)
	t.holds("target", memory, 1)
}

func writeAnyTag(t *T) {
	va, vb := t.pair(vipl.ReliableDelivery)
	a, b := t.block(t.A, 2, 64), t.block(t.B, 2, 64)
	fill(a.buf(0), 1)
	one, two := t.alloc(t.B, 64, open), t.alloc(t.B, 64, open) // a tag each
	for _, to := range []*vipl.Region{one, two} {
		a.write(va, 0, 64, to.Remote(0))
		t.sent(va, vipl.StatusOpRDMAWrite)
	}
	t.behind(va, a, vb, b)
	t.holds("target", one.Bytes(), 1)
	t.holds("target", two.Bytes(), 1)
}

func writeTargetTag(t *T) {
	tag := t.tag(t.B)
	va, vb := t.pairOf(vipl.ViAttributes{Level: vipl.ReliableDelivery},
		vipl.ViAttributes{Level: vipl.ReliableDelivery, Ptag: tag, EnableRdmaWrite: true})
	a, b := t.block(t.A, 2, 64), t.blockOf(t.B, tag, 2, 2, 64)
	fill(a.buf(0), 1)
	a.write(va, 0, 64, b.remote(0))
	t.sent(va, vipl.StatusOpRDMAWrite)
	t.behind(va, a, vb, b)
	t.holds("target", b.buf(0), 1)
}

func writeZeroWild(t *T, level vipl.ReliabilityLevel) {
	va, vb := t.pair(level)
	a, b := t.block(t.A, 2, 64), t.block(t.B, 2, 64)
	for _, to := range []vipl.AddressSegment{{}, {Data: ^uint64(0), Handle: 0x12345}, {Data: b.Addr() - 1, Handle: b.Handle()}} {
		a.write(va, 0, 0, to)
		t.sent(va, vipl.StatusOpRDMAWrite)
		b.recv(vb, 0, 64)
		a.writeImmediate(va, 0, 0, to, 3)
		if d := t.received(vb, remoteWrite); d.Length != 0 || d.ImmediateData != 3 {
			t.Errorf("length %d, immediate data %d", d.Length, d.ImmediateData)
		}
		t.sent(va, vipl.StatusOpRDMAWrite)
	}
	t.behind(va, a, vb, b)
}

func writeAttributesChange(t *T) {
	va, vb := t.pair(vipl.ReliableReception)
	a, b := t.block(t.A, 2, 64), t.block(t.B, 2, 64)
	to := t.alloc(t.B, 64, vipl.MemAttributes{})
	attrs, err := to.Query()
	t.must(err)
	attrs.EnableRdmaWrite = true
	t.must(to.SetAttributes(attrs))
	fill(a.buf(0), 1)
	a.write(va, 0, 64, to.Remote(0))
	t.sent(va, vipl.StatusOpRDMAWrite)
	t.behind(va, a, vb, b)
	t.holds("target", to.Bytes(), 1)
	attrs.EnableRdmaWrite = false
	t.must(to.SetAttributes(attrs))
	fill(a.buf(0), 2)
	a.write(va, 0, 64, to.Remote(0))
	t.sent(va, vipl.StatusOpRDMAWrite|vipl.StatusRemoteRDMAError)
	t.asyncError(vb, vipl.ErrorRDMAWriteProtection)
	t.holds("target", to.Bytes(), 1)
}

func writeOverEnd(t *T) {
	const size = 40_000
	t.eachLevel(func(t *T, level vipl.ReliabilityLevel) {
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
			t.state(va, vipl.Error)
			t.state(vb, vipl.Error)
		}
		t.untouched("behind the region", around[size-1:])
		t.untouched("the last frame", around[size-9:size-1])
	})
}

func writeRefusedImmediate(t *T) {
	t.eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.pair(level)
		a, b := t.block(t.A, 2, 5000), t.block(t.B, 2, 5000)
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
		if got := t.received(vb, vipl.StatusImmediate); got != d || got.ImmediateData != 2 {
			t.Errorf("immediate data %d", got.ImmediateData)
		}
		t.sent(va, vipl.StatusOpRDMAWrite)
		t.sent(va, 0)
	})
}

func writeImmediateNoReceive(t *T) {
	t.eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.pair(level)
		a, b := t.block(t.A, 2, 5000), t.block(t.B, 2, 5000)
		a.writeImmediate(va, 0, 5000, b.remote(0), 1)
		t.asyncError(vb, vipl.ErrorRecvQueueEmpty)
		if level == vipl.UnreliableDelivery {
			t.sent(va, vipl.StatusOpRDMAWrite)
			t.behind(va, a, vb, b)
			t.state(va, vipl.Connected)
			return
		}
		t.state(va, vipl.Error)
		t.state(vb, vipl.Error)
		if level == vipl.ReliableReception {
			t.sent(va, vipl.StatusOpRDMAWrite|vipl.StatusRemoteDescError)
		}
	})
}
