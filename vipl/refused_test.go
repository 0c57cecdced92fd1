package vipl_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/vipl"
	"viaxdp/wire"
	"viaxdp/xdpnic/xdpnictest"
)

// pollFor polls for so long of a bubble's time, so often that time alone is looked at, too, and
// the library's own goroutine stays away.
func pollFor(n *vipl.Nic, d time.Duration) {
	const step = 10 * time.Microsecond
	for ; d > 0; d -= step {
		time.Sleep(min(d, step))
		for range 300 {
			n.Poll()
		}
	}
}

// An acknowledgement that was to ride on a frame that is sent again, for which the ring has no room,
// goes by itself: the peer need not send again what has come.
func TestAcknowledgementOfARefusedFrame(t *testing.T) {
	for _, size := range []int{8, 20_000} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := longFrames
				c.bubble = true
				n, va, vb := connected(t, c, vipl.ReliableReception)
				polling(t, n, va, vb)
				xa, xb := newBox(t, n.a.Nic, 1, size), newBox(t, n.b.Nic, 1, size)
				postRecv(t, va, xa, 0, size)
				own := newBox(t, n.a.Nic, 1, size)
				n.a.queue.SetFaults(faultsDropping(func(p *wire.Packet) bool { return p.Kind == wire.KindData }))
				postSend(t, va, own, 0, size) // asked for after two milliseconds
				pollFor(n.a.Nic, 1980*time.Microsecond)
				before := n.b.Counters().Resent
				postSend(t, vb, xb, 0, 8)
				n.a.Poll()
				received(t, va, 0) // its acknowledgement may wait for 50 us
				n.a.queue.SetLies(xdpnictest.Lies{RefuseSend: 1})
				pollFor(n.a.Nic, 30*time.Microsecond)
				if n.a.queue.Stats().LiedSend == 0 {
					t.Fatal("nothing was refused")
				}
				n.a.queue.SetLies(xdpnictest.Lies{})
				pollFor(n.a.Nic, 100*time.Microsecond) // and the peer sends again after 200
				synctest.Wait()
				if d, err := vb.SendDone(); d == nil || n.b.Counters().Resent != before {
					t.Errorf("the peer has not heard of it: %v, %d frames sent again", err, n.b.Counters().Resent-before)
				}
			})
		})
	}
}
