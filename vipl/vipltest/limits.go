package vipltest

import (
	"bytes"
	"slices"

	"viaxdp/vipl"
)

var limitRules = []Rule{
	rule("limits/descriptors-a-queue", "A work queue takes MaxDescriptorsPerQueue descriptors, complete or not, and one more when one was dequeued.", func(t *T) {
		most := t.A.Query().MaxDescriptorsPerQueue
		v, peer := t.pair(vipl.ReliableDelivery)
		t.drops(peer, v) // in Error everything completes at once
		for _, q := range queues(v) {
			x := t.block(t.A, most+1, 0)
			last := x.prepare(most, 0)
			for i := range most {
				t.wantErr(q.name, q.post(x.prepare(i, 0), x.Handle()), nil)
			}
			t.wantErr(q.name+" one too many", q.post(last, x.Handle()), vipl.ErrResource)
			for i, want := range x.desc {
				d, _ := q.done()
				t.same(d, want)
				if i == 0 {
					t.wantErr(q.name+" after one was dequeued", q.post(last, x.Handle()), nil)
				}
			}
		}
	}),
	rule("limits/too-many-descriptors", "Posting past MaxDescriptorsPerQueue is ERROR_RESOURCE with an asynchronous VI_OVERRUN; what is posted stays as it is.", overrun),
	rule("limits/full-queues-serve", "Full queues serve: every receive takes a message, every send leaves, in order.", func(t *T) {
		inOrder(t, vipl.ReliableDelivery, slices.Repeat([]int{16}, t.A.Query().MaxDescriptorsPerQueue))
	}),
	rule("limits/segments-of-a-message", "A send is gathered from MaxSegmentsPerDesc segments and scattered to as many; one more is a FORMAT_ERROR.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		a, b, most := t.wideEnds(level)
		fill(a.buf(0), 1)
		carryMessage(a, b, a.pieces(most, 7), b.pieces(most, 7))
		t.holds("message", b.buf(0)[:most*7], 1)

		a.sendSegments(0, a.pieces(most+1, 7)...)
		a.sent(vipl.StatusFormatError)
		if level == vipl.UnreliableDelivery {
			t.state(a.v, vipl.Connected)
			b.recvSegments(0, b.pieces(most+1, 7)...)
			b.received(vipl.StatusFormatError)
		}
	})),
	rule("limits/segments-of-rdma", "RDMA has MaxSegmentsPerDesc data segments beside its address segment; one more is a FORMAT_ERROR.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		// A descriptor has room for the largest legal number of segments; one more would overlap the next
		// object.
		a, b, most := t.wideEnds(level)
		fill(a.buf(0), 1)
		carryWrite(a, b, a.pieces(most, 7), one(b.Region, b.at(0), most*7))
		clear(a.buf(0))
		carryRead(b, a, one(b.Region, b.at(0), most*7), a.pieces(most, 7))
		t.holds("written and read", a.buf(0)[:most*7], 1)

		a.desc[0].SetRDMAWrite(b.remote(0), a.pieces(most, 7)...)
		a.desc[0].SegCount++
		a.post(a.desc[0])
		a.sent(vipl.StatusOpRDMAWrite | vipl.StatusFormatError)
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
		var as, bs []*end
		for i := range 100 {
			a, b := t.ends(reliableLevels[i%2], 1, 1, 64)
			b.recv(0, 64)
			as, bs = append(as, a), append(bs, b)
		}
		for i, a := range as {
			a.sendMessage(0, 64, i)
		}
		for i, b := range bs {
			b.arrived(0, 64, i)
			as[i].sent()
		}
	}),
	rule("limits/longest-discriminator", "Discriminators may be MaxDiscriminatorLen bytes long, and all of them count.", func(t *T) {
		most := t.A.Query().MaxDiscriminatorLen
		long := bytes.Repeat([]byte{0xee}, most)
		other := slices.Clone(long)
		other[most-1]++
		va, vb := t.idle(vipl.ReliableDelivery)
		waited := waits(t.B, named(long))
		t.noMatch("the last byte differs", va, on(t.B, other))
		t.noMatch("the last byte is missing", va, on(t.B, long[:most-1]))
		result := starts(func() error { return errOf(t.request(va, named(other), on(t.B, long))) })
		w := <-waited
		t.must(w.err)
		t.errorIf(!bytes.Equal(w.c.Remote().Discriminator, other), "the requester's discriminator is %x", w.c.Remote().Discriminator)
		t.accept(w.c, vb, result)
	}),
	rule("limits/longest-transfer", "A message, an RDMA write and an RDMA read of MaxTransferSize bytes arrive whole.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		carry(carryMessage).longest(t, level)
		carry(carryWrite).longest(t, level)
		if level != vipl.UnreliableDelivery {
			carry(carryRead).longest(t, level)
		}
	})),
	rule("limits/longer-than-the-longest-transfer", "A descriptor of more than MaxTransferSize bytes is a LENGTH_ERROR; nothing of it is sent.", everyLevel(func(t *T, level vipl.ReliabilityLevel) {
		n := t.A.Query().MaxTransferSize + 1
		a, b := t.ends(level, 1, 1, n)
		b.recv(0, n)
		a.send(0, n)
		a.sent(vipl.StatusLengthError)
		if level == vipl.UnreliableDelivery {
			t.nothingReceived(b.v)
			t.state(a.v, vipl.Connected)
			a.write(0, n, b.remote(0))
			a.sent(vipl.StatusOpRDMAWrite | vipl.StatusLengthError)
		} else { // wrong contents break a reliable connection
			t.state(a.v, vipl.Error)
			b.received(vipl.StatusFlushed)
		}
		t.untouched("the target", b.buf(0))
	})),
	rule("limits/transfer-size-of-the-vi", "The limit of a VI is its own MaxTransferSize: up to it all works, one byte more is a LENGTH_ERROR.", func(t *T) {
		for _, n := range []int{1, 1000, 32000, 32768} {
			attrs := vipl.VIAttributes{Level: vipl.ReliableReception, MaxTransferSize: n}
			a, b := t.endsOf(attrs, attrs, 1, 1, n+1)
			b.recv(0, n+1) // a receive may be longer than any message
			a.carries(b, n, 1)
			a.send(0, n+1)
			a.sent(vipl.StatusLengthError)
		}
	}),
	rule("limits/unaligned-descriptor", "Posting a descriptor that is not aligned to 64 bytes is INVALID_PARAMETER with an asynchronous POST_DESC.", refusedDescriptors),
	rule("limits/no-descriptor", "Posting no descriptor, or one outside of registered memory, is INVALID_PARAMETER with an asynchronous POST_DESC.", refusedDescriptors),
	choice("limits/altered-descriptor", "A consumer that changes a posted descriptor gets POST_DESC.", "when it completes; it does what it said when it was posted", eachLevel(alteredDescriptor)),
}

// queue selects one of the two queues of a VI.
type queue struct {
	name string
	post func(*vipl.Descriptor, vipl.MemHandle) error
	done func() (*vipl.Descriptor, error)
}

func queues(v *vipl.VI) []queue {
	return []queue{{"send", v.PostSend, v.SendDone}, {"receive", v.PostRecv, v.RecvDone}}
}

// wideEnds returns ends whose descriptors have room for one segment more than is legal in a send.
func (t *T) wideEnds(level vipl.ReliabilityLevel) (a, b *end, most int) {
	most = t.A.Query().MaxSegmentsPerDesc
	va, vb := t.pair(level)
	size := (most + 1) * 7
	return t.blockOf(t.A, nil, 2, most+1, size).on(va), t.blockOf(t.B, nil, 2, most+1, size).on(vb), most
}

// pieces divides buffer 0 of b into n pieces of size bytes.
func (b *block) pieces(n, size int) (segs []vipl.DataSegment) {
	for i := range n {
		segs = append(segs, b.Segment(b.at(0)+i*size, size))
	}
	return segs
}
