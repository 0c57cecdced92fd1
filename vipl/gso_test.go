package vipl_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/testsize"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

const gsoLeast = 3 // frames of a packet

// pollUntil calls ok until it returns true.
func pollUntil(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(ackDelay); !ok(); runtime.Gosched() {
		fatalIf(t, time.Now().After(end), "%s: not in %v", what, ackDelay)
	}
}

// carry sends a message, and polls until it has arrived.
func carry(t *testing.T, from, to *vipl.VI, xf, xt *box, size int) {
	t.Helper()
	postRecv(t, to, xt, 1, size)
	postSend(t, from, xf, 0, size)
	pollUntil(t, "a message", func() bool { from.SendDone(); d, _ := to.RecvDone(); return d != nil })
}

// exchange sends messages of random lengths in both directions at once, and compares every byte.
func exchange(t *testing.T, va, vb *vipl.VI, xa, xb *box, messages, most int, seed uint64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 0))
	slots := len(xa.desc) / 2 // half of a box sends, the other half receives
	type side struct {
		send, recv *vipl.VI
		xs, xr     *box
		sent, came int
		lengths    []int
	}
	sides := []*side{{send: va, recv: vb, xs: xa, xr: xb}, {send: vb, recv: va, xs: xb, xr: xa}}
	for _, s := range sides {
		for i := range slots {
			postRecv(t, s.recv, s.xr, slots+i, most)
		}
	}
	pollUntil(t, "all messages", func() bool {
		over := true
		for _, s := range sides {
			for s.sent < messages && s.sent-s.came < slots {
				i, n := s.sent%slots, 1+rng.IntN(most)
				fillPattern(s.xs.buf[i][:n], s.sent)
				s.xs.desc[i].Control = 0
				s.xs.desc[i].SetSegments(segment(s.xs, i, n))
				must(t, s.send.PostSend(s.xs.desc[i], s.xs.region.Handle()))
				s.lengths = append(s.lengths, n)
				s.sent++
			}
			for d, _ := s.send.SendDone(); d != nil; d, _ = s.send.SendDone() {
				fatalIf(t, d.Status().Failed(), "a send is over with %v", d.Status())
			}
			for d, _ := s.recv.RecvDone(); d != nil; d, _ = s.recv.RecvDone() {
				i := slots + s.came%slots
				if n := s.lengths[s.came]; d != s.xr.desc[i] || int(d.Length) != n {
					t.Fatalf("message %d has %d bytes and not %d", s.came, d.Length, n)
				}
				checkPattern(t, s.xr.buf[i][:d.Length], s.came)
				s.came++
				postRecv(t, s.recv, s.xr, i, most)
			}
			over = over && s.came == messages
		}
		return over
	})
}

// Long messages leave in GSO packets. They arrive unharmed, whether the packets are divided on the way or not, sealed or
// plain, and at reliable levels also when the wire loses, repeats, reorders and damages them. Those of unreliable VIs leave in
// packets once the peer has answered the first one.
func TestGSOPackets(t *testing.T) {
	for _, way := range []string{"whole", "divided"} {
		for _, level := range levels {
			for _, faulty := range []bool{false, true} {
				for _, sealed := range []bool{false, true} {
					if faulty && level == vipl.UnreliableDelivery {
						continue
					}
					t.Run(fmt.Sprintf("%s/%v/faulty=%v/sealed=%v", way, level, faulty, sealed), func(t *testing.T) {
						testGSOPackets(t, way, level, faulty, sealed)
					})
				}
			}
		}
	}
}

