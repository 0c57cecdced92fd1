package vipl_test

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/base/wire"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// Foreign frames that the demux program let through, as it may while a VI is replaced, reach no descriptor: the
// engine checks VI number, key and source again.
func TestForgedFrames(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n, va, vb, xa, xb := connectedBoxes(t, memoryConfig{gate: true}, level, 1, 2, 64)
		var mu sync.Mutex
		var seen wire.Header // what a neighbour on the wire could read
		n.a.queue.SetFaults(faultsDropping(func(p *wire.Packet) bool {
			mu.Lock()
			defer mu.Unlock()
			if p.Kind == wire.KindData { // and not a probe, which has no number
				seen = p.Header
			}
			return false
		}))
		postRecv(t, vb, xb, 0, 64)
		postRecv(t, vb, xb, 1, 64)
		postSend(t, va, xa, 0, 64)
		received(t, vb, 0)
		mu.Lock()
		good := seen
		mu.Unlock()
		good.Kind, good.Flags, good.Seq, good.Length = wire.KindData, wire.FlagFirst|wire.FlagLast, good.Seq+1, 0

		forger, err := n.wire.Queue(xdpnictest.Config{MAC: [6]byte{2, 0xbb}})
		must(t, err)
		other := netip.MustParseAddr("10.250.0.9")
		for _, f := range []struct {
			name     string
			from     netip.Addr
			change   func(*wire.Header)
			counter  func(vipl.Counters) uint64
			reliable bool // there is no such thing on an unreliable VI
		}{
			{"key", n.a.agent.Addr(), func(h *wire.Header) { h.Key ^= 1 }, func(c vipl.Counters) uint64 { return c.WrongKey }, false},
			{"source", other, func(*wire.Header) {}, func(c vipl.Counters) uint64 { return c.WrongSource }, false},
			{"generation", n.a.agent.Addr(), func(h *wire.Header) { h.VI += 1 << 16 }, func(c vipl.Counters) uint64 { return c.UnknownVI }, false},
			{"beyond the window", n.a.agent.Addr(), func(h *wire.Header) { h.Seq += 5000 }, func(c vipl.Counters) uint64 { return c.OutsideWindow }, true},
			{"acknowledgement of what was never sent", n.a.agent.Addr(), func(h *wire.Header) { h.Kind, h.Flags, h.Ack = wire.KindAck, 0, h.Ack+100 },
				func(c vipl.Counters) uint64 { return c.BadAcks }, true},
			{"selective acknowledgements in disorder", n.a.agent.Addr(), func(h *wire.Header) { h.Kind, h.Flags, h.Length = wire.KindAck, 0, 2*wire.RangeLen },
				func(c vipl.Counters) uint64 { return c.BadAcks }, true},
		} {
			if f.reliable && level == vipl.UnreliableDelivery {
				continue
			}
			h := good
			f.change(&h)
			before := f.counter(n.b.Counters())
			forge(t, forger, wire.Link{
				SrcMAC: n.a.agent.Link().MAC, DstMAC: n.b.agent.Link().MAC, Src: f.from, Dst: n.b.agent.Addr(),
			}, h)
			for start := time.Now(); f.counter(n.b.Counters()) == before; {
				nothingDone(t, vb.RecvDone, vipl.ErrNotDone)
				if time.Since(start) > ackDelay {
					t.Fatalf("%s: the frame was not counted: %+v", f.name, n.b.Counters())
				}
			}
			nothingDone(t, vb.RecvDone, vipl.ErrNotDone)
		}
		// A frame that is valid, but arrives on a link that is not the connection's.
		before := n.b.Counters().WrongSource
		l := wire.Link{SrcMAC: n.a.agent.Link().MAC, DstMAC: n.b.agent.Link().MAC, Src: n.a.agent.Addr(), Dst: n.b.agent.Addr()}
		n.b.ArriveByLink(forged(t, l, good))
		nothingDone(t, vb.RecvDone, vipl.ErrNotDone)
		equal(t, "lane: the frame was not counted", n.b.Counters().WrongSource, before+1)
		// The connection stands, and the sequence was not moved.
		postSend(t, va, xa, 0, 64)
		received(t, vb, 1)
	})
}

// forge sends one frame with header h and a payload of zeros.
func forge(t *testing.T, q *xdpnictest.Queue, l wire.Link, h wire.Header) {
	t.Helper()
	fatalIf(t, !q.SendBytes(forged(t, l, h)), "no chunk, or the ring is full")
}

// forged is such a frame.
func forged(t *testing.T, l wire.Link, h wire.Header) []byte {
	t.Helper()
	template, err := wire.NewTemplate(l)
	must(t, err)
	return xdpnictest.Frame(&template, h, make([]byte, h.Length))
}

