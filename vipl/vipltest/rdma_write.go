package vipltest

import (
	"encoding/binary"
	"slices"
	"time"

	"viaxdp/vipl"
)

const (
	remoteWrite  = vipl.StatusOpRemoteRDMAWrite | vipl.StatusImmediate
	writeRefused = vipl.StatusOpRDMAWrite | vipl.StatusRemoteRDMAError
)

var rdmaWriteRules = slices.Concat([]Rule{
	rule("rdma-write/sizes", "An RDMA write of 0 bytes to MaxTransferSize lands whole where its address segment says.", eachLevel(carry(carryWrite).sizes)),
	rule("rdma-write/gather", "An RDMA write is gathered from up to 252 data segments behind its address segment.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		carry(carryWrite).segments(t, level)
		a, b := t.ends(level, 2, 2, 64)
		carryWrite(a, b, nil, one(b.Region, 0, 0)) // and from none
	})),
	rule("rdma-write/alignment", "Neither the data nor the target of an RDMA write has an alignment rule.", carry(carryWrite).at(vipl.ReliableDelivery, carry.alignment)),
	rule("rdma-write/own-memory", "RDMA writes go between memory of the NIC's arena and any other memory of the programs, in all combinations.", eachLevel(carry(carryWrite).ownMemory)),
	rule("rdma-write/region-edges", "An RDMA write may take the target region from its first byte to its last, and writes no byte beside it.", carry(carryWrite).at(vipl.ReliableDelivery, carry.regionEdges)),
	rule("rdma-write/status", "A completed RDMA write has DONE with operation RDMA_WRITE, and its other fields as they were.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		a, b := t.ends(level, 2, 2, 64)
		a.write(0, 64, b.remote(0))
		t.same(a.sent(vipl.StatusOpRDMAWrite), a.desc[0])
		t.unchanged(a.desc[0], vipl.ControlRDMAWrite, b.remote(0), a.seg(0, 64))
		a.behind(b)
	})),
	rule("rdma-write/silent", "An RDMA write without immediate data takes no receive, and the remote consumer is not told.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		a, b := t.ends(level, 2, 2, 3000)
		b.recv(1, 3000)
		for range 3 {
			a.writeWait(0, 3000, b.remote(0))
		}
		t.nothingReceived(b.v)
		a.sendMessage(0, 5, 1)
		b.arrived(1, 5, 1)
		a.sent()
	})),
	rule("rdma-write/needs-no-receive", "An RDMA write without immediate data needs no receive to be posted.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		a, b := t.ends(level, 2, 2, 3000)
		for range 5 {
			a.writeWait(0, 3000, b.remote(0))
		}
		a.behind(b)
		t.noErrors(b.v)
		t.states(vipl.Connected, a.v, b.v)
	})),
	rule("rdma-write/immediate-data", "An RDMA write with immediate data takes one receive: REMOTE_RDMA_WRITE with IMMEDIATE, Length the bytes written, its segments untouched.", eachLevel(writeImmediate)),
	rule("rdma-write/immediate-to-empty-receive", "A receive without segments takes the immediate data of an RDMA write of any length.", func(t *T) {
		a, b := t.ends(vipl.ReliableDelivery, 1, 2, 5000)
		b.recvSegments(1)
		fill(a.buf(0), 1)
		a.writeImmediate(0, 5000, b.remote(0), 9)
		b.toldOfWrite(1, 5000, 9)
		a.sent(vipl.StatusOpRDMAWrite)
		t.holds("target", b.buf(0), 1)
	}),
	rule("rdma-write/attribute-is-for-incoming", "EnableRDMAWrite of a VI is about what comes in: the writing side does not need it.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		a, b := t.endsOf(at(level), vipl.VIAttributes{Level: level, EnableRDMAWrite: true}, 2, 2, 64)
		a.writes(b, b.Region, b.at(0), 64, 1)
	})),
	rule("rdma-write/handle-decides", "Of memory that is registered several times the handle says which attributes hold.", func(t *T) {
		a, b := t.ends(vipl.ReliableReception, 2, 2, 64)
		memory := make([]byte, 64)
		may, mayNot := t.register(t.B, memory, openMemory), t.register(t.B, memory, vipl.MemAttributes{EnableRDMARead: true})
		a.writes(b, may, 0, 64, 1)
		fill(a.buf(0), 2)
		a.write(0, 64, mayNot.Remote(0))
		a.sent(writeRefused)
		t.state(b.v, vipl.Error)
		t.holds("target", memory, 1)
	}),
	rule("rdma-write/any-tag-without-tag", "A target VI without a protection tag takes RDMA writes to memory of any tag.", func(t *T) {
		a, b := t.ends(vipl.ReliableDelivery, 2, 2, 64)
		a.writes(b, t.alloc(t.B, 64, openMemory), 0, 64, 1) // a tag each
		a.writes(b, t.alloc(t.B, 64, openMemory), 0, 64, 2)
	}),
	rule("rdma-write/target-tag", "A target VI with a protection tag takes RDMA writes to memory of that tag.", func(t *T) {
		tagged := open(vipl.ReliableDelivery)
		tagged.Ptag = t.tag(t.B)
		a, b := t.endsOf(at(vipl.ReliableDelivery), tagged, 2, 2, 64)
		a.writes(b, b.Region, b.at(0), 64, 1)
	}),
	choice("rdma-write/zero-length-checks-no-address", "An RDMA write of length 0 needs neither a valid handle nor a valid address.", "only the target VI's attribute is checked", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		a, b := t.ends(level, 2, 2, 64)
		for _, to := range b.nowhere() {
			a.writeWait(0, 0, to)
			b.recv(0, 64)
			a.writeImmediate(0, 0, to, 3)
			b.toldOfWrite(0, 0, 3)
			a.sent(vipl.StatusOpRDMAWrite)
		}
		a.behind(b)
	})),
	rule("rdma-write/attributes-change", "Attributes of target memory hold from when they are set: an RDMA write that was allowed before is refused after, and the other way round.", func(t *T) {
		a, b := t.ends(vipl.ReliableReception, 2, 2, 64)
		to := t.alloc(t.B, 64, vipl.MemAttributes{})
		withAttributes(func(a *vipl.MemAttributes) { a.EnableRDMAWrite = true })(t, to)
		a.writes(b, to, 0, 64, 1)
		withAttributes(func(a *vipl.MemAttributes) { a.EnableRDMAWrite = false })(t, to)
		fill(a.buf(0), 2)
		a.write(0, 64, to.Remote(0))
		a.sent(writeRefused)
		t.asyncError(b.v, vipl.ErrorRDMAWriteProtection)
		t.holds("target", to.Bytes(), 1)
	}),
	rule("rdma-write/every-frame-is-checked", "Of an RDMA write that runs over the end of its region no byte lands behind the region, however long it is.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		const size = 40_000
		a, b := t.ends(level, 2, 2, size)
		around := make([]byte, 2*size)
		to := t.register(t.B, around[:size-1], openMemory)
		fill(a.buf(0), 1)
		a.write(0, size, to.Remote(0))
		a.failsAtTarget(b, level, vipl.ErrorRDMAWriteProtection)
		t.untouched("behind the region, and the last frame", around[size-9:])
	})),
	rule("rdma-write/refused-immediate", "A refused RDMA write with immediate data takes no receive.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		a, b := t.ends(level, 2, 2, 5000)
		closed := t.alloc(t.B, 5000, vipl.MemAttributes{})
		d := b.recv(0, 64)
		a.writeImmediate(0, 5000, closed.Remote(0), 1)
		t.asyncError(b.v, vipl.ErrorRDMAWriteProtection)
		t.untouched("target", closed.Bytes())
		if level != vipl.UnreliableDelivery {
			b.received(vipl.StatusFlushed)
			return
		}
		a.sendImmediate(1, 64, 2)
		t.same(b.received(vipl.StatusImmediate), d)
		equal(t, "immediate data", d.ImmediateData, 2)
		a.sent(vipl.StatusOpRDMAWrite, 0)
	})),
	rule("rdma-write/immediate-without-receive", "An RDMA write with immediate data that finds no receive is an empty receive queue: unreliable it is dropped, reliable the connection breaks.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		a, b := t.ends(level, 2, 2, 5000)
		a.writeImmediate(0, 5000, b.remote(0), 1)
		a.failsAtTarget(b, level, vipl.ErrorRecvQueueEmpty)
		if level == vipl.ReliableReception {
			a.sent(vipl.StatusOpRDMAWrite | vipl.StatusRemoteDescError)
		}
	})),

	// When RDMA writes land.
	rule("rdma-write/asleep-target", "RDMA writes land while the target program neither posts nor polls.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		const size = 30_000
		a, b := t.ends(level, 2, 3, size)
		d := b.recv(2, 0)
		// From here on no call is made on b until everything has arrived.
		for k := range 10 {
			fill(a.buf(0), k)
			a.writeWait(0, size, b.remote(k%2))
		}
		a.send(1, 0)
		a.sent()
		t.until("the message behind the writes", func() bool { return isDone(d) })
		t.holds("target", b.buf(0), 8)
		t.holds("target", b.buf(1), 9)
		b.received()
	})),
	rule("rdma-write/before-later-send", "When a message arrives, the RDMA writes of the same VI before it have landed.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		const rounds, size = 30, 4000
		a, b := t.ends(level, rounds+1, rounds+1, size)
		b.recvs(rounds, 64)
		// The target of round i is the memory behind the 64 bytes of receive i.
		for i := range rounds {
			length := 1 + i*(size-64-1)/rounds
			fill(a.buf(i)[:length], i)
			a.writeWait(i, length, b.Remote(b.at(i)+64))
			a.send(rounds, 8)
			if i%2 == 0 {
				a.sent()
			}
			b.received()
			if i%2 != 0 {
				a.sent()
			}
			t.holds("target", b.buf(i)[64:64+length], i)
		}
	})),
	rule("rdma-write/after-earlier-send", "An RDMA write does not overtake a message that was posted before it.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		const size = 60_000
		a, b := t.ends(level, 3, 2, size)
		// A message into a buffer, followed by a write to the buffer's beginning. The write must be placed
		// last.
		b.recv(0, size)
		a.fillAll(1)
		a.send(0, size)
		a.write(1, 1000, b.remote(0))
		a.sent(0, vipl.StatusOpRDMAWrite)
		b.received()
		a.behind(b)
		t.holds("written over", b.buf(0)[:1000], 2)
		t.holdsFrom("message", b.buf(0)[1000:], 1000, 1)
	})),
	rule("rdma-write/order", "RDMA writes of one VI land in the order in which they were posted.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		const count, size = 50, 5000
		a, b := t.ends(level, count+1, 2, size)
		a.fillAll(0)
		for i := range count { // each is shorter than the one before it
			a.write(i, size-100*i, b.remote(0))
		}
		for i := range count {
			t.same(a.sent(vipl.StatusOpRDMAWrite), a.desc[i])
		}
		a.behind(b)
		for i := range count {
			end := size - 100*i
			from := end - 100
			if i == count-1 {
				from = 0
			}
			t.holdsFrom("target", b.buf(0)[from:end], from, i)
		}
	})),
	choice("rdma-write/last-word-last", "Who sees the last word of an RDMA write in memory sees all of it; a program that polls memory sees it.", "without a call of the library its own goroutine makes the progress; NIC.Poll makes it in the program's loop", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		const rounds, size = 5, 100_000
		a, b := t.ends(level, 1, 1, size)
		for k := range rounds {
			for _, length := range []int{8, 64, 1432, 4096, size, size - 4, 12, size - 8} {
				b.wipe(0)
				fill(a.buf(0), k)
				word := length - 8
				see := func() bool { return load64(b.buf(0)[word:]) == binary.NativeEndian.Uint64(a.buf(0)[word:length]) }
				if length%8 != 0 { // the last word of these is one of 4 bytes
					word = length - 4
					see = func() bool { return load32(b.buf(0)[word:]) == binary.NativeEndian.Uint32(a.buf(0)[word:length]) }
				}
				a.write(0, length, b.remote(0))
				t.spin("the last word", see, k%2 == 1)
				t.holds("target", b.buf(0)[:length], k)
				a.sent(vipl.StatusOpRDMAWrite)
			}
		}
	})),
	rule("rdma-write/both-ways", "Both sides write at the same time, among messages, and nothing disturbs anything.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		const count, size = 20, 8000
		a, b := t.ends(level, 3*count, 3*count, size)
		a.recvs(count, size)
		b.recvs(count, size)
		for i := range count {
			from, to := count+i, 2*count+i
			fill(a.buf(from), i)
			fill(b.buf(from), 100+i)
			a.writeImmediate(from, size, b.remote(to), uint32(i))
			b.writeImmediate(from, size, a.remote(to), uint32(i))
		}
		for i := range count {
			a.toldOfWrite(i, size, uint32(i))
			b.toldOfWrite(i, size, uint32(i))
			t.holds("at b", b.buf(2*count+i), i)
			t.holds("at a", a.buf(2*count+i), 100+i)
			a.sent(vipl.StatusOpRDMAWrite)
			b.sent(vipl.StatusOpRDMAWrite)
		}
	})),
	rule("rdma-write/immediate-order", "RDMA writes with immediate data and sends take the receives in the order in which they were posted.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		const count = 40
		a, b := t.ends(level, count, count+1, 2000)
		b.recvs(count, 2000)
		for i := range count {
			if i%3 == 0 {
				a.sendImmediate(i, i, uint32(i))
			} else {
				a.writeImmediate(i, 50*i, b.remote(count), uint32(i))
			}
		}
		for i := range count {
			op := vipl.StatusOpRDMAWrite
			if i%3 == 0 {
				op = vipl.StatusOpSend
				d := b.received(vipl.StatusImmediate)
				t.errorIf(d != b.desc[i] || d.ImmediateData != uint32(i) || int(d.Length) != i, "receive %d: immediate data %d, length %d", i, d.ImmediateData, d.Length)
			} else {
				b.toldOfWrite(i, 50*i, uint32(i))
			}
			t.same(a.sent(op), a.desc[i])
		}
	})),
}, refusedWriteRules())

