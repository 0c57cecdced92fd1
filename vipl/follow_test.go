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

// trickle is a queue of which each frame is there only at the tenth look, and
// that counts how often somebody sleeps.
type trickle struct {
	*xdpnictest.Queue
	looks, waits atomic.Int64
}

func (q *trickle) Ready() bool { return q.Queue.Ready() && q.looks.Add(1)%10 == 0 }

func (q *trickle) Receive(frames []xdpnic.Frame) int { return q.Queue.Receive(frames[:1]) }

func (q *trickle) Wait(d time.Duration) error {
	q.waits.Add(1)
	return q.Queue.Wait(d)
}

// Whoever is woken by the beginning of a long message polls for the rest of it.
func TestWaiterFollowsMessage(t *testing.T) {
	// In a bubble, in which nobody takes too long between two looks.
	synctest.Test(t, func(t *testing.T) {
		const frames, rounds = 40, 20
		q := &trickle{}
		c := memoryConfig{bubble: true, port: func(inner *xdpnictest.Queue) vipl.Port {
			q.Queue = inner
			return q
		}}
		n, va, vb := connected(t, c, vipl.ReliableDelivery)
		const size = frames * 1400
		xa, xb := newBox(t, n.a.Nic, 1, size), newBox(t, n.b.Nic, 1, size)
		for range 20 { // spinning before sleep has not paid
			postRecv(t, vb, xb, 0, size)
			if d, err := vb.RecvWait(100 * time.Microsecond); d != nil || err != vipl.ErrTimeout {
				t.Fatalf("%v, %v", d, err)
			}
			postSend(t, va, xa, 0, 8)
			sent(t, va, 0)
			received(t, vb, 0)
		}
		before := q.waits.Load()
		for k := range rounds {
			fillPattern(xa.buf[0][:size], k)
			postRecv(t, vb, xb, 0, size)
			time.AfterFunc(200*time.Microsecond, func() { // b sleeps by then
				postSend(t, va, xa, 0, size)
			})
			received(t, vb, 0)
			checkPattern(t, xb.buf[0][:size], k)
			sent(t, va, 0)
		}
		if waits := q.waits.Load() - before; waits > rounds*frames/4 {
			t.Errorf("%d messages of %d frames took %d sleeps", rounds, frames, waits)
		}
	})
}
