package vipltest

import (
	"slices"

	"viaxdp/vipl"
)

// readOrderRules are about RDMA reads among other operations.
var readOrderRules = []Rule{
	{
		ID: "rdma-read/many-outstanding", Text: "A program may post many RDMA reads at once: they complete in order, each with its bytes.",
		run: eachReliable(readMany),
	},
	{
		ID: "rdma-read/among-sends", Text: "RDMA reads, RDMA writes and sends of one queue complete in the order in which they were posted.",
		run: eachReliable(readAmongSends),
	},
	{
		ID: "rdma-read/long-before-short", Text: "A send behind a long RDMA read completes after it.",
		run: eachReliable(readLongFirst),
	},
	{
		ID: "rdma-read/sees-earlier-writes", Text: "An RDMA read gets what an earlier RDMA write of its VI wrote.",
		run: eachReliable(readSeesWrites),
	},
	{
		ID: "rdma-read/both-ways", Text: "Both sides read from each other at the same time.",
		run: eachReliable(readBothWays),
	},
	{
		ID: "rdma-read/answers-among-messages", Text: "The target's own messages and its answers to RDMA reads do not disturb each other.",
		run: readAmongAnswers,
	},
	{
		ID: "rdma-read/fence-before-send", Text: "QFENCE holds a send until the earlier RDMA reads of its queue are done: it may send what they got.",
		run: eachReliable(fenceSend),
	},
	{
		ID: "rdma-read/fence-before-write", Text: "QFENCE holds an RDMA write until the earlier RDMA reads are done: it may write over what they read.",
		run: eachReliable(fenceWrite),
	},
	{
		ID: "rdma-read/fence-before-read", Text: "QFENCE holds an RDMA read until the earlier ones are done.",
		run: fenceRead,
	},
	{
		ID: "rdma-read/flushed-by-disconnect", Text: "RDMA reads that are under way when the VI is disconnected complete, done or flushed, and nothing is written afterwards.",
		run: eachReliable(readFlushed),
	},
}

func readMany(t *T, level vipl.ReliabilityLevel) {
	const count, size = 150, 3000
	va, _ := t.pair(level)
	a, b := t.block(t.A, count, size), t.block(t.B, count, size)
	for i := range count {
		fill(b.buf(i), i)
	}
	for i := range count {
		a.read(va, i, size-i, b.remote(i))
	}
	for i := range count {
		if d := t.sent(va, vipl.StatusOpRDMARead); d != a.desc[i] {
			t.Fatalf("read %d: another descriptor", i)
		}
		t.holds("read", a.buf(i)[:size-i], i)
	}
}

func readAmongSends(t *T, level vipl.ReliabilityLevel) {
	const count, size = 90, 2000
	va, vb := t.pair(level)
	a, b := t.block(t.A, count, size), t.block(t.B, 2*count+1, size)
	ops := []vipl.Status{vipl.StatusOpRDMARead, vipl.StatusOpSend, vipl.StatusOpRDMAWrite}
	for i := range count {
		b.recv(vb, i, size)
		fill(b.buf(count+i), i)
	}
	for i := range count {
		switch ops[i%3] {
		case vipl.StatusOpRDMARead:
			a.read(va, i, size, b.remote(count+i))
		case vipl.StatusOpSend:
			fill(a.buf(i), i)
			a.send(va, i, size)
		default:
			a.write(va, i, size, b.remote(2*count))
		}
	}
	for i := range count {
		if d := t.sent(va, ops[i%3]); d != a.desc[i] {
			t.Fatalf("descriptor %d: another one", i)
		}
		switch ops[i%3] {
		case vipl.StatusOpRDMARead:
			t.holds("read", a.buf(i), i)
		case vipl.StatusOpSend:
			t.received(vb, 0)
			t.holds("message", b.buf(i/3), i)
		}
	}
}

func readLongFirst(t *T, level vipl.ReliabilityLevel) {
	const size = 500_000
	va, vb := t.pair(level)
	a, b := t.block(t.A, 2, size), t.block(t.B, 2, size)
	fill(b.buf(0), 1)
	b.recv(vb, 1, 64)
	read := a.read(va, 0, size, b.remote(0))
	send := a.send(va, 1, 64)
	t.until("the send", func() bool { return send.Status()&vipl.StatusDone != 0 })
	if read.Status()&vipl.StatusDone == 0 {
		t.Error("the send is complete before the read")
	}
	t.sent(va, vipl.StatusOpRDMARead)
	t.sent(va, 0)
	t.holds("read", a.buf(0), 1)
	t.received(vb, 0)
}

func readSeesWrites(t *T, level vipl.ReliabilityLevel) {
	const count, size = 20, 5000
	va, _ := t.pair(level)
	a, b := t.block(t.A, 2*count, size), t.block(t.B, 1, size)
	for i := range count {
		fill(a.buf(i), i)
		a.write(va, i, size, b.remote(0))
		a.read(va, count+i, size, b.remote(0))
		t.sent(va, vipl.StatusOpRDMAWrite)
		t.sent(va, vipl.StatusOpRDMARead)
		t.holds("read", a.buf(count+i), i)
	}
}

