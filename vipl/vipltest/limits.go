package vipltest

import (
	"bytes"
	"slices"

	"viaxdp/vipl"
)

var limitRules = []Rule{
	{
		ID:   "limits/descriptors-a-queue",
		Text: "A work queue takes MaxDescriptorsPerQueue descriptors, complete or not, and one more when one was dequeued.",
		run:  limitDescriptors,
	},
	{
		ID:   "limits/too-many-descriptors",
		Text: "Posting past MaxDescriptorsPerQueue is ERROR_RESOURCE with an asynchronous VI_OVERRUN; what is posted stays as it is.",
		run:  limitOverrun,
	},
	{
		ID:   "limits/full-queues-serve",
		Text: "Full queues serve: every receive takes a message, every send leaves, in order.",
		run:  limitFullQueues,
	},
	{
		ID:   "limits/segments-of-a-message",
		Text: "A send is gathered from MaxSegmentsPerDesc segments and scattered to as many; one more is a FORMAT_ERROR.",
		run:  limitSegments,
	},
	{
		ID:   "limits/segments-of-rdma",
		Text: "RDMA has MaxSegmentsPerDesc data segments beside its address segment; one more is a FORMAT_ERROR.",
		run:  limitRDMASegments,
	},
	{
		ID:   "limits/vis-of-a-nic",
		Text: "A NIC handle has MaxVI VIs; one more is ERROR_RESOURCE, until one is destroyed.",
		run:  limitVIs,
	},
	{
		ID:   "limits/cqs-of-a-nic",
		Text: "A NIC handle has MaxCQ CQs; one more is ERROR_RESOURCE, until one is destroyed.",
		run:  limitCQs,
	},
	{
		ID:   "limits/entries-of-a-cq",
		Text: "A CQ of MaxCQEntries entries can be made.",
		run: func(t *T) {
			most := t.A.Query().MaxCQEntries
			if got := t.cq(t.A, most).Entries(); got < most {
				t.Errorf("%d entries of %d", got, most)
			}
		},
	},
	{
		ID:   "limits/many-connections",
		Text: "Many VIs of one NIC are connected at the same time and all work.",
		run:  limitConnections,
	},
	{
		ID:   "limits/longest-discriminator",
		Text: "Discriminators may be MaxDiscriminatorLen bytes long, and all of them count.",
		run:  limitDiscriminator,
	},
	{
		ID:   "limits/longest-transfer",
		Text: "A message, an RDMA write and an RDMA read of MaxTransferSize bytes arrive whole.",
		run:  limitTransfer,
	},
	{
		ID:   "limits/longer-than-the-longest-transfer",
		Text: "A descriptor of more than MaxTransferSize bytes is a LENGTH_ERROR; nothing of it is sent.",
		run:  limitTooLong,
	},
	{
		ID:   "limits/transfer-size-of-the-vi",
		Text: "The limit of a VI is its own MaxTransferSize: up to it all works, one byte more is a LENGTH_ERROR.",
		run:  limitVITransfer,
	},
	{
		ID:   "limits/unaligned-descriptor",
		Text: "Posting a descriptor that is not aligned to 64 bytes is INVALID_PARAMETER with an asynchronous POST_DESC.",
		run:  limitUnaligned,
	},
	{
		ID:   "limits/no-descriptor",
		Text: "Posting no descriptor, or one outside of registered memory, is INVALID_PARAMETER with an asynchronous POST_DESC.",
		run:  limitNowhere,
	},
	{
		ID:     "limits/altered-descriptor",
		Text:   "A consumer that changes a posted descriptor gets POST_DESC.",
		Choice: "when it completes; it does what it said when it was posted",
		run:    limitAltered,
	},
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

func limitDescriptors(t *T) {
	most := t.A.Query().MaxDescriptorsPerQueue
	v := t.inError()
	for _, q := range queues(v) {
		x := t.block(t.A, most+1, 0)
		for i, d := range x.desc[:most] {
			x.prepare(i, 0)
			if err := q.post(d, x.Handle()); err != nil {
				t.Fatalf("%s %d: %v", q.name, i, err)
			}
		}
		last := x.prepare(most, 0)
		t.wantErr(q.name+" one too many", q.post(last, x.Handle()), vipl.ErrResource)
		for i := range most {
			if d, _ := q.done(); d != x.desc[i] {
				t.Fatalf("%s %d: another descriptor", q.name, i)
			}
			if i == 0 {
				t.wantErr(q.name+" after one was dequeued", q.post(last, x.Handle()), nil)
			}
		}
		if d, _ := q.done(); d != last {
			t.Errorf("%s: the last is another one", q.name)
		}
	}
}

func limitOverrun(t *T) {
	most := t.A.Query().MaxDescriptorsPerQueue
	va, vb := t.pair(vipl.ReliableDelivery)
	x, y := t.block(t.A, most+1, 0), t.block(t.B, 1, 0)
	for i := range most {
		x.recv(va, i, 0)
	}
	d := x.prepare(most, 0)
	t.wantErr("post", va.PostRecv(d, x.Handle()), vipl.ErrResource)
	e := t.asyncError(va, vipl.ErrorVIOverrun)
	if e.Nic != t.A || e.Descriptor != nil && e.Descriptor != d {
		t.Errorf("the error is about %v, descriptor %p", e.Nic, e.Descriptor)
	}
	y.send(vb, 0, 0)
	if t.received(va, 0) != x.desc[0] {
		t.Error("another descriptor")
	}
	t.state(va, vipl.Connected)
}

func limitFullQueues(t *T) {
	most := t.A.Query().MaxDescriptorsPerQueue
	va, vb := t.pair(vipl.ReliableDelivery)
	const size = 16
	x, y := t.block(t.A, most, size), t.block(t.B, most, size)
	for i := range most {
		y.recv(vb, i, size)
		fill(x.buf(i), i)
	}
	for i := range most {
		x.send(va, i, size)
	}
	for i := range most {
		if t.received(vb, 0) != y.desc[i] || t.sent(va, 0) != x.desc[i] {
			t.Fatalf("descriptor %d: another one", i)
		}
		t.holds("message", y.buf(i), i)
	}
}

// pieces cuts buffer 0 of b into n pieces of size bytes.
func (b *block) pieces(n, size int) (segs []vipl.DataSegment) {
	for i := range n {
		segs = append(segs, b.Segment(b.at(0)+i*size, size))
	}
	return segs
}

func limitSegments(t *T) {
	most := t.A.Query().MaxSegmentsPerDesc
	t.eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.pair(level)
		const size = 7
		n := (most + 1) * size
		x, y := t.blockOf(t.A, nil, 1, most+1, n), t.blockOf(t.B, nil, 1, most+1, n)
		y.desc[0].SetSegments(y.pieces(most, size)...)
		y.postRecv(vb, y.desc[0])
		fill(x.buf(0), 1)
		x.desc[0].SetSegments(x.pieces(most, size)...)
		x.post(va, x.desc[0])
		if d := t.received(vb, 0); int(d.Length) != most*size {
			t.Errorf("%d bytes of %d", d.Length, most*size)
		}
		t.holds("message", y.buf(0)[:most*size], 1)
		t.sent(va, 0)

		x.desc[0].SetSegments(x.pieces(most+1, size)...)
		x.post(va, x.desc[0])
		t.sent(va, vipl.StatusFormatError)
		if level == vipl.UnreliableDelivery {
			t.state(va, vipl.Connected)
			y.desc[0].SetSegments(y.pieces(most+1, size)...)
			y.postRecv(vb, y.desc[0])
			t.received(vb, vipl.StatusFormatError)
		}
	})
}

