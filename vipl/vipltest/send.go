package vipltest

import (
	"math"
	"slices"
	"time"

	"viaxdp/vipl"
)

var sendRules = []Rule{
	rule("send-receive/sizes", "A message of 0 bytes to MaxTransferSize arrives whole, and Length of the receive is its length.", eachLevel(carry(carryMessage).sizes)),
	rule("send-receive/segments", "A message is gathered from up to 252 segments and scattered to up to 252, cut differently on both sides.", eachLevel(carry(carryMessage).segments)),
	choice("send-receive/empty-segments", "Segments of length 0 may stand anywhere among others, and need no valid handle or address.", "a segment of length 0 is not checked", func(t *T) {
		va, vb := t.pair(vipl.ReliableDelivery)
		a, b := t.blockOf(t.A, nil, 1, 6, 3000).on(va), t.blockOf(t.B, nil, 1, 6, 3000).on(vb)
		wild, null := vipl.DataSegment{Data: ^uint64(0), Handle: 0x7fffffff}, vipl.DataSegment{}
		fill(a.buf(0), 1)
		carryMessage(a, b,
			[]vipl.DataSegment{wild, null, a.seg(0, 2000), null, a.Segment(a.at(0)+2000, 1000), wild},
			[]vipl.DataSegment{null, b.seg(0, 10), wild, b.Segment(b.at(0)+10, 2990), null})
		t.holds("message", b.buf(0), 1)
	}),
	rule("send-receive/no-segments", "SegCount 0 is legal on both sides, with and without immediate data.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		a, b := t.ends(level, 1, 1, 64)
		for _, imm := range []uint32{0, 1, 0xffffffff} {
			b.recvSegments(0)
			a.desc[0].Control = 0
			a.sendSegments(0)
			equal(t, "length", b.received().Length, 0)
			a.sent()
			b.recvSegments(0)
			a.desc[0].SetImmediate(imm)
			a.post(a.desc[0])
			d := b.received(vipl.StatusImmediate)
			t.errorIf(d.ImmediateData != imm || d.Length != 0, "immediate data %#x, length %d", d.ImmediateData, d.Length)
			a.sent()
		}
	})),
	rule("send-receive/odd-alignment", "Data segments have no alignment rule on either side.", eachLevel(carry(carryMessage).alignment)),
	rule("send-receive/own-memory", "Any memory of the program can be registered, sent from and received into.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		carry(carryMessage).ownMemory(t, level)
		// The descriptors may lie there, too.
		a, b := t.ends(level, 1, 1, 64)
		home := t.register(t.A, make([]byte, 4096), vipl.MemAttributes{})
		d, err := home.Descriptor(int(-home.Addr()&(vipl.DescriptorAlignment-1)), 1)
		t.must(err)
		b.recv(0, 64)
		fill(a.buf(0), 3)
		d.SetSegments(a.seg(0, 64))
		t.must(a.v.PostSend(d, home.Handle()))
		b.arrived(0, 64, 3)
		t.same(a.sent(), d)
	})),
	rule("send-receive/overlapping-registrations", "Memory that is registered several times is used under each of its handles.", func(t *T) {
		a, b := t.ends(vipl.ReliableDelivery, 1, 1, 3000)
		memory := fill(make([]byte, 3000), 5)
		whole, again := t.register(t.A, memory, vipl.MemAttributes{}), t.register(t.A, memory, vipl.MemAttributes{})
		part := t.register(t.A, memory[1000:2500], vipl.MemAttributes{})
		b.recv(0, 3000)
		a.sendSegments(0, whole.Segment(0, 1000), part.Segment(0, 1500))
		b.arrived(0, 2500, 5)
		a.sent()
		t.must(whole.Deregister())
		carryMessage(a, b, one(again, 500, 2500), one(b.Region, b.at(0), 3000))
		t.holdsFrom("message", b.buf(0)[:2500], 500, 5)
	}),
	rule("send-receive/region-edges", "A segment may take a region from its first byte to its last.", carry(carryMessage).at(vipl.ReliableDelivery, carry.regionEdges)),
	rule("send-receive/nothing-beyond", "A receive writes the bytes of the message and no other byte of its segments or around them.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		const room, first = 6000, 1000
		a, b := t.ends(level, 1, 1, room)
		for k, size := range []int{0, 1, 63, 1425, 3000, room - 20} {
			clear(b.buf(0))
			b.recvSegments(0, b.Segment(b.at(0)+5, first), b.Segment(b.at(0)+10+first, room-20-first))
			a.sendMessage(0, size, k)
			equal(t, "length", int(b.received().Length), size)
			a.sent()
			x, n := b.buf(0), min(size, first)
			t.untouched("before", x[:5])
			t.holds("first segment", x[5:5+n], k)
			t.untouched("rest of the first segment", x[5+n:10+first])
			t.holdsFrom("second segment", x[10+first:10+first+size-n], n, k)
			t.untouched("behind", x[10+first+size-n:])
		}
	})),
	rule("send-receive/receive-past-its-region", "A receive whose segments reach past the end of their region takes every message that fits in what the region has of them.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		const half = edgeSize / 2
		va, vb := t.pair(level)
		a, b, to := t.block(t.A, 1, edgeSize).on(va), t.blockOf(t.B, nil, 1, 3, 64).on(vb), t.edgeOf(t.B, edgeSize)
		for k, segs := range [][]vipl.DataSegment{
			{to.Segment(half, 32_768)},
			{to.Segment(half, 1<<32-1)},
			{to.Segment(0, 100), to.Segment(half, half+1)},
			{to.Segment(0, 100), to.Segment(half, half+1), to.Segment(200, 100)},
		} {
			before := 0 // bytes of the segment before the one at the end
			if len(segs) > 1 {
				before = 100
			}
			for _, size := range []int{8, 0, 1, 1425, before + half - 1, before + half} {
				clear(to.Bytes())
				b.recvSegments(0, segs...)
				a.sendMessage(0, size, k)
				equal(t, "length", int(b.received().Length), size)
				a.sent()
				first := min(size, before)
				t.holds("first segment", to.Bytes()[:first], k)
				t.untouched("between", to.Bytes()[first:half])
				t.holdsFrom("segment at the end", to.Bytes()[half:half+size-first], first, k)
				t.untouched("behind the message", to.Bytes()[half+size-first:])
				to.untouched(t)
			}
		}
	})),
	rule("send-receive/immediate-data", "Immediate data of a send arrives in the receive, with the immediate bit in its status.", eachLevel(immediateData)),
	rule("send-receive/immediate-data-absent", "ImmediateData of a receive is 0, and its bit clear, when the message has none.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		a, b := t.ends(level, 1, 1, 64)
		for _, e := range []*end{a, b} {
			e.prepare(0, 64).ImmediateData = 0xdeadbeef // without the bit
		}
		b.postRecv(b.desc[0])
		a.post(a.desc[0])
		equal(t, "immediate data", b.received().ImmediateData, 0)
		a.sent()
	})),
	choice("send-receive/immediate-bit-of-a-receive", "The immediate bit in a receive means nothing: it takes messages with immediate data and without.", "programs leave it there that take descriptors from one list for both", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		a, b := t.ends(level, 1, 1, 64)
		recv := func() {
			b.prepare(0, 64).SetImmediate(0xdeadbeef)
			b.postRecv(b.desc[0])
		}
		recv()
		a.send(0, 64)
		equal(t, "immediate data", b.received().ImmediateData, 0)
		a.sent()
		recv()
		a.sendImmediate(0, 64, 7)
		equal(t, "immediate data", b.received(vipl.StatusImmediate).ImmediateData, 7)
		a.sent()
	})),
	rule("send-receive/order", "Messages arrive in the order in which they were posted, each in the next receive.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		inOrder(t, level, slices.Repeat([]int{64}, 200))
	})),
	rule("send-receive/order-of-sizes", "A short message behind a long one does not overtake it, and completions come in queue order.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		inOrder(t, level, []int{30_000, 1, 0, 5000, 3, 30_000, 0, 1425, 1})
	})),
	rule("send-receive/both-ways", "Both sides send at the same time, and neither disturbs the other.", eachLevel(bothWays(40))),
	rule("send-receive/many-vis", "Messages of several connections between the same NICs are not mixed up.", func(t *T) {
		var as, bs []*end
		for range 8 {
			a, b := t.ends(t.levels()[0], 2, 2, 2000)
			b.recvs(2, 2000)
			as, bs = append(as, a), append(bs, b)
		}
		for k := range 16 {
			as[k%8].sendMessage(k/8, 2000-k, k)
		}
		for k := range 16 {
			bs[k%8].arrived(k/8, 2000-k, k)
			as[k%8].sent()
		}
	}),
	rule("send-receive/status-of-both", "Status of a completed send is DONE with operation SEND, of a receive DONE with operation RECEIVE.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		a, b := t.ends(level, 1, 1, 64)
		b.recv(0, 64)
		a.send(0, 64)
		equal(t, "receive: status", b.received().Status(), vipl.StatusDone|vipl.StatusOpReceive)
		equal(t, "send: status", a.sent().Status(), vipl.StatusDone|vipl.StatusOpSend)
	})),
	rule("send-receive/status-while-posted", "Status has no DONE from the post to the completion, whatever it was before.", func(t *T) {
		a, b := t.ends(vipl.ReliableReception, 1, 1, 64)
		for range 3 { // from the second time on it has the status of its last use
			equal(t, "status of a posted receive", b.recv(0, 64).Status(), 0)
			a.carries(b, 64, 0)
		}
	}),
	rule("send-receive/fields-left-alone", "A completed send has the fields with which it was posted, but for Status.", func(t *T) {
		a, b := t.ends(vipl.ReliableDelivery, 1, 1, 64)
		b.recv(0, 64)
		d := a.prepare(0, 64)
		d.SetImmediate(77)
		d.Next, d.NextHandle = 0x1122334455667788, 99
		was, seg := *d, *d.Segment(0)
		a.post(d)
		a.sent()
		if d.Next != was.Next || d.NextHandle != was.NextHandle || d.SegCount != was.SegCount || d.Control != was.Control ||
			d.Reserved != 0 || d.ImmediateData != 77 || d.Length != 64 || *d.Segment(0) != seg {
			t.Errorf("the descriptor became %+v", *d)
		}
		b.received(vipl.StatusImmediate)
	}),
	rule("send-receive/buffer-free-after-completion", "A send's buffer and descriptor may be reused once it is complete, without harm to the message.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		const count, size = 50, 4000
		a, b := t.ends(level, 1, count, size)
		b.recvs(count, size)
		for i := range count {
			a.sendMessage(0, size, i)
			a.sent()
		}
		for i := range count {
			b.arrived(i, size, i)
		}
	})),
	rule("send-receive/receives-before-connect", "Receives posted in Idle serve the connection that is made later.", eachLevel(earlyReceives)),
	rule("send-receive/asleep-receiver", "Messages arrive while the receiving program neither posts nor polls.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		a, b := t.ends(level, 4, 4, 20_000)
		b.recvs(4, 20_000)
		for i := range 4 {
			a.sendMessage(i, 20_000, i)
			a.sent()
		}
		// Only the status of a posted descriptor is read, which is allowed at any time; no call is made on the
		// receiving side.
		t.until("four messages arrive", func() bool { return isDone(b.desc[3]) })
		for i := range 4 {
			b.arrived(i, 20_000, i)
		}
	})),

	// Dequeueing completed descriptors.
	rule("send-receive/done-not-done", "SendDone and RecvDone of a head that is not complete return NOT_DONE at once and take nothing.", func(t *T) {
		a, b := t.ends(vipl.ReliableReception, 1, 1, 64)
		b.recv(0, 64)
		for range 100 {
			t.nothingDone(b.v.RecvDone, vipl.ErrNotDone)
		}
		a.carries(b, 64, 0)
	}),
	rule("send-receive/done-empty-queue", "SendDone and RecvDone of an empty queue return DESCRIPTOR_ERROR and no descriptor.", func(t *T) {
		connected, _ := t.pair(vipl.ReliableDelivery)
		for _, v := range []*vipl.VI{connected, t.vi(t.A, at(vipl.UnreliableDelivery))} {
			t.nothingDone(v.SendDone, vipl.ErrDescriptor)
			t.nothingDone(v.RecvDone, vipl.ErrDescriptor)
		}
	}),
	rule("send-receive/done-in-error", "SendDone and RecvDone give a descriptor that completed in error together with DESCRIPTOR_ERROR.", func(t *T) {
		a := t.block(t.A, 2, 64).on(t.vi(t.A, at(vipl.ReliableDelivery)))
		a.send(0, 64) // in Idle: completes in error at once
		t.sendDone(a.v, vipl.StatusFlushed)
		a.prepare(1, 64).Reserved = 1
		a.postRecv(a.desc[1])
		t.recvDone(a.v, vipl.StatusFormatError)
	}),
	rule("send-receive/done-by-polling", "A program that only calls SendDone and RecvDone gets everything.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		const count, size = 20, 20_000
		a, b := t.ends(level, count, count, size)
		b.recvs(count, size)
		poll := func(done func() (*vipl.Descriptor, error)) {
			for end := time.Now().Add(limit); ; {
				d, err := done()
				if d != nil && err == nil {
					return
				}
				if d != nil || err != vipl.ErrNotDone || time.Now().After(end) {
					t.Fatalf("%v %v", d, err)
				}
			}
		}
		under, sent := t.burst(level, count, size), 0
		for i := range count {
			for ; sent < min(i+under, count); sent++ {
				a.send(sent, size)
			}
			poll(a.v.SendDone)
			poll(b.v.RecvDone)
		}
	})),
	rule("send-receive/wait-timeout", "SendWait and RecvWait return TIMEOUT when the time is over, and the descriptor stays posted.", func(t *T) {
		a, b := t.ends(vipl.ReliableDelivery, 1, 1, 64)
		b.recv(0, 64)
		start := time.Now()
		t.nothingReceived(b.v)
		t.nothingDone(func() (*vipl.Descriptor, error) { return a.v.SendWait(moment) }, vipl.ErrTimeout)
		took := time.Since(start)
		t.errorIf(took < 2*moment, "two waits of %v were over after %v", moment, took)
		a.carries(b, 64, 0)
	}),
	rule("send-receive/wait-zero", "A wait with time-out 0 polls.", func(t *T) {
		a, b := t.ends(vipl.ReliableDelivery, 1, 1, 64)
		b.recv(0, 64)
		poll := func() (*vipl.Descriptor, error) { return b.v.RecvWait(0) }
		t.nothingDone(poll, vipl.ErrTimeout)
		a.send(0, 64)
		t.until("RecvWait(0) gives the message", func() bool {
			d, err := poll()
			return d == b.desc[0] && err == nil
		})
		a.sent()
	}),
	rule("send-receive/wait-for-ever", "A wait with a negative time-out ends with the completion.", func(t *T) {
		a, b := t.ends(vipl.ReliableDelivery, 1, 1, 64)
		for _, ever := range []time.Duration{-1, math.MaxInt64} { // and one that no clock bears
			b.recv(0, 64)
			got := starts(func() error { return errOf(b.v.RecvWait(ever)) })
			time.Sleep(moment) // the goroutine sleeps now
			a.send(0, 64)
			t.must(<-got)
			t.must(errOf(a.v.SendWait(ever)))
		}
	}),
	rule("send-receive/done-beside-wait", "SendDone and RecvDone do not block behind a thread in the Wait form.", doneBesideWait),
	rule("send-receive/wait-on-cq-queue", "SendWait and RecvWait of a queue that is bound to a completion queue return INVALID_PARAMETER.", waitOnCQ),
}

