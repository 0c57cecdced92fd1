package vipl_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/vipl"
	"viaxdp/xdpnic"
	"viaxdp/xdpnic/xdpnictest"
)

// A program that posts, looks at its memory and never polls is one that is away:
// what arrives is placed at once by the background goroutine, not a tick later, and
// not only when it stops posting.
func TestPostsDoNotKeepBackgroundAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const messages = 20
		n, va, vb := connected(t, memoryConfig{bubble: true}, vipl.ReliableDelivery)
		xa, xb := newBox(t, n.a.Nic, messages, 8), newBox(t, n.b.Nic, messages, 8)
		time.Sleep(5 * time.Millisecond) // of no call at all
		for k := range messages {
			postRecv(t, vb, xb, k, 8)
			postSend(t, va, xa, k, 8)
			time.Sleep(100 * time.Microsecond)
			if xb.desc[k].Status()&vipl.StatusDone == 0 {
				t.Fatalf("message %d is not there after 100us", k)
			}
			time.Sleep(300 * time.Microsecond)
		}
	})
}

// A driver that sleeps for want of chunks may say so too late for the Refill that
// brought them. Beside a program that only polls, nobody waits in the NIC, which
// would wake it: the background goroutine asks.
func TestSleepingDriverIsWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var nic *sleepyNIC
		n, va, vb := connected(t, memoryConfig{bubble: true, port: func(q *xdpnictest.Queue) vipl.Port {
			nic = &sleepyNIC{Queue: q}
			return nic
		}}, vipl.UnreliableDelivery)
		xa, xb := newBox(t, n.a.Nic, 1, 8), newBox(t, n.b.Nic, 1, 8)
		postRecv(t, vb, xb, 0, 8)
		poll := func() bool {
			_, err := vb.RecvDone()
			time.Sleep(10 * time.Microsecond)
			return err == nil
		}
		for start := time.Now(); time.Since(start) < 10*time.Millisecond; { // until it is seen that it polls
			poll()
		}
		nic.asleep.Store(true)
		postSend(t, va, xa, 0, 8)
		for start := time.Now(); !poll(); {
			if time.Since(start) > time.Second {
				t.Fatal("nobody has woken the driver")
			}
		}
	})
}

// sleepyNIC hands out nothing while it sleeps.
type sleepyNIC struct {
	*xdpnictest.Queue
	asleep atomic.Bool
}

func (n *sleepyNIC) Ready() bool { return !n.asleep.Load() && n.Queue.Ready() }

func (n *sleepyNIC) Receive(frames []xdpnic.Frame) int {
	if n.asleep.Load() {
		return 0
	}
	return n.Queue.Receive(frames)
}

func (n *sleepyNIC) Refill() {
	n.asleep.Store(false)
	n.Queue.Refill()
}

func (n *sleepyNIC) Wait(timeout time.Duration) error {
	n.asleep.Store(false)
	return n.Queue.Wait(timeout)
}