func limitRDMASegments(t *T) {
	most := t.A.Query().MaxSegmentsPerDesc
	t.eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		va, _ := t.pair(level)
		const size = 9
		n := (most + 1) * size
		// Descriptor 0 has room for the longest that is legal; one more segment
		// would lie in what follows.
		x, y := t.blockOf(t.A, nil, 1, most+1, n), t.block(t.B, 1, n)
		fill(x.buf(0), 1)
		x.desc[0].SetRDMAWrite(y.remote(0), x.pieces(most, size)...)
		x.post(va, x.desc[0])
		t.sent(va, vipl.StatusOpRDMAWrite)
		clear(x.buf(0))
		x.desc[0].SetRDMARead(y.remote(0), x.pieces(most, size)...)
		x.post(va, x.desc[0])
		t.sent(va, vipl.StatusOpRDMARead)
		t.holds("written and read", x.buf(0)[:most*size], 1)

		x.desc[0].SetRDMAWrite(y.remote(0), x.pieces(most, size)...)
		x.desc[0].SegCount++
		x.post(va, x.desc[0])
		t.sent(va, vipl.StatusOpRDMAWrite|vipl.StatusFormatError)
	})
}

func limitVIs(t *T) {
	most := t.A.Query().MaxVI
	a := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	for range most {
		t.vi(t.A, a)
	}
	_, err := t.A.CreateVi(a, nil, nil)
	t.wantErr("one too many", err, vipl.ErrResource)
	t.must(t.vis[most/2].Destroy())
	t.join(t.vi(t.A, a), t.vi(t.B, a))
}

