package vipl_test

import (
	"errors"
	"fmt"
	"testing"

	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// Messages are cut to what the path and both ends' chunks take, over IPv4 and
// IPv6.
func TestPaths(t *testing.T) {
	for _, c := range []struct {
		mtuA, mtuB, chunk int
		payload           int // over IPv4, -1: too small to be of use
		long              bool
	}{
		{1500, 1500, 2048, 1424, false},
		{1500, 576, 2048, 500, false},
		{576, 1500, 2048, 500, false},
		{9000, 9000, 2048, 2048 - 256 - 18 - 28 - 48, false},
		{3500, 3500, 4096, 3424, false},
		{65535, 65535, 4096, 4096 - 256 - 18 - 28 - 48, false},
		{332, 332, 2048, 256, false},
		{331, 331, 2048, -1, false},
		{9000, 9000, 4096, 8924, true},
		{9000, 9000, 2048, 8924, true},
		{9000, 2000, 4096, 1924, true},
		{65000, 65535, 4096, 64924, true},
	} {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d-%d-%d-%v-%v", c.mtuA, c.mtuB, c.chunk, c.long, v6), func(t *testing.T) {
				n := newMemoryNet(t, memoryConfig{queue: xdpnictest.Config{ChunkSize: c.chunk, MultiBuffer: c.long}})
				n.a.agent.SetMTU(c.mtuA)
				n.b.agent.SetMTU(c.mtuB)
				va, vb := newVI(t, n.a.Nic, vipl.ReliableDelivery), newVI(t, n.b.Nic, vipl.ReliableDelivery)
				to := address(n.b, "path")
				want := c.payload
				if v6 {
					link := n.b.agent.Link()
					to.Host = link.IPv6[0]
					want -= 20
				}
				accepted := make(chan error, 1)
				go func() {
					conn, err := n.b.ConnectWait(vipl.NetAddress{Discriminator: []byte("path")}, patience)
					if err == nil {
						if err = conn.Accept(vb); err != nil {
							conn.Reject()
						}
					}
					accepted <- err
				}()
				_, err := request(va, to)
				acceptErr := <-accepted
				if want < 256 {
					if err == nil || acceptErr == nil || !errors.Is(acceptErr, vipl.ErrResource) {
						t.Errorf("connected over a path with %d bytes: %v, %v", want, err, acceptErr)
					}
					stateIs(t, va, vipl.Idle)
					stateIs(t, vb, vipl.Idle)
					return
				}
				if err != nil || acceptErr != nil {
					t.Fatal(err, acceptErr)
				}
				for _, v := range []*vipl.VI{va, vb} {
					if s := stateIs(t, v, vipl.Connected); s.MaxPayload != want {
						t.Errorf("%d bytes in a frame, want %d", s.MaxPayload, want)
					}
				}
				xa, xb := newBox(t, n.a.Nic, 2, 100_000), newBox(t, n.b.Nic, 2, 100_000)
				for k, size := range []int{want, want + 1, 100_000} {
					fillPattern(xa.buf[0], k)
					fillPattern(xb.buf[1], k)
					postRecv(t, vb, xb, 0, 100_000)
					postRecv(t, va, xa, 1, 100_000)
					postSend(t, va, xa, 0, size)
					received(t, vb, 0)
					checkPattern(t, xb.buf[0][:size], k)
					postSend(t, vb, xb, 1, size)
					received(t, va, 0)
					checkPattern(t, xa.buf[1][:size], k)
					sent(t, va, 0)
					sent(t, vb, 0)
				}
				if s := n.b.queue.Stats(); s.RxTooLong > 0 {
					t.Errorf("%d frames were too long", s.RxTooLong)
				}
			})
		}
	}
}