// A kernel that lies costs time, not correctness: a reliable VI delivers
// exactly once, in order and intact; nothing crashes, no chunk is lost but
// those that the kernel never gave back.
func TestLyingKernel(t *testing.T) {
	for _, c := range []struct {
		name string
		lies xdpnictest.Lies
		told func(xdpnictest.Stats) uint64
	}{
		{"completions never come", xdpnictest.Lies{LostCompletion: 0.02}, func(s xdpnictest.Stats) uint64 { return s.LiedLostCompletion }},
		{"completions come twice", xdpnictest.Lies{DoubleCompletion: 0.2}, func(s xdpnictest.Stats) uint64 { return s.LiedDoubleCompletion }},
		{"completions of other addresses", xdpnictest.Lies{WildCompletion: 0.2}, func(s xdpnictest.Stats) uint64 { return s.LiedWildCompletion }},
		{"completions come late", xdpnictest.Lies{LateCompletion: 500 * time.Microsecond}, func(s xdpnictest.Stats) uint64 { return s.TxCompleted }},
		{"arrivals at other addresses", xdpnictest.Lies{WildRx: 0.2}, func(s xdpnictest.Stats) uint64 { return s.LiedWildRx }},
		{"arrivals of other lengths", xdpnictest.Lies{RxLength: 0.05}, func(s xdpnictest.Stats) uint64 { return s.LiedLength }},
		{"arrivals in two segments", xdpnictest.Lies{Split: 0.05}, func(s xdpnictest.Stats) uint64 { return s.LiedSplit }},
		{"ring full", xdpnictest.Lies{RefuseSend: 0.2}, func(s xdpnictest.Stats) uint64 { return s.LiedSend }},
		{"doorbell fails", xdpnictest.Lies{FlushError: 0.2}, func(s xdpnictest.Stats) uint64 { return s.LiedFlush }},
		{"doorbell does nothing", xdpnictest.Lies{Stall: 0.2}, func(s xdpnictest.Stats) uint64 { return s.Stalled }},
		{"all but lost completions", xdpnictest.Lies{
			DoubleCompletion: 0.05, WildCompletion: 0.05, WildRx: 0.05, RxLength: 0.02, Split: 0.02, RefuseSend: 0.05,
			FlushError: 0.05, Stall: 0.05, LateCompletion: 100 * time.Microsecond,
		}, func(s xdpnictest.Stats) uint64 { return s.LiedWildRx }},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
				m := memoryConfig{leaky: c.lies.LostCompletion > 0}
				n, va, vb := connected(t, m, level)
				c.lies.Seed = 11
				n.a.queue.SetLies(c.lies)
				n.b.queue.SetLies(c.lies)
				arrived := stream(t, n, va, vb, 200, level != vipl.UnreliableDelivery)
				errorIf(t, arrived == 0, "nothing arrived")
				told := c.told(n.a.queue.Stats()) + c.told(n.b.queue.Stats())
				errorIf(t, told == 0, "no lie was told")
				n.a.queue.SetLies(xdpnictest.Lies{})
				n.b.queue.SetLies(xdpnictest.Lies{})
				statesAre(t, vipl.Connected, va, vb)
			})
		})
	}
}

// pollFor polls for a time of the bubble, so often that timers are checked, too, and the library's own goroutine
// stays away.
func pollFor(n *vipl.NIC, d time.Duration) {
	const step = 10 * time.Microsecond
	for ; d > 0; d -= step {
		time.Sleep(min(d, step))
		for range 300 {
			n.Poll()
		}
	}
}

// If an acknowledgement was to be carried by a retransmission for which the ring has no room, it is sent bare: the
// peer need not retransmit what has arrived.
func TestAcknowledgementOfARefusedFrame(t *testing.T) {
	for _, size := range []int{8, 20_000} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := longFrames
				c.bubble = true
				n, va, vb := connected(t, c, vipl.ReliableReception)
				polling(t, n, va, vb)
				xa, xb := newBox(t, n.a.NIC, 1, size), newBox(t, n.b.NIC, 1, size)
				postRecv(t, va, xa, 0, size)
				own := newBox(t, n.a.NIC, 1, size)
				n.a.queue.SetFaults(faultsDropping(func(p *wire.Packet) bool { return p.Kind == wire.KindData }))
				postSend(t, va, own, 0, size) // asked for after two milliseconds
				pollFor(n.a.NIC, 1980*time.Microsecond)
				before := n.b.Counters().Resent
				postSend(t, vb, xb, 0, 8)
				n.a.Poll()
				received(t, va, 0) // its acknowledgement may wait for 50 us
				n.a.queue.SetLies(xdpnictest.Lies{RefuseSend: 1})
				pollFor(n.a.NIC, 30*time.Microsecond)
				fatalIf(t, n.a.queue.Stats().LiedSend == 0, "nothing was refused")
				n.a.queue.SetLies(xdpnictest.Lies{})
				pollFor(n.a.NIC, 100*time.Microsecond) // and the peer sends again after 200
				synctest.Wait()
				if d, err := vb.SendDone(); d == nil || n.b.Counters().Resent != before {
					t.Errorf("the peer has not heard of it: %v, %d frames sent again", err, n.b.Counters().Resent-before)
				}
			})
		})
	}
}
