package vipltest

import (
	"encoding/binary"
	"time"

	"viaxdp/vipl"
)

// writeOrderRules are about when RDMA writes land.
var writeOrderRules = []Rule{
	rule("rdma-write/asleep-target", "RDMA writes land while the target program neither posts nor polls.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		const size = 30_000
		va, vb, a, b := t.ends(level, 2, 3, size)
		d := b.recv(vb, 2, 0)
		// From here on nothing is called on b until everything has come.
		for k := range 10 {
			fill(a.buf(0), k)
			a.writeDone(va, 0, size, b.remote(k%2))
		}
		a.sendDone(va, 1, 0)
		t.until("the message behind the writes", func() bool { return d.Status()&vipl.StatusDone != 0 })
		t.coalesces("target", b.buf(0), 8)
		t.coalesces("target", b.buf(1), 9)
		t.received(vb, 0)
	})),
	rule("rdma-write/before-later-send", "When a message arrives, the RDMA writes of the same VI before it have landed.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		const rounds, size = 30, 4000
		va, vb, a, b := t.ends(level, rounds+1, rounds+1, size)
		b.recvs(vb, rounds, 64)
		// The target of round i is what lies behind the 64 bytes of receive i.
		for i := range rounds {
			length := 1 + i*(size-64-1)/rounds
			fill(a.buf(i)[:length], i)
			a.writeDone(va, i, length, b.Remote(b.at(i)+64))
			a.send(va, rounds, 8)
			if i%2 == 0 {
				t.sent(va, 0)
				t.received(vb, 0)
			} else {
				t.received(vb, 0)
				t.sent(va, 0)
			}
			t.coalesces("target", b.buf(i)[64:64+length], i)
		}
	})),
	rule("rdma-write/after-earlier-send", "An RDMA write does not overtake a message that was posted before it.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		const size = 60_000
		va, vb, a, b := t.ends(level, 3, 2, size)
		// A message into a buffer, and behind it a write over its beginning: the
		// write must be the last.
		b.recv(vb, 0, size)
		fill(a.buf(0), 1)
		fill(a.buf(1), 2)
		a.send(va, 0, size)
		a.write(va, 1, 1000, b.remote(0))
		t.sent(va, 0)
		t.sent(va, vipl.StatusOpRDMAWrite)
		t.received(vb, 0)
		t.behind(va, a, vb, b)
		t.coalesces("written over", b.buf(0)[:1000], 2)
		t.holdsFrom("message", b.buf(0)[1000:], 1000, 1)
	})),
	rule("rdma-write/order", "RDMA writes of one VI land in the order in which they were posted.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		const count, size = 50, 5000
		va, vb, a, b := t.ends(level, count+1, 2, size)
		for i := range count {
			length := size - 100*i
			fill(a.buf(i)[:length], i)
			a.write(va, i, length, b.remote(0))
		}
		for i := range count {
			t.same(t.sent(va, vipl.StatusOpRDMAWrite), a.desc[i])
		}
		t.behind(va, a, vb, b)
		// Each was shorter than the one before it.
		for i := range count {
			end := size - 100*i
			from := max(end-100, 0)
			if i == count-1 {
				from = 0
			}
			t.holdsFrom("target", b.buf(0)[from:end], from, i)
		}
	})),
	choice("rdma-write/last-word-last", "Who sees the last word of an RDMA write in memory sees all of it; a program that polls memory sees it.", "without a call of the library its own goroutine makes the progress; NIC.Poll makes it in the program's loop", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		const rounds, size = 5, 100_000
		va, vb, a, b := t.ends(level, 1, 1, size)
		for k := range rounds {
			for _, length := range []int{8, 64, 1432, 4096, size, size - 4, 12, size - 8} {
				b.wipe(0, vb)
				fill(a.buf(0), k)
				word := length - 8
				see := func() bool { return load64(b.buf(0)[word:]) == binary.NativeEndian.Uint64(a.buf(0)[word:length]) }
				if length%8 != 0 { // the last word of these is one of 4 bytes
					word = length - 4
					see = func() bool { return load32(b.buf(0)[word:]) == binary.NativeEndian.Uint32(a.buf(0)[word:length]) }
				}
				a.write(va, 0, length, b.remote(0))
				t.spin("the last word", see, k%2 == 1)
				t.coalesces("target", b.buf(0)[:length], k)
				t.sent(va, vipl.StatusOpRDMAWrite)
			}
		}
	})),
	rule("rdma-write/both-ways", "Both sides write at the same time, among messages, and nothing disturbs anything.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		const count, size = 20, 8000
		va, vb, a, b := t.ends(level, 3*count, 3*count, size)
		for i := range count {
			a.recv(va, i, size)
			b.recv(vb, i, size)
		}
		for i := range count {
			from, to := count+i, 2*count+i
			fill(a.buf(from), i)
			fill(b.buf(from), 100+i)
			a.writeImmediate(va, from, size, b.remote(to), uint32(i))
			b.writeImmediate(vb, from, size, a.remote(to), uint32(i))
		}
		for i := range count {
			t.received(va, remoteWrite)
			t.received(vb, remoteWrite)
			t.coalesces("at b", b.buf(2*count+i), i)
			t.coalesces("at a", a.buf(2*count+i), 100+i)
			t.sent(va, vipl.StatusOpRDMAWrite)
			t.sent(vb, vipl.StatusOpRDMAWrite)
		}
	})),
	rule("rdma-write/immediate-order", "RDMA writes with immediate data and sends take the receives in the order in which they were posted.", eachLevel(func(t *T, level vipl.ReliabilityLevel) {
		const count = 40
		va, vb, a, b := t.ends(level, count, count+1, 2000)
		b.recvs(vb, count, 2000)
		for i := range count {
			if i%3 == 0 {
				a.sendImmediate(va, i, i, uint32(i))
			} else {
				a.writeImmediate(va, i, 50*i, b.remote(count), uint32(i))
			}
		}
		for i := range count {
			want, length := remoteWrite, 50*i
			if i%3 == 0 {
				want, length = vipl.StatusImmediate, i
			}
			d := t.received(vb, want)
			t.errorIf(d != b.desc[i] || d.ImmediateData != uint32(i) || int(d.Length) != length, "receive %d: immediate data %d, length %d, want %d", i, d.ImmediateData, d.Length, length)
		}
		for i := range count {
			want := vipl.StatusOpRDMAWrite
			if i%3 == 0 {
				want = vipl.StatusOpSend
			}
			t.same(t.sent(va, want), a.desc[i])
		}
	})),
}

// spin looks at memory as fast as it can, as programs do, with or without
// letting the NIC make progress in the loop.
func (t *T) spin(what string, see func() bool, poll bool) {
	t.Helper()
	end := time.Now().Add(ackDelay)
	for i := 1; !see(); i++ {
		if poll {
			t.B.Poll()
		}
		if i%1024 == 0 && time.Now().After(end) {
			t.Fatalf("never came: %s", what)
		}
	}
}
