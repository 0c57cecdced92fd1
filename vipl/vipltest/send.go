package vipltest

import (
	"slices"

	"viaxdp/vipl"
)

var sendRules = slices.Concat(segmentRules, []Rule{
	{
		ID: "send-receive/immediate-data", Text: "Immediate data of a send arrives in the receive, with the immediate bit in its status.",
		run: eachLevel(immediateData),
	},
	{
		ID: "send-receive/immediate-data-absent", Text: "ImmediateData of a receive is 0, and its bit clear, when the message has none.",
		run: immediateAbsent,
	},
	{
		ID: "send-receive/immediate-bit-of-a-receive", Text: "The immediate bit in a receive means nothing: it takes messages with immediate data and without.",
		Choice: "programs leave it there that take descriptors from one list for both",
		run:    immediateBitOfReceive,
	},
	{
		ID: "send-receive/order", Text: "Messages arrive in the order in which they were posted, each in the next receive.",
		run: eachLevel(messageOrder),
	},
	{
		ID: "send-receive/order-of-sizes", Text: "A short message behind a long one does not overtake it, and completions come in queue order.",
		run: eachLevel(orderOfSizes),
	},
	{
		ID: "send-receive/both-ways", Text: "Both sides send at the same time, and neither disturbs the other.",
		run: eachLevel(bothWays),
	},
	{
		ID: "send-receive/many-vis", Text: "Messages of several connections between the same NICs are not mixed up.",
		run: manyConnections,
	},
	{
		ID: "send-receive/status-of-both", Text: "Status of a completed send is DONE with operation SEND, of a receive DONE with operation RECEIVE.",
		run: eachLevel(statusOfBoth),
	},
	{
		ID: "send-receive/status-while-posted", Text: "Status has no DONE from the post to the completion, whatever it was before.",
		run: statusWhilePosted,
	},
	{
		ID: "send-receive/fields-left-alone", Text: "A completed send has the fields with which it was posted, but for Status.",
		run: fieldsLeftAlone,
	},
	{
		ID: "send-receive/buffer-free-after-completion", Text: "A send's buffer and descriptor may be reused once it is complete, without harm to the message.",
		run: eachLevel(bufferFree),
	},
	{
		ID: "send-receive/receives-before-connect", Text: "Receives posted in Idle serve the connection that is made later.",
		run: receivesBeforeConnect,
	},
	{
		ID: "send-receive/asleep-receiver", Text: "Messages arrive while the receiving program neither posts nor polls.",
		run: eachLevel(asleepReceiver),
	},
}, doneRules)

// eachLevel makes a rule's test of one for a level.
func eachLevel(f func(t *T, level vipl.ReliabilityLevel)) func(*T) {
	return func(t *T) { t.eachLevel(f) }
}

// eachReliable is eachLevel for the two reliable levels.
func eachReliable(f func(t *T, level vipl.ReliabilityLevel)) func(*T) {
	return func(t *T) { t.eachReliable(f) }
}

func immediateData(t *T, level vipl.ReliabilityLevel) {
	va, vb := t.pair(level)
	a, b := t.block(t.A, 1, 5000), t.block(t.B, 1, 5000)
	for _, size := range []int{0, 1, 1500, 5000} {
		for _, imm := range []uint32{0, 0x12345678, 0xffffffff} {
			b.recv(vb, 0, 5000)
			a.sendImmediate(va, 0, size, imm)
			d := t.received(vb, vipl.StatusImmediate)
			if got, ok := d.Immediate(); got != imm || !ok || d.ImmediateData != imm || int(d.Length) != size {
				t.Errorf("%d bytes: immediate data %#x %v, length %d, want %#x", size, got, ok, d.Length, imm)
			}
			if d := t.sent(va, 0); d.ImmediateData != imm {
				t.Errorf("the send's immediate data became %#x", d.ImmediateData)
			}
		}
	}
}

func immediateAbsent(t *T) {
	t.eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.pair(level)
		a, b := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
		b.prepare(0, 64).ImmediateData = 0xdeadbeef
		b.postRecv(vb, b.desc[0])
		a.prepare(0, 64).ImmediateData = 0xdeadbeef // without the bit
		a.post(va, a.desc[0])
		if d := t.received(vb, 0); d.ImmediateData != 0 {
			t.Errorf("immediate data %#x", d.ImmediateData)
		}
		t.sent(va, 0)
	})
}

