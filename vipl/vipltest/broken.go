package vipltest

import (
	"viaxdp/vipl"
)

// brokenRules are about what goes wrong at the receiver of a message, and what
// that makes of the connection.
var brokenRules = []Rule{
	{
		ID: "reliability/empty-queue-unreliable", Text: "A message that finds no receive on an unreliable VI is dropped with RECVQ_EMPTY, both stay connected, and the next one is none the worse.",
		Lossless: true,
		run:      emptyQueueUnreliable,
	},
	{
		ID: "reliability/empty-queue-reliable", Text: "A message that finds no receive on a reliable VI breaks the connection: both VIs go to Error, every descriptor left is flushed.",
		run: eachReliable(emptyQueueReliable),
	},
	{
		ID: "reliability/empty-queue-reception", Text: "Reliable Reception: the message that found no receive has REMOTE_DESC in its descriptor, those before it are done, those behind it flushed.",
		run: emptyQueueReception,
	},
	{
		ID: "reliability/too-long-unreliable", Text: "A message longer than its receive completes the receive with LENGTH_ERROR; an unreliable VI stays connected and the next message is whole.",
		run: tooLongUnreliable, Lossless: true,
	},
	{
		ID: "reliability/too-long-reliable", Text: "A message longer than its receive breaks a reliable connection: LENGTH_ERROR in the receive, the rest flushed, both VIs in Error.",
		run: eachReliable(tooLongReliable),
	},
	{
		ID: "reliability/too-long-reception", Text: "Reliable Reception: the message that was too long has LENGTH_ERROR in the sender's descriptor, too.",
		run: tooLongReception,
	},
	{
		ID: "reliability/too-long-writes-nothing-beyond", Text: "Of a message that is too long no byte lands beyond the receive.",
		run: eachReliable(tooLongBeyond),
	},
	{
		ID: "reliability/nothing-after-the-failed-one", Text: "Reliable Reception: no descriptor behind the one that failed has been processed.",
		run: nothingAfterFailure,
	},
	{
		ID: "reliability/error-flushes-receives", Text: "When a connection breaks, receives posted on either side complete with DESC_FLUSHED, in order.",
		run: eachReliable(errorFlushesReceives),
	},
	{
		ID: "reliability/error-state-flushes-posts", Text: "In Error everything posted completes with DESC_FLUSHED at once.",
		run: eachReliable(errorFlushesPosts),
	},
	{
		ID: "reliability/error-to-idle", Text: "Disconnect takes a VI from Error to Idle, and it can be connected again, with nothing left of the connection before.",
		run: eachReliable(errorToIdle),
	},
	{
		ID: "reliability/breaks-alone", Text: "A connection that breaks does not touch other connections of the same NICs.",
		run: breaksAlone,
	},
}

func emptyQueueUnreliable(t *T) {
	for _, size := range []int{0, 100, 5000} {
		va, vb := t.pair(vipl.UnreliableDelivery)
		a, b := t.block(t.A, 1, 5000), t.block(t.B, 1, 5000)
		a.send(va, 0, size)
		t.sent(va, 0)
		t.asyncErrors(vb, vipl.ErrorRecvQueueEmpty)
		b.recv(vb, 0, 5000)
		fill(a.buf(0), 9)
		a.send(va, 0, size)
		if d := t.received(vb, 0); int(d.Length) != size {
			t.Errorf("length %d", d.Length)
		}
		t.holds("message", b.buf(0)[:size], 9)
		t.sent(va, 0)
		t.state(va, vipl.Connected)
		t.state(vb, vipl.Connected)
		t.asyncErrors(va)
	}
}

func emptyQueueReliable(t *T, level vipl.ReliabilityLevel) {
	for _, size := range []int{0, 100, 5000} {
		va, vb := t.pair(level)
		a, b := t.block(t.A, 8, 5000), t.block(t.B, 2, 5000)
		a.recv(va, 6, 64)
		a.recv(va, 7, 64)
		for i := range 2 {
			b.recv(vb, i, 5000)
		}
		for i := range 6 {
			a.send(va, i, size)
		}
		t.received(vb, 0)
		t.received(vb, 0)
		t.state(vb, vipl.Error)
		t.state(va, vipl.Error)
		t.received(va, vipl.StatusFlushed)
		t.received(va, vipl.StatusFlushed)
		if level == vipl.ReliableDelivery {
			t.handedOver(va, 6)
		}
		t.asyncErrors(vb, vipl.ErrorRecvQueueEmpty, vipl.ErrorConnLost)
		t.asyncErrors(va, vipl.ErrorConnLost)
	}
}

