package vipltest

import (
	"bytes"
	"slices"

	"viaxdp/vipl"
)

const readRefused = vipl.StatusOpRDMARead | vipl.StatusRemoteRDMAError

var rdmaReadRules = slices.Concat([]Rule{
	choice("rdma-read/sizes", "An RDMA read of 0 bytes to MaxTransferSize gets what the remote memory holds.", "RDMA read is there at both reliable levels", eachReliable(carry(carryRead).sizes)),
	rule("rdma-read/scatter", "An RDMA read is scattered to up to 252 data segments behind its address segment, in ascending order.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		carry(carryRead).segments(t, level)
		a, b := t.ends(level, 2, 2, 64)
		carryRead(a, b, one(a.Region, 0, 0), nil) // and to none
	})),
	rule("rdma-read/alignment", "Neither the source nor the segments of an RDMA read have an alignment rule.", carry(carryRead).at(vipl.ReliableDelivery, carry.alignment)),
	rule("rdma-read/own-memory", "RDMA reads go between memory of the NIC's arena and any other memory of the programs, in all combinations.", carry(carryRead).at(vipl.ReliableReception, carry.ownMemory)),
	rule("rdma-read/region-edges", "An RDMA read may take the remote region from its first byte to its last.", carry(carryRead).at(vipl.ReliableDelivery, carry.regionEdges)),
	rule("rdma-read/nothing-beyond", "An RDMA read writes the bytes of its segments and no others, and changes nothing at the target.", func(t *T) {
		va, vb := t.pair(vipl.ReliableDelivery)
		a, b := t.block(t.A, 1, 6000).on(va), t.blockOf(t.B, nil, 1, 3, 6000).on(vb)
		fill(a.buf(0), 1)
		carryRead(a, b, one(a.Region, a.at(0), 5000), []vipl.DataSegment{b.Segment(b.at(0)+5, 1000), b.Segment(b.at(0)+1010, 4000)})
		got := b.buf(0)
		t.untouched("before", got[:5])
		t.holds("first segment", got[5:1005], 1)
		t.untouched("between", got[1005:1010])
		t.holdsFrom("second segment", got[1010:5010], 1000, 1)
		t.untouched("behind", got[5010:])
		t.holds("source", a.buf(0), 1)
	}),
	rule("rdma-read/status", "A completed RDMA read has DONE with operation RDMA_READ, and its other fields as they were.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		a, b := t.ends(level, 1, 1, 64)
		a.read(0, 64, b.remote(0))
		t.same(a.sent(vipl.StatusOpRDMARead), a.desc[0])
		t.unchanged(a.desc[0], vipl.ControlRDMARead, b.remote(0), a.seg(0, 64))
	})),
	rule("rdma-read/complete-when-here", "An RDMA read is complete when its data is in the reader's memory, at every level.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		const size = 100_000
		a, b := t.ends(level, 1, 1, size)
		fill(b.buf(0), 1)
		for range 5 {
			clear(a.buf(0))
			d := a.read(0, size, b.remote(0))
			t.until("the read", func() bool { return isDone(d) })
			t.holds("read", a.buf(0), 1)
			a.sent(vipl.StatusOpRDMARead)
		}
	})),
	rule("rdma-read/silent", "An RDMA read takes no receive, and the remote consumer is not told.", func(t *T) {
		a, b := t.ends(vipl.ReliableDelivery, 2, 2, 3000)
		b.recv(0, 3000)
		for range 3 {
			a.readWait(0, 3000, b.remote(1))
		}
		t.nothingReceived(b.v)
		a.carries(b, 5, 1)
		t.noErrors(b.v)
	}),
	rule("rdma-read/asleep-target", "RDMA reads are served while the target program neither posts nor polls.", func(t *T) {
		const size = 30_000
		a, b := t.ends(vipl.ReliableReception, 1, 2, size)
		b.fillAll(1)
		for k := range 10 { // nothing is called on b
			a.readWait(0, size, b.remote(k%2))
			t.holds("read", a.buf(0), 1+k%2)
		}
	}),
	choice("rdma-read/zero-length-checks-no-address", "An RDMA read of length 0 needs neither a valid handle nor a valid address.", "only the target VI's attribute is checked", func(t *T) {
		a, b := t.ends(vipl.ReliableDelivery, 1, 1, 64)
		for _, from := range b.nowhere() {
			a.readWait(0, 0, from)
		}
		t.untouched("buffer", a.buf(0))
	}),
	rule("rdma-read/needs-attribute-of-own-vi", "An RDMA read needs EnableRDMARead of the reading VI, too: else PROTECTION_ERROR.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		a, b := t.endsOf(at(level), open(level), 1, 1, 64)
		fill(b.buf(0), 1)
		a.read(0, 64, b.remote(0))
		a.sent(vipl.StatusOpRDMARead | vipl.StatusProtectionError)
		t.untouched("buffer", a.buf(0))
		t.states(vipl.Error, a.v, b.v)
	})),
	rule("rdma-read/not-on-unreliable-vis", "An unreliable VI has no RDMA read: FORMAT_ERROR, and the connection lives.", func(t *T) {
		a, b := t.ends(vipl.UnreliableDelivery, 1, 1, 64)
		a.read(0, 64, b.remote(0))
		a.sent(vipl.StatusOpRDMARead | vipl.StatusFormatError)
		t.stays(a.v, vipl.Connected)
		t.state(b.v, vipl.Connected)
	}),
	rule("rdma-read/attribute-on-unreliable-vis", "EnableRDMARead with Unreliable Delivery is INVALID_RDMAREAD.", func(t *T) {
		t.wantErr("CreateVI", errOf(t.A.CreateVI(vipl.VIAttributes{Level: vipl.UnreliableDelivery, EnableRDMARead: true}, nil, nil)), vipl.ErrInvalidRDMARead)
	}),
	choice("rdma-read/levels-are-told", "The NIC's attributes tell at which levels it has RDMA read.", "Reliable Delivery and Reliable Reception", func(t *T) {
		equal(t, "RDMAReadLevels", t.A.Query().RDMAReadLevels, vipl.ReliableDelivery|vipl.ReliableReception)
	}),
	rule("rdma-read/into-wrong-memory", "An RDMA read into memory of another protection tag than the reading VI's is PROTECTION_ERROR.", func(t *T) {
		tagged := open(vipl.ReliableReception)
		tagged.Ptag = t.tag(t.A)
		a, b := t.endsOf(tagged, open(vipl.ReliableReception), 1, 1, 64)
		other := t.alloc(t.A, 64, openMemory)
		fill(b.buf(0), 1)
		a.readSegments(0, b.remote(0), other.Segment(0, 64))
		a.sent(vipl.StatusOpRDMARead | vipl.StatusProtectionError)
		t.untouched("memory of another tag", other.Bytes())
	}),
	rule("rdma-read/every-frame-is-checked", "An RDMA read that runs over the end of the region gets nothing from behind it, however long it is.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		const size = 40_000
		a, b := t.ends(level, 1, 1, size)
		secret := bytes.Repeat([]byte{0x5a}, 2*size)
		from := t.register(t.B, secret[:size-1], openMemory)
		clear(from.Bytes())
		a.read(0, size, from.Remote(0))
		a.sent(readRefused)
		t.untouched("reader's memory", a.buf(0))
		t.asyncError(b.v, vipl.ErrorRDMAReadProtection)
	})),
	choice("rdma-read/refused-zero-length", "An RDMA read of length 0 from a VI without EnableRDMARead is refused.", "the VI's attribute is checked for each read", func(t *T) {
		a, b := t.endsOf(open(vipl.ReliableDelivery), at(vipl.ReliableDelivery), 1, 1, 64)
		a.read(0, 0, b.remote(0))
		a.sent(readRefused)
		t.asyncError(b.v, vipl.ErrorRDMAReadProtection)
	}),
	rule("rdma-read/refused-leaves-earlier-ones", "RDMA reads that were posted before a refused one are done, those behind it are flushed.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		readsBefore(t, level, func(a *end, i int, closed vipl.AddressSegment) { a.read(i, 2000, closed) }, readRefused, vipl.ErrorRDMAReadProtection)
	})),
	rule("rdma-read/done-before-a-refused-write", "RDMA reads that were posted before a refused RDMA write are done, what is behind it is flushed.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		refused := vipl.StatusOpRDMAWrite // handed to the network
		if level == vipl.ReliableReception {
			refused = writeRefused
		}
		readsBefore(t, level, func(a *end, i int, closed vipl.AddressSegment) { a.write(i, 8, closed) }, refused, vipl.ErrorRDMAWriteProtection)
	})),

	// RDMA reads among other operations.
	rule("rdma-read/many-outstanding", "A program may post many RDMA reads at once: they complete in order, each with its bytes.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		const count, size = 150, 3000
		a, b := t.ends(level, count, count, size)
		b.fillAll(0)
		for i := range count {
			a.read(i, size-i, b.remote(i))
		}
		for i := range count {
			t.same(a.sent(vipl.StatusOpRDMARead), a.desc[i])
			t.holds("read", a.buf(i)[:size-i], i)
		}
	})),
	rule("rdma-read/among-sends", "RDMA reads, RDMA writes and sends of one queue complete in the order in which they were posted.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		const count, size = 90, 2000
		a, b := t.ends(level, count, 2*count+1, size)
		ops := []vipl.Status{vipl.StatusOpRDMARead, vipl.StatusOpSend, vipl.StatusOpRDMAWrite}
		b.recvs(count, size)
		b.fillAll(0)
		for i := range count {
			switch ops[i%3] {
			case vipl.StatusOpRDMARead:
				a.read(i, size, b.remote(count+i))
			case vipl.StatusOpSend:
				a.sendMessage(i, size, i)
			default:
				a.write(i, size, b.remote(2*count))
			}
		}
		for i := range count {
			t.same(a.sent(ops[i%3]), a.desc[i])
			switch ops[i%3] {
			case vipl.StatusOpRDMARead:
				t.holds("read", a.buf(i), count+i)
			case vipl.StatusOpSend:
				b.arrived(i/3, size, i)
			}
		}
	})),
	rule("rdma-read/long-before-short", "A send behind a long RDMA read completes after it.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		const size = 500_000
		a, b := t.ends(level, 2, 2, size)
		fill(b.buf(0), 1)
		b.recv(1, 64)
		read := a.read(0, size, b.remote(0))
		send := a.send(1, 64)
		t.until("the send", func() bool { return isDone(send) })
		t.errorIf(!isDone(read), "the send is complete before the read")
		a.sent(vipl.StatusOpRDMARead, 0)
		t.holds("read", a.buf(0), 1)
		b.received()
	})),
	rule("rdma-read/sees-earlier-writes", "An RDMA read gets what an earlier RDMA write of its VI wrote.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		const count, size = 20, 5000
		a, b := t.ends(level, 2*count, 1, size)
		for i := range count {
			fill(a.buf(i), i)
			a.write(i, size, b.remote(0))
			a.read(count+i, size, b.remote(0))
			a.sent(vipl.StatusOpRDMAWrite, vipl.StatusOpRDMARead)
			t.holds("read", a.buf(count+i), i)
		}
	})),
	rule("rdma-read/both-ways", "Both sides read from each other at the same time.", eachReliable(readBothWays)),
	rule("rdma-read/answers-among-messages", "The target's own messages and its answers to RDMA reads do not disturb each other.", func(t *T) {
		const count, size = 40, 8000
		a, b := t.ends(vipl.ReliableDelivery, 2*count, 2*count, size)
		b.fillAll(0)
		for i := range count {
			a.recv(count+i, size)
		}
		for i := range count {
			a.read(i, size, b.remote(i))
			b.send(count+i, size)
		}
		for i := range count {
			a.sent(vipl.StatusOpRDMARead)
			a.arrived(count+i, size, count+i)
			b.sent()
			t.holds("read", a.buf(i), i)
		}
	}),
	rule("rdma-read/fence-before-send", "QFENCE holds a send until the earlier RDMA reads of its queue are done: it may send what they got.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		const rounds, size = 10, 20_000
		a, b := t.ends(level, 2, 2, size)
		for k := range rounds {
			fill(b.buf(0), k)
			b.recv(1, size)
			a.read(0, size, b.remote(0))
			a.desc[1].Control = 0
			a.desc[1].SetSegments(a.seg(0, size)) // what the read gets
			a.fenced(1)
			b.arrived(1, size, k)
			a.sent(vipl.StatusOpRDMARead, 0)
		}
	})),
	rule("rdma-read/fence-before-write", "QFENCE holds an RDMA write until the earlier RDMA reads are done: it may write over what they read.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		const size = 300_000
		a, b := t.ends(level, 4, 2, size)
		fill(b.buf(0), 1)
		fill(a.buf(2), 2)
		a.read(0, size, b.remote(0))
		a.read(1, size, b.remote(0))
		a.desc[2].SetRDMAWrite(b.remote(0), a.seg(2, size))
		a.fenced(2)
		a.sent(vipl.StatusOpRDMARead, vipl.StatusOpRDMARead, vipl.StatusOpRDMAWrite)
		t.holds("first read", a.buf(0), 1)
		t.holds("second read", a.buf(1), 1)
		a.behind(b)
		t.holds("target", b.buf(0), 2)
	})),
	rule("rdma-read/fence-before-read", "QFENCE holds an RDMA read until the earlier ones are done.", func(t *T) {
		const count, size = 40, 5000
		a, b := t.ends(vipl.ReliableDelivery, count, 1, size)
		fill(b.buf(0), 1)
		for i := range count {
			a.desc[i].SetRDMARead(b.remote(0), a.seg(i, size))
			a.fenced(i)
		}
		for i := range count {
			t.same(a.sent(vipl.StatusOpRDMARead), a.desc[i])
			t.holds("read", a.buf(i), 1)
		}
	}),
	rule("rdma-read/flushed-by-disconnect", "RDMA reads that are under way when the VI is disconnected complete, done or flushed, and nothing is written afterwards.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		const count, size = 30, 200_000
		a, b := t.ends(level, count, 1, size)
		fill(b.buf(0), 1)
		for i := range count {
			a.read(i, size, b.remote(0))
		}
		t.must(a.v.Disconnect())
		for i := range t.doneThenFlushed(a.v.SendDone, vipl.StatusOpRDMARead, a.desc) {
			t.holds("read", a.buf(i), 1)
		}
		last := a.buf(count - 1)
		was := slices.Clone(last)
		t.state(b.v, vipl.Error)
		t.errorIf(!slices.Equal(last, was), "a flushed read was written to")
	})),
}, refusedReadRules())