func testGSOPackets(t *testing.T, way string, level vipl.ReliabilityLevel, faulty, sealed bool) {
	c := memoryConfig{gso: way, queue: gsoQueue, arena: 8 << 20}
	if sealed {
		c.psk = testPSK(t, 1)
	}
	slots, messages, most := 8, 40, 100_000
	if level == vipl.UnreliableDelivery { // whose peer must have room
		slots, messages, most = 2, 60, 60_000
	}
	n, va, vb, xa, xb := connectedBoxes(t, c, level, slots, slots, most)
	seed := testsize.Seed(t)
	if faulty {
		n.wire.SetFaults(xdpnictest.Faults{Seed: seed, Loss: 0.02, Dup: 0.02, Corrupt: 0.02, Reorder: 0.03})
	}
	exchange(t, va, vb, xa, xb, messages, most, seed)
	n.wire.SetFaults(xdpnictest.Faults{})
	for _, h := range []*memoryHost{n.a, n.b} {
		c := h.Counters()
		errorIf(t, c.GSOErrors != 0, "%d packets were refused", c.GSOErrors)
		errorIf(t, c.GSOSentFrames < gsoLeast*c.GSOSent, "%d frames in %d packets", c.GSOSentFrames, c.GSOSent)
		if faulty {
			continue
		}
		errorIf(t, c.GSOSent == 0, "no packet left: %+v", c)
		errorIf(t, (c.GSOReceived > 0) != (way == "whole"), "%d packets arrived whole", c.GSOReceived)
		errorIf(t, c.GSOReceivedFrames < gsoLeast*c.GSOReceived, "%d frames in %d packets arrived", c.GSOReceivedFrames, c.GSOReceived)
		if level == vipl.UnreliableDelivery {
			errorIf(t, c.GSOSent < uint64(messages/2), "%d packets left", c.GSOSent)
			errorIf(t, c.Acks > uint64(messages/2), "%d acknowledgements", c.Acks)
		}
	}
}

// All frames to a handle have the port of its queue, in GSO packets and alone: messages, acknowledgements, the disconnect.
func TestPortOfQueue(t *testing.T) {
	for _, way := range []string{"", "whole", "divided"} {
		t.Run("packets "+way, func(t *testing.T) {
			const most, offset = 100_000, 7
			n, va, vb, xa, xb := connectedBoxes(t, memoryConfig{gso: way, queue: gsoQueue, arena: 8 << 20, portOffset: offset},
				vipl.ReliableDelivery, 8, 8, most)
			var frames [2]atomic.Int64
			for i, h := range []*memoryHost{n.a, n.b} {
				want := wire.Port + offset*(1-i) // of what the host sends
				h.queue.SetFaults(xdpnictest.Faults{Drop: func(frame []byte) bool {
					ip := 20
					if frame[14]>>4 == 6 {
						ip = 40
					}
					port := int(binary.BigEndian.Uint16(frame[14+ip+2:]))
					errorIf(t, port != want, "host %d sends to port %d, want %d", i, port, want)
					frames[i].Add(1)
					return false
				}})
			}
			exchange(t, va, vb, xa, xb, 20, most, testsize.Seed(t))
			errorIf(t, way != "" && n.a.Counters().GSOSent == 0, "no packet left")
			noError(t, va.Disconnect())
			errorIf(t, frames[0].Load() == 0 || frames[1].Load() == 0, "%d and %d frames", frames[0].Load(), frames[1].Load())
		})
	}
}

// A side that receives no GSO packets gets none. One that sends none receives them.
func TestGSOIsAgreed(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		unable := memoryConfig{gso: "whole", arena: 8 << 20}
		n := newMemoryNet(t, gsoFrames)
		n.b = n.open(t, "unable", unable)
		va, vb := connect(t, n.a.NIC, n.b.NIC, level)
		exchange(t, va, vb, newBox(t, n.a.NIC, 2, 50_000), newBox(t, n.b.NIC, 2, 50_000), 20, 50_000, 1)
		a, b := n.a.Counters(), n.b.Counters()
		errorIf(t, a.GSOSent != 0, "%d packets went to a side that takes none", a.GSOSent)
		errorIf(t, b.GSOSent == 0 || a.GSOReceived == 0, "%d packets came from the other side, of %d", a.GSOReceived, b.GSOSent)
	})
}

// A peer that has not heard how long frames are, as the acknowledgement that told it was lost, cannot divide a sealed packet. It
// is told again after the first one.
func TestGSOSealedAgreedLate(t *testing.T) {
	c := gsoFrames
	c.psk = testPSK(t, 1)
	n := newMemoryNet(t, c)
	var frames atomic.Int64
	n.a.queue.SetFaults(xdpnictest.Faults{Drop: func([]byte) bool { return frames.Add(1) == 1 }})
	va, vb := connect(t, n.a.NIC, n.b.NIC, vipl.ReliableDelivery)
	xa, xb := newBox(t, n.a.NIC, 1, 50_000), newBox(t, n.b.NIC, 2, 50_000)
	pollUntil(t, "packets", func() bool {
		carry(t, va, vb, xa, xb, 50_000)
		tried, c := n.a.Counters().GSOSent, n.b.Counters()
		fatalIf(t, tried > 4 && c.GSOReceived == 0, "of %d packets none was divided: %+v", tried, c)
		return c.GSOReceived > 0
	})
}

