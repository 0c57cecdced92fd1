package vipl_test

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// Several goroutines post on, poll and wait for the same VIs, over a wire that
// loses, in both directions at once. Every message arrives once.
func TestConcurrentUse(t *testing.T) {
	eachLevel(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n, va, vb := connected(t, memoryConfig{}, level)
		n.wire.SetFaults(xdpnictest.Faults{Seed: 1, Loss: 0.01, Reorder: 0.02})
		const posters, each = 3, 60
		const count = posters * each
		var group sync.WaitGroup
		for _, way := range []struct {
			from, to *vipl.VI
			na, nb   *memoryHost
		}{{va, vb, n.a, n.b}, {vb, va, n.b, n.a}} {
			out, in := newBox(t, way.na.NIC, count, 2000), newBox(t, way.nb.NIC, count, 2000)
			for i := range count {
				postRecv(t, way.to, in, i, 2000)
			}
			for p := range posters {
				group.Go(func() {
					for k := range each {
						i := p*each + k
						binary.BigEndian.PutUint32(out.buf[i], uint32(i))
						out.prepare(i, 4+i%1900)
						if err := way.from.PostSend(out.desc[i], out.region.Handle()); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			var done, got atomic.Int32
			for w := range 2 {
				group.Go(func() { // completions of sends: one polls, one waits
					for done.Load() < count {
						var err error
						if w == 0 {
							_, err = way.from.SendDone()
						} else {
							_, err = way.from.SendWait(time.Millisecond)
						}
						switch err {
						case nil:
							done.Add(1)
						case vipl.ErrNotDone, vipl.ErrTimeout:
						default: // the queue is empty
							time.Sleep(100 * time.Microsecond)
						}
					}
				})
			}
			var seen [count]atomic.Bool
			for w := range 2 {
				group.Go(func() {
					for got.Load() < count {
						var d *vipl.Descriptor
						var err error
						if w == 0 {
							d, err = way.to.RecvDone()
						} else {
							d, err = way.to.RecvWait(time.Millisecond)
						}
						if err != nil {
							if d != nil {
								t.Errorf("receive: %v", d.Status())
								return
							}
							continue
						}
						k := (d.Addr() - in.region.Addr()) / 64
						i := binary.BigEndian.Uint32(in.buf[k])
						if i >= count || seen[i].Swap(true) || d.Length != 4+i%1900 {
							t.Errorf("message %d came twice or has length %d", i, d.Length)
							return
						}
						got.Add(1)
					}
				})
			}
		}
		group.Wait()
	})
}