// readsBefore posts RDMA reads. The fifth one is refused: it completes with that status, and the target gets an
// asynchronous error.
func readsBefore(t *T, level vipl.ReliabilityLevel, refused func(a *end, i int, closed vipl.AddressSegment), status vipl.Status, told vipl.ErrorCode) {
	const count, bad = 8, 4
	a, b := t.ends(level, count, count, 2000)
	closed := t.alloc(t.B, 2000, vipl.MemAttributes{})
	b.fillAll(0)
	for i := range count {
		if i == bad {
			refused(a, i, closed.Remote(0))
		} else {
			a.read(i, 2000, b.remote(i))
		}
	}
	t.asyncError(b.v, told)
	t.state(b.v, vipl.Error)
	for i, d := range a.desc {
		switch {
		case i < bad:
			t.same(a.sent(vipl.StatusOpRDMARead), d)
			t.holds("read", a.buf(i), i)
		case i == bad:
			t.same(a.sent(status), d)
		default:
			t.same(a.sent(vipl.StatusOpRDMARead|vipl.StatusFlushed), d)
		}
	}
	t.state(a.v, vipl.Error)
}

// fenced posts descriptor i with QFENCE.
func (e *end) fenced(i int) {
	e.desc[i].Control |= vipl.ControlQFence
	e.post(e.desc[i])
}