// A side asks a peer that has not said what packets it takes, as the acknowledgement that said it was lost: answers may carry all
// others.
func TestGSOAsksLate(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		const rounds, size = 20, 12 * 1424
		n := newMemoryNet(t, gsoFrames)
		var frames atomic.Int64
		n.b.queue.SetFaults(xdpnictest.Faults{Drop: func([]byte) bool { return frames.Add(1) == 1 }})
		va, vb := connect(t, n.a.NIC, n.b.NIC, level)
		xa, xb := newBox(t, n.a.NIC, 2, size), newBox(t, n.b.NIC, 2, size)
		for range rounds {
			carry(t, va, vb, xa, xb, size)
			carry(t, vb, va, xb, xa, size)
		}
		left := n.a.Counters().GSOSent
		errorIf(t, left < rounds/2, "%d packets left in %d messages", left, rounds)
	})
}

// What the kernel refuses goes by the TX ring, and nothing is lost.
func TestGSORefused(t *testing.T) {
	for _, err := range []error{unix.EAGAIN, unix.EIO, unix.EMSGSIZE, unix.EPERM} {
		t.Run(err.Error(), func(t *testing.T) {
			var calls atomic.Uint64
			c := memoryConfig{gso: "whole", queue: gsoQueue, arena: 8 << 20, gsoFails: func() error { calls.Add(1); return err }}
			n, va, vb, xa, xb := connectedBoxes(t, c, vipl.ReliableDelivery, 8, 8, 50_000)
			exchange(t, va, vb, xa, xb, 40, 50_000, 1)
			a, b := n.a.Counters(), n.b.Counters()
			errorIf(t, a.GSOErrors == 0 || a.GSOSent != 0, "%+v", a)
			errorIf(t, calls.Load() != a.GSOErrors+b.GSOErrors, "%d calls, %d and %d errors", calls.Load(), a.GSOErrors, b.GSOErrors)
			errorIf(t, errors.Is(err, unix.EIO) && calls.Load() > 2, "%d calls, though the interface cannot", calls.Load())
		})
	}
}

// A path that loses every GSO packet, but not frames: connections stop using them, and everything arrives.
func TestGSOThatNeverArrives(t *testing.T) {
	n, va, vb, xa, xb := connectedBoxes(t, gsoFrames, vipl.ReliableDelivery, 8, 8, 50_000)
	n.wire.SetFaults(xdpnictest.Faults{Drop: func(frame []byte) bool { return len(frame) > 1514 }})
	exchange(t, va, vb, xa, xb, 60, 50_000, 1)
	n.wire.SetFaults(xdpnictest.Faults{})
	a := n.a.Counters()
	errorIf(t, a.GSOSent == 0 || a.GSOSent > 8, "%d packets were tried", a.GSOSent)
}

// On a path that loses every packet, neither frames that were too few for one prove that packets arrive, nor do retransmissions
// of those of a lost one. Each time one packet is tried, and the messages after it go by the TX ring.
func TestGSOIsNotProvenByFrames(t *testing.T) {
	const full = 1424 // bytes of data of a full frame
	for _, c := range []struct {
		name string
		send func(t *testing.T, long func(frames int), lose func(), short func())
	}{
		{"too few for a packet", func(_ *testing.T, long func(int), _, _ func()) {
			long(2)
			long(8)
		}},
		{"sent again", func(_ *testing.T, long func(int), lose, short func()) {
			lose() // so the congestion window, full of short messages, opens with the loss, and a packet leaves at that moment
			for range 20 {
				short()
			}
			long(8)
		}},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			const slots = 64
			n, va, vb, xa, xb := connectedBoxes(t, memoryConfig{gso: "whole", queue: gsoQueue, arena: 8 << 20, noPacking: true, bubble: true},
				vipl.ReliableDelivery, slots, slots, 8*full)
			exchangeOne(t, va, vb, xa, xb)
			defer n.a.WithoutBackground()() // the order of events is that of finish
			defer n.b.WithoutBackground()()
			lost := false
			n.a.queue.SetFaults(xdpnictest.Faults{Delay: time.Millisecond, Drop: func(frame []byte) bool {
				once := lost
				lost = false
				return once || len(frame) > 1514
			}})
			n.b.queue.SetFaults(xdpnictest.Faults{Delay: time.Millisecond})
			posted := 0
			post := func(size int) {
				postRecv(t, vb, xb, posted, 8*full)
				postSend(t, va, xa, posted, size)
				posted++
			}
			finish := func() {
				for came := 0; came < posted; time.Sleep(100 * time.Microsecond) { // virtual time
					if d, _ := vb.RecvDone(); d != nil {
						came++
					}
					va.SendDone()
					n.a.Poll()
				}
				posted = 0
			}
			c.send(t, func(frames int) { post(frames * full) }, func() { lost = true }, func() { post(600) })
			finish()
			tried := n.a.Counters().GSOSent
			equal(t, "packets that were tried", tried, 1)
			for range 3 {
				post(8 * full)
				finish()
			}
			equal(t, "packets that were tried at once after it", n.a.Counters().GSOSent, tried)
		})
	}
}

