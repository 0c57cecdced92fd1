package vipl_test

import (
	"testing"
	"time"

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
				if arrived == 0 {
					t.Error("nothing arrived")
				}
				if told := c.told(n.a.queue.Stats()) + c.told(n.b.queue.Stats()); told == 0 {
					t.Errorf("no lie was told")
				}
				n.a.queue.SetLies(xdpnictest.Lies{})
				n.b.queue.SetLies(xdpnictest.Lies{})
				stateIs(t, va, vipl.Connected)
				stateIs(t, vb, vipl.Connected)
			})
		})
	}
}