// doneThenFlushed dequeues the send queue. The first descriptors are done, and it counts them; the others are
// flushed.
func (t *T) doneThenFlushed(next func() (*vipl.Descriptor, error), op vipl.Status, list []*vipl.Descriptor) (done int) {
	for i, want := range list {
		d, err := next()
		if d != want {
			t.Fatalf("send %d: another descriptor: %v", i, err)
		}
		switch s := d.Status(); {
		case s == vipl.StatusDone|op && done == i:
			done++
		case s != vipl.StatusDone|op|vipl.StatusFlushed:
			t.Errorf("send %d: status %#x (%v), %d are done", i, uint32(s), s, done)
		}
	}
	return done
}

func readBothWays(t *T, level vipl.ReliabilityLevel) {
	const count, size = 40, 9000
	a, b := t.ends(level, 2*count, 2*count, size)
	a.fillAll(0)
	b.fillAll(100)
	for i := range count {
		a.read(i, size, b.remote(count+i))
		b.read(i, size, a.remote(count+i))
	}
	for i := range count {
		a.sent(vipl.StatusOpRDMARead)
		b.sent(vipl.StatusOpRDMARead)
		t.holds("at a", a.buf(i), 100+count+i)
		t.holds("at b", b.buf(i), count+i)
	}
}