// A path that loses every packet, but not frames: a message of an unreliable VI is lost with the first packet, and now and
// then with one that tries again. The others leave by the TX ring, and arrive.
func TestGSOUnreliableThatNeverArrives(t *testing.T) {
	n, va, vb, xa, xb := connectedBoxes(t, gsoFrames, vipl.UnreliableDelivery, 8, 8, 30_000)
	n.wire.SetFaults(xdpnictest.Faults{Drop: func(frame []byte) bool { return len(frame) > 1514 }})
	postRecvs(t, vb, xb, 8, 30_000)
	tries, came := 0, 0
	for begin := time.Now(); time.Since(begin) < time.Second; tries++ {
		postSend(t, va, xa, 0, 30_000)
		sent(t, va, 0)
		time.Sleep(time.Millisecond)
		for d, _ := vb.RecvDone(); d != nil; d, _ = vb.RecvDone() {
			came++
			postRecv(t, vb, xb, slices.Index(xb.desc, d), 30_000)
		}
	}
	packets := n.a.Counters().GSOSent
	errorIf(t, packets == 0 || packets > 8, "%d packets were tried", packets)
	errorIf(t, came < tries-2*int(packets), "%d of %d messages arrived", came, tries)
}

// Packets become longer until a message of 64 KiB is two.
func TestGSOPacketsGrow(t *testing.T) {
	n, va, vb, xa, xb := connectedBoxes(t, gsoFrames, vipl.ReliableDelivery, 2, 2, 65536)
	var packets []uint64
	for range 1000 { // a host that is descheduled may take frames for lost
		before := n.a.Counters()
		carry(t, va, vb, xa, xb, 65536)
		packets = append(packets, n.a.Counters().GSOSent-before.GSOSent)
		if len(packets) > 1 && packets[len(packets)-1] == 2 {
			return
		}
	}
	t.Errorf("packets of each message: %d", packets)
}

// The packet that leaves while nothing is under way is shorter than those behind it.
func TestGSOFirstPacketIsShort(t *testing.T) {
	const size = 256 << 10
	n, va, vb, xa, xb := connectedBoxes(t, gsoFrames, vipl.ReliableDelivery, 2, 2, size)
	var mu sync.Mutex
	var packets []int
	n.wire.SetFaults(xdpnictest.Faults{Drop: func(frame []byte) bool {
		mu.Lock()
		defer mu.Unlock()
		if len(frame) > 1514 {
			packets = append(packets, len(frame))
		}
		return false
	}})
	for range 1000 { // packets grow; a host that is descheduled may take frames for lost
		mu.Lock()
		packets = packets[:0]
		mu.Unlock()
		carry(t, va, vb, xa, xb, size)
		postRecv(t, va, xa, 1, 64)
		postSend(t, vb, xb, 1, 64) // with it comes the acknowledgement: nothing is under way
		received(t, va, 0)
		pollUntil(t, "the end of the send", func() bool { d, _ := vb.SendDone(); return d != nil })
		mu.Lock()
		first, longest := packets[0], slices.Max(packets)
		mu.Unlock()
		fatalIf(t, first > 48_000, "packets of %d bytes", packets)
		if first > 45_000 && longest > 64_000 {
			return
		}
	}
	t.Errorf("packets have not become longer than %d bytes", packets)
}

