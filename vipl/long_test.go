package vipl_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/await"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// longFrames is a net with the largest MTU, on queues that take frames of
// several chunks.
var longFrames = memoryConfig{
	mtu: 65535, arena: 8 << 20,
	queue: xdpnictest.Config{ChunkSize: 4096, MultiBuffer: true, RxChunks: 512, TxChunks: 512},
}

// Data in the arena is sent by reference on reliable VIs. Other memory, and what unreliable VIs send, is copied.
// Either way it arrives. Empty segments are passed over.
func TestLongFrames(t *testing.T) {
	const most = 200_000
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n, va, vb := connected(t, longFrames, level)
		xb := newBox(t, n.b.NIC, 1, most)
		xa, own := newBoxOf(t, n.a.NIC, mustTag(t, n.a.NIC), 1, 3, (most+63)&^63), registered(t, n.a.NIC, most)
		for k, size := range []int{3750, 3751, 4006, 4007, 4096, 9000, 65_439, 65_440, most} {
			for _, from := range []*box{xa, own} {
				before := n.a.Counters().ByReference
				fillPattern(from.buf[0][:size], k)
				postRecv(t, vb, xb, 0, size)
				from.prepare(0, size)
				if from == xa {
					from.desc[0].SetSegments(vipl.DataSegment{}, segment(from, 0, size), vipl.DataSegment{})
				}
				postDesc(t, va, from, 0)
				receivedMessage(t, vb, xb.buf[0][:size], k)
				sent(t, va, 0)
				// What is shorter fits in a chunk; a message alone goes in frames of 24 KB.
				least, most := uint64(0), uint64(0)
				if from == xa && level != vipl.UnreliableDelivery && size > 4006 {
					least, most = uint64(1+(size-4007)/65_439), uint64(1+size/24_576)
				}
				byRef := n.a.Counters().ByReference - before
				errorIf(t, byRef < least || byRef > most, "%d bytes, arena %v: %d frames lent, want %d to %d", size, from == xa, byRef, least, most)
			}
		}
		s := n.b.Counters()
		errorIf(t, s.Chained == 0 || s.Malformed+s.Corrupt > 0, "%+v", s)
	})
}

// registered is a box whose data is memory of the program's own.
func registered(t testing.TB, n *vipl.NIC, size int) *box {
	t.Helper()
	x := newBox(t, n, 1, 64)
	attributes, err := x.region.Query()
	must(t, err)
	r, err := n.RegisterMem(make([]byte, size), attributes)
	must(t, err)
	x.buf[0] = r.Bytes()
	x.segs[0] = r.Segment(0, size)
	return x
}

// A frame sent by reference is needed until the peer has it: the send is not done before, and a retransmission has
// the current contents of the program's memory.
func TestSendByReferenceIsDoneWithTheAcknowledgement(t *testing.T) {
	eachLevel(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n, va, vb, xa, xb := connectedBoxes(t, longFrames, level, 1, 1, 32_000)
		postRecv(t, vb, xb, 0, 32_000)
		n.b.queue.Cut(true)
		postMessage(t, va, xa, 0, 32_000, 1)
		for range 100 {
			nothingDone(t, va.SendDone, vipl.ErrNotDone)
			time.Sleep(50 * time.Microsecond)
		}
		d := xa.desc[0]
		fatalIf(t, d.Status() != 0, "status %v", d.Status())
		n.b.queue.Cut(false)
		received(t, vb, 0)
		sent(t, va, 0)
		checkPattern(t, xb.buf[0][:32_000], 1)
		errorIf(t, n.a.Counters().Resent == 0, "nothing was sent again")
	})
}

// Memory whose sends are copied is the program's again when the NIC has them, although it is in the arena: what is written
// to it then is in no retransmission. At Reliable Reception the peer has to have them. The attribute holds until it is changed.
func TestCopySends(t *testing.T) {
	eachLevel(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n, va, vb, xa, xb := connectedBoxes(t, longFrames, level, 1, 1, 32_000)
		a, err := xa.region.Query()
		must(t, err)
		for i, copies := range []bool{true, false, true} {
			a.CopySends = copies
			must(t, xa.region.SetAttributes(a))
			now, err := xa.region.Query()
			errorIf(t, err != nil || now.CopySends != copies, "%+v, %v", now, err)
			before := n.a.Counters()
			postRecv(t, vb, xb, 0, 32_000)
			n.b.queue.Cut(true)
			postMessage(t, va, xa, 0, 32_000, i)
			early := copies && level == vipl.ReliableDelivery
			if early {
				sent(t, va, 0)
				fillPattern(xa.buf[0][:32_000], 100)
			} else {
				for range 20 { // a while in which it must not be done
					nothingDone(t, va.SendDone, vipl.ErrNotDone)
					time.Sleep(50 * time.Microsecond)
				}
			}
			await.Until(t, "a retransmission", func() bool { n.a.Poll(); return n.a.Counters().Resent > before.Resent })
			n.b.queue.Cut(false)
			receivedMessage(t, vb, xb.buf[0][:32_000], i)
			if !early {
				sent(t, va, 0)
			}
			byRef := n.a.Counters().ByReference > before.ByReference
			errorIf(t, byRef == copies, "send %d is copied: %v, want %v", i, !byRef, copies)
		}
	})
}

