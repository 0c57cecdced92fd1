package vipl_test

import (
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/vipl"
)

// writeBoxes makes two boxes on connected VIs. b's box is open to a.
func writeBoxes(t testing.TB, level vipl.ReliabilityLevel) (n *memoryNet, va, vb *vipl.VI, xa, xb *box) {
	t.Helper()
	n = newMemoryNet(t, memoryConfig{bubble: true})
	va, vb = openVI(t, n.a.NIC, level), openVI(t, n.b.NIC, level)
	join(t, n.a.NIC, va, n.b.NIC, vb)
	xa, xb = newBox(t, n.a.NIC, packMessages, 64), newBox(t, n.b.NIC, packMessages, 64)
	attributes, err := xb.region.Query()
	must(t, err)
	attributes.EnableRDMAWrite = true
	must(t, xb.region.SetAttributes(attributes))
	return n, va, vb, xa, xb
}

// postAll posts all descriptors of x in one go, so that they share frames whatever
// the other side does meanwhile.
func postAll(t testing.TB, v *vipl.VI, x *box) {
	t.Helper()
	k, err := v.PostSends(x.desc, x.region.Handle())
	fatalIf(t, k != len(x.desc) || err != nil, "%d of %d posted: %v", k, len(x.desc), err)
}

// RDMA writes share frames with sends and with each other, each to its own
// place and in order, with immediate data or without.
func TestWritesShareFrames(t *testing.T) {
	eachLevelInBubble(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n, va, vb, xa, xb := writeBoxes(t, level)
		kind := func(k int) int { return k % 3 } // write, write with immediate data, send
		for k := range packMessages {
			if kind(k) != 0 {
				postRecv(t, vb, xb, k, 64)
			}
		}
		for k := range packMessages {
			size := 1 + k%64
			fillPattern(xa.buf[k][:size], k)
			switch kind(k) {
			case 2:
				xa.prepare(k, size)
			default:
				xa.desc[k].SetRDMAWrite(xb.remote(k), segment(xa, k, size))
				if kind(k) == 1 {
					xa.desc[k].SetImmediate(uint32(k))
				}
			}
		}
		postAll(t, va, xa)
		for k := range packMessages {
			op := vipl.Status(vipl.StatusOpRDMAWrite)
			switch kind(k) {
			case 1:
				d, err := vb.RecvWait(ackDelay)
				checkDone(t, "write", d, err, vipl.StatusOpRemoteRDMAWrite|vipl.StatusImmediate)
				fatalIf(t, d.ImmediateData != uint32(k) || int(d.Length) != 1+k%64, "write %d: immediate %d, %d bytes", k, d.ImmediateData, d.Length)
			case 2:
				op = vipl.StatusOpSend
				d := received(t, vb, 0)
				fatalIf(t, d != xb.desc[k], "message %d: another descriptor", k)
			}
			sent(t, va, op)
		}
		synctest.Wait()
		for k := range packMessages {
			checkPattern(t, xb.buf[k][:1+k%64], k)
		}
		a, b := n.a.Counters(), n.b.Counters()
		errorIf(t, a.Packed < packMessages/2 || b.Writes != 2*packMessages/3, "%d messages packed, %d writes", a.Packed, b.Writes)
	})
}

// A write in the middle of a frame to memory that is not open breaks the connection: operations before it are done,
// none of it or after it is.
func TestRefusedWriteInAFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, va, vb, xa, xb := writeBoxes(t, vipl.ReliableReception)
		const bad = 20
		for k := range packMessages {
			fillPattern(xa.buf[k][:32], k)
			to := xb.remote(k)
			if k == bad {
				to.Handle++
			}
			xa.desc[k].SetRDMAWrite(to, segment(xa, k, 32))
		}
		postAll(t, va, xa)
		for k := range packMessages {
			want := vipl.Status(vipl.StatusOpRDMAWrite)
			switch {
			case k == bad:
				want |= vipl.StatusRemoteRDMAError
			case k > bad:
				want |= vipl.StatusFlushed
			}
			sent(t, va, want)
		}
		for k := range packMessages {
			if k < bad {
				checkPattern(t, xb.buf[k][:32], k)
			} else if xb.buf[k][0] != 0 || xb.buf[k][31] != 0 {
				t.Errorf("write %d has been placed", k)
			}
		}
		stateIs(t, vb, vipl.Error)
		errorIf(t, n.a.Counters().Packed == 0, "nothing shared a frame")
	})
}