// inOrder sends messages of some lengths at once.
func inOrder(t *T, level vipl.ReliabilityLevel, lengths []int) {
	most := slices.Max(lengths)
	a, b := t.ends(level, len(lengths), len(lengths), most)
	b.recvs(len(lengths), most)
	for i, n := range lengths {
		a.sendMessage(i, n, i)
	}
	for i, n := range lengths {
		b.arrived(i, n, i)
		t.same(a.sent(), a.desc[i])
	}
}

func immediateData(t *T, level vipl.ReliabilityLevel) {
	a, b := t.ends(level, 1, 1, 5000)
	for _, size := range []int{0, 1, 1500, 5000} {
		for _, imm := range []uint32{0, 0x12345678, 0xffffffff} {
			b.recv(0, 5000)
			a.sendImmediate(0, size, imm)
			d := b.received(vipl.StatusImmediate)
			got, ok := d.Immediate()
			t.errorIf(got != imm || !ok || d.ImmediateData != imm || int(d.Length) != size, "%d bytes: immediate data %#x %v, length %d, want %#x", size, got, ok, d.Length, imm)
			equal(t, "the send's immediate data", a.sent().ImmediateData, imm)
		}
	}
}

// bothWays sends count messages in each direction at the same time.
func bothWays(count int) func(t *T, level vipl.ReliabilityLevel) {
	return func(t *T, level vipl.ReliabilityLevel) {
		const size = 3000
		a, b := t.ends(level, 2*count, 2*count, size)
		a.recvs(count, size)
		b.recvs(count, size)
		for i := range count {
			a.sendMessage(count+i, size, i)
			b.sendMessage(count+i, size, 1000+i)
		}
		for i := range count {
			a.arrived(i, size, 1000+i)
			b.arrived(i, size, i)
			a.sent()
			b.sent()
		}
	}
}