func emptyQueueReception(t *T) {
	for _, size := range []int{0, 100, 5000} {
		va, vb := t.pair(vipl.ReliableReception)
		a, b := t.block(t.A, 6, 5000), t.block(t.B, 2, 5000)
		b.recv(vb, 0, 5000)
		b.recv(vb, 1, 5000)
		for i := range 6 {
			a.send(va, i, size)
		}
		t.failsAt(va, 6, 2, vipl.StatusRemoteDescError)
		t.received(vb, 0)
		t.received(vb, 0)
	}
}

func tooLongUnreliable(t *T) {
	for _, c := range tooLongSizes {
		size, room := c[0], c[1]
		va, vb := t.pair(vipl.UnreliableDelivery)
		a, b := t.block(t.A, 1, 5000), t.block(t.B, 2, 5000)
		b.recv(vb, 0, room)
		b.recv(vb, 1, 5000)
		fill(a.buf(0), 1)
		for range 2 {
			a.send(va, 0, size)
			t.sent(va, 0)
		}
		if d := t.received(vb, vipl.StatusLengthError); int(d.Length) > room {
			t.Errorf("length %d in a receive of %d", d.Length, room)
		}
		t.untouched("behind the receive", b.buf(0)[room:])
		if d := t.received(vb, 0); int(d.Length) != size {
			t.Errorf("the next message has length %d", d.Length)
		}
		t.holds("next message", b.buf(1)[:size], 1)
		t.state(va, vipl.Connected)
		t.state(vb, vipl.Connected)
	}
}

func tooLongReliable(t *T, level vipl.ReliabilityLevel) {
	for _, c := range tooLongSizes {
		va, vb := t.pair(level)
		a, b := t.block(t.A, 4, 5000), t.block(t.B, 3, 5000)
		b.recv(vb, 0, 5000)
		b.recv(vb, 1, c[1])
		b.recv(vb, 2, 5000)
		for i := range 4 {
			a.send(va, i, c[0])
		}
		t.received(vb, 0)
		t.received(vb, vipl.StatusLengthError)
		t.received(vb, vipl.StatusFlushed)
		t.state(vb, vipl.Error)
		t.state(va, vipl.Error)
		if level == vipl.ReliableDelivery {
			t.handedOver(va, 4)
		}
	}
}

func tooLongReception(t *T) {
	for _, c := range tooLongSizes {
		va, vb := t.pair(vipl.ReliableReception)
		a, b := t.block(t.A, 4, 5000), t.block(t.B, 2, 5000)
		b.recv(vb, 0, 5000)
		b.recv(vb, 1, c[1])
		for i := range 4 {
			a.send(va, i, c[0])
		}
		t.failsAt(va, 4, 1, vipl.StatusLengthError)
		t.received(vb, 0)
		t.received(vb, vipl.StatusLengthError)
	}
}

func tooLongBeyond(t *T, level vipl.ReliabilityLevel) {
	for _, c := range tooLongSizes {
		va, vb := t.pair(level)
		a, b := t.block(t.A, 1, 5000), t.block(t.B, 1, 5000)
		fill(a.buf(0), 1)
		b.recv(vb, 0, c[1])
		a.send(va, 0, c[0])
		if d := t.received(vb, vipl.StatusLengthError); int(d.Length) > c[1] {
			t.Errorf("length %d in a receive of %d", d.Length, c[1])
		}
		t.untouched("behind the receive", b.buf(0)[c[1]:])
	}
}

func nothingAfterFailure(t *T) {
	va, vb := t.pair(vipl.ReliableReception)
	a, b := t.block(t.A, 5, 3000), t.block(t.B, 3, 3000)
	for i := range a.desc {
		fill(a.buf(i), 1)
	}
	a.write(va, 0, 3000, b.remote(0)) // lands
	a.send(va, 1, 3000)               // finds no receive
	a.write(va, 2, 3000, b.remote(1))
	a.writeImmediate(va, 3, 3000, b.remote(2), 1)
	a.read(va, 4, 3000, b.remote(0))
	t.sent(va, vipl.StatusOpRDMAWrite)
	t.sent(va, vipl.StatusRemoteDescError)
	t.sent(va, vipl.StatusOpRDMAWrite|vipl.StatusFlushed)
	t.sent(va, vipl.StatusOpRDMAWrite|vipl.StatusFlushed)
	t.sent(va, vipl.StatusOpRDMARead|vipl.StatusFlushed)
	t.state(vb, vipl.Error)
	t.holds("target of the write before", b.buf(0), 1)
	t.untouched("target of the write behind", b.buf(1))
	t.untouched("target of the write with immediate data", b.buf(2))
}

