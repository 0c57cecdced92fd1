package vipltest

import (
	"slices"

	"viaxdp/vipl"
)

// readOrderRules are about RDMA reads among other operations.
var readOrderRules = []Rule{
	rule("rdma-read/many-outstanding", "A program may post many RDMA reads at once: they complete in order, each with its bytes.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		const count, size = 150, 3000
		va, _, a, b := t.ends(level, count, count, size)
		for i := range count {
			fill(b.buf(i), i)
		}
		for i := range count {
			a.read(va, i, size-i, b.remote(i))
		}
		for i := range count {
			t.same(t.sent(va, vipl.StatusOpRDMARead), a.desc[i])
			t.coalesces("read", a.buf(i)[:size-i], i)
		}
	})),
	rule("rdma-read/among-sends", "RDMA reads, RDMA writes and sends of one queue complete in the order in which they were posted.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		const count, size = 90, 2000
		va, vb, a, b := t.ends(level, count, 2*count+1, size)
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
				a.sendMessage(va, i, size, i)
			default:
				a.write(va, i, size, b.remote(2*count))
			}
		}
		for i := range count {
			t.same(t.sent(va, ops[i%3]), a.desc[i])
			switch ops[i%3] {
			case vipl.StatusOpRDMARead:
				t.coalesces("read", a.buf(i), i)
			case vipl.StatusOpSend:
				t.receivedMessage(vb, b.buf(i/3), i)
			}
		}
	})),
	rule("rdma-read/long-before-short", "A send behind a long RDMA read completes after it.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		const size = 500_000
		va, vb, a, b := t.ends(level, 2, 2, size)
		fill(b.buf(0), 1)
		b.recv(vb, 1, 64)
		read := a.read(va, 0, size, b.remote(0))
		send := a.send(va, 1, 64)
		t.until("the send", func() bool { return send.Status()&vipl.StatusDone != 0 })
		t.errorIf(read.Status()&vipl.StatusDone == 0, "the send is complete before the read")
		t.sent(va, vipl.StatusOpRDMARead)
		t.sent(va, 0)
		t.coalesces("read", a.buf(0), 1)
		t.received(vb, 0)
	})),
	rule("rdma-read/sees-earlier-writes", "An RDMA read gets what an earlier RDMA write of its VI wrote.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		const count, size = 20, 5000
		va, _, a, b := t.ends(level, 2*count, 1, size)
		for i := range count {
			fill(a.buf(i), i)
			a.write(va, i, size, b.remote(0))
			a.read(va, count+i, size, b.remote(0))
			t.sent(va, vipl.StatusOpRDMAWrite)
			t.sent(va, vipl.StatusOpRDMARead)
			t.coalesces("read", a.buf(count+i), i)
		}
	})),
	rule("rdma-read/both-ways", "Both sides read from each other at the same time.", eachReliable(readBothWays)),
	rule("rdma-read/answers-among-messages", "The target's own messages and its answers to RDMA reads do not disturb each other.", func(t *T) {
		const count, size = 40, 8000
		va, vb, a, b := t.ends(vipl.ReliableDelivery, 2*count, 2*count, size)
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
			t.coalesces("read", a.buf(i), i)
			t.coalesces("message", a.buf(count+i), 100+i)
		}
	}),
	rule("rdma-read/fence-before-send", "QFENCE holds a send until the earlier RDMA reads of its queue are done: it may send what they got.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		const rounds, size = 10, 20_000
		va, vb, a, b := t.ends(level, 2, 2, size)
		for k := range rounds {
			fill(b.buf(0), k)
			b.recv(vb, 1, size)
			a.read(va, 0, size, b.remote(0))
			d := a.desc[1]
			d.Control = 0
			d.SetSegments(a.seg(0, size)) // what the read gets
			d.Control |= vipl.ControlQFence
			a.post(va, d)
			t.receivedMessage(vb, b.buf(1), k)
			t.sent(va, vipl.StatusOpRDMARead)
			t.sent(va, 0)
		}
	})),
	rule("rdma-read/fence-before-write", "QFENCE holds an RDMA write until the earlier RDMA reads are done: it may write over what they read.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		const size = 300_000
		va, vb, a, b := t.ends(level, 4, 2, size)
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
		t.coalesces("first read", a.buf(0), 1)
		t.coalesces("second read", a.buf(1), 1)
		t.behind(va, a, vb, b)
		t.coalesces("target", b.buf(0), 2)
	})),
	rule("rdma-read/fence-before-read", "QFENCE holds an RDMA read until the earlier ones are done.", func(t *T) {
		const count, size = 40, 5000
		va, _, a, b := t.ends(vipl.ReliableDelivery, count, 1, size)
		fill(b.buf(0), 1)
		for i := range count {
			a.desc[i].SetRDMARead(b.remote(0), a.seg(i, size))
			a.desc[i].Control |= vipl.ControlQFence
			a.post(va, a.desc[i])
		}
		for i := range count {
			t.same(t.sent(va, vipl.StatusOpRDMARead), a.desc[i])
			t.coalesces("read", a.buf(i), 1)
		}
	}),
	rule("rdma-read/flushed-by-disconnect", "RDMA reads that are under way when the VI is disconnected complete, done or flushed, and nothing is written afterwards.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		const count, size = 30, 200_000
		va, vb, a, b := t.ends(level, count, 1, size)
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
				t.coalesces("read", a.buf(i), 1)
			case s == vipl.StatusDone|vipl.StatusOpRDMARead|vipl.StatusFlushed:
				flushed++
			default:
				t.Errorf("read %d: status %#x (%v) behind %d flushed ones", i, uint32(s), s, flushed)
			}
		}
		last := a.buf(count - 1)
		was := slices.Clone(last)
		t.state(vb, vipl.Error)
		t.errorIf(!slices.Equal(last, was), "a flushed read was written to")
	})),
}

func readBothWays(t *T, level vipl.ReliabilityLevel) {
	const count, size = 40, 9000
	va, vb, a, b := t.ends(level, 2*count, 2*count, size)
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
		t.coalesces("at a", a.buf(i), 100+i)
		t.coalesces("at b", b.buf(i), i)
	}
}
