package vipl_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// openVI makes a VI whose memory the peer may write and, except on an unreliable one, read.
func openVI(t testing.TB, n *vipl.NIC, level vipl.ReliabilityLevel) *vipl.VI {
	t.Helper()
	return createVI(t, n, vipl.VIAttributes{Level: level, EnableRDMAWrite: true, EnableRDMARead: level != vipl.UnreliableDelivery}, nil, nil)
}

// openPair is a connected pair of such VIs, and openConnected one on a net of its own.
func openPair(t testing.TB, a, b *vipl.NIC, level vipl.ReliabilityLevel) (va, vb *vipl.VI) {
	t.Helper()
	va, vb = openVI(t, a, level), openVI(t, b, level)
	join(t, a, va, b, vb)
	return va, vb
}

func openConnected(t testing.TB, c memoryConfig, level vipl.ReliabilityLevel) (n *memoryNet, va, vb *vipl.VI) {
	t.Helper()
	n = newMemoryNet(t, c)
	va, vb = openPair(t, n.a.NIC, n.b.NIC, level)
	return n, va, vb
}

// rdmaPair is two connected VIs, each with memory that is open to the other.
func rdmaPair(t testing.TB, c memoryConfig, level vipl.ReliabilityLevel) (n *memoryNet, va, vb *vipl.VI, xa, xb *box) {
	t.Helper()
	n, va, vb = openConnected(t, c, level)
	return n, va, vb, openBox(t, n.a.NIC), openBox(t, n.b.NIC)
}

const boxSize = 256 << 10

func openBox(t testing.TB, n *vipl.NIC) *box {
	t.Helper()
	return openBoxOf(t, n, 4, boxSize)
}

// openBoxOf is newBox with memory that is open to peers.
func openBoxOf(t testing.TB, n *vipl.NIC, count, size int) *box {
	t.Helper()
	x := newBox(t, n, count, size)
	a, err := x.region.Query()
	must(t, err)
	a.EnableRDMAWrite, a.EnableRDMARead = true, true
	must(t, x.region.SetAttributes(a))
	return x
}

// remote names buffer i to the peer.
func (x *box) remote(i int) vipl.AddressSegment {
	return vipl.AddressSegment{Data: x.segs[i].Data, Handle: x.region.Handle()}
}

func postDesc(t testing.TB, v *vipl.VI, x *box, i int) {
	t.Helper()
	must(t, v.PostSend(x.desc[i], x.region.Handle()))
}

func segment(x *box, i, n int) vipl.DataSegment {
	s := x.segs[i]
	s.Length = uint32(n)
	return s
}

// A write that is cut short, or damaged, on an unreliable VI is reported at its target. On a reliable VI only
// the end of the connection cuts it short.
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
				errorIf(t, codes[0] != vipl.ErrorRDMAWriteData, "frame %d: %v", i, codes)
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

// On an unreliable VI a write to memory that is not open to it is refused and reported once, not for each of its frames, and
// the next write arrives.
func TestWriteIsRefusedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, va, _, xa, xb := rdmaPair(t, memoryConfig{bubble: true}, vipl.UnreliableDelivery)
		elsewhere := xb.remote(0)
		elsewhere.Handle++
		for i, to := range []vipl.AddressSegment{elsewhere, xb.remote(0)} {
			xa.desc[i].SetRDMAWrite(to, segment(xa, 0, 5000))
			postDesc(t, va, xa, i)
			sent(t, va, vipl.StatusOpRDMAWrite)
		}
		n.b.errs.are(t, vipl.ErrorRDMAWriteProtection)
		s := n.b.Counters()
		errorIf(t, s.RDMARefused != 1 || s.Writes != 1, "%d writes were refused, and %d arrived", s.RDMARefused, s.Writes)
	})
}

