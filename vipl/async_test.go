package vipl_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/vipl"
)

// A handler that is too slow for a flood of errors of one peer loses some, which are counted, but no lost connection: each loss
// is reported once. The flooded connection stays alive.
func TestErrorFlood(t *testing.T) {
	n, va, vb := connected(t, memoryConfig{}, vipl.UnreliableDelivery)
	wa, wb := connect(t, n.a.NIC, n.b.NIC, vipl.ReliableDelivery)
	x := newBox(t, n.a.NIC, 1, 64)
	var calls atomic.Int64
	goOn, lost := make(chan struct{}), make(chan *vipl.VI, 1)
	n.b.ErrorCallback(func(e vipl.ErrorDescriptor) {
		<-goOn
		if e.Code == vipl.ErrorConnLost {
			lost <- e.VI
			return
		}
		calls.Add(1)
		errorIf(t, e.Code != vipl.ErrorRecvQueueEmpty || e.VI != vb || e.NIC != n.b.NIC, "%+v", e)
	})
	const flood = 3000
	for k := range uint64(flood) {
		postSend(t, va, x, 0, 8)
		sent(t, va, 0)
		for n.b.Counters().RecvQueueEmpty <= k { // one at a time: an unreliable VI may lose what its rings have no room for
			n.b.Poll()
		}
	}
	must(t, wa.Disconnect())
	stateIs(t, wb, vipl.Error)
	dropped := n.b.Counters().ErrorsDropped
	close(goOn)
	comes(func() bool { return calls.Load()+int64(dropped) == flood && len(lost) == 1 }) // the handler runs on a goroutine of its own
	got := calls.Load()
	errorIf(t, dropped == 0 || got+int64(dropped) != flood, "%d errors told, %d dropped, of %d", got, dropped, flood)
	fatalIf(t, len(lost) == 0, "the loss of the connection was not reported")
	equal(t, "the lost connection is", <-lost, wb)
	stateIs(t, vb, vipl.Connected)
}

// The cause of a broken connection is available until the next connect, also after Disconnect.
func TestLost(t *testing.T) {
	n, va, vb := connected(t, memoryConfig{}, vipl.ReliableDelivery)
	lost := func(want error) {
		t.Helper()
		s, err := vb.Query()
		errorIf(t, err != nil || s.Lost != want, "lost by %v, %v, want %v", s.Lost, err, want)
	}
	lost(nil)
	must(t, va.Disconnect())
	stateIs(t, vb, vipl.Error)
	lost(vipl.ErrPeerClosed)
	must(t, vb.Disconnect())
	stateIs(t, vb, vipl.Idle)
	lost(vipl.ErrPeerClosed)
	join(t, n.a.NIC, va, n.b.NIC, vb)
	lost(nil)
	must(t, vb.Disconnect())
	lost(nil) // this side has ended it
}

// logged is what the default logger logs during the test.
func logged(t *testing.T) *bytes.Buffer {
	var log bytes.Buffer
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	t.Cleanup(func() { slog.SetDefault(old) })
	return &log
}

// Of a flood of asynchronous errors ten a second are logged, with the number of the others, and their causes.
func TestErrorLogIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := logged(t)
		n, va, _ := connected(t, memoryConfig{bubble: true}, vipl.UnreliableDelivery)
		n.b.ErrorCallback(nil)
		xa := newBox(t, n.a.NIC, 1, 64)
		flood := func(count int) {
			for range count {
				postSend(t, va, xa, 0, 64)
				sent(t, va, 0)
				n.b.Poll()
			}
			synctest.Wait()
		}
		flood(35) // no receive is posted
		equal(t, "errors that were logged", strings.Count(log.String(), "asynchronous error\""), 10)
		time.Sleep(2 * time.Second)
		log.Reset()
		flood(1)
		text := log.String()
		errorIf(t, !strings.Contains(text, "count=25") || strings.Count(text, "asynchronous error\"") != 1, "after a while:\n%s", text)
		log.Reset()
		n.wire.Cut(true)
		time.Sleep(2 * time.Minute)
		synctest.Wait() // for the goroutine that writes the log
		errorIf(t, !strings.Contains(log.String(), "cause="), "the peer's silence:\n%s", log.String())
	})
}

// The orderly end of connections, which is not logged at the usual level, does not count as left out and does
// not take the place of an error.
func TestOrderlyEndsAreNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := logged(t)
		n, va, _ := connected(t, memoryConfig{bubble: true}, vipl.UnreliableDelivery)
		n.b.ErrorCallback(nil)
		for range 12 {
			v, _ := connect(t, n.a.NIC, n.b.NIC, vipl.ReliableDelivery)
			v.Disconnect()
			n.b.Poll()
			synctest.Wait()
		}
		xa := newBox(t, n.a.NIC, 1, 64)
		postSend(t, va, xa, 0, 64) // no receive is posted
		sent(t, va, 0)
		n.b.Poll()
		synctest.Wait()
		equal(t, "errors that were logged", strings.Count(log.String(), "asynchronous error\""), 1)
	})
}
