package vipltest

import "viaxdp/vipl"

// brokenRules are about what goes wrong at the receiver of a message, and what
// that makes of the connection.
var brokenRules = []Rule{
	lossless("reliability/empty-queue-unreliable", "A message that finds no receive on an unreliable VI is dropped with RECVQ_EMPTY, both stay connected, and the next one is none the worse.", func(t *T) {
		for _, size := range []int{0, 100, 5000} {
			va, vb, a, b := t.ends(vipl.UnreliableDelivery, 1, 1, 5000)
			a.sendDone(va, 0, size)
			t.asyncErrors(vb, vipl.ErrorRecvQueueEmpty)
			b.recv(vb, 0, 5000)
			a.sendMessage(va, 0, size, 9)
			t.receivedMessage(vb, b.buf(0)[:size], 9)
			t.sent(va, 0)
			t.states(vipl.Connected, va, vb)
			t.asyncErrors(va)
		}
	}),
	rule("reliability/empty-queue-reliable", "A message that finds no receive on a reliable VI breaks the connection: both VIs go to Error, every descriptor left is flushed.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		for _, size := range []int{0, 100, 5000} {
			va, vb, a, b := t.ends(level, 8, 2, 5000)
			a.recv(va, 6, 64)
			a.recv(va, 7, 64)
			b.recvs(vb, 2, 5000)
			a.sends(va, 6, size)
			t.received(vb, 0)
			t.received(vb, 0)
			t.states(vipl.Error, vb, va)
			t.received(va, vipl.StatusFlushed)
			t.received(va, vipl.StatusFlushed)
			if level == vipl.ReliableDelivery {
				t.handedOver(va, 6)
			}
			t.asyncErrors(vb, vipl.ErrorRecvQueueEmpty, vipl.ErrorConnLost)
			t.asyncErrors(va, vipl.ErrorConnLost)
		}
	})),
	rule("reliability/empty-queue-reception", "Reliable Reception: the message that found no receive has REMOTE_DESC in its descriptor, those before it are done, those behind it flushed.", func(t *T) {
		for _, size := range []int{0, 100, 5000} {
			va, vb, a, b := t.ends(vipl.ReliableReception, 6, 2, 5000)
			b.recv(vb, 0, 5000)
			b.recv(vb, 1, 5000)
			a.sends(va, 6, size)
			t.failsAt(va, 6, 2, vipl.StatusRemoteDescError)
			t.received(vb, 0)
			t.received(vb, 0)
		}
	}),
	lossless("reliability/too-long-unreliable", "A message longer than its receive completes the receive with LENGTH_ERROR; an unreliable VI stays connected and the next message is whole.", func(t *T) {
		for _, c := range tooLongSizes {
			size, room := c[0], c[1]
			va, vb, a, b := t.ends(vipl.UnreliableDelivery, 1, 2, 5000)
			b.recv(vb, 0, room)
			b.recv(vb, 1, 5000)
			fill(a.buf(0), 1)
			for range 2 {
				a.sendDone(va, 0, size)
			}
			d := t.received(vb, vipl.StatusLengthError)
			t.errorIf(int(d.Length) > room, "length %d in a receive of %d", d.Length, room)
			t.untouched("behind the receive", b.buf(0)[room:])
			equal(t, "length of the next message", int(t.received(vb, 0).Length), size)
			t.coalesces("next message", b.buf(1)[:size], 1)
			t.states(vipl.Connected, va, vb)
		}
	}),
	rule("reliability/too-long-reliable", "A message longer than its receive breaks a reliable connection: LENGTH_ERROR in the receive, the rest flushed, both VIs in Error.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		for _, c := range tooLongSizes {
			va, vb, a, b := t.ends(level, 4, 3, 5000)
			b.recv(vb, 0, 5000)
			b.recv(vb, 1, c[1])
			b.recv(vb, 2, 5000)
			a.sends(va, 4, c[0])
			t.received(vb, 0)
			t.received(vb, vipl.StatusLengthError)
			t.received(vb, vipl.StatusFlushed)
			t.states(vipl.Error, vb, va)
			if level == vipl.ReliableDelivery {
				t.handedOver(va, 4)
			}
		}
	})),
	rule("reliability/too-long-reception", "Reliable Reception: the message that was too long has LENGTH_ERROR in the sender's descriptor, too.", func(t *T) {
		for _, c := range tooLongSizes {
			va, vb, a, b := t.ends(vipl.ReliableReception, 4, 2, 5000)
			b.recv(vb, 0, 5000)
			b.recv(vb, 1, c[1])
			a.sends(va, 4, c[0])
			t.failsAt(va, 4, 1, vipl.StatusLengthError)
			t.received(vb, 0)
			t.received(vb, vipl.StatusLengthError)
		}
	}),
	rule("reliability/too-long-writes-nothing-beyond", "Of a message that is too long no byte lands beyond the receive.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		for _, c := range tooLongSizes {
			va, vb, a, b := t.ends(level, 1, 1, 5000)
			fill(a.buf(0), 1)
			b.recv(vb, 0, c[1])
			a.send(va, 0, c[0])
			d := t.received(vb, vipl.StatusLengthError)
			t.errorIf(int(d.Length) > c[1], "length %d in a receive of %d", d.Length, c[1])
			t.untouched("behind the receive", b.buf(0)[c[1]:])
		}
	})),
	lossless("reliability/past-the-region-unreliable", "A message that needs more than the region has of its receive completes the receive with PROTECTION_ERROR; an unreliable VI stays connected and the next message is whole.", func(t *T) {
		for _, c := range pastRegionSizes {
			va, vb := t.pair(vipl.UnreliableDelivery)
			a, b, to := t.block(t.A, 3, 5000), t.block(t.B, 3, 5000), t.edge(t.B)
			to.recvPast(b, vb, c[1])
			for i := range 3 {
				a.sendMessage(va, i, c[0], i)
				t.sent(va, 0)
				if i != 1 {
					d := t.received(vb, 0)
					t.errorIf(d != b.desc[i] || int(d.Length) != c[0], "message %d: another receive, or length %d", i, d.Length)
					t.coalesces("message", b.buf(i)[:c[0]], i)
				} else if d := t.received(vb, vipl.StatusProtectionError); d != b.desc[1] || int(d.Length) > c[1] {
					t.Errorf("another receive, or length %d of %d bytes", d.Length, c[1])
				}
			}
			to.untouched(t)
			t.states(vipl.Connected, va, vb)
		}
	}),
	rule("reliability/past-the-region-reliable", "A message that needs more than the region has of its receive breaks a reliable connection: PROTECTION_ERROR in the receive, the rest flushed, both VIs in Error; with Reliable Reception REMOTE_DESC in the sender's descriptor.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		for _, c := range pastRegionSizes {
			va, vb := t.pair(level)
			a, b, to := t.block(t.A, 4, 5000), t.block(t.B, 3, 5000), t.edge(t.B)
			to.recvPast(b, vb, c[1])
			a.sends(va, 4, c[0])
			if level == vipl.ReliableReception {
				t.failsAt(va, 4, 1, vipl.StatusRemoteDescError)
			}
			t.received(vb, 0)
			d := t.received(vb, vipl.StatusProtectionError)
			t.errorIf(int(d.Length) > c[1], "length %d of %d bytes", d.Length, c[1])
			t.received(vb, vipl.StatusFlushed)
			t.states(vipl.Error, vb, va)
			if level == vipl.ReliableDelivery {
				t.handedOver(va, 4)
			}
			to.untouched(t)
		}
	})),
	rule("reliability/nothing-after-the-failed-one", "Reliable Reception: no descriptor behind the one that failed has been processed.", func(t *T) {
		va, vb, a, b := t.ends(vipl.ReliableReception, 5, 3, 3000)
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
		t.coalesces("target of the write before", b.buf(0), 1)
		t.untouched("target of the write behind", b.buf(1))
		t.untouched("target of the write with immediate data", b.buf(2))
	}),
	rule("reliability/error-flushes-receives", "When a connection breaks, receives posted on either side complete with DESC_FLUSHED, in order.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		const count = 20
		va, vb, a, b := t.ends(level, count, count, 64)
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
	})),
	rule("reliability/error-state-flushes-posts", "In Error everything posted completes with DESC_FLUSHED at once.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		va, vb, a, b := t.ends(level, 4, 4, 64)
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
				t.sendDone(end.v, op|vipl.StatusFlushed) // at once
			}
			t.recvDone(end.v, vipl.StatusOpReceive|vipl.StatusFlushed)
		}
	})),
	rule("reliability/error-to-idle", "Disconnect takes a VI from Error to Idle, and it can be connected again, with nothing left of the connection before.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		va, vb, a, b := t.ends(level, 2, 2, 64)
		for k := range 3 {
			t.breakOf(va, vb)
			for _, v := range []*vipl.VI{va, vb} {
				t.must(v.Disconnect())
				s := t.state(v, vipl.Idle)
				t.errorIf(!s.SendEmpty || !s.RecvEmpty || s.Cause != nil, "in Idle: %+v", s)
			}
			t.join(va, vb)
			t.message(va, a, vb, b, 64, k)
			a.writeDone(va, 0, 64, b.remote(1))
		}
	})),
	rule("reliability/breaks-alone", "A connection that breaks does not touch other connections of the same NICs.", func(t *T) {
		va, vb := t.pair(vipl.ReliableReception)
		wa, wb := t.pair(vipl.ReliableReception)
		a, b := t.block(t.A, 2, 2000), t.block(t.B, 2, 2000)
		b.recv(wb, 0, 2000)
		t.breakOf(va, vb)
		t.carries(wa, a, wb, b, 2000, 1)
		t.states(vipl.Connected, wa, wb)
		t.asyncErrors(wa)
		t.asyncErrors(wb)
	}),
}

// pastRegionSizes are lengths of messages, and of the part of their receive that its region has.
var pastRegionSizes = [][2]int{{1 + 1, 1}, {101, 100}, {1425, 1424}, {5000, 64}, {5000, 4999}}

// recvPast posts receive 1 of a block, with n bytes within the region, between two whole ones.
func (e edge) recvPast(b *block, v *vipl.VI, n int) {
	b.t.Helper()
	b.recv(v, 0, 5000)
	b.prepare(1, 0).SetSegments(e.Segment(edgeSize-n, 32_768))
	b.postRecv(v, b.desc[1])
	b.recv(v, 2, 5000)
}

// failsAt checks count completions of a Reliable Reception VI; number bad must have failed.
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
	t.states(vipl.Error, va, vb)
	t.sent(va, vipl.StatusFormatError)
}