// A write with immediate data that meets an empty receive queue in the middle of
// a frame is refused as one in a frame of its own is.
func TestWriteInAFrameWithoutReceive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, va, vb, xa, xb := writeBoxes(t, vipl.ReliableReception)
		const receives = 20
		for k := range receives {
			postRecv(t, vb, xb, k, 64)
		}
		for k := range packMessages {
			xa.desc[k].SetRDMAWrite(xb.remote(k), segment(xa, k, 32))
			xa.desc[k].SetImmediate(uint32(k))
		}
		postAll(t, va, xa)
		for k := range packMessages {
			want := vipl.Status(vipl.StatusOpRDMAWrite)
			switch {
			case k == receives:
				want |= vipl.StatusRemoteDescError
			case k > receives:
				want |= vipl.StatusFlushed
			}
			sent(t, va, want)
		}
		for range receives {
			d, err := vb.RecvWait(ackDelay)
			checkDone(t, "write", d, err, vipl.StatusOpRemoteRDMAWrite|vipl.StatusImmediate)
		}
		stateIs(t, vb, vipl.Error)
		errorIf(t, n.a.Counters().Packed == 0, "nothing shared a frame")
	})
}

// A program that is slow to answer comes to send each answer with the acknowledgement of the question, and not
// after it.
func TestAcknowledgementsRideOnLateAnswers(t *testing.T) {
	const learning, exchanges = 40, 20
	const looks = 256 // empty polls between two reads of the clock
	for _, late := range []time.Duration{20 * time.Microsecond, 400 * time.Microsecond, 1500 * time.Microsecond} {
		synctest.Test(t, func(t *testing.T) {
			n, va, vb, xa, xb := connectedBoxes(t, memoryConfig{bubble: true}, vipl.ReliableDelivery, 2, 2, 64)
			say := func(from, to *vipl.VI, x, y *box) {
				postRecv(t, to, y, 0, 64)
				postSend(t, from, x, 1, 64)
				for range 8 { // both poll, while the answer is made
					for range looks {
						n.a.Poll()
						n.b.Poll()
					}
					time.Sleep(late / 8)
				}
				must(t, errOf(to.RecvDone()))
				sent(t, from, 0)
			}
			var before uint64
			for k := range learning + exchanges {
				if k == learning {
					before = n.a.Counters().Acks + n.b.Counters().Acks
				}
				say(va, vb, xa, xb)
				say(vb, va, xb, xa)
			}
			alone := n.a.Counters().Acks + n.b.Counters().Acks - before
			errorIf(t, alone > exchanges/10, "answers after %v: %d acknowledgements of %d went alone", late, alone, 2*exchanges)
			again := n.a.Counters().Resent + n.b.Counters().Resent
			errorIf(t, again > 4, "answers after %v: %d frames were sent again", late, again)
		})
	}
}

// A late answer among many that are sent at once does not make the peer retransmit what waits for its
// acknowledgement.
func TestAcknowledgementsDoNotWaitForRareAnswers(t *testing.T) {
	const looks = 256
	const early, late = 20 * time.Microsecond, 1500 * time.Microsecond
	synctest.Test(t, func(t *testing.T) {
		n, va, vb, xa, xb := connectedBoxes(t, memoryConfig{bubble: true}, vipl.ReliableDelivery, 2, 2, 64)
		say := func(from, to *vipl.VI, x, y *box, d time.Duration) {
			postRecv(t, to, y, 0, 64)
			postSend(t, from, x, 1, 64)
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(early) {
				for range looks {
					n.a.Poll()
					n.b.Poll()
				}
			}
			must(t, errOf(to.RecvDone()))
			sent(t, from, 0)
		}
		for k := range 1000 {
			if k%50 == 0 {
				say(va, vb, xa, xb, late)
			} else {
				say(va, vb, xa, xb, early)
			}
			say(vb, va, xb, xa, early)
		}
		again := n.a.Counters().Resent + n.b.Counters().Resent
		errorIf(t, again > 4, "%d frames were sent again", again)
	})
}
