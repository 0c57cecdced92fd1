package vipl_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
)

// BenchmarkConnect is a connect by a listener's program, and the disconnect of both sides. connect-us and
// disconnect-us are the means of the requester's calls.
func BenchmarkConnect(b *testing.B) {
	na, nb := ends(b, nstest.Options{})
	at := vipl.NetAddress{Host: nb.Query().Address, Discriminator: []byte("connect")}
	l, err := nb.Listen(vipl.NetAddress{Discriminator: at.Discriminator})
	must(b, err)
	va, vb := newVI(b, na, vipl.ReliableDelivery), newVI(b, nb, vipl.ReliableDelivery)
	served := make(chan error, 1)
	go func() {
		for range b.N {
			r, err := l.Wait(context.Background())
			if err == nil {
				err = r.Accept(vb)
			}
			for err == nil {
				if i, _ := vb.Query(); i.State == vipl.Error {
					err = vb.Disconnect()
					break
				}
				time.Sleep(20 * time.Microsecond)
			}
			served <- err
		}
	}()
	var connect, disconnect time.Duration
	b.ResetTimer()
	for range b.N {
		start := time.Now()
		_, err := va.ConnectRequest(vipl.NetAddress{}, at, time.Minute)
		must(b, err)
		connected := time.Now()
		must(b, va.Disconnect())
		connect += connected.Sub(start)
		disconnect += time.Since(connected)
		must(b, <-served)
	}
	b.ReportMetric(float64(connect.Microseconds())/float64(b.N), "connect-us")
	b.ReportMetric(float64(disconnect.Microseconds())/float64(b.N), "disconnect-us")
}

// BenchmarkConnectMany connects b.N VIs, 64 at a time: go test -bench ConnectMany -benchtime 10000x. B/VI is the
// memory of a connected VI beside that of one that is created, which is mostly its queues.
func BenchmarkConnectMany(b *testing.B) {
	memory := connectMany(b, b.N, b.ResetTimer)
	b.StopTimer()
	b.ReportMetric(memory, "B/VI")
}

// The memory of an idle connected VI, beside its queues, is at most 8 KiB. PERFORMANCE.md has the figure.
func TestMemoryOfConnectedVI(t *testing.T) {
	if memory := connectMany(t, 2000, func() {}); memory < 1<<10 || memory > 8<<10 {
		t.Errorf("a connected VI takes %.0f bytes beside one that is created, want 1024 to 8192", memory)
	}
}

// connectMany connects count pairs of VIs, 64 at a time, and returns the bytes that this took for each VI. begin is
// called before the first request.
func connectMany(tb testing.TB, count int, begin func()) (memory float64) {
	const atOnce = 64
	na, nb := ends(tb, nstest.Options{})
	at := vipl.NetAddress{Host: nb.Query().Address, Discriminator: []byte("connect")}
	l, err := nb.Listen(vipl.NetAddress{Discriminator: at.Discriminator})
	must(tb, err)
	create := func(n *vipl.NIC) chan *vipl.VI {
		vis := make(chan *vipl.VI, count)
		for range count {
			vis <- newVI(tb, n, vipl.ReliableDelivery)
		}
		close(vis)
		return vis
	}
	idle, asking := create(nb), create(na)
	used := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := used()
	begin()
	var workers sync.WaitGroup
	for range atOnce {
		workers.Go(func() {
			for v := range idle {
				r, err := l.Wait(context.Background())
				if err == nil {
					err = r.Accept(v)
				}
				if err != nil {
					tb.Error(err)
					return
				}
			}
		})
		workers.Go(func() {
			for v := range asking {
				if _, err := v.ConnectRequest(vipl.NetAddress{}, at, time.Minute); err != nil {
					tb.Error(err)
					return
				}
			}
		})
	}
	workers.Wait()
	return float64(used()-before) / float64(2*count)
}
