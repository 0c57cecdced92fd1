package vipl_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// openVI is a VI whose memory the peer may write and, but on an unreliable one,
// read.
func openVI(t testing.TB, n *vipl.Nic, level vipl.ReliabilityLevel) *vipl.VI {
	t.Helper()
	v, err := n.CreateVi(vipl.ViAttributes{
		Level: level, EnableRdmaWrite: true, EnableRdmaRead: level != vipl.UnreliableDelivery,
	}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// rdmaPair is two connected VIs, each with memory that is open to the other.
func rdmaPair(t testing.TB, c memoryConfig, level vipl.ReliabilityLevel) (n *memoryNet, va, vb *vipl.VI, xa, xb *box) {
	t.Helper()
	n = newMemoryNet(t, c)
	va, vb = openVI(t, n.a.Nic, level), openVI(t, n.b.Nic, level)
	join(t, n.a.Nic, va, n.b.Nic, vb)
	return n, va, vb, openBox(t, n.a.Nic), openBox(t, n.b.Nic)
}

const boxSize = 256 << 10

func openBox(t testing.TB, n *vipl.Nic) *box {
	t.Helper()
	x := newBox(t, n, 4, boxSize)
	a, err := x.region.Query()
	if err != nil {
		t.Fatal(err)
	}
	a.EnableRdmaWrite, a.EnableRdmaRead = true, true
	if err := x.region.SetAttributes(a); err != nil {
		t.Fatal(err)
	}
	return x
}

// remote names buffer i to the peer.
func (x *box) remote(i int) vipl.AddressSegment {
	return vipl.AddressSegment{Data: x.segs[i].Data, Handle: x.region.Handle()}
}

func postDesc(t testing.TB, v *vipl.VI, x *box, i int) {
	t.Helper()
	if err := v.PostSend(x.desc[i], x.region.Handle()); err != nil {
		t.Fatal(err)
	}
}

func segment(x *box, i, n int) vipl.DataSegment {
	s := x.segs[i]
	s.Length = uint32(n)
	return s
}

func TestRDMA(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n, va, vb, xa, xb := rdmaPair(t, memoryConfig{}, level)
		for k, size := range []int{0, 1, 64, 1424, 1425, boxSize} {
			fillPattern(xa.buf[0][:size], k)
			xa.desc[0].SetRDMAWrite(xb.remote(1), segment(xa, 0, size))
			postDesc(t, va, xa, 0)
			sent(t, va, vipl.StatusOpRDMAWrite)
			xa.desc[1].SetRDMAWrite(xb.remote(2), segment(xa, 1, 3))
			xa.desc[1].SetImmediate(uint32(77 + k))
			postRecv(t, vb, xb, 0, 16)
			postDesc(t, va, xa, 1)
			d, err := vb.RecvWait(patience)
			checkDone(t, "immediate", d, err, vipl.StatusOpRemoteRDMAWrite|vipl.StatusImmediate)
			if d.ImmediateData != uint32(77+k) || d.Length != 3 {
				t.Errorf("immediate %d, length %d", d.ImmediateData, d.Length)
			}
			checkPattern(t, xb.buf[1][:size], k)
			sent(t, va, vipl.StatusOpRDMAWrite)
			if level == vipl.UnreliableDelivery {
				continue
			}
			fillPattern(xb.buf[3][:size], 100+k)
			xa.desc[2].SetRDMARead(xb.remote(3), segment(xa, 2, size))
			postDesc(t, va, xa, 2)
			sent(t, va, vipl.StatusOpRDMARead)
			checkPattern(t, xa.buf[2][:size], 100+k)
		}
		if c := n.b.Counters(); c.Writes != 12 || level != vipl.UnreliableDelivery && c.Reads != 6 {
			t.Errorf("%+v", c)
		}
		n.b.errs.are(t)
	})
}

// The whole of a write is there when its last word is, and a program that only
// looks at memory sees it.
func TestLastWordLast(t *testing.T) {
	_, va, _, xa, xb := rdmaPair(t, memoryConfig{}, vipl.ReliableDelivery)
	const size = 6000
	last := wordOf(xb.buf[1][size-8:])
	for k := range uint64(50) {
		fillPattern(xa.buf[0][:size-8], int(k))
		wordOf(xa.buf[0][size-8:]).Store(k + 1)
		xa.desc[0].SetRDMAWrite(xb.remote(1), segment(xa, 0, size))
		postDesc(t, va, xa, 0)
		for last.Load() != k+1 {
			time.Sleep(time.Microsecond) // b neither posts nor polls
		}
		checkPattern(t, xb.buf[1][:size-8], int(k))
		sent(t, va, vipl.StatusOpRDMAWrite)
	}
}

