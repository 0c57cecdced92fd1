package vipltest

import (
	"bytes"
	"fmt"
	"slices"

	"viaxdp/vipl"
)

var limitRules = []Rule{
	rule("limits/descriptors-a-queue", "A work queue takes MaxDescriptorsPerQueue descriptors, complete or not, and one more when one was dequeued.", func(t *T) {
		most := t.A.Query().MaxDescriptorsPerQueue
		v := t.inError()
		for _, q := range queues(v) {
			x := t.block(t.A, most+1, 0)
			for i, d := range x.desc[:most] {
				x.prepare(i, 0)
				t.wantErr(fmt.Sprintf("%s %d", q.name, i), q.post(d, x.Handle()), nil)
			}
			last := x.prepare(most, 0)
			t.wantErr(q.name+" one too many", q.post(last, x.Handle()), vipl.ErrResource)
			for i := range most {
				d, _ := q.done()
				t.same(d, x.desc[i])
				if i == 0 {
					t.wantErr(q.name+" after one was dequeued", q.post(last, x.Handle()), nil)
				}
			}
			d, _ := q.done()
			t.same(d, last)
		}
	}),
	rule("limits/too-many-descriptors", "Posting past MaxDescriptorsPerQueue is ERROR_RESOURCE with an asynchronous VI_OVERRUN; what is posted stays as it is.", overrun),
	rule("limits/full-queues-serve", "Full queues serve: every receive takes a message, every send leaves, in order.", func(t *T) {
		most := t.A.Query().MaxDescriptorsPerQueue
		va, vb := t.pair(vipl.ReliableDelivery)
		const size = 16
		x, y := t.block(t.A, most, size), t.block(t.B, most, size)
		for i := range most {
			y.recv(vb, i, size)
			fill(x.buf(i), i)
		}
		x.sends(va, most, size)
		for i := range most {
			if t.received(vb, 0) != y.desc[i] || t.sent(va, 0) != x.desc[i] {
				t.Fatalf("descriptor %d: another one", i)
			}
			t.coalesces("message", y.buf(i), i)
		}
	}),
	rule("limits/segments-of-a-message", "A send is gathered from MaxSegmentsPerDesc segments and scattered to as many; one more is a FORMAT_ERROR.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		most := t.A.Query().MaxSegmentsPerDesc
		va, vb := t.pair(level)
		const size = 7
		n := (most + 1) * size
		x, y := t.blockOf(t.A, nil, 1, most+1, n), t.blockOf(t.B, nil, 1, most+1, n)
		y.recvSegments(vb, 0, y.pieces(most, size)...)
		fill(x.buf(0), 1)
		x.sendSegments(va, 0, x.pieces(most, size)...)
		t.receivedMessage(vb, y.buf(0)[:most*size], 1)
		t.sent(va, 0)

		x.sendSegments(va, 0, x.pieces(most+1, size)...)
		t.sent(va, vipl.StatusFormatError)
		if level == vipl.UnreliableDelivery {
			t.state(va, vipl.Connected)
			y.recvSegments(vb, 0, y.pieces(most+1, size)...)
			t.received(vb, vipl.StatusFormatError)
		}
	})),
	rule("limits/segments-of-rdma", "RDMA has MaxSegmentsPerDesc data segments beside its address segment; one more is a FORMAT_ERROR.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		most := t.A.Query().MaxSegmentsPerDesc
		va, _ := t.pair(level)
		const size = 9
		n := (most + 1) * size
		// Descriptor 0 has room for the longest that is legal; one more segment
		// would lie in what follows.
		x, y := t.blockOf(t.A, nil, 1, most+1, n), t.block(t.B, 1, n)
		fill(x.buf(0), 1)
		x.writeSegments(va, 0, y.remote(0), x.pieces(most, size)...)
		t.sent(va, vipl.StatusOpRDMAWrite)
		clear(x.buf(0))
		x.readSegments(va, 0, y.remote(0), x.pieces(most, size)...)
		t.sent(va, vipl.StatusOpRDMARead)
		t.coalesces("written and read", x.buf(0)[:most*size], 1)

		x.desc[0].SetRDMAWrite(y.remote(0), x.pieces(most, size)...)
		x.desc[0].SegCount++
		x.post(va, x.desc[0])
		t.sent(va, vipl.StatusOpRDMAWrite|vipl.StatusFormatError)
	})),
	rule("limits/vis-of-a-nic", "A NIC handle has MaxVI VIs; one more is ERROR_RESOURCE, until one is destroyed.", func(t *T) {
		most := t.A.Query().MaxVI
		a := at(vipl.ReliableDelivery)
		for range most {
			t.vi(t.A, a)
		}
		t.wantErr("one too many", errOf(t.A.CreateVI(a, nil, nil)), vipl.ErrResource)
		t.must(t.vis[most/2].Destroy())
		t.join(t.vi(t.A, a), t.vi(t.B, a))
	}),
	rule("limits/cqs-of-a-nic", "A NIC handle has MaxCQ CQs; one more is ERROR_RESOURCE, until one is destroyed.", func(t *T) {
		most := t.A.Query().MaxCQ
		for range most {
			t.cq(t.A, 1)
		}
		t.wantErr("one too many", errOf(t.A.CreateCQ(1)), vipl.ErrResource)
		t.must(t.cqs[most/2].Destroy())
		t.cq(t.A, 1)
	}),
	rule("limits/entries-of-a-cq", "A CQ of MaxCQEntries entries can be made.", func(t *T) {
		most := t.A.Query().MaxCQEntries
		got := t.cq(t.A, most).Entries()
		t.errorIf(got < most, "%d entries of %d", got, most)
	}),
	rule("limits/many-connections", "Many VIs of one NIC are connected at the same time and all work.", func(t *T) {
		const count = 100
		x, y := t.block(t.A, count, 64), t.block(t.B, count, 64)
		var from, to []*vipl.VI
		for i := range count {
			va, vb := t.pair(reliableLevels[i%2])
			from, to = append(from, va), append(to, vb)
			y.recv(vb, i, 64)
		}
		for i, v := range from {
			x.sendMessage(v, i, 64, i)
		}
		for i, v := range to {
			t.receivedMessage(v, y.buf(i), i)
			t.sent(from[i], 0)
		}
	}),
	rule("limits/longest-discriminator", "Discriminators may be MaxDiscriminatorLen bytes long, and all of them count.", func(t *T) {
		most := t.A.Query().MaxDiscriminatorLen
		long := bytes.Repeat([]byte{0xee}, most)
		other := slices.Clone(long)
		other[most-1]++
		va, vb := t.idle(vipl.ReliableDelivery)
		waited := waits(t.B, named(long))
		host := t.B.Query().Address
		t.noMatch("the last byte differs", va, vipl.NetAddress{Host: host, Discriminator: other})
		t.noMatch("the last byte is missing", va, vipl.NetAddress{Host: host, Discriminator: long[:most-1]})
		result := starts(func() error {
			return errOf(t.requestFrom(va, named(other), vipl.NetAddress{Host: host, Discriminator: long}))
		})
		w := <-waited
		t.must(w.err)
		t.errorIf(!bytes.Equal(w.c.Remote().Discriminator, other), "the requester's discriminator is %x", w.c.Remote().Discriminator)
		t.must(w.c.Accept(vb))
		t.must(<-result)
	}),
	rule("limits/longest-transfer", "A message, an RDMA write and an RDMA read of MaxTransferSize bytes arrive whole.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		most := t.A.Query().MaxTransferSize
		va, vb, x, y := t.ends(level, 1, 1, most)
		fill(x.buf(0), 1)
		y.recv(vb, 0, most)
		x.send(va, 0, most)
		t.receivedMessage(vb, y.buf(0), 1)
		t.sent(va, 0)

		fill(x.buf(0), 2)
		y.recv(vb, 0, 0)
		x.writeImmediate(va, 0, most, y.remote(0), 0)
		t.received(vb, vipl.StatusOpRemoteRDMAWrite|vipl.StatusImmediate)
		t.coalesces("written", y.buf(0), 2)
		t.sent(va, vipl.StatusOpRDMAWrite)
		if level == vipl.UnreliableDelivery {
			return
		}
		fill(y.buf(0), 3)
		x.readDone(va, 0, most, y.remote(0))
		t.coalesces("read", x.buf(0), 3)
	})),
	rule("limits/longer-than-the-longest-transfer", "A descriptor of more than MaxTransferSize bytes is a LENGTH_ERROR; nothing of it is sent.", everyLevel(func(t *T, level vipl.ReliabilityLevel) {
		n := t.A.Query().MaxTransferSize + 1
		va, vb, x, y := t.ends(level, 1, 1, n)
		y.recv(vb, 0, n)
		x.send(va, 0, n)
		t.sent(va, vipl.StatusLengthError)
		if level == vipl.UnreliableDelivery {
			t.nothingReceived(vb)
			t.state(va, vipl.Connected)
			x.write(va, 0, n, y.remote(0))
			t.sent(va, vipl.StatusOpRDMAWrite|vipl.StatusLengthError)
		} else { // wrong contents break a reliable connection
			t.state(va, vipl.Error)
			t.received(vb, vipl.StatusFlushed)
		}
		t.untouched("the target", y.buf(0))
	})),
	rule("limits/transfer-size-of-the-vi", "The limit of a VI is its own MaxTransferSize: up to it all works, one byte more is a LENGTH_ERROR.", func(t *T) {
		for _, n := range []int{1, 1000, 32000, 32768} {
			a := vipl.VIAttributes{Level: vipl.ReliableReception, MaxTransferSize: n}
			va, vb := t.pairOf(a, a)
			x, y := t.block(t.A, 1, n+1), t.block(t.B, 1, n+1)
			y.recv(vb, 0, n+1) // a receive may be longer than any message
			t.carries(va, x, vb, y, n, 1)
			x.send(va, 0, n+1)
			t.sent(va, vipl.StatusLengthError)
		}
	}),
	rule("limits/unaligned-descriptor", "Posting a descriptor that is not aligned to 64 bytes is INVALID_PARAMETER with an asynchronous POST_DESC.", func(t *T) {
		for _, off := range []int{1, 4, 8, 16, 32, 63} {
			va, _ := t.pair(vipl.ReliableDelivery)
			r := t.alloc(t.A, 256, vipl.MemAttributes{})
			t.errorIf(errOf(r.Descriptor(off, 1)) == nil, "offset %d: a descriptor is laid there", off)
			if off%8 != 0 {
				continue // no program can even write to it on all machines
			}
			d := descriptorAt(r.Bytes()[off:])
			d.SetSegments(r.Segment(192, 64))
			for _, q := range queues(va) {
				t.wantErr(q.name, q.post(d, r.Handle()), vipl.ErrInvalidParameter)
			}
			for _, e := range t.asyncErrors(va, vipl.ErrorPostDesc, vipl.ErrorPostDesc) {
				t.errorIf(e.Descriptor != d || e.Resource != vipl.ResourceDescriptor, "the error is about descriptor %p, resource %v", e.Descriptor, e.Resource)
			}
			t.state(va, vipl.Connected)
		}
	}),
	rule("limits/no-descriptor", "Posting no descriptor, or one outside of registered memory, is INVALID_PARAMETER with an asynchronous POST_DESC.", func(t *T) {
		va, _ := t.pair(vipl.ReliableDelivery)
		x := t.block(t.A, 1, 64)
		userRing := t.block(t.A, 1, 64) // in other memory than the handle says
		userRing.prepare(0, 64)
		for _, q := range queues(va) {
			t.wantErr(q.name+" of none", q.post(nil, x.Handle()), vipl.ErrInvalidParameter)
			t.wantErr(q.name+" outside", q.post(userRing.desc[0], x.Handle()), vipl.ErrInvalidParameter)
		}
		t.asyncErrors(va, slices.Repeat([]vipl.ErrorCode{vipl.ErrorPostDesc}, 4)...)
		s := t.state(va, vipl.Connected)
		t.errorIf(!s.SendEmpty || !s.RecvEmpty, "something is posted: %+v", s)
	}),
	choice("limits/altered-descriptor", "A consumer that changes a posted descriptor gets POST_DESC.", "when it completes; it does what it said when it was posted", eachLevel(alteredDescriptor)),
}

// queue is one of the two queues of a VI.
type queue struct {
	name string
	post func(*vipl.Descriptor, vipl.MemHandle) error
	done func() (*vipl.Descriptor, error)
}

func queues(v *vipl.VI) []queue {
	return []queue{{"send", v.PostSend, v.SendDone}, {"receive", v.PostRecv, v.RecvDone}}
}

// inError is a VI in Error, on which everything completes at once.
func (t *T) inError() *vipl.VI {
	t.Helper()
	va, vb := t.pair(vipl.ReliableDelivery)
	t.must(vb.Disconnect())
	t.state(va, vipl.Error)
	return va
}

// pieces cuts buffer 0 of b into n pieces of size bytes.
func (b *block) pieces(n, size int) (segs []vipl.DataSegment) {
	for i := range n {
		segs = append(segs, b.Segment(b.at(0)+i*size, size))
	}
	return segs
}