// failsAtTarget waits for the asynchronous error of an RDMA write at its target. An unreliable connection then still
// carries messages, and a reliable one is broken.
func (e *end) failsAtTarget(peer *end, level vipl.ReliabilityLevel, code vipl.ErrorCode) {
	e.t.asyncError(peer.v, code)
	if level != vipl.UnreliableDelivery {
		e.t.states(vipl.Error, e.v, peer.v)
		return
	}
	e.sent(vipl.StatusOpRDMAWrite)
	e.behind(peer)
	e.t.state(e.v, vipl.Connected)
}

// toldOfWrite waits for receive i, which an RDMA write of n bytes with immediate data consumes.
func (e *end) toldOfWrite(i, n int, imm uint32) {
	d := e.received(remoteWrite)
	e.t.errorIf(d != e.desc[i] || int(d.Length) != n || d.ImmediateData != imm, "receive %p: length %d, immediate data %#x; want %p, %d, %#x", d, d.Length, d.ImmediateData, e.desc[i], n, imm)
}

// nowhere returns addresses at which a peer has no memory.
func (b *block) nowhere() []vipl.AddressSegment {
	return []vipl.AddressSegment{{}, {Data: ^uint64(0), Handle: 0x12345}, {Data: b.Addr() - 1, Handle: b.Handle()}}
}