// If Disconnect ends a message with only some frames under way, the program gets its memory back when none of it is
// read for a frame any more.
func TestDisconnectInTheMiddleOfAMessageByReference(t *testing.T) {
	eachLevelInBubble(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
		c := longFrames
		c.bubble, c.queue.RxChunks = true, 64 // so that the peer's window closes before its end
		n, va, vb, xa, xb := rdmaPair(t, c, level)
		fillPattern(xa.buf[0], 1)
		xa.desc[0].SetRDMAWrite(xb.remote(0), segment(xa, 0, boxSize))
		n.b.queue.Cut(true)
		postDesc(t, va, xa, 0)
		over := starts(va.Disconnect)
		synctest.Wait() // it waits for the peer
		if xa.desc[0].Status() != 0 {
			fillPattern(xa.buf[0], 2)
		}
		n.b.queue.Cut(false)
		noError(t, <-over)
		sent(t, va, vipl.StatusOpRDMAWrite|vipl.StatusFlushed)
		stateIs(t, vb, vipl.Error)
		came := len(xb.buf[0])
		for came > 0 && xb.buf[0][came-1] == 0 {
			came--
		}
		if c := n.a.Counters(); c.ByReference == 0 || c.Resent == 0 || came == len(xb.buf[0]) {
			t.Fatalf("%d bytes of %d have come: %+v", came, len(xb.buf[0]), c)
		}
		checkPattern(t, xb.buf[0][:came], 1)
		errorIf(t, came < 4096, "%d bytes have come of what was on its way", came)
	})
}

// What is posted while Disconnect waits for memory sent by reference is flushed behind what was posted before.
func TestPostBesideDisconnectOfAMessageByReference(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := longFrames
		c.bubble, c.queue.RxChunks = true, 64
		n, va, vb := connected(t, c, vipl.ReliableDelivery)
		xa, xb, own := newBox(t, n.a.NIC, 2, 32_000), newBox(t, n.b.NIC, 2, 400_000), registered(t, n.a.NIC, 400_000)
		postRecv(t, vb, xb, 0, 400_000)
		postRecv(t, vb, xb, 1, 400_000)
		n.b.queue.SetFaults(xdpnictest.Faults{Delay: 3 * time.Millisecond})
		postSend(t, va, xa, 0, 32_000) // lent
		n.a.queue.SetFaults(faultsDropping(func(p *wire.Packet) bool { return p.Kind == wire.KindData }))
		postSend(t, va, own, 0, 400_000) // copied, and some of it waits for the window
		if d := sent(t, va, 0); d != xa.desc[0] || own.desc[0].Status() != 0 {
			t.Fatalf("%v, want it posted, and frames of it under way", own.desc[0].Status())
		}
		over := starts(va.Disconnect)
		synctest.Wait()
		postSend(t, va, xa, 1, 8)
		noError(t, <-over)
		for i, want := range []*vipl.Descriptor{own.desc[0], xa.desc[1]} {
			equal(t, fmt.Sprintf("send %d", i), sent(t, va, vipl.StatusFlushed), want)
		}
		wantError(t, "and one more", errOf(va.SendDone()), vipl.ErrDescriptor)
	})
}

// Messages that share a frame may be cut by the receiver's chunks, which are
// smaller than the sender thinks.
func TestPackInSeveralChunks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // in which time does not pass between two posts
		c := longFrames
		c.bubble = true
		n := newMemoryNet(t, c)
		small := c
		small.queue.ChunkSize, small.queue.RxChunks = 2048, 1024
		n.b = n.open(t, "small", small)
		va, vb := connect(t, n.a.NIC, n.b.NIC, vipl.ReliableDelivery)
		const count, size = 400, 48
		xa, xb := newBox(t, n.a.NIC, count, size), newBox(t, n.b.NIC, count, size)
		for i := range count {
			postRecv(t, vb, xb, i, size)
			fillPattern(xa.buf[i][:size], i)
		}
		for i := range count {
			xa.prepare(i, size)
		}
		// In one go: the first frame is full.
		listed(t, "sends", count, nil)(va.PostSends(xa.desc, xa.region.Handle()))
		for i := range count {
			receivedMessage(t, vb, xb.buf[i][:size], i)
			sent(t, va, 0)
		}
		a, b := n.a.Counters(), n.b.Counters()
		errorIf(t, a.Packed == 0 || b.Chained == 0, "%d messages packed, %d frames in several chunks", a.Packed, b.Chained)
	})
}

// Disconnect does not give back memory that the peer may still need: a send by reference is done when it is
// acknowledged, or when none of its memory is read any more.
func TestDisconnectWithSendByReference(t *testing.T) {
	eachLevel(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
		for _, heals := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) { disconnectWithSendByReference(t, level, heals) })
		}
	})
}

