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

// A send of a Reliable Reception VI is not done before the data has arrived.
func TestReceptionWaitsForArrival(t *testing.T) {
	n, va, vb, xa, xb := connectedBoxes(t, memoryConfig{}, vipl.ReliableReception, 1, 1, 64)
	postRecv(t, vb, xb, 0, 64)
	n.wire.Cut(true)
	postSend(t, va, xa, 0, 64)
	for range 1000 {
		nothingDone(t, va.SendDone, vipl.ErrNotDone)
	}
	n.wire.Cut(false)
	received(t, vb, 0)
	sent(t, va, 0)
}

// A send of the other levels is done when it was handed over.
func TestDeliveryIsDoneWhenHandedOver(t *testing.T) {
	eachLevel(t, levels[:2], func(t *testing.T, level vipl.ReliabilityLevel) {
		n, va, vb, xa, xb := connectedBoxes(t, memoryConfig{}, level, 1, 1, 5000)
		postRecv(t, vb, xb, 0, 5000)
		n.wire.Cut(true)
		postMessage(t, va, xa, 0, 5000, 1)
		sendDone(t, va, 0)
		clear(xa.buf[0]) // the buffer is the program's again
		n.wire.Cut(false)
		if level == vipl.ReliableDelivery {
			receivedMessage(t, vb, xb.buf[0][:5000], 1)
		}
	})
}
