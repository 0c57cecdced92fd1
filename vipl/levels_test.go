package vipl_test

import (
	"sync/atomic"
	"testing"

	"viaxdp/vipl"
	"viaxdp/wire"
)

// A message that meets an empty receive queue. Unreliable: dropped, nothing
// else. Reliable: both VIs go to Error and everything left is flushed. With
// Reliable Reception the sender's descriptor says so, and the ones behind it
// were not processed.
func TestRecvQueueEmpty(t *testing.T) {
	for _, size := range []int{0, 100, 5000} {
		t.Run("unreliable", func(t *testing.T) {
			n, va, vb := connected(t, memoryConfig{}, vipl.UnreliableDelivery)
			xa, xb := newBox(t, n.a.Nic, 1, 5000), newBox(t, n.b.Nic, 1, 5000)
			postSend(t, va, xa, 0, size)
			sent(t, va, 0)
			n.b.errs.are(t, vipl.ErrorRecvQueueEmpty)
			stateIs(t, vb, vipl.Connected)
			if c := n.b.Counters(); c.RecvQueueEmpty != 1 {
				t.Errorf("%+v", c)
			}
			// The next message is none the worse for it.
			postRecv(t, vb, xb, 0, 5000)
			fillPattern(xa.buf[0], 9)
			postSend(t, va, xa, 0, size)
			if d := received(t, vb, 0); int(d.Length) != size {
				t.Errorf("length %d", d.Length)
			}
			checkPattern(t, xb.buf[0][:size], 9)
			stateIs(t, va, vipl.Connected)
		})
		eachLevel(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
			n, va, vb := connected(t, memoryConfig{}, level)
			xa, xb := newBox(t, n.a.Nic, 8, 5000), newBox(t, n.b.Nic, 8, 5000)
			postRecv(t, va, xa, 7, 64)
			for i := range 2 {
				postRecv(t, vb, xb, i, 5000)
			}
			for i := range 6 {
				postSend(t, va, xa, i, size)
			}
			for range 2 {
				received(t, vb, 0)
			}
			stateIs(t, vb, vipl.Error)
			stateIs(t, va, vipl.Error)
			received(t, va, vipl.StatusFlushed)
			checkBrokenSends(t, va, level, 6, 2, vipl.StatusRemoteDescError)
		})
	}
}

// checkBrokenSends checks the status of count sends of which number bad broke
// the connection at the receiver.
func checkBrokenSends(t *testing.T, v *vipl.VI, level vipl.ReliabilityLevel, count, bad int, status vipl.Status) {
	t.Helper()
	if level == vipl.ReliableDelivery {
		// Handed to the network: done; else flushed.
		flushed := false
		for i := range count {
			d, _ := v.SendWait(patience)
			if d == nil {
				t.Fatal("a send is missing")
			}
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

// A message longer than its receive descriptor.
func TestTooLong(t *testing.T) {
	for _, c := range []struct{ size, room int }{{1, 0}, {65, 64}, {1425, 1424}, {5000, 64}, {5000, 4999}} {
		t.Run("unreliable", func(t *testing.T) {
			n, va, vb := connected(t, memoryConfig{}, vipl.UnreliableDelivery)
			xa, xb := newBox(t, n.a.Nic, 1, 5000), newBox(t, n.b.Nic, 2, 5000)
			postRecv(t, vb, xb, 0, c.room)
			postRecv(t, vb, xb, 1, 5000)
			fillPattern(xa.buf[0], 1)
			for range 2 {
				postSend(t, va, xa, 0, c.size)
				sent(t, va, 0)
			}
			d := received(t, vb, vipl.StatusLengthError)
			if int(d.Length) > c.room {
				t.Errorf("length %d in a buffer of %d", d.Length, c.room)
			}
			for _, b := range xb.buf[0][c.room:] {
				if b != 0 {
					t.Fatal("bytes behind the buffer were written")
				}
			}
			if d := received(t, vb, 0); int(d.Length) != c.size {
				t.Errorf("the next message has length %d", d.Length)
			}
			checkPattern(t, xb.buf[1][:c.size], 1)
			stateIs(t, va, vipl.Connected)
			stateIs(t, vb, vipl.Connected)
		})
		eachLevel(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
			n, va, vb := connected(t, memoryConfig{}, level)
			xa, xb := newBox(t, n.a.Nic, 4, 5000), newBox(t, n.b.Nic, 4, 5000)
			postRecv(t, vb, xb, 0, 5000)
			postRecv(t, vb, xb, 1, c.room)
			postRecv(t, vb, xb, 2, 5000)
			for i := range 4 {
				postSend(t, va, xa, i, c.size)
			}
			received(t, vb, 0)
			received(t, vb, vipl.StatusLengthError)
			received(t, vb, vipl.StatusFlushed)
			stateIs(t, vb, vipl.Error)
			stateIs(t, va, vipl.Error)
			checkBrokenSends(t, va, level, 4, 1, vipl.StatusLengthError)
		})
	}
}

// The news of an error at the target is lost on the way, at first.
func TestErrorNewsLost(t *testing.T) {
	n, va, vb := connected(t, memoryConfig{}, vipl.ReliableReception)
	xa := newBox(t, n.a.Nic, 4, 64)
	var lost atomic.Int32
	n.b.queue.SetFaults(faultsDropping(func(h *wire.Packet) bool {
		return h.Kind == wire.KindError && lost.Add(1) <= 3
	}))
	for i := range 3 {
		postSend(t, va, xa, i, 64)
	}
	stateIs(t, vb, vipl.Error)
	stateIs(t, va, vipl.Error)
	if lost.Load() < 4 {
		t.Errorf("%d frames with the news", lost.Load())
	}
	checkBrokenSends(t, va, vipl.ReliableReception, 3, 0, vipl.StatusRemoteDescError)
}

// A send of a Reliable Reception VI is not done before the data has arrived.
func TestReceptionWaitsForArrival(t *testing.T) {
	n, va, vb := connected(t, memoryConfig{}, vipl.ReliableReception)
	xa, xb := newBox(t, n.a.Nic, 1, 64), newBox(t, n.b.Nic, 1, 64)
	postRecv(t, vb, xb, 0, 64)
	n.wire.Cut(true)
	postSend(t, va, xa, 0, 64)
	for range 1000 {
		if d, err := va.SendDone(); err != vipl.ErrNotDone {
			t.Fatalf("done without a wire: %v %v", d, err)
		}
	}
	n.wire.Cut(false)
	received(t, vb, 0)
	sent(t, va, 0)
}

// A send of the other levels is done when it was handed over.
func TestDeliveryIsDoneWhenHandedOver(t *testing.T) {
	eachLevel(t, levels[:2], func(t *testing.T, level vipl.ReliabilityLevel) {
		n, va, vb := connected(t, memoryConfig{}, level)
		xa, xb := newBox(t, n.a.Nic, 1, 5000), newBox(t, n.b.Nic, 1, 5000)
		postRecv(t, vb, xb, 0, 5000)
		n.wire.Cut(true)
		fillPattern(xa.buf[0], 1)
		postSend(t, va, xa, 0, 5000)
		d, err := va.SendDone()
		checkDone(t, "send", d, err, 0)
		clear(xa.buf[0]) // the buffer is the program's again
		n.wire.Cut(false)
		if level == vipl.ReliableDelivery {
			received(t, vb, 0)
			checkPattern(t, xb.buf[0][:5000], 1)
		}
	})
}
