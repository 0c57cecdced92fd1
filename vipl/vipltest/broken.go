package vipltest

import "viaxdp/vipl"

// brokenSizes are lengths of messages that a receive, or the lack of one, refuses.
var brokenSizes = []int{0, 100, 5000}

// tooLongSizes are lengths of messages and of receives that are too short for them.
var tooLongSizes = [][2]int{{1, 0}, {65, 64}, {1425, 1424}, {5000, 64}, {5000, 4999}}

// pastRegionSizes are lengths of messages, and of the part of their receive that lies in its region.
var pastRegionSizes = [][2]int{{1 + 1, 1}, {101, 100}, {1425, 1424}, {5000, 64}, {5000, 4999}}

// brokenRules test errors at the receiver of a message, their effect on the connection, and a peer that has
// gone silent.
var brokenRules = []Rule{
	lossless("reliability/empty-queue-unreliable", "A message that finds no receive on an unreliable VI is dropped with RECVQ_EMPTY, both stay connected, and the next one is none the worse.", func(t *T) {
		for _, size := range brokenSizes {
			a, b := t.ends(vipl.UnreliableDelivery, 1, 1, 5000)
			a.send(0, size)
			a.sent()
			t.asyncErrors(b.v, vipl.ErrorRecvQueueEmpty)
			b.recv(0, 5000)
			a.carries(b, size, 9)
			t.states(vipl.Connected, a.v, b.v)
			t.noErrors(a.v)
		}
	}),
	rule("reliability/empty-queue-reliable", "A message that finds no receive on a reliable VI breaks the connection: both VIs go to Error, every descriptor left is flushed.", eachReliable(emptyQueueBreaks)),
	rule("reliability/empty-queue-reception", "Reliable Reception: the message that found no receive has REMOTE_DESC in its descriptor, those before it are done, those behind it flushed.", func(t *T) { emptyQueueBreaks(t, vipl.ReliableReception) }),
	lossless("reliability/too-long-unreliable", "A message longer than its receive completes the receive with LENGTH_ERROR; an unreliable VI stays connected and the next message is whole.", func(t *T) {
		for _, c := range tooLongSizes {
			size, room := c[0], c[1]
			a, b := t.ends(vipl.UnreliableDelivery, 2, 2, 5000)
			b.recv(0, room)
			b.recv(1, 5000)
			for i := range 2 {
				a.sendMessage(i, size, i)
				a.sent()
			}
			b.tooLong(room)
			b.arrived(1, size, 1)
			t.states(vipl.Connected, a.v, b.v)
		}
	}),
	rule("reliability/too-long-reliable", "A message longer than its receive breaks a reliable connection: LENGTH_ERROR in the receive, the rest flushed, both VIs in Error.", eachReliable(tooLongBreaks)),
	rule("reliability/too-long-reception", "Reliable Reception: the message that was too long has LENGTH_ERROR in the sender's descriptor, too.", func(t *T) { tooLongBreaks(t, vipl.ReliableReception) }),
	rule("reliability/too-long-writes-nothing-beyond", "Of a message that is too long no byte lands beyond the receive.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		for _, c := range tooLongSizes {
			a, b := t.ends(level, 1, 1, 5000)
			b.recv(0, c[1])
			a.sendMessage(0, c[0], 1)
			b.tooLong(c[1])
		}
	})),
	lossless("reliability/past-the-region-unreliable", "A message that needs more than the region has of its receive completes the receive with PROTECTION_ERROR; an unreliable VI stays connected and the next message is whole.", func(t *T) {
		for _, c := range pastRegionSizes {
			a, b := t.ends(vipl.UnreliableDelivery, 3, 3, 5000)
			to := t.edgeOf(t.B, edgeSize)
			to.recvPast(b, c[1])
			for i := range 3 {
				a.sendMessage(i, c[0], i)
				a.sent()
				if i != 1 {
					b.arrived(i, c[0], i)
				} else if d := b.received(vipl.StatusProtectionError); d != b.desc[1] || int(d.Length) > c[1] {
					t.Errorf("another receive, or length %d of %d bytes", d.Length, c[1])
				}
			}
			to.untouched(t)
			t.states(vipl.Connected, a.v, b.v)
		}
	}),
	rule("reliability/past-the-region-reliable", "A message that needs more than the region has of its receive breaks a reliable connection: PROTECTION_ERROR in the receive, the rest flushed, both VIs in Error; with Reliable Reception REMOTE_DESC in the sender's descriptor.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		for _, c := range pastRegionSizes {
			to := t.edgeOf(t.B, edgeSize)
			t.breaks(level, c[0], c[1], func(b *end) { to.recvPast(b, c[1]) }, vipl.StatusProtectionError, vipl.StatusRemoteDescError)
			to.untouched(t)
		}
	})),
	rule("reliability/nothing-after-the-failed-one", "Reliable Reception: no descriptor behind the one that failed has been processed.", func(t *T) {
		a, b := t.ends(vipl.ReliableReception, 5, 3, 3000)
		a.fillAll(0)
		a.write(0, 3000, b.remote(0)) // lands
		a.send(1, 3000)               // finds no receive
		a.write(2, 3000, b.remote(1))
		a.writeImmediate(3, 3000, b.remote(2), 1)
		a.read(4, 3000, b.remote(0))
		a.sent(vipl.StatusOpRDMAWrite, vipl.StatusRemoteDescError, vipl.StatusOpRDMAWrite|vipl.StatusFlushed,
			vipl.StatusOpRDMAWrite|vipl.StatusFlushed, vipl.StatusOpRDMARead|vipl.StatusFlushed)
		t.state(b.v, vipl.Error)
		t.holds("target of the write before", b.buf(0), 0)
		t.untouched("target of the write behind", b.buf(1))
		t.untouched("target of the write with immediate data", b.buf(2))
	}),
	rule("reliability/error-flushes-receives", "When a connection breaks, receives posted on either side complete with DESC_FLUSHED, in order.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		const count = 20
		a, b := t.ends(level, count, count, 64)
		a.recvs(count, 64)
		b.recvs(count, 64)
		t.breakOf(a.v, b.v)
		for i := range count {
			for _, e := range []*end{a, b} {
				d := e.received(vipl.StatusFlushed)
				t.errorIf(d != e.desc[i] || d.Length != 0, "receive %d: another descriptor, or length %d", i, d.Length)
			}
		}
	})),
	rule("reliability/error-state-flushes-posts", "In Error everything posted completes with DESC_FLUSHED at once.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		a, b := t.ends(level, 4, 4, 64)
		t.breakOf(a.v, b.v)
		for e, peer := range map[*end]*end{a: b, b: a} {
			e.send(0, 64)
			e.write(1, 64, peer.remote(0))
			e.read(2, 64, peer.remote(0))
			e.recv(3, 64)
			for _, op := range []vipl.Status{vipl.StatusOpSend, vipl.StatusOpRDMAWrite, vipl.StatusOpRDMARead} {
				t.sendDone(e.v, op|vipl.StatusFlushed) // at once
			}
			t.recvDone(e.v, vipl.StatusFlushed)
		}
	})),
	rule("reliability/error-to-idle", "Disconnect takes a VI from Error to Idle, and it can be connected again, with nothing left of the connection before.", eachReliable(func(t *T, level vipl.ReliabilityLevel) {
		a, b := t.ends(level, 2, 2, 64)
		for k := range 3 {
			t.breakOf(a.v, b.v)
			for _, v := range []*vipl.VI{a.v, b.v} {
				t.must(v.Disconnect())
				s := t.state(v, vipl.Idle)
				t.errorIf(!s.SendEmpty || !s.RecvEmpty || s.Cause != nil, "in Idle: %+v", s)
			}
			t.join(a.v, b.v)
			a.message(b, 64, k)
			a.writeWait(0, 64, b.remote(1))
		}
	})),
	rule("reliability/breaks-alone", "A connection that breaks does not touch other connections of the same NICs.", func(t *T) {
		va, vb := t.pair(vipl.ReliableReception)
		a, b := t.ends(vipl.ReliableReception, 2, 2, 2000)
		b.recv(0, 2000)
		t.breakOf(va, vb)
		a.carries(b, 2000, 1)
		t.states(vipl.Connected, a.v, b.v)
		t.noErrors(a.v, b.v)
	}),

	choice("reliability/silent-peer", "When the peer goes silent the VI goes to Error with CONN_LOST, at every level, and receives are flushed.", "peers probe each other; the time is set when the NIC is opened, 1.6 s otherwise", func(t *T) {
		silence := t.openSilent()
		var ends []*end
		for _, level := range allLevels {
			a, _ := t.ends(level, 2, 1, 64)
			a.recvs(2, 64)
			ends = append(ends, a)
		}
		silence()
		for _, a := range ends {
			t.state(a.v, vipl.Error)
			a.received(vipl.StatusFlushed, vipl.StatusFlushed)
			t.asyncErrors(a.v, vipl.ErrorConnLost)
		}
	}),
	rule("reliability/silent-peer-reception", "Reliable Reception: the oldest send that a silent peer did not answer has TRANSPORT, those behind it are flushed.", func(t *T) {
		silence := t.openSilent()
		a, _ := t.ends(vipl.ReliableReception, 4, 1, 5000)
		silence()
		a.sends(4, 5000)
		a.failsAt(4, 0, vipl.StatusTransportError)
		t.state(a.v, vipl.Error)
	}),
	rule("reliability/silent-peer-read", "An RDMA read that a silent peer did not answer has TRANSPORT, at both reliable levels.", func(t *T) {
		silence := t.openSilent()
		a, b := t.ends(vipl.ReliableDelivery, 2, 1, 64)
		c, _ := t.ends(vipl.ReliableReception, 2, 1, 64)
		silence()
		for _, e := range []*end{a, c} {
			e.read(0, 64, b.remote(0))
			e.read(1, 64, b.remote(0))
		}
		for _, e := range []*end{a, c} {
			e.sent(vipl.StatusOpRDMARead|vipl.StatusTransportError, vipl.StatusOpRDMARead|vipl.StatusFlushed)
			t.state(e.v, vipl.Error)
		}
	}),
}