// More reads than may be under way wait for their turn, and everything
// completes in order.
func TestManyReads(t *testing.T) {
	eachLevel(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n := newMemoryNet(t, memoryConfig{})
		va, vb := openVI(t, n.a.Nic, level), openVI(t, n.b.Nic, level)
		join(t, n.a.Nic, va, n.b.Nic, vb)
		xa, xb := newBox(t, n.a.Nic, 100, 4096), openBox(t, n.b.Nic)
		fillPattern(xb.buf[0], 5)
		postRecv(t, vb, xb, 3, 64)
		for i := range 100 {
			if i == 50 {
				xa.prepare(i, 8) // a send among the reads
				xa.desc[i].Control |= vipl.ControlQFence
			} else {
				r := xb.remote(0)
				r.Data += uint64(i * 100)
				xa.desc[i].SetRDMARead(r, segment(xa, i, 4096-i))
			}
			postDesc(t, va, xa, i)
		}
		for i := range 100 {
			d, err := va.SendWait(patience)
			if err != nil || d != xa.desc[i] {
				t.Fatalf("%d: %v, out of order: %v", i, err, d != xa.desc[i])
			}
			if i != 50 && !slices.Equal(xa.buf[i][:4096-i], xb.buf[0][i*100:i*100+4096-i]) {
				t.Fatalf("read %d brought other bytes", i)
			}
		}
		received(t, vb, 0)
	})
}

// A write that is cut short, or damaged, on an unreliable VI is told to its
// target; on a reliable one only the end of the connection cuts it short.
func TestWriteErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, va, _, xa, xb := rdmaPair(t, memoryConfig{bubble: true}, vipl.UnreliableDelivery)
		frames := 0
		n.a.queue.SetFaults(xdpnictest.Faults{Drop: func([]byte) bool { frames++; return frames == 2 }})
		xa.desc[0].SetRDMAWrite(xb.remote(0), segment(xa, 0, 5000))
		postDesc(t, va, xa, 0)
		sent(t, va, vipl.StatusOpRDMAWrite)
		n.b.errs.are(t, vipl.ErrorRDMAWriteAbort)

		n.a.queue.SetFaults(xdpnictest.Faults{Seed: 3, Corrupt: 1})
		for i := range 40 {
			xa.desc[1].SetRDMAWrite(xb.remote(0), segment(xa, 0, 1000))
			postDesc(t, va, xa, 1)
			sent(t, va, vipl.StatusOpRDMAWrite)
			synctest.Wait()
			if codes := n.b.errs.codes(); len(codes) > 0 {
				if codes[0] != vipl.ErrorRDMAWriteData {
					t.Errorf("frame %d: %v", i, codes)
				}
				return
			}
		}
		t.Error("40 corrupt frames, and none was told")
	})
	synctest.Test(t, func(t *testing.T) {
		c := memoryConfig{bubble: true, silence: vipl.DefaultSilence}
		n, va, vb, xa, xb := rdmaPair(t, c, vipl.ReliableReception)
		frames := 0
		n.a.queue.SetFaults(xdpnictest.Faults{Drop: func([]byte) bool { frames++; return frames > 2 }})
		xa.desc[0].SetRDMAWrite(xb.remote(0), segment(xa, 0, 5000))
		xa.desc[1].SetRDMARead(xb.remote(0), segment(xa, 1, 5000))
		postDesc(t, va, xa, 0)
		postDesc(t, va, xa, 1)
		sent(t, va, vipl.StatusTransportError|vipl.StatusOpRDMAWrite)
		sent(t, va, vipl.StatusFlushed|vipl.StatusOpRDMARead)
		stateIs(t, vb, vipl.Error)
		n.b.errs.are(t, vipl.ErrorRDMAWriteAbort, vipl.ErrorConnLost)
		n.a.errs.are(t, vipl.ErrorRDMATransport, vipl.ErrorConnLost)
	})
}

// Memory that is closed while a read is being served ends the read.
func TestReadOfClosedMemory(t *testing.T) {
	eachLevel(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
		synctest.Test(t, func(t *testing.T) {
			n, va, vb, xa, xb := rdmaPair(t, memoryConfig{bubble: true}, level)
			// Acknowledgements of a do not arrive: b's window closes in the answer.
			n.a.queue.SetFaults(xdpnictest.Faults{Delay: 10 * time.Millisecond})
			xa.desc[0].SetRDMARead(xb.remote(0), segment(xa, 0, boxSize))
			postDesc(t, va, xa, 0)
			time.Sleep(11 * time.Millisecond) // the request is there, and a part of the answer under way
			a, _ := xb.region.Query()
			a.EnableRdmaRead = false
			if err := xb.region.SetAttributes(a); err != nil {
				t.Fatal(err)
			}
			sent(t, va, vipl.StatusRemoteRDMAError|vipl.StatusOpRDMARead)
			stateIs(t, vb, vipl.Error)
			n.b.errs.are(t, vipl.ErrorRDMAReadProtection, vipl.ErrorConnLost)
			n.a.errs.are(t, vipl.ErrorConnLost)
		})
	})
}

// The answer to a read that was given long ago, more frames than half of all numbers,
// is not taken for one that the peer has still to get: an error ends the connection.
func TestAnswerOfLongAgo(t *testing.T) {
	n, va, vb, xa, xb := rdmaPair(t, memoryConfig{}, vipl.ReliableDelivery)
	xa.desc[0].SetRDMARead(xb.remote(0), segment(xa, 0, 64))
	postDesc(t, va, xa, 0)
	sent(t, va, vipl.StatusOpRDMARead)
	if !comes(func() bool { n.b.Poll(); n.a.Poll(); return vb.Skip(va, 1<<31) }) {
		t.Fatal("the answer is not acknowledged")
	}
	postSend(t, va, xa, 1, 64) // nobody has posted a receive for it
	stateIs(t, vb, vipl.Error)
	stateIs(t, va, vipl.Error)
}
