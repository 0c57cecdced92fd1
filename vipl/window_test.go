package vipl_test

import (
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

const (
	windowChunks = 128
	windowAlone  = windowChunks * 3 / 4 // of one connection
)

// windowNet is a net of which b has few chunks, and can be stopped.
func windowNet(t *testing.T) (n *memoryNet, b *stoppedPort) {
	n = newMemoryNet(t, memoryConfig{
		queue: xdpnictest.Config{RxChunks: windowChunks}, silence: time.Minute, noPacking: true, bubble: true,
		port: func(q *xdpnictest.Queue) vipl.Port {
			b = &stoppedPort{Queue: q}
			return b
		}})
	return n, b
}

// ahead posts all of x to v, while the peer takes nothing, and says how many frames go.
func ahead(t *testing.T, v *vipl.VI, x *box) uint32 {
	t.Helper()
	before := v.NextFrame()
	for i := range x.desc {
		postSend(t, v, x, i, overloadBytes)
	}
	for range vipl.HeldPolls { // what is on the ring does not wait for company
		v.Nic().Poll()
	}
	return v.NextFrame() - before
}

// What a connection may have under way is what its peer has room for at the time, not
// what it had when the two connected.
func TestWindowFollowsTheConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, b := windowNet(t)
		var others []*vipl.VI
		connectOthers := func() {
			for range 24 {
				v, _ := connect(t, n.a.Nic, n.b.Nic, vipl.ReliableDelivery)
				others = append(others, v)
			}
		}
		connectOthers()
		va, vb := connect(t, n.a.Nic, n.b.Nic, vipl.ReliableDelivery)
		xa, xb := newBox(t, n.a.Nic, 2*windowAlone, overloadBytes), newBox(t, n.b.Nic, 2*windowAlone, overloadBytes)
		window := func(rounds int) (frames uint32) {
			t.Helper()
			for range rounds {
				for i := range xb.desc {
					postRecv(t, vb, xb, i, overloadBytes)
				}
				b.stopped.Store(true)
				frames = ahead(t, va, xa)
				b.stopped.Store(false)
				for left := len(xa.desc) + len(xb.desc); left > 0; {
					before := left
					if d, _ := va.SendDone(); d != nil {
						left--
					}
					if d, _ := vb.RecvDone(); d != nil {
						left--
					}
					if left == before {
						n.a.Poll()
						time.Sleep(10 * time.Microsecond)
					}
				}
			}
			return frames
		}
		if got := window(10); got != vipl.LeastWindow {
			t.Errorf("%d frames beside %d connections, want %d", got, len(others), vipl.LeastWindow)
		}
		for _, v := range others {
			v.Disconnect()
		}
		if got := window(10); got != windowAlone { // the network has to show that it carries as much
			t.Errorf("%d frames when the others are gone, want %d", got, windowAlone)
		}
		connectOthers()
		time.Sleep(5 * time.Millisecond) // they have been told
		if got := window(1); got != vipl.LeastWindow {
			t.Errorf("%d frames when others have come again, want %d", got, vipl.LeastWindow)
		}
		stateIs(t, va, vipl.Connected)
		stateIs(t, vb, vipl.Connected)
		if s := n.b.queue.Stats(); s.RxNoFill+s.RxRingFull > 0 {
			t.Errorf("frames found no room: %+v", s)
		}
	})
}

// Connections that were told of more room than is left by now, and send nothing
// until all do at once, find room for all that they send: whether they were made one
// after the other, or together, when none knew of the others yet.
func TestIdleConnectionsLearnOfLessRoom(t *testing.T) {
	for name, join := range map[string]func(t *testing.T, n *memoryNet, from, to []*vipl.VI){
		"in turn": func(t *testing.T, n *memoryNet, from, to []*vipl.VI) {
			for i := range from {
				join(t, n.a.Nic, from[i], n.b.Nic, to[i])
			}
		},
		"together": joinTogether,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { idleConnections(t, join) })
		})
	}
}

// joinTogether connects all of to, who ask before anybody is answered, with from.
func joinTogether(t *testing.T, n *memoryNet, from, to []*vipl.VI) {
	l, err := n.a.Listen(vipl.NetAddress{Discriminator: []byte("all")})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	over := make(chan error)
	for i, v := range to {
		go func() {
			_, err := v.ConnectRequest(vipl.NetAddress{Discriminator: []byte{byte(i)}}, address(n.a, "all"), patience)
			over <- err
		}()
	}
	synctest.Wait()
	for range from {
		c, err := l.Wait(t.Context())
		if err == nil {
			err = c.Accept(from[c.Remote().Discriminator[0]])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for range to {
		if err := <-over; err != nil {
			t.Fatal(err)
		}
	}
}

func idleConnections(t *testing.T, join func(t *testing.T, n *memoryNet, from, to []*vipl.VI)) {
	n, b := windowNet(t)
	const conns = 6
	var from, to []*vipl.VI
	var out, in [conns]*box
	for range conns {
		from = append(from, newVI(t, n.a.Nic, vipl.ReliableDelivery))
		to = append(to, newVI(t, n.b.Nic, vipl.ReliableDelivery))
	}
	join(t, n, from, to)
	for i := range conns {
		out[i], in[i] = newBox(t, n.a.Nic, windowAlone, overloadBytes), newBox(t, n.b.Nic, windowAlone, overloadBytes)
		for k := range in[i].desc {
			postRecv(t, to[i], in[i], k, overloadBytes)
		}
	}
	time.Sleep(5 * time.Millisecond) // those who have less have been told
	b.stopped.Store(true)
	frames := uint32(0)
	for i := range conns {
		frames += ahead(t, from[i], out[i])
	}
	if s := n.b.queue.Stats(); s.RxNoFill+s.RxRingFull > 0 {
		t.Errorf("%d frames for %d chunks: %+v", frames, windowChunks, s)
	}
	if frames < windowAlone*7/8 {
		t.Errorf("%d frames for %d chunks", frames, windowChunks)
	}
	b.stopped.Store(false)
	for i := range conns {
		for k := range in[i].desc {
			if d := received(t, to[i], 0); d != in[i].desc[k] {
				t.Fatalf("connection %d: message %d is in another's descriptor", i, k)
			}
			sent(t, from[i], 0)
		}
	}
}