func emptyQueueBreaks(t *T, level vipl.ReliabilityLevel) {
	for _, size := range brokenSizes {
		a, b := t.breaks(level, size, 0, func(b *end) { b.recv(0, 5000) }, 0, vipl.StatusRemoteDescError)
		t.asyncErrors(b.v, vipl.ErrorRecvQueueEmpty, vipl.ErrorConnLost)
		t.asyncErrors(a.v, vipl.ErrorConnLost)
	}
}

func tooLongBreaks(t *T, level vipl.ReliabilityLevel) {
	for _, c := range tooLongSizes {
		t.breaks(level, c[0], c[1], func(b *end) {
			b.recv(0, 5000)
			b.recv(1, c[1])
			b.recv(2, 5000)
		}, vipl.StatusLengthError, vipl.StatusLengthError)
	}
}

// breaks has the second of four messages of size bytes break a connection. Its receive has room for fewer
// bytes, or is missing. The receive completes with the status recv, and the send of a Reliable Reception VI
// with send.
func (t *T) breaks(level vipl.ReliabilityLevel, size, room int, receives func(b *end), recv, send vipl.Status) (a, b *end) {
	a, b = t.ends(level, 6, 3, 5000)
	a.recv(4, 64)
	a.recv(5, 64)
	receives(b)
	a.sends(4, size)
	b.received()
	if recv != 0 {
		d := b.received(recv)
		t.errorIf(int(d.Length) > room, "length %d, and there is room for %d bytes", d.Length, room)
		b.received(vipl.StatusFlushed)
	}
	t.states(vipl.Error, b.v, a.v)
	a.received(vipl.StatusFlushed, vipl.StatusFlushed)
	if level == vipl.ReliableReception {
		a.failsAt(4, 1, send)
	} else {
		t.handedOver(a, 0, a.desc[:4])
	}
	return a, b
}

