package vipl_test

import (
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/vipl"
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