func errorFlushesReceives(t *T, level vipl.ReliabilityLevel) {
	const count = 20
	va, vb := t.pair(level)
	a, b := t.block(t.A, count, 64), t.block(t.B, count, 64)
	for i := range count {
		a.recv(va, i, 64)
		b.recv(vb, i, 64)
	}
	bad := t.block(t.A, 1, 64)
	bad.prepare(0, 64).Reserved = 1
	bad.post(va, bad.desc[0])
	for i := range count {
		if d := t.received(va, vipl.StatusFlushed); d != a.desc[i] || d.Length != 0 {
			t.Errorf("receive %d: another descriptor, or length %d", i, d.Length)
		}
		if d := t.received(vb, vipl.StatusFlushed); d != b.desc[i] || d.Length != 0 {
			t.Errorf("receive %d: another descriptor, or length %d", i, d.Length)
		}
	}
	t.sent(va, vipl.StatusFormatError)
}

func errorFlushesPosts(t *T, level vipl.ReliabilityLevel) {
	va, vb := t.pair(level)
	a, b := t.block(t.A, 4, 64), t.block(t.B, 4, 64)
	t.breakOf(va, vb)
	for _, end := range []struct {
		v     *vipl.VI
		x     *block
		other *block
	}{{va, a, b}, {vb, b, a}} {
		end.x.send(end.v, 0, 64)
		end.x.write(end.v, 1, 64, end.other.remote(0))
		end.x.read(end.v, 2, 64, end.other.remote(0))
		end.x.recv(end.v, 3, 64)
		for _, op := range []vipl.Status{vipl.StatusOpSend, vipl.StatusOpRDMAWrite, vipl.StatusOpRDMARead} {
			d, err := end.v.SendDone() // at once
			t.completed("send", d, err, op|vipl.StatusFlushed)
		}
		d, err := end.v.RecvDone()
		t.completed("receive", d, err, vipl.StatusOpReceive|vipl.StatusFlushed)
	}
}

func errorToIdle(t *T, level vipl.ReliabilityLevel) {
	va, vb := t.pair(level)
	a, b := t.block(t.A, 2, 64), t.block(t.B, 2, 64)
	for k := range 3 {
		t.breakOf(va, vb)
		for _, v := range []*vipl.VI{va, vb} {
			t.must(v.Disconnect())
			if s := t.state(v, vipl.Idle); !s.SendEmpty || !s.RecvEmpty || s.Cause != nil {
				t.Errorf("in Idle: %+v", s)
			}
		}
		t.join(va, vb)
		b.recv(vb, 0, 64)
		fill(a.buf(0), k)
		a.send(va, 0, 64)
		t.received(vb, 0)
		t.sent(va, 0)
		t.holds("message", b.buf(0), k)
		a.write(va, 0, 64, b.remote(1))
		t.sent(va, vipl.StatusOpRDMAWrite)
	}
}

func breaksAlone(t *T) {
	va, vb := t.pair(vipl.ReliableReception)
	wa, wb := t.pair(vipl.ReliableReception)
	a, b := t.block(t.A, 2, 2000), t.block(t.B, 2, 2000)
	b.recv(wb, 0, 2000)
	t.breakOf(va, vb)
	fill(a.buf(0), 1)
	a.send(wa, 0, 2000)
	t.received(wb, 0)
	t.sent(wa, 0)
	t.holds("message", b.buf(0), 1)
	t.state(wa, vipl.Connected)
	t.state(wb, vipl.Connected)
	t.asyncErrors(wa)
	t.asyncErrors(wb)
}

// failsAt checks count completions of a Reliable Reception VI of which number
// bad failed.
func (t *T) failsAt(v *vipl.VI, count, bad int, status vipl.Status) {
	t.Helper()
	for i := range count {
		switch {
		case i < bad:
			t.sent(v, 0)
		case i == bad:
			t.sent(v, status)
		default:
			t.sent(v, vipl.StatusFlushed)
		}
	}
}

// tooLongSizes are messages and the receives that they are too long for.
var tooLongSizes = [][2]int{{1, 0}, {65, 64}, {1425, 1424}, {5000, 64}, {5000, 4999}}

// breakOf breaks a connection from a's side, and takes what that completes.
func (t *T) breakOf(va, vb *vipl.VI) {
	t.Helper()
	bad := t.block(t.A, 1, 64)
	bad.prepare(0, 64).Reserved = 1
	bad.post(va, bad.desc[0])
	t.state(va, vipl.Error)
	t.state(vb, vipl.Error)
	t.sent(va, vipl.StatusFormatError)
}