// unchanged checks that an RDMA descriptor is as posted.
func (t *T) unchanged(d *vipl.Descriptor, control vipl.Control, remote vipl.AddressSegment, local vipl.DataSegment) {
	t.errorIf(d.SegCount != 2 || d.Length != local.Length || d.Control != control || *d.AddressSegment() != remote || *d.Segment(1) != local, "the descriptor became %+v", *d)
}

func writeImmediate(t *T, level vipl.ReliabilityLevel) {
	const most = 6000
	a, b := t.ends(level, 2, 2, most)
	for k, size := range []int{0, 1, 64, 1500, most} {
		b.wipe(0)
		b.recv(1, most)
		fill(a.buf(0)[:size], k)
		imm := uint32(0xfffffff0 + k)
		a.writeImmediate(0, size, b.remote(0), imm)
		b.toldOfWrite(1, size, imm)
		a.sent(vipl.StatusOpRDMAWrite)
		t.holds("target", b.buf(0)[:size], k)
		t.untouched("behind it", b.buf(0)[size:])
		t.untouched("the receive's segments", b.buf(1))
	}
}

// spin polls memory as fast as it can, as programs do, with or without calling Poll in the loop.
func (t *T) spin(what string, see func() bool, poll bool) {
	end := time.Now().Add(limit)
	for i := 1; !see(); i++ {
		if poll {
			t.B.Poll()
		}
		if i%1024 == 0 && time.Now().After(end) {
			t.Fatalf("never came: %s", what)
		}
	}
}