func readBothWays(t *T, level vipl.ReliabilityLevel) {
	const count, size = 40, 9000
	va, vb := t.pair(level)
	a, b := t.block(t.A, 2*count, size), t.block(t.B, 2*count, size)
	for i := range count {
		fill(a.buf(count+i), i)
		fill(b.buf(count+i), 100+i)
	}
	for i := range count {
		a.read(va, i, size, b.remote(count+i))
		b.read(vb, i, size, a.remote(count+i))
	}
	for i := range count {
		t.sent(va, vipl.StatusOpRDMARead)
		t.sent(vb, vipl.StatusOpRDMARead)
		t.holds("at a", a.buf(i), 100+i)
		t.holds("at b", b.buf(i), i)
	}
}

func readAmongAnswers(t *T) {
	const count, size = 40, 8000
	va, vb := t.pair(vipl.ReliableDelivery)
	a, b := t.block(t.A, 2*count, size), t.block(t.B, 2*count, size)
	for i := range count {
		fill(b.buf(i), i)
		fill(b.buf(count+i), 100+i)
		a.recv(va, count+i, size)
	}
	for i := range count {
		a.read(va, i, size, b.remote(i))
		b.send(vb, count+i, size)
	}
	for i := range count {
		t.sent(va, vipl.StatusOpRDMARead)
		t.received(va, 0)
		t.sent(vb, 0)
		t.holds("read", a.buf(i), i)
		t.holds("message", a.buf(count+i), 100+i)
	}
}

func fenceSend(t *T, level vipl.ReliabilityLevel) {
	const rounds, size = 10, 20_000
	va, vb := t.pair(level)
	a, b := t.block(t.A, 2, size), t.block(t.B, 2, size)
	for k := range rounds {
		fill(b.buf(0), k)
		b.recv(vb, 1, size)
		a.read(va, 0, size, b.remote(0))
		d := a.desc[1]
		d.Control = 0
		d.SetSegments(a.seg(0, size)) // what the read gets
		d.Control |= vipl.ControlQFence
		a.post(va, d)
		t.received(vb, 0)
		t.holds("message", b.buf(1), k)
		t.sent(va, vipl.StatusOpRDMARead)
		t.sent(va, 0)
	}
}

func fenceWrite(t *T, level vipl.ReliabilityLevel) {
	const size = 300_000
	va, vb := t.pair(level)
	a, b := t.block(t.A, 4, size), t.block(t.B, 2, size)
	fill(b.buf(0), 1)
	fill(a.buf(2), 2)
	a.read(va, 0, size, b.remote(0))
	a.read(va, 1, size, b.remote(0))
	a.desc[2].SetRDMAWrite(b.remote(0), a.seg(2, size))
	a.desc[2].Control |= vipl.ControlQFence
	a.post(va, a.desc[2])
	t.sent(va, vipl.StatusOpRDMARead)
	t.sent(va, vipl.StatusOpRDMARead)
	t.sent(va, vipl.StatusOpRDMAWrite)
	t.holds("first read", a.buf(0), 1)
	t.holds("second read", a.buf(1), 1)
	t.behind(va, a, vb, b)
	t.holds("target", b.buf(0), 2)
}

func fenceRead(t *T) {
	const count, size = 40, 5000
	va, _ := t.pair(vipl.ReliableDelivery)
	a, b := t.block(t.A, count, size), t.block(t.B, 1, size)
	fill(b.buf(0), 1)
	for i := range count {
		a.desc[i].SetRDMARead(b.remote(0), a.seg(i, size))
		a.desc[i].Control |= vipl.ControlQFence
		a.post(va, a.desc[i])
	}
	for i := range count {
		if d := t.sent(va, vipl.StatusOpRDMARead); d != a.desc[i] {
			t.Fatalf("read %d: another descriptor", i)
		}
		t.holds("read", a.buf(i), 1)
	}
}

func readFlushed(t *T, level vipl.ReliabilityLevel) {
	const count, size = 30, 200_000
	va, vb := t.pair(level)
	a, b := t.block(t.A, count, size), t.block(t.B, 1, size)
	fill(b.buf(0), 1)
	for i := range count {
		a.read(va, i, size, b.remote(0))
	}
	t.must(va.Disconnect())
	flushed := 0
	for i := range count {
		d, err := va.SendDone()
		if d != a.desc[i] {
			t.Fatalf("read %d: another descriptor: %v", i, err)
		}
		switch s := d.Status(); {
		case s == vipl.StatusDone|vipl.StatusOpRDMARead && flushed == 0:
			t.holds("read", a.buf(i), 1)
		case s == vipl.StatusDone|vipl.StatusOpRDMARead|vipl.StatusFlushed:
			flushed++
		default:
			t.Errorf("read %d: status %#x (%v) behind %d flushed ones", i, uint32(s), s, flushed)
		}
	}
	last := a.buf(count - 1)
	was := slices.Clone(last)
	t.state(vb, vipl.Error)
	if !slices.Equal(last, was) {
		t.Error("a flushed read was written to")
	}
}