func limitCQs(t *T) {
	most := t.A.Query().MaxCQ
	for range most {
		t.cq(t.A, 1)
	}
	_, err := t.A.CreateCQ(1)
	t.wantErr("one too many", err, vipl.ErrResource)
	t.must(t.cqs[most/2].Destroy())
	t.cq(t.A, 1)
}

func limitConnections(t *T) {
	const count = 100
	x, y := t.block(t.A, count, 64), t.block(t.B, count, 64)
	var from, to []*vipl.VI
	for i := range count {
		va, vb := t.pair(reliableLevels[i%2])
		from, to = append(from, va), append(to, vb)
		y.recv(vb, i, 64)
	}
	for i, v := range from {
		fill(x.buf(i), i)
		x.send(v, i, 64)
	}
	for i, v := range to {
		t.received(v, 0)
		t.holds("message", y.buf(i), i)
		t.sent(from[i], 0)
	}
}

func limitDiscriminator(t *T) {
	most := t.A.Query().MaxDiscriminatorLen
	long := bytes.Repeat([]byte{0xee}, most)
	other := slices.Clone(long)
	other[most-1]++
	a := vipl.ViAttributes{Level: vipl.ReliableDelivery}
	va, vb := t.vi(t.A, a), t.vi(t.B, a)
	type waited struct {
		c   *vipl.Conn
		err error
	}
	wait := make(chan waited, 1)
	go func() {
		c, err := t.B.ConnectWait(vipl.NetAddress{Discriminator: long}, patience)
		wait <- waited{c, err}
	}()
	host := t.B.Query().Address
	t.noMatch("the last byte differs", va, vipl.NetAddress{Host: host, Discriminator: other})
	t.noMatch("the last byte is missing", va, vipl.NetAddress{Host: host, Discriminator: long[:most-1]})
	result := make(chan error, 1)
	go func() {
		_, err := t.requestFrom(va, vipl.NetAddress{Discriminator: other}, vipl.NetAddress{Host: host, Discriminator: long})
		result <- err
	}()
	w := <-wait
	t.must(w.err)
	if !bytes.Equal(w.c.Remote().Discriminator, other) {
		t.Errorf("the requester's discriminator is %x", w.c.Remote().Discriminator)
	}
	t.must(w.c.Accept(vb))
	t.must(<-result)
}

func limitTransfer(t *T) {
	most := t.A.Query().MaxTransferSize
	t.eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.pair(level)
		x, y := t.block(t.A, 1, most), t.block(t.B, 1, most)
		fill(x.buf(0), 1)
		y.recv(vb, 0, most)
		x.send(va, 0, most)
		if d := t.received(vb, 0); int(d.Length) != most {
			t.Errorf("%d bytes of %d", d.Length, most)
		}
		t.holds("message", y.buf(0), 1)
		t.sent(va, 0)

		fill(x.buf(0), 2)
		y.recv(vb, 0, 0)
		x.writeImmediate(va, 0, most, y.remote(0), 0)
		t.received(vb, vipl.StatusOpRemoteRDMAWrite|vipl.StatusImmediate)
		t.holds("written", y.buf(0), 2)
		t.sent(va, vipl.StatusOpRDMAWrite)
		if level == vipl.UnreliableDelivery {
			return
		}
		fill(y.buf(0), 3)
		x.read(va, 0, most, y.remote(0))
		t.sent(va, vipl.StatusOpRDMARead)
		t.holds("read", x.buf(0), 3)
	})
}