func immediateBitOfReceive(t *T) {
	t.eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.pair(level)
		a, b := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
		for _, want := range []uint32{0, 7} {
			b.prepare(0, 64).SetImmediate(0xdeadbeef)
			b.postRecv(vb, b.desc[0])
			status := vipl.Status(0)
			if want == 0 {
				a.send(va, 0, 64)
			} else {
				a.sendImmediate(va, 0, 64, want)
				status = vipl.StatusImmediate
			}
			if d := t.received(vb, status); d.ImmediateData != want {
				t.Errorf("immediate data %#x, want %#x", d.ImmediateData, want)
			}
			t.sent(va, 0)
		}
	})
}

func messageOrder(t *T, level vipl.ReliabilityLevel) {
	const count = 200
	va, vb := t.pair(level)
	a, b := t.block(t.A, count, 64), t.block(t.B, count, 64)
	for i := range count {
		b.recv(vb, i, 64)
	}
	for i := range count {
		fill(a.buf(i), i)
		a.sendImmediate(va, i, 64, uint32(i))
	}
	for i := range count {
		if d := t.received(vb, vipl.StatusImmediate); d != b.desc[i] || d.ImmediateData != uint32(i) {
			t.Fatalf("receive %d: another descriptor or message: %d", i, d.ImmediateData)
		}
		t.holds("message", b.buf(i), i)
	}
	for i := range count {
		if d := t.sent(va, 0); d != a.desc[i] {
			t.Fatalf("send %d: another descriptor", i)
		}
	}
}

func orderOfSizes(t *T, level vipl.ReliabilityLevel) {
	const most = 30_000
	lengths := []int{most, 1, 0, 5000, 3, most, 0, 1425, 1}
	va, vb := t.pair(level)
	a, b := t.block(t.A, len(lengths), most), t.block(t.B, len(lengths), most)
	for i := range lengths {
		b.recv(vb, i, most)
	}
	for i, n := range lengths {
		fill(a.buf(i), i)
		a.send(va, i, n)
	}
	for i, n := range lengths {
		if d := t.received(vb, 0); d != b.desc[i] || int(d.Length) != n {
			t.Fatalf("receive %d: another descriptor, or length %d instead of %d", i, d.Length, n)
		}
		t.holds("message", b.buf(i)[:n], i)
		if d := t.sent(va, 0); d != a.desc[i] {
			t.Fatalf("send %d: another descriptor", i)
		}
	}
}

func bothWays(t *T, level vipl.ReliabilityLevel) {
	const count, size = 40, 3000
	va, vb := t.pair(level)
	a, b := t.block(t.A, 2*count, size), t.block(t.B, 2*count, size)
	for i := range count {
		a.recv(va, i, size)
		b.recv(vb, i, size)
	}
	for i := count; i < 2*count; i++ {
		fill(a.buf(i), i)
		fill(b.buf(i), 1000+i)
		a.send(va, i, size)
		b.send(vb, i, size)
	}
	for i := range count {
		t.received(va, 0)
		t.received(vb, 0)
		t.holds("to a", a.buf(i), 1000+count+i)
		t.holds("to b", b.buf(i), count+i)
		t.sent(va, 0)
		t.sent(vb, 0)
	}
}

func manyConnections(t *T) {
	const count = 8
	level := t.levels()[0]
	var va, vb [count]*vipl.VI
	a, b := t.block(t.A, 2*count, 2000), t.block(t.B, 2*count, 2000)
	for i := range count {
		va[i], vb[i] = t.pair(level)
		b.recv(vb[i], i, 2000)
		b.recv(vb[i], count+i, 2000)
	}
	for i := range 2 * count {
		fill(a.buf(i), i)
		a.send(va[i%count], i, 2000-i)
	}
	for i := range 2 * count {
		if d := t.received(vb[i%count], 0); d != b.desc[i] || int(d.Length) != 2000-i {
			t.Errorf("message %d: length %d", i, d.Length)
		}
		t.holds("message", b.buf(i)[:2000-i], i)
		t.sent(va[i%count], 0)
	}
}

