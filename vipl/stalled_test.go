package vipl_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// What the kernel leaves on the ring at the doorbell, because its send buffer or the NIC's
// queue is full, goes as soon as there is room: while the program sleeps, while it looks
// in now and then, and while it polls. veth, which delivers within the doorbell, always has room.
func TestWhatTheKernelLeavesOnTheRing(t *testing.T) {
	for _, c := range []struct {
		name  string
		while func(n *memoryNet)
	}{
		{"asleep", func(*memoryNet) {}},
		{"looks in", func(n *memoryNet) { n.a.Poll() }},
		{"polls", func(n *memoryNet) {
			for range 1000 {
				n.a.Poll()
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
				for _, count := range []int{1, 3} { // alone, and as a list
					synctest.Test(t, func(t *testing.T) {
						n, va, vb := connected(t, memoryConfig{bubble: true, noPacking: true}, level)
						xa, xb := newBox(t, n.a.Nic, count, 64), newBox(t, n.b.Nic, count, 64)
						polling(t, n, va, vb)
						for i := range count {
							postRecv(t, vb, xb, i, 64)
							xa.prepare(i, 64)
						}
						n.a.queue.SetLies(xdpnictest.Lies{Stall: 1})
						start := time.Now()
						if _, err := va.PostSends(xa.desc[:count], xa.region.Handle()); err != nil {
							t.Fatal(err)
						}
						time.Sleep(20 * time.Microsecond) // the NIC is at others' frames
						if stalls := n.a.queue.Stats().Stalled; stalls == 0 {
							t.Fatal("the kernel has taken the frames")
						}
						n.a.queue.SetLies(xdpnictest.Lies{})
						for got := 0; got < count; {
							if d, _ := vb.RecvDone(); d != nil {
								got++
								continue
							}
							if time.Since(start) > 2*time.Millisecond {
								t.Fatalf("%d of %d messages have come after %v", got, count, time.Since(start))
							}
							time.Sleep(100 * time.Microsecond)
							c.while(n)
						}
					})
				}
			})
		})
	}
}

// driver is a queue whose driver still has entries to take, and that counts sleeps.
type driver struct {
	*xdpnictest.Queue
	left  atomic.Int32
	waits atomic.Int32
}

func (d *driver) Pending() int { return d.Queue.Pending() + int(d.left.Load()) }

func (d *driver) Wait(timeout time.Duration) error {
	d.waits.Add(1)
	return d.Queue.Wait(timeout)
}

// A send for later that puts nothing on the ring, on which a driver has not taken what was
// there before, leaves nothing to ring for: nobody looks in every half millisecond from then on.
func TestPostSendLaterOfNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &driver{}
		n, va, vb := connected(t, memoryConfig{bubble: true, zeroCopy: true, port: func(q *xdpnictest.Queue) vipl.Port {
			d.Queue = q
			return d
		}}, vipl.UnreliableDelivery)
		_ = va
		x := newBox(t, n.b.Nic, 1, 64)
		d.left.Store(1)
		x.prepare(0, 64)
		x.desc[0].Length = 63 // wrong
		if err := vb.PostSendLater(x.desc[0], x.region.Handle()); err != nil {
			t.Fatal(err)
		}
		sent(t, vb, vipl.StatusLengthError)
		d.left.Store(0)
		n.b.Ring()
		time.Sleep(10 * time.Millisecond)
		d.waits.Store(0)
		time.Sleep(time.Second)
		if waits := d.waits.Load(); waits > 100 {
			t.Errorf("%d sleeps in a second with nothing to do", waits)
		}
	})
}