func limitTooLong(t *T) {
	n := t.A.Query().MaxTransferSize + 1
	t.eachOf(allLevels, func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.pair(level)
		x, y := t.block(t.A, 1, n), t.block(t.B, 1, n)
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
	})
}

func limitVITransfer(t *T) {
	for _, n := range []int{1, 1000, 32000, 32768} {
		a := vipl.ViAttributes{Level: vipl.ReliableReception, MaxTransferSize: n}
		va, vb := t.pairOf(a, a)
		x, y := t.block(t.A, 1, n+1), t.block(t.B, 1, n+1)
		y.recv(vb, 0, n+1) // a receive may be longer than any message
		fill(x.buf(0), 1)
		x.send(va, 0, n)
		t.received(vb, 0)
		t.holds("message", y.buf(0)[:n], 1)
		t.sent(va, 0)
		x.send(va, 0, n+1)
		t.sent(va, vipl.StatusLengthError)
	}
}

func limitUnaligned(t *T) {
	for _, off := range []int{1, 4, 8, 16, 32, 63} {
		va, _ := t.pair(vipl.ReliableDelivery)
		r := t.alloc(t.A, 256, vipl.MemAttributes{})
		if _, err := r.Descriptor(off, 1); err == nil {
			t.Errorf("offset %d: a descriptor is laid there", off)
		}
		if off%8 != 0 {
			continue // no program can even write to it on all machines
		}
		d := descriptorAt(r.Bytes()[off:])
		d.SetSegments(r.Segment(192, 64))
		for _, q := range queues(va) {
			t.wantErr(q.name, q.post(d, r.Handle()), vipl.ErrInvalidParameter)
		}
		for _, e := range t.asyncErrors(va, vipl.ErrorPostDesc, vipl.ErrorPostDesc) {
			if e.Descriptor != d || e.Resource != vipl.ResourceDescriptor {
				t.Errorf("the error is about descriptor %p, resource %v", e.Descriptor, e.Resource)
			}
		}
		t.state(va, vipl.Connected)
	}
}

func limitNowhere(t *T) {
	va, _ := t.pair(vipl.ReliableDelivery)
	x := t.block(t.A, 1, 64)
	outside := t.block(t.A, 1, 64) // in other memory than the handle says
	outside.prepare(0, 64)
	for _, q := range queues(va) {
		t.wantErr(q.name+" of none", q.post(nil, x.Handle()), vipl.ErrInvalidParameter)
		t.wantErr(q.name+" outside", q.post(outside.desc[0], x.Handle()), vipl.ErrInvalidParameter)
	}
	t.asyncErrors(va, slices.Repeat([]vipl.ErrorCode{vipl.ErrorPostDesc}, 4)...)
	if s := t.state(va, vipl.Connected); !s.SendEmpty || !s.RecvEmpty {
		t.Errorf("something is posted: %+v", s)
	}
}

func limitAltered(t *T) {
	t.eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.pair(level)
		x, y := t.block(t.A, 1, 64), t.block(t.B, 2, 64)
		d := y.recv(vb, 0, 64)
		*d.Segment(0) = y.seg(1, 64)
		d.SegCount, d.Control = 60000, 0xffff
		fill(x.buf(0), 1)
		x.send(va, 0, 64)
		if t.received(vb, 0) != d {
			t.Error("another descriptor")
		}
		t.holds("what it said when posted", y.buf(0), 1)
		t.untouched("what it said later", y.buf(1))
		if e := t.asyncError(vb, vipl.ErrorPostDesc); e.Descriptor != d {
			t.Errorf("the error is about descriptor %p", e.Descriptor)
		}
		t.state(vb, vipl.Connected)
	})
}
