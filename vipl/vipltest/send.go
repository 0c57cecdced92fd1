package vipltest

import (
	"slices"

	"viaxdp/vipl"
)

var sendRules = slices.Concat(segmentRules, []Rule{
	rule("send-receive/immediate-data", "Immediate data of a send arrives in the receive, with the immediate bit in its status.", eachLevel(immediateData)),
	rule("send-receive/immediate-data-absent", "ImmediateData of a receive is 0, and its bit clear, when the message has none.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb, a, b := t.ends(level, 1, 1, 64)
		b.prepare(0, 64).ImmediateData = 0xdeadbeef
		b.postRecv(vb, b.desc[0])
		a.prepare(0, 64).ImmediateData = 0xdeadbeef // without the bit
		a.post(va, a.desc[0])
		equal(t, "immediate data", t.received(vb, 0).ImmediateData, 0)
		t.sent(va, 0)
	})),
	choice("send-receive/immediate-bit-of-a-receive", "The immediate bit in a receive means nothing: it takes messages with immediate data and without.", "programs leave it there that take descriptors from one list for both", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb, a, b := t.ends(level, 1, 1, 64)
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
			equal(t, "immediate data", t.received(vb, status).ImmediateData, want)
			t.sent(va, 0)
		}
	})),
	rule("send-receive/order", "Messages arrive in the order in which they were posted, each in the next receive.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		const count = 200
		va, vb, a, b := t.ends(level, count, count, 64)
		b.recvs(vb, count, 64)
		for i := range count {
			fill(a.buf(i), i)
			a.sendImmediate(va, i, 64, uint32(i))
		}
		for i := range count {
			if d := t.received(vb, vipl.StatusImmediate); d != b.desc[i] || d.ImmediateData != uint32(i) {
				t.Fatalf("receive %d: another descriptor or message: %d", i, d.ImmediateData)
			}
			t.coalesces("message", b.buf(i), i)
		}
		for i := range count {
			t.same(t.sent(va, 0), a.desc[i])
		}
	})),
	rule("send-receive/order-of-sizes", "A short message behind a long one does not overtake it, and completions come in queue order.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		const most = 30_000
		lengths := []int{most, 1, 0, 5000, 3, most, 0, 1425, 1}
		va, vb, a, b := t.ends(level, len(lengths), len(lengths), most)
		b.recvs(vb, len(lengths), most)
		for i, n := range lengths {
			a.sendMessage(va, i, n, i)
		}
		for i, n := range lengths {
			if d := t.received(vb, 0); d != b.desc[i] || int(d.Length) != n {
				t.Fatalf("receive %d: another descriptor, or length %d instead of %d", i, d.Length, n)
			}
			t.coalesces("message", b.buf(i)[:n], i)
			t.same(t.sent(va, 0), a.desc[i])
		}
	})),
	rule("send-receive/both-ways", "Both sides send at the same time, and neither disturbs the other.", eachLevel(bothWays(40))),
	rule("send-receive/many-vis", "Messages of several connections between the same NICs are not mixed up.", func(t *T) {
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
			d := t.received(vb[i%count], 0)
			t.errorIf(d != b.desc[i] || int(d.Length) != 2000-i, "message %d: length %d", i, d.Length)
			t.coalesces("message", b.buf(i)[:2000-i], i)
			t.sent(va[i%count], 0)
		}
	}),
	rule("send-receive/status-of-both", "Status of a completed send is DONE with operation SEND, of a receive DONE with operation RECEIVE.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb, a, b := t.ends(level, 1, 1, 64)
		b.recv(vb, 0, 64)
		a.send(va, 0, 64)
		equal(t, "receive: status", t.received(vb, 0).Status(), vipl.StatusDone|vipl.StatusOpReceive)
		equal(t, "send: status", t.sent(va, 0).Status(), vipl.StatusDone|vipl.StatusOpSend)
	})),
	rule("send-receive/status-while-posted", "Status has no DONE from the post to the completion, whatever it was before.", func(t *T) {
		va, vb, a, b := t.ends(vipl.ReliableReception, 1, 1, 64)
		for range 3 { // from the second time on there is a status of the last use
			d := b.recv(vb, 0, 64)
			equal(t, "status of a posted receive", d.Status(), 0)
			a.send(va, 0, 64)
			t.received(vb, 0)
			t.sent(va, 0)
		}
	}),
	rule("send-receive/fields-left-alone", "A completed send has the fields with which it was posted, but for Status.", func(t *T) {
		va, vb, a, b := t.ends(vipl.ReliableDelivery, 1, 1, 64)
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
	}),
	rule("send-receive/buffer-free-after-completion", "A send's buffer and descriptor may be reused once it is complete, without harm to the message.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		const count, size = 50, 4000
		va, vb, a, b := t.ends(level, 1, count, size)
		b.recvs(vb, count, size)
		for i := range count {
			a.sendMessage(va, 0, size, i)
			t.sent(va, 0)
		}
		for i := range count {
			t.receivedMessage(vb, b.buf(i), i)
		}
	})),
	rule("send-receive/receives-before-connect", "Receives posted in Idle serve the connection that is made later.", eachLevel(earlyReceives)),
	rule("send-receive/asleep-receiver", "Messages arrive while the receiving program neither posts nor polls.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		va, vb, a, b := t.ends(level, 4, 4, 20_000)
		b.recvs(vb, 4, 20_000)
		for i := range 4 {
			a.sendMessage(va, i, 20_000, i)
			t.sent(va, 0)
		}
		// Status of a posted descriptor may be read at any time; nothing else is
		// called on the receiving side.
		t.until("four messages arrive", func() bool { return b.desc[3].Status()&vipl.StatusDone != 0 })
		for i := range 4 {
			t.coalesces("message", b.buf(i), i)
			t.received(vb, 0)
		}
	})),
}, doneRules)

func immediateData(t *T, level vipl.ReliabilityLevel) {
	va, vb, a, b := t.ends(level, 1, 1, 5000)
	for _, size := range []int{0, 1, 1500, 5000} {
		for _, imm := range []uint32{0, 0x12345678, 0xffffffff} {
			b.recv(vb, 0, 5000)
			a.sendImmediate(va, 0, size, imm)
			d := t.received(vb, vipl.StatusImmediate)
			got, ok := d.Immediate()
			t.errorIf(got != imm || !ok || d.ImmediateData != imm || int(d.Length) != size, "%d bytes: immediate data %#x %v, length %d, want %#x", size, got, ok, d.Length, imm)
			equal(t, "the send's immediate data", t.sent(va, 0).ImmediateData, imm)
		}
	}
}

// bothWays sends count messages each way at the same time.
func bothWays(count int) func(t *T, level vipl.ReliabilityLevel) {
	return func(t *T, level vipl.ReliabilityLevel) { sendBothWays(t, level, count) }
}

func sendBothWays(t *T, level vipl.ReliabilityLevel, count int) {
	const size = 3000
	va, vb, a, b := t.ends(level, 2*count, 2*count, size)
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
		t.coalesces("to a", a.buf(i), 1000+count+i)
		t.coalesces("to b", b.buf(i), count+i)
		t.sent(va, 0)
		t.sent(vb, 0)
	}
}