// A peer that acknowledges frames which still wait for the doorbell does not get the chunks' next contents: the frames leave
// first, with their own. newMemoryNet finds chunks that are used wrongly.
func TestGSOAcknowledgedEarly(t *testing.T) {
	n, va, vb, xa, xb := connectedBoxes(t, gsoFrames, vipl.ReliableDelivery, 2, 2, 4096)
	exchangeOne(t, va, vb, xa, xb)  // by then the peer has said that it takes packets
	defer n.a.WithoutBackground()() // it would ring the doorbell
	defer n.b.WithoutBackground()() // it would send its message again, and an acknowledgement would ring
	n.a.Poll()
	template := templateTo(t, n.b, n.a)
	q := n.attacker(t, xdpnictest.Config{})
	var left [][]byte
	n.a.queue.SetFaults(xdpnictest.Faults{Drop: func(frame []byte) bool {
		left = append(left, bytes.Clone(frame))
		return true
	}})
	const size = 2 * 1424 // two full frames
	fillPattern(xa.buf[0][:size], 1)
	xa.prepare(0, size)
	h := vb.ToPeer()
	h.Kind, h.Ack = wire.KindAck, h.Ack+2
	must(t, va.PostSendLater(xa.desc[0], xa.region.Handle()))
	errorIf(t, len(left) > 0, "the message did not wait")
	q.SendFrame(&template, h, nil)
	n.a.Poll()
	fillPattern(xa.buf[1][:size], 2)
	xa.prepare(1, size)
	must(t, va.PostSend(xa.desc[1], xa.region.Handle()))
	n.a.queue.SetFaults(xdpnictest.Faults{})
	want := make([]byte, 1424)
	fillPattern(want, 1)
	found := false
	for _, frame := range left {
		found = found || bytes.Contains(frame, want)
	}
	errorIf(t, !found, "the first message has not left with its own bytes, in %d frames", len(left))
}

// exchangeOne sends a short message each way.
func exchangeOne(t *testing.T, va, vb *vipl.VI, xa, xb *box) {
	t.Helper()
	postRecv(t, vb, xb, 0, 64)
	postRecv(t, va, xa, 1, 64)
	postSend(t, va, xa, 0, 64)
	received(t, vb, 0)
	postSend(t, vb, xb, 1, 64)
	received(t, va, 0)
	sent(t, va, 0)
	sent(t, vb, 0)
}

