package vipl_test

import (
	"sync/atomic"
	"testing"

	"viaxdp/internal/base/wire"
	"viaxdp/vipl"
)

// checkBrokenSends checks the status of count sends. Number bad broke the connection at the receiver.
func checkBrokenSends(t *testing.T, v *vipl.VI, level vipl.ReliabilityLevel, count, bad int, status vipl.Status) {
	t.Helper()
	if level == vipl.ReliableDelivery {
		// Handed to the network: done; else flushed.
		flushed := false
		for i := range count {
			d, _ := v.SendWait(ackDelay)
			fatalIf(t, d == nil, "a send is missing")
			switch s := d.Status() &^ vipl.StatusDone; {
			case s == vipl.StatusFlushed:
				flushed = true
			case s != 0 || flushed:
				t.Errorf("send %d: %v", i, s)
			}
		}
		return
	}
	for i := range count {
		switch {
		case i < bad:
			sent(t, v, 0)
		case i == bad:
			sent(t, v, status)
		default:
			sent(t, v, vipl.StatusFlushed)
		}
	}
}

// The report of an error at the target is lost at first.
func TestErrorNewsLost(t *testing.T) {
	n, va, vb := connected(t, memoryConfig{}, vipl.ReliableReception)
	xa := newBox(t, n.a.NIC, 4, 64)
	var lost atomic.Int32
	n.b.queue.SetFaults(faultsDropping(func(h *wire.Packet) bool {
		return h.Kind == wire.KindError && lost.Add(1) <= 3
	}))
	for i := range 3 {
		postSend(t, va, xa, i, 64)
	}
	statesAre(t, vipl.Error, vb, va)
	errorIf(t, lost.Load() < 4, "%d frames with the news", lost.Load())
	checkBrokenSends(t, va, vipl.ReliableReception, 3, 0, vipl.StatusRemoteDescError)
}
