package vipl_test

import (
	"bytes"
	"encoding/binary"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/base/wire"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// gsoPair has a connection in a bubble, with nothing under way. Nothing but the test's polls drives it, and no time passes
// meanwhile.
type gsoPair struct {
	*memoryNet
	va, vb *vipl.VI
	xa, xb *box
}

const (
	gsoFull   = 1424          // bytes of data of a full frame
	gsoMost   = 100 * gsoFull // of a message
	turns     = 200           // more than a message takes
	frames64K = 47            // frames of 64 KiB
)

// newGSOPair opens a gsoPair whose packets have become as long as they may.
func newGSOPair(t *testing.T, c memoryConfig) *gsoPair {
	t.Helper()
	p := openGSOPair(t, c)
	for range 30 { // messages, in which packets grow
		p.send(t, 30*gsoFull)
		p.arrives(t)
		p.answer(t)
	}
	return p
}

// openGSOPair opens one whose packets are still as short as the first ones.
func openGSOPair(t *testing.T, c memoryConfig) *gsoPair {
	t.Helper()
	c.gso, c.bubble, c.arena = "whole", true, 8<<20
	p := &gsoPair{}
	p.memoryNet, p.va, p.vb, p.xa, p.xb = connectedBoxes(t, c, vipl.ReliableDelivery, 2, 2, gsoMost)
	exchangeOne(t, p.va, p.vb, p.xa, p.xb)
	t.Cleanup(p.a.WithoutBackground())
	t.Cleanup(p.b.WithoutBackground())
	return p
}

func (p *gsoPair) send(t *testing.T, size int) {
	t.Helper()
	postRecv(t, p.vb, p.xb, 0, gsoMost)
	postMessage(t, p.va, p.xa, 0, size, size)
}

// arrived polls both sides, and reports whether the message has arrived.
func (p *gsoPair) arrived(t *testing.T) bool {
	t.Helper()
	for range turns {
		p.va.SendDone()
		p.a.Poll()
		if d, _ := p.vb.RecvDone(); d != nil {
			fatalIf(t, d.Status().Failed(), "a receive is over with %v", d.Status())
			checkPattern(t, p.xb.buf[0][:d.Length], int(d.Length))
			return true
		}
	}
	return false
}

// arrives waits until the message has arrived, for which delayed acknowledgements and retransmissions take time.
func (p *gsoPair) arrives(t *testing.T) {
	t.Helper()
	for !p.arrived(t) {
		time.Sleep(time.Millisecond) // of the bubble's clock
	}
}

// answer acknowledges with a message all that has arrived.
func (p *gsoPair) answer(t *testing.T) {
	t.Helper()
	postRecv(t, p.va, p.xa, 1, 64)
	postSend(t, p.vb, p.xb, 1, 64)
	for d, _ := p.va.RecvDone(); d == nil; d, _ = p.va.RecvDone() {
		p.vb.SendDone()
	}
	for d, _ := p.vb.SendDone(); d == nil; d, _ = p.vb.SendDone() {
		p.b.Poll()
	}
}

// The answer to a message of up to 64 KiB acknowledges it: its frames cause no bare acknowledgement, not even four, behind which
// small messages wait. Those of a message of twice the length do.
func TestGSOAnswerAcknowledges(t *testing.T) {
	inBubble(t, "64 KiB", func(t *testing.T) {
		p := newGSOPair(t, memoryConfig{queue: gsoDeepQueue})
		for _, frames := range []int{gsoLeast, 4, 5, frames64K, 2 * frames64K} {
			time.Sleep(time.Millisecond) // the end of a stream, in which no fourth frame would ask
			before, sent := p.b.Counters(), p.a.Counters()
			p.send(t, frames*gsoFull)
			fatalIf(t, !p.arrived(t), "the message waits")
			after := p.b.Counters()
			equal(t, "frames that came in packets", after.GSOReceivedFrames-before.GSOReceivedFrames, uint64(frames))
			equal(t, "whether there were acknowledgements", after.Acks > before.Acks, frames > frames64K)
			p.answer(t)
			equal(t, "frames that were sent again", p.a.Counters().Resent, sent.Resent)
		}
	})
}

// The fourth of small messages asks for an acknowledgement, since those behind it wait.
func TestFourthMessageAsks(t *testing.T) {
	inBubble(t, "four", func(t *testing.T) {
		p := openGSOPair(t, memoryConfig{queue: gsoQueue})
		p.answer(t)
		time.Sleep(time.Millisecond) // the end of a stream, in which small messages wait for one frame and not for four
		before := p.b.Counters().Acks
		for i := range 4 {
			p.send(t, 1000)
			fatalIf(t, !p.arrived(t), "message %d waits", i)
			equal(t, "acknowledgements", p.b.Counters().Acks-before, uint64(i/3))
		}
	})
}

// Frames that arrive alone are acknowledged by 16, as their sender's window needs it.
func TestFramesAloneAreAcknowledgedBy16(t *testing.T) {
	inBubble(t, "alone", func(t *testing.T) {
		p := openGSOPair(t, memoryConfig{queue: xdpnictest.Config{RxChunks: 512, TxChunks: 256}}) // which take no packets
		for _, frames := range []int{15, 16} {
			before := p.b.Counters()
			p.send(t, frames*gsoFull)
			fatalIf(t, !p.arrived(t), "the message waits")
			after := p.b.Counters()
			equal(t, "frames that came in packets", after.GSOReceivedFrames, 0)
			equal(t, "acknowledgements", after.Acks-before.Acks, uint64(frames/16))
			p.answer(t)
		}
	})
}

// gsoPackets has the number of packets by the number of frames of a message that is sent while nothing is under way. The
// first packet has 32 frames, or one or two more if these would be left for the TX ring.
var gsoPackets = map[int]uint64{32: 1, 33: 1, 34: 1, 35: 2, frames64K: 2}

// The first packet of a message leaves no one or two frames to the TX ring.
func TestGSOTakesTheRest(t *testing.T) {
	inBubble(t, "the rest", func(t *testing.T) {
		p := newGSOPair(t, memoryConfig{queue: gsoDeepQueue})
		for frames, packets := range gsoPackets {
			for _, size := range []int{(frames-1)*gsoFull + 1, frames * gsoFull} {
				before := p.a.Counters()
				p.send(t, size)
				fatalIf(t, !p.arrived(t), "the message waits")
				after := p.a.Counters()
				p.answer(t)
				equal(t, "frames in packets", after.GSOSentFrames-before.GSOSentFrames, uint64(frames))
				equal(t, "packets", after.GSOSent-before.GSOSent, packets)
			}
		}
	})
}

// So it is with the answer to an RDMA read.
func TestGSOAnswersTakeTheRest(t *testing.T) {
	inBubble(t, "answers", func(t *testing.T) {
		c := memoryConfig{gso: "whole", bubble: true, arena: 8 << 20, queue: gsoDeepQueue}
		n, va, _, xa, xb := rdmaPair(t, c, vipl.ReliableDelivery)
		read := func(size int) (frames, packets uint64) {
			before := n.b.Counters()
			fillPattern(xb.buf[0][:size], size)
			xa.desc[0].SetRDMARead(xb.remote(0), segment(xa, 0, size))
			postDesc(t, va, xa, 0)
			sent(t, va, vipl.StatusOpRDMARead)
			checkPattern(t, xa.buf[0][:size], size)
			after := n.b.Counters()
			return after.GSOSentFrames - before.GSOSentFrames, after.GSOSent - before.GSOSent
		}
		for range 30 { // reads, in which packets grow
			read(30 * gsoFull)
		}
		for want, packets := range gsoPackets {
			frames, got := read(want * gsoFull)
			equal(t, "frames in packets", frames, uint64(want))
			equal(t, "packets", got, packets)
		}
	})
}

// Two frames of an MTU of 9000 are a packet. Two of an MTU of 1500 go on the TX ring.
func TestGSOTwoFrames(t *testing.T) {
	inBubble(t, "two frames", func(t *testing.T) {
		for _, mtu := range []int{1500, 9000} {
			p := openGSOPair(t, memoryConfig{mtu: mtu, queue: gsoDeepQueue})
			for range 5 {
				before := p.a.Counters()
				p.send(t, mtu+200)
				p.arrives(t)
				p.answer(t)
				after := p.a.Counters()
				want := uint64(0)
				if mtu == 9000 {
					want = 2
				}
				equal(t, "frames that left in packets", after.GSOSentFrames-before.GSOSentFrames, want)
			}
		}
	})
}

// Frames of the TX ring that are lost keep no later message out of packets, whether packets have left before or not.
func TestGSOAfterLossesOfTheRing(t *testing.T) {
	open := map[string]func(*testing.T, memoryConfig) *gsoPair{"no packet has left": openGSOPair, "packets have left": newGSOPair}
	for name, open := range open {
		inBubble(t, name, func(t *testing.T) {
			p := open(t, memoryConfig{queue: gsoDeepQueue})
			for range 12 {
				before := p.a.Counters()
				p.b.queue.Cut(true)
				p.send(t, 2*gsoFull)
				fatalIf(t, p.arrived(t), "nothing is lost")
				p.b.queue.Cut(false)
				p.arrives(t)
				p.answer(t)
				after := p.a.Counters()
				fatalIf(t, after.Resent == before.Resent || after.GSOSent > before.GSOSent, "%d frames were sent again, %d packets left", after.Resent-before.Resent, after.GSOSent-before.GSOSent)
			}
			before := p.a.Counters()
			p.send(t, 30*gsoFull)
			p.arrives(t)
			frames := p.a.Counters().GSOSentFrames - before.GSOSentFrames
			errorIf(t, frames < 8, "%d frames of 30 left in packets", frames)
		})
	}
}

// A packet that is lost behind one that arrives makes later packets shorter.
func TestGSOLossOfALaterPacket(t *testing.T) {
	inBubble(t, "later packet", func(t *testing.T) {
		p := newGSOPair(t, memoryConfig{queue: gsoDeepQueue})
		mean := func() uint64 { // frames of a packet of a long message
			before := p.a.Counters()
			p.send(t, 60*gsoFull)
			p.arrives(t)
			after := p.a.Counters()
			p.answer(t)
			return (after.GSOSentFrames - before.GSOSentFrames) / (after.GSOSent - before.GSOSent)
		}
		whole := mean()
		p.send(t, 10*gsoFull)
		fatalIf(t, !p.arrived(t), "the first packet waits")
		p.b.queue.Cut(true)
		p.send(t, 10*gsoFull)
		fatalIf(t, p.arrived(t), "the second packet is not lost")
		p.b.queue.Cut(false)
		p.arrives(t)
		p.answer(t)
		if after := mean(); after > whole*2/3 {
			t.Errorf("packets of %d frames after the loss, %d before", after, whole)
		}
	})
}

// A sender whose chunks suffice for fewer frames than its peer acknowledges unasked asks in time: the message does not wait
// until the delay of an acknowledgement is over.
func TestGSOAsksBeforeChunksAreShort(t *testing.T) {
	inBubble(t, "chunks", func(t *testing.T) {
		p := newGSOPair(t, memoryConfig{queue: xdpnictest.Config{MultiBuffer: true, ChunkSize: 4096, RxChunks: 512, TxChunks: 48}})
		for range 3 {
			p.send(t, gsoMost)
			fatalIf(t, !p.arrived(t), "the message waits for an acknowledgement: %+v", p.b.Counters())
			p.answer(t)
		}
	})
}

// Where the congestion window ends in the middle of a packet, the frame that closes it asks for an acknowledgement: the remaining
// frames do not wait for a delayed one.
func TestGSOAsksWhereTheWindowEnds(t *testing.T) {
	inBubble(t, "window", func(t *testing.T) {
		p := openGSOPair(t, memoryConfig{queue: gsoDeepQueue})
		for i := range 10 { // messages, in which packets grow, and the window from the least
			p.send(t, gsoMost)
			fatalIf(t, !p.arrived(t), "message %d waits for an acknowledgement: %+v", i, p.a.Counters())
			p.answer(t)
		}
		errorIf(t, p.a.Counters().GSOSent < 20, "packets have not grown: %+v", p.a.Counters())
	})
}

// No packet is longer than the peer has said that it takes.
func TestGSOPeerTakesShortPackets(t *testing.T) {
	const most = 35 // frames
	inBubble(t, "shorter", func(t *testing.T) {
		p := newGSOPair(t, memoryConfig{queue: gsoQueue})
		longest := 0
		p.a.queue.SetFaults(xdpnictest.Faults{Drop: func(frame []byte) bool { longest = max(longest, len(frame)); return false }})
		p.send(t, gsoMost)
		fatalIf(t, !p.arrived(t), "the message waits")
		errorIf(t, longest <= 42+most*1472, "packets have become %d bytes long", longest)
		p.answer(t)
		template := templateTo(t, p.b, p.a)
		q := p.attacker(t, xdpnictest.Config{})
		h := p.vb.ToPeer()
		h.Kind, h.Window, h.RemoteAddr = wire.KindAck, 96, most*1472+1471
		q.SendFrame(&template, h, nil)
		p.a.Poll()
		longest = 0
		p.send(t, 2*most*gsoFull) // the first packet is short, since nothing is under way
		p.a.Poll()
		equal(t, "bytes of the longest packet", longest, 42+most*1472)
		p.a.queue.SetFaults(xdpnictest.Faults{})
		p.arrives(t)
	})
}

// A capture has all frames of a packet.
func TestGSOIsCaptured(t *testing.T) {
	inBubble(t, "capture", func(t *testing.T) {
		p := newGSOPair(t, memoryConfig{queue: gsoQueue})
		var captured bytes.Buffer
		done := make(chan struct{})
		ended := starts(func() error { return p.a.Capture(&captured, 1<<16, done) })
		synctest.Wait() // the capture has begun
		p.send(t, 40*gsoFull)
		p.arrives(t)
		p.answer(t)
		close(done)
		must(t, <-ended)
		for i := range 40 {
			var seen [gsoFull]byte
			copy(seen[:], p.xa.buf[0][i*gsoFull:])
			errorIf(t, !bytes.Contains(captured.Bytes(), seen[:]), "frame %d was not captured", i)
		}
	})
}

// A host that has no key puts a plain frame behind a sealed one in a packet. It looks like the next frame of the message, and
// is refused.
func TestGSOPlainBehindSealed(t *testing.T) {
	inBubble(t, "sealed", func(t *testing.T) {
		p := newGSOPair(t, memoryConfig{queue: gsoQueue, psk: testPSK(t, 1)})
		var packet []byte
		p.a.queue.SetFaults(xdpnictest.Faults{Drop: func(frame []byte) bool {
			if packet == nil && len(frame) > 3*1472 {
				packet = bytes.Clone(frame)
			}
			return true
		}})
		h := p.va.ToPeer()
		p.send(t, 20*gsoFull)
		fatalIf(t, packet == nil, "no packet has left")
		p.a.queue.SetFaults(xdpnictest.Faults{})
		at, n := wire.Datagram(packet)
		size := 1500 - 28 // of a frame
		fatalIf(t, n < 3*size, "the packet has %d bytes", n)
		plain := packet[at+size : at+2*size]
		clear(plain)
		h.Kind, h.Flags, h.Length = wire.KindData, 0, uint16(size-wire.HeaderLen)
		h.Seq++
		h.Put(plain)
		wire.PutChecksum(plain)
		binary.BigEndian.PutUint16(packet[at-4:], uint16(3*size+8)) // UDP length: three frames
		q := p.attacker(t, xdpnictest.Config{ChunkSize: 1 << 17, RxChunks: 1, TxChunks: 1})
		addr, b, _ := q.Alloc()
		q.Send(addr, copy(b, packet[:at+3*size]), false)
		before := p.b.Counters()
		must(t, q.Flush())
		for range turns {
			p.b.Poll()
		}
		after := p.b.Counters()
		equal(t, "frames that came in packets", after.GSOReceivedFrames-before.GSOReceivedFrames, 3)
		equal(t, "plain frames that were refused", after.Unsealed-before.Unsealed, 1)
		p.arrives(t) // the sender sends all of it again
	})
}
