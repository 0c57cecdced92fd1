package vipl_test

import (
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/vipl"
)

// What is posted for later goes with Ring, with the fourth frame, with a send of
// another VI or with what arrives, and not before.
func TestPostSendLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const count = 16
		n, va, vb := connected(t, memoryConfig{bubble: true, noPacking: true}, vipl.ReliableDelivery)
		wa, wb := connect(t, n.a.Nic, n.b.Nic, vipl.ReliableDelivery)
		xa, xb := newBox(t, n.a.Nic, count, 64), newBox(t, n.b.Nic, count, 64)
		ya, yb := newBox(t, n.a.Nic, 1, 64), newBox(t, n.b.Nic, 1, 64)
		for i := range count {
			postRecv(t, vb, xb, i, 64)
		}
		polling(t, n, va, vb) // else the background goroutine rings at once
		posted, got := 0, 0
		later := func(frames int) {
			t.Helper()
			for range frames {
				xa.prepare(posted, 64)
				if err := va.PostSendLater(xa.desc[posted], xa.region.Handle()); err != nil {
					t.Fatal(err)
				}
				posted++
			}
		}
		arrived := func(when string, want int) {
			t.Helper()
			synctest.Wait() // b's background goroutine may be at it
			for d, _ := vb.RecvDone(); d != nil; d, _ = vb.RecvDone() {
				got++
			}
			if got != want {
				t.Fatalf("%s: %d of %d messages have come, want %d", when, got, posted, want)
			}
		}
		later(1)
		arrived("posted", 0)
		if d, err := va.SendDone(); d != nil || err != vipl.ErrNotDone {
			t.Fatalf("a send that nobody has rung for: %v, %v", d, err)
		}
		n.a.Ring()
		arrived("rung", 1)
		sent(t, va, 0)
		synctest.Wait()
		n.a.Poll() // takes what b may have said beside: it would ring
		n.a.Ring()
		later(3)
		arrived("three posted", 1)
		later(1)
		arrived("the fourth", 5)
		postRecv(t, wb, yb, 0, 64)
		later(2)
		postSend(t, wa, ya, 0, 64)
		arrived("another VI rings", 7)
		received(t, wb, 0)
		later(1)
		postRecv(t, wa, ya, 0, 64)
		postSend(t, wb, yb, 0, 64)
		synctest.Wait()
		if d, err := wa.RecvDone(); d == nil {
			t.Fatal(err)
		}
		arrived("something has come", 8)
	})
}

// What waits for Ring goes within milliseconds also if nobody ever calls it: while the
// program does nothing, while it looks in now and then, and when it has spun before,
// so that the background goroutine looks in seldom.
func TestPostSendLaterIsNotForgotten(t *testing.T) {
	spin := func(n *memoryNet) {
		for range 72 { // ms, after which it looks in every 32
			for range 3000 {
				n.a.Poll()
			}
			time.Sleep(time.Millisecond)
		}
	}
	for _, c := range []struct {
		name          string
		before, while func(n *memoryNet)
	}{
		{"asleep", func(*memoryNet) { time.Sleep(100 * time.Millisecond) }, func(*memoryNet) {}},
		{"looks in", func(*memoryNet) {}, func(n *memoryNet) { n.a.Poll() }},
		{"has spun", spin, func(n *memoryNet) { n.a.Poll() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
				synctest.Test(t, func(t *testing.T) {
					n, va, vb := connected(t, memoryConfig{bubble: true}, level)
					xa, xb := newBox(t, n.a.Nic, 1, 64), newBox(t, n.b.Nic, 1, 64)
					polling(t, n, va, vb)
					postRecv(t, vb, xb, 0, 64)
					c.before(n)
					xa.prepare(0, 64)
					start := time.Now()
					if err := va.PostSendLater(xa.desc[0], xa.region.Handle()); err != nil {
						t.Fatal(err)
					}
					for d, _ := vb.RecvDone(); d == nil; d, _ = vb.RecvDone() {
						if time.Since(start) > 5*time.Millisecond {
							t.Fatal("nobody has rung")
						}
						time.Sleep(300 * time.Microsecond)
						c.while(n)
					}
				})
			})
		})
	}
}
