package vipl_test

import (
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// unmapped is a queue whose rings are gone some time.
type unmapped struct {
	*xdpnictest.Queue
	gone bool
	t    *testing.T
}

func (u *unmapped) used(what string) {
	if u.gone {
		u.t.Errorf("%s behind Close", what)
	}
}

func (u *unmapped) Pending() int { u.used("Pending"); return u.Queue.Pending() }
func (u *unmapped) Flush() error { u.used("Flush"); return u.Queue.Flush() }
func (u *unmapped) Refill()      { u.used("Refill"); u.Queue.Refill() }

// Who goes on polling while another goroutine closes the NIC, as a program does that is
// told to end, does not touch the rings behind that: they are unmapped.
func TestPollsBehindClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rings *unmapped
		n := newMemoryNet(t, memoryConfig{bubble: true, port: func(q *xdpnictest.Queue) vipl.Port {
			rings = &unmapped{Queue: q, t: t} // of b, which is made last
			return rings
		}})
		_, vb := connect(t, n.a.Nic, n.b.Nic, vipl.ReliableDelivery)
		n.a.queue.SetFaults(xdpnictest.Faults{Loss: 1}) // no acknowledgement comes
		xb := newBox(t, n.b.Nic, 8, 8)
		for k := range 8 {
			postSend(t, vb, xb, k, 8)
		}
		if err := n.b.Nic.Close(); err != nil {
			t.Fatal(err)
		}
		rings.gone = true
		for range 3 {
			for range 1000 {
				n.b.Poll()
				n.b.Ring()
			}
			time.Sleep(time.Second)
		}
	})
}
