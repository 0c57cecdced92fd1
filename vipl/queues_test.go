package vipl_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"viaxdp/internal/nstest"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
)

// joined is a connection on a queue of its own, at both ends.
type joined struct {
	va, vb *vipl.VI
	xa, xb *box
}

// onQueues connects VIs over a veth pair with so many queues, one pair a queue,
// each on a NIC handle of its own. A veth takes a frame in on the queue of the
// number on which its peer sent it.
func onQueues(t testing.TB, n int) []joined {
	t.Helper()
	na, nb := nstest.Pair(t, nstest.Options{Queues: n})
	var list []joined
	for q := range n {
		nics := make([]*vipl.Nic, 2)
		for i, ns := range []*nstest.NS{na, nb} {
			if err := ns.Do(func() (err error) {
				// Connections wait while the others are made.
				nics[i], err = vipl.OpenNic(ns.Name, vipl.WithQueue(q), vipl.WithMode(xdpnic.ModeNative, true),
					vipl.WithArena(8<<20), vipl.WithSilence(20*time.Second))
				return err
			}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := nics[i].Close(); err != nil {
					t.Error(err)
				}
			})
		}
		j := joined{xa: openBox(t, nics[0]), xb: openBox(t, nics[1])}
		j.va, j.vb = openVI(t, nics[0], vipl.ReliableDelivery), openVI(t, nics[1], vipl.ReliableDelivery)
		join(t, nics[0], j.va, nics[1], j.vb)
		list = append(list, j)
	}
	return list
}

// Two and four VIs on as many queues, all at the same time: every byte arrives,
// and frames of one never at the socket of another.
func TestQueues(t *testing.T) {
	for _, n := range []int{2, 4} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			list := onQueues(t, n)
			t.Run("traffic", func(t *testing.T) {
				for q, j := range list {
					t.Run(fmt.Sprint(q), func(t *testing.T) {
						t.Parallel()
						for _, size := range []int{1, 1000, 20_000} {
							transfer(t, j.va, j.vb, j.xa, j.xb, 100, size)
							transfer(t, j.vb, j.va, j.xb, j.xa, 100, size)
						}
					})
				}
			})
		})
	}
}

// Messages of 1 KiB in one direction, both ends of a connection driven by one
// goroutine, over 1, 2 and 4 queues: messages a second of all together.
func BenchmarkQueues(b *testing.B) {
	for _, n := range []int{1, 2, 4} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			list := onQueues(b, n)
			const size, depth = 1024, 4
			b.ResetTimer()
			var wg sync.WaitGroup
			for _, j := range list {
				wg.Go(func() {
					for k := range b.N/n + 1 {
						i := k % depth
						if k >= depth {
							sent(b, j.va, 0)
							received(b, j.vb, 0)
						}
						postRecv(b, j.vb, j.xb, i, size)
						postSend(b, j.va, j.xa, i, size)
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
		})
	}
}
