package vipl_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/vipl"
)

// A flood of asynchronous errors is logged ten a second, and how many were not.
func TestErrorLogIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		old := slog.Default()
		slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
		defer slog.SetDefault(old)
		n, va, _ := connected(t, memoryConfig{bubble: true}, vipl.UnreliableDelivery)
		n.b.ErrorCallback(nil)
		xa := newBox(t, n.a.Nic, 1, 64)
		flood := func(count int) {
			for range count {
				postSend(t, va, xa, 0, 64)
				sent(t, va, 0)
				n.b.Poll()
			}
			synctest.Wait()
		}
		flood(35) // nobody has posted a receive
		if lines := strings.Count(log.String(), "asynchronous error\""); lines != 10 {
			t.Errorf("%d lines of 35 errors in a second:\n%s", lines, &log)
		}
		time.Sleep(2 * time.Second)
		log.Reset()
		flood(1)
		if text := log.String(); !strings.Contains(text, "count=25") || strings.Count(text, "asynchronous error\"") != 1 {
			t.Errorf("after a while:\n%s", text)
		}
	})
}

// The orderly end of connections, which nobody sees at the usual level, neither
// counts as left out nor takes the place of an error.
func TestOrderlyEndsAreNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		old := slog.Default()
		slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
		defer slog.SetDefault(old)
		n, va, _ := connected(t, memoryConfig{bubble: true}, vipl.UnreliableDelivery)
		n.b.ErrorCallback(nil)
		for range 12 {
			v, _ := connect(t, n.a.Nic, n.b.Nic, vipl.ReliableDelivery)
			v.Disconnect()
			n.b.Poll()
			synctest.Wait()
		}
		xa := newBox(t, n.a.Nic, 1, 64)
		postSend(t, va, xa, 0, 64) // nobody has posted a receive
		sent(t, va, 0)
		n.b.Poll()
		synctest.Wait()
		if lines := strings.Count(log.String(), "asynchronous error\""); lines != 1 {
			t.Errorf("%d lines of one error and 12 orderly ends:\n%s", lines, &log)
		}
	})
}
