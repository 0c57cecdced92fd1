package vipl_test

import (
	"testing"
	"testing/synctest"

	"viaxdp/vipl"
)

// writeBoxes are two boxes of which b's is open to a, on connected VIs.
func writeBoxes(t testing.TB, level vipl.ReliabilityLevel) (n *memoryNet, va, vb *vipl.VI, xa, xb *box) {
	t.Helper()
	n = newMemoryNet(t, memoryConfig{bubble: true})
	va, vb = openVI(t, n.a.Nic, level), openVI(t, n.b.Nic, level)
	join(t, n.a.Nic, va, n.b.Nic, vb)
	xa, xb = newBox(t, n.a.Nic, packMessages, 64), newBox(t, n.b.Nic, packMessages, 64)
	attributes, err := xb.region.Query()
	if err != nil {
		t.Fatal(err)
	}
	attributes.EnableRdmaWrite = true
	if err := xb.region.SetAttributes(attributes); err != nil {
		t.Fatal(err)
	}
	return n, va, vb, xa, xb
}

// postAll posts all descriptors of x in one go, so that they share frames whatever
// the other side does meanwhile.
func postAll(t testing.TB, v *vipl.VI, x *box) {
	t.Helper()
	if k, err := v.PostSends(x.desc, x.region.Handle()); k != len(x.desc) || err != nil {
		t.Fatalf("%d of %d posted: %v", k, len(x.desc), err)
	}
}

// RDMA writes share frames with sends and with each other, each to its own
// place and in order, with immediate data or without.
func TestWritesShareFrames(t *testing.T) {
	eachLevel(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
		synctest.Test(t, func(t *testing.T) {
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
					d, err := vb.RecvWait(patience)
					checkDone(t, "write", d, err, vipl.StatusOpRemoteRDMAWrite|vipl.StatusImmediate)
					if d.ImmediateData != uint32(k) || int(d.Length) != 1+k%64 {
						t.Fatalf("write %d: immediate %d, %d bytes", k, d.ImmediateData, d.Length)
					}
				case 2:
					op = vipl.StatusOpSend
					if d := received(t, vb, 0); d != xb.desc[k] {
						t.Fatalf("message %d: another descriptor", k)
					}
				}
				sent(t, va, op)
			}
			synctest.Wait()
			for k := range packMessages {
				checkPattern(t, xb.buf[k][:1+k%64], k)
			}
			if a, b := n.a.Counters(), n.b.Counters(); a.Packed < packMessages/2 || b.Writes != 2*packMessages/3 {
				t.Errorf("%d messages packed, %d writes", a.Packed, b.Writes)
			}
		})
	})
}

// A write in the middle of a frame to what is not open breaks the connection:
// those before it are done, nothing of it or behind it is.
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
		if n.a.Counters().Packed == 0 {
			t.Error("nothing shared a frame")
		}
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
			d, err := vb.RecvWait(patience)
			checkDone(t, "write", d, err, vipl.StatusOpRemoteRDMAWrite|vipl.StatusImmediate)
		}
		stateIs(t, vb, vipl.Error)
		if n.a.Counters().Packed == 0 {
			t.Error("nothing shared a frame")
		}
	})
}