// tooLong waits for receive 0, which is too short for its message.
func (e *end) tooLong(room int) {
	d := e.received(vipl.StatusLengthError)
	e.t.errorIf(d != e.desc[0] || int(d.Length) > room, "length %d in a receive of %d, or another receive", d.Length, room)
	e.t.untouched("behind the receive", e.buf(0)[room:])
}

// recvPast posts three receives. Only n bytes of receive 1 lie in its region; the others are valid.
func (x edge) recvPast(e *end, n int) {
	e.recv(0, 5000)
	e.prepare(1, 0)
	e.recvSegments(1, x.Segment(edgeSize-n, 32_768))
	e.recv(2, 5000)
}

// failsAt checks count completions of a Reliable Reception VI on which number bad failed.
func (e *end) failsAt(count, bad int, status vipl.Status) {
	for i := range count {
		switch {
		case i < bad:
			e.sent()
		case i == bad:
			e.sent(status)
		default:
			e.sent(vipl.StatusFlushed)
		}
	}
}

// breakOf breaks a connection from a's side, and takes the completions.
func (t *T) breakOf(va, vb *vipl.VI) {
	bad := t.block(t.A, 1, 64).on(va)
	bad.prepare(0, 64).Reserved = 1
	bad.post(bad.desc[0])
	t.states(vipl.Error, va, vb)
	bad.sent(vipl.StatusFormatError)
}