func disconnectWithSendByReference(t *testing.T, level vipl.ReliabilityLevel, heals bool) {
	c := longFrames
	c.bubble, c.silence = true, time.Second // b may learn of the end by it
	n, va, vb, xa, xb := connectedBoxes(t, c, level, 1, 1, 32_000)
	postRecv(t, vb, xb, 0, 32_000)
	n.b.queue.Cut(true)
	postMessage(t, va, xa, 0, 32_000, 1)
	done := starts(va.Disconnect)
	if heals {
		time.Sleep(20 * time.Millisecond)
		nothingDone(t, va.SendDone, vipl.ErrNotDone)
		n.b.queue.Cut(false)
	}
	d, err := va.SendWait(ackDelay)
	fatalIf(t, d == nil, "%v", err)
	fillPattern(xa.buf[0], 2) // it is the program's again
	n.b.queue.Cut(false)
	must(t, <-done)
	r, err := vb.RecvWait(ackDelay)
	switch {
	case heals && err != nil:
		t.Fatalf("receive: %v %v", r, err)
	case err == nil:
		checkPattern(t, xb.buf[0][:32_000], 1)
	case heals || r.Status()&vipl.StatusFlushed == 0:
		t.Errorf("receive: %v %v", r.Status(), err)
	}
}

// Frames that a broken connection leaves on the ring are not sent after the program has got their memory back:
// no checksum would reveal the changed data to the peer, which receives the end after them.
func TestMemoryByReferenceOfABrokenConnection(t *testing.T) {
	eachLevel(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
		for _, bare := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				c := longFrames
				c.bubble, c.bareData = true, bare
				n, va, vb, xa, xb := connectedBoxes(t, c, level, 1, 2, 32_000)
				postRecv(t, vb, xb, 0, 32_000)
				n.a.queue.SetLies(xdpnictest.Lies{Stall: 1})
				postMessage(t, va, xa, 0, 32_000, 1)
				postSend(t, vb, xb, 1, 8) // nothing is posted for it
				want := vipl.Status(0)    // on the ring, for what that is worth
				if level == vipl.ReliableReception {
					want = vipl.StatusFlushed
				}
				sent(t, va, want)
				stateIs(t, va, vipl.Error)
				fatalIf(t, n.a.Counters().ByReference == 0 || n.a.queue.Pending() == 0, "nothing lent is on the ring")
				fillPattern(xa.buf[0], 2)
				n.a.queue.SetLies(xdpnictest.Lies{})
				received(t, vb, vipl.StatusFlushed)
				stateIs(t, vb, vipl.Error)
				if n := n.a.queue.Pending(); n > 0 {
					t.Errorf("%d entries are on the ring", n)
				}
			})
		}
	})
}

// The last word of a write is written in one piece, also when the frame's last
// chunk has less than a word of it.
func TestLastWordOfALongWrite(t *testing.T) {
	n, va, _ := openConnected(t, longFrames, vipl.ReliableDelivery)
	const size = 3754
	xa, xb := newBox(t, n.a.NIC, 1, 4096), openBox(t, n.b.NIC)
	end := (int(xb.segs[0].Data) + size + 7) &^ 7 // a multiple of 8
	remote := xb.remote(0)
	remote.Data = uint64(end - size)
	word := wordOf(xb.buf[0][end-8-int(xb.segs[0].Data):])
	var over atomic.Bool
	torn := make(chan int)
	go func() {
		count := 0
		for !over.Load() {
			if v := word.Load(); v != 0 && v != ^uint64(0) {
				count++
			}
		}
		torn <- count
	}()
	for k := range 8000 {
		b := xa.buf[0][:size]
		for i := range b {
			b[i] = byte(-(k & 1))
		}
		xa.desc[0].SetRDMAWrite(remote, segment(xa, 0, size))
		postDesc(t, va, xa, 0)
		sent(t, va, vipl.StatusOpRDMAWrite)
	}
	over.Store(true)
	count := <-torn
	errorIf(t, count > 0, "the last word was seen torn %d times", count)
	errorIf(t, n.b.Counters().Chained == 0, "no frame was in several chunks")
}

// The window counts the receiver's chunks that frames take: however fast long frames are sent, none finds an empty
// fill ring.
func TestLongFramesFitTheReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // in which no frame is sent again for being slow
		c := longFrames
		c.bubble = true
		c.queue.RxChunks = 256
		n, va, vb := connected(t, c, vipl.ReliableDelivery)
		const count, size = 60, 60_000
		xa, xb := newBox(t, n.a.NIC, count, size), newBox(t, n.b.NIC, count, size)
		for i := range count {
			fillPattern(xa.buf[i][:size], i)
			postRecv(t, vb, xb, i, size)
		}
		for i := range count {
			postSend(t, va, xa, i, size)
		}
		for i := range count {
			receivedMessage(t, vb, xb.buf[i][:size], i)
			sent(t, va, 0)
		}
		s := n.b.queue.Stats()
		errorIf(t, s.RxNoFill+s.RxRingFull > 0, "%d frames found no chunks, %d no room on the ring", s.RxNoFill, s.RxRingFull)
	})
}