// A peer's write to memory that the program itself cannot write is refused, and does not end the program by a signal.
func TestWriteToReadOnlyMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, va, _, xa, _ := rdmaPair(t, memoryConfig{bubble: true}, vipl.UnreliableDelivery)
		mem, err := unix.Mmap(-1, 0, 8192, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		must(t, err)
		defer unix.Munmap(mem)
		region, err := n.b.RegisterMem(mem, vipl.MemAttributes{Ptag: n.b.CommonPtag(), EnableRDMAWrite: true})
		must(t, err)
		defer region.Deregister()
		xa.desc[0].SetRDMAWrite(region.Remote(0), segment(xa, 0, 5000))
		postDesc(t, va, xa, 0)
		sent(t, va, vipl.StatusOpRDMAWrite)
		n.b.errs.are(t, vipl.ErrorRDMAWriteProtection)
		a, err := region.Query()
		errorIf(t, err != nil || a.EnableRDMAWrite, "%+v, %v", a, err)
	})
}

// Memory that is closed while a read is being served ends the read.
func TestReadOfClosedMemory(t *testing.T) {
	eachLevelInBubble(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n, va, vb, xa, xb := rdmaPair(t, memoryConfig{bubble: true}, level)
		// Acknowledgements of a do not arrive: b's window closes in the answer.
		n.a.queue.SetFaults(xdpnictest.Faults{Delay: 10 * time.Millisecond})
		xa.desc[0].SetRDMARead(xb.remote(0), segment(xa, 0, boxSize))
		postDesc(t, va, xa, 0)
		time.Sleep(11 * time.Millisecond) // the request is there, and a part of the answer under way
		a, _ := xb.region.Query()
		a.EnableRDMARead = false
		must(t, xb.region.SetAttributes(a))
		sent(t, va, vipl.StatusRemoteRDMAError|vipl.StatusOpRDMARead)
		stateIs(t, vb, vipl.Error)
		n.b.errs.are(t, vipl.ErrorRDMAReadProtection, vipl.ErrorConnLost)
		n.a.errs.are(t, vipl.ErrorConnLost)
	})
}

// The answer to a read that was given long ago, more frames than half of all numbers,
// is not taken for one that the peer has still to get: an error ends the connection.
func TestAnswerOfLongAgo(t *testing.T) {
	n, va, vb, xa, xb := rdmaPair(t, memoryConfig{}, vipl.ReliableDelivery)
	xa.desc[0].SetRDMARead(xb.remote(0), segment(xa, 0, 64))
	postDesc(t, va, xa, 0)
	sent(t, va, vipl.StatusOpRDMARead)
	fatalIf(t, !comes(func() bool { n.b.Poll(); n.a.Poll(); return vb.Skip(va, 1<<31) }), "the answer is not acknowledged")
	postSend(t, va, xa, 1, 64) // no receive is posted for it
	statesAre(t, vipl.Error, vb, va)
}

// A side whose reads are still being answered has a live path, however long that takes: a write that the peer has refused behind
// them is not acknowledged before the last answer, and fails for what it was refused for.
func TestRefusalBehindLongAnswers(t *testing.T) {
	const size, reads = 1 << 20, 16
	eachLevelInBubble(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
		const silence = 100 * time.Millisecond
		n, va, _ := openConnected(t, memoryConfig{bubble: true, arena: 8 << 20, silence: silence}, level)
		xa, into, xb := newBox(t, n.a.NIC, reads+1, 64), newBox(t, n.a.NIC, 1, size), openBoxOf(t, n.b.NIC, 1, size)
		n.wire.SetFaults(xdpnictest.Faults{Delay: 12 * time.Millisecond})
		start := time.Now()
		for i := range reads {
			xa.desc[i].SetRDMARead(xb.remote(0), segment(into, 0, size))
			postDesc(t, va, xa, i)
		}
		xa.desc[reads].SetRDMAWrite(vipl.AddressSegment{Data: 1 << 20, Handle: 1}, segment(xa, reads, 64))
		postDesc(t, va, xa, reads)
		for range reads {
			sent(t, va, vipl.StatusOpRDMARead)
		}
		took := time.Since(start)
		fatalIf(t, took < 2*silence, "the answers took %v only", took)
		s := stateIs(t, va, vipl.Error)
		errorIf(t, !strings.Contains(fmt.Sprint(s.Cause), "the peer broke the connection"), "cause %v", s.Cause)
		n.b.errs.are(t, vipl.ErrorRDMAWriteProtection, vipl.ErrorConnLost)
	})
}
