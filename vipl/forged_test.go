package vipl_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/base/wire"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

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