// What a hostile peer puts in one packet: frames of other VIs, lengths that lie, frames in another order, cut off in the
// middle, more than there is. Whatever it is, chunks are neither lost nor recycled twice (newMemoryNet looks), the engine
// does not panic, and messages that it delivers are whole.
func FuzzGSOPacket(f *testing.F) {
	const size = 400 // bytes of a frame
	f.Add([]byte{0, 0, 0, 0, 0, 0}, uint16(0), uint8(0))
	f.Add([]byte{0, 2, 0, 1, 0, 0, 4, 0, 5, 0, 3, 3}, uint16(0), uint8(1))
	f.Add([]byte{9, 0, 8, 0, 7, 0, 6, 0, 5, 0, 4, 0, 3, 0, 2, 0, 1, 0, 0, 0}, uint16(77), uint8(2))
	f.Add([]byte{0, 0, 1, 4, 2, 5, 3, 6, 4, 7}, uint16(3), uint8(3))
	f.Add([]byte{0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0, 7, 0}, uint16(0), uint8(8))
	f.Add([]byte{0, 0, 1, 0, 2, 7, 2, 0, 3, 0, 3, 0, 5, 0, 4, 0}, uint16(0), uint8(8))
	f.Fuzz(func(t *testing.T, program []byte, cut uint16, how uint8) {
		c := memoryConfig{gso: "whole", queue: gsoQueue, gate: how&4 != 0}
		n, va, vb := connected(t, c, vipl.ReliableDelivery)
		xb := newBox(t, n.b.NIC, 16, 4096)
		postRecvs(t, vb, xb, 16, 4096)
		q := n.attacker(t, xdpnictest.Config{ChunkSize: 1 << 17, RxChunks: 1, TxChunks: 1})
		next, template := va.ToPeer(), templateTo(t, n.a, n.b)
		// A frame a pair of bytes: its number, and what is wrong with it.
		var all []byte
		for i := 0; i+1 < len(program) && len(all) < 60_000; i += 2 {
			h := next
			h.Kind, h.Flags, h.Length = wire.KindData, wire.FlagFirst|wire.FlagLast, size
			h.Seq += uint32(program[i])
			if how&8 != 0 { // all are one message
				h.Flags = 0
				if i == 0 {
					h.Flags = wire.FlagFirst
				}
				if i+3 >= len(program) {
					h.Flags = wire.FlagLast
				}
			}
			wrong := program[i+1]
			switch wrong % 8 {
			case 1:
				h.VI++
			case 2:
				h.Key++
			case 3:
				h.Length += uint16(wrong)
			case 4:
				h.Length = uint16(wrong / 8)
			case 5:
				h.Flags = wire.Flags(wrong)
			case 6:
				h.Kind = wire.Kind(wrong / 8)
			}
			b := make([]byte, wire.HeaderLen+size)
			for k := range size {
				b[wire.HeaderLen+k] = program[i]
			}
			h.Put(b)
			wire.PutChecksum(b)
			if wrong%8 == 7 {
				b[wire.HeaderLen+int(wrong)] ^= 1
			}
			all = append(all, b...)
		}
		all = all[:len(all)-min(len(all), int(cut)%(2*size))]
		if len(all) == 0 {
			return
		}
		addr, frame, _ := q.Alloc()
		copy(template.Put(frame, len(all)), all)
		if how&1 != 0 { // a UDP length that lies
			binary.BigEndian.PutUint16(frame[38:], cut)
		}
		q.Send(addr, template.Len()+len(all), false)
		must(t, q.Flush())
		for range 50 {
			n.b.Poll()
			for d, _ := vb.RecvDone(); d != nil; d, _ = vb.RecvDone() {
				if d.Status().Failed() {
					continue
				}
				b := xb.buf[slices.Index(xb.desc, d)][:d.Length]
				for k := range b {
					frame := 0 // which holds it
					if how&8 != 0 {
						frame = k / size
					}
					want := b[0] + byte(frame)
					fatalIf(t, b[k] != want, "byte %d of %d is %d, want %d", k, len(b), b[k], want)
				}
			}
		}
	})
}

// A message for whose first frames the window has room, but not for a packet of them, waits for an acknowledgement, and then
// leaves in packets. Else these frames would go by the TX ring.
func TestGSOWaitsForRoom(t *testing.T) {
	const full, most = 1424, 300 * 1424
	n, va, vb, xa, xb := connectedBoxes(t, gsoFrames, vipl.ReliableDelivery, 2, 2, most)
	defer n.a.WithoutBackground()()
	defer n.b.WithoutBackground()()
	left, alone := 0, 0
	n.a.queue.SetFaults(xdpnictest.Faults{Drop: func(frame []byte) bool {
		if len(frame) > full {
			left += (len(frame) - 42 + 1471) / 1472
		}
		if len(frame) == 1514 {
			alone++
		}
		return false
	}})
	post := func(i, frames int) { // the last is short: no packet goes on behind it
		postRecv(t, vb, xb, i, most)
		postSend(t, va, xa, i, frames*full-1)
	}
	arrive := func(messages int) {
		pollUntil(t, "the messages", func() bool {
			va.SendDone()
			if d, _ := vb.RecvDone(); d != nil {
				messages--
			}
			return messages == 0
		})
		exchangeOne(t, va, vb, xa, xb) // acknowledges: nothing is under way
	}
	for range 1000 { // packets grow, and the window; a host that is descheduled may take frames for lost
		left = 0
		post(0, 300)
		room := left
		arrive(1)
		left, alone = 0, 0
		post(0, room-2)
		if left != room-2 || room < 64 {
			arrive(1)
			continue // the window has changed
		}
		post(1, 4)
		if alone == 0 && left == room-2 { // else the window has grown, or nothing waited
			n.b.Poll()
			n.a.Poll()
			errorIf(t, left != room+2 || alone > 0, "%d frames left after an acknowledgement, %d alone", left, alone)
			arrive(2)
			return
		}
		arrive(2)
	}
	t.Errorf("%d frames left alone, with the room of %d", alone, left)
}