func statusOfBoth(t *T, level vipl.ReliabilityLevel) {
	va, vb := t.pair(level)
	a, b := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
	b.recv(vb, 0, 64)
	a.send(va, 0, 64)
	if s := t.received(vb, 0).Status(); s != vipl.StatusDone|vipl.StatusOpReceive {
		t.Errorf("receive: status %#x", uint32(s))
	}
	if s := t.sent(va, 0).Status(); s != vipl.StatusDone|vipl.StatusOpSend {
		t.Errorf("send: status %#x", uint32(s))
	}
}

func statusWhilePosted(t *T) {
	va, vb := t.pair(vipl.ReliableReception)
	a, b := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
	for range 3 { // from the second time on there is a status of the last use
		d := b.recv(vb, 0, 64)
		if s := d.Status(); s != 0 {
			t.Errorf("status of a posted receive: %#x", uint32(s))
		}
		a.send(va, 0, 64)
		t.received(vb, 0)
		t.sent(va, 0)
	}
}

func fieldsLeftAlone(t *T) {
	va, vb := t.pair(vipl.ReliableDelivery)
	a, b := t.block(t.A, 1, 64), t.block(t.B, 1, 64)
	b.recv(vb, 0, 64)
	d := a.prepare(0, 64)
	d.SetImmediate(77)
	d.Next, d.NextHandle = 0x1122334455667788, 99
	was, seg := *d, *d.Segment(0)
	a.post(va, d)
	t.sent(va, 0)
	if d.Next != was.Next || d.NextHandle != was.NextHandle || d.SegCount != was.SegCount || d.Control != was.Control ||
		d.Reserved != 0 || d.ImmediateData != 77 || d.Length != 64 || *d.Segment(0) != seg {
		t.Errorf("the descriptor became %+v", *d)
	}
	t.received(vb, vipl.StatusImmediate)
}

func bufferFree(t *T, level vipl.ReliabilityLevel) {
	const count, size = 50, 4000
	va, vb := t.pair(level)
	a, b := t.block(t.A, 1, size), t.block(t.B, count, size)
	for i := range count {
		b.recv(vb, i, size)
	}
	for i := range count {
		fill(a.buf(0), i)
		a.send(va, 0, size)
		t.sent(va, 0)
	}
	for i := range count {
		t.received(vb, 0)
		t.holds("message", b.buf(i), i)
	}
}

func receivesBeforeConnect(t *T) {
	t.eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb := t.vi(t.A, vipl.ViAttributes{Level: level}), t.vi(t.B, vipl.ViAttributes{Level: level})
		a, b := t.block(t.A, 2, 64), t.block(t.B, 2, 64)
		b.recv(vb, 0, 64)
		b.recv(vb, 1, 64)
		a.recv(va, 1, 64)
		if d, err := vb.RecvDone(); d != nil || err != vipl.ErrNotDone {
			t.Errorf("RecvDone in Idle: %v %v", d, err)
		}
		t.join(va, vb)
		for i := range 2 {
			a.send(va, 0, 64)
			if d := t.received(vb, 0); d != b.desc[i] {
				t.Error("another descriptor")
			}
			t.sent(va, 0)
		}
		b.send(vb, 0, 64)
		t.received(va, 0)
		t.sent(vb, 0)
	})
}

func asleepReceiver(t *T, level vipl.ReliabilityLevel) {
	va, vb := t.pair(level)
	a, b := t.block(t.A, 4, 20_000), t.block(t.B, 4, 20_000)
	for i := range 4 {
		b.recv(vb, i, 20_000)
	}
	for i := range 4 {
		fill(a.buf(i), i)
		a.send(va, i, 20_000)
		t.sent(va, 0)
	}
	// Status of a posted descriptor may be read at any time; nothing else is
	// called on the receiving side.
	t.until("four messages arrive", func() bool { return b.desc[3].Status()&vipl.StatusDone != 0 })
	for i := range 4 {
		t.holds("message", b.buf(i), i)
		t.received(vb, 0)
	}
}
