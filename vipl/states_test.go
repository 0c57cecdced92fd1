package vipl_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/vipl"
	"viaxdp/wire"
	"viaxdp/xdpnic/xdpnictest"
)

func newVI(t testing.TB, n *vipl.Nic, level vipl.ReliabilityLevel) *vipl.VI {
	t.Helper()
	v, err := n.CreateVi(vipl.ViAttributes{Level: level}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func wantError(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// Sends posted while the VI is not connected complete flushed, at once.
func TestSendsWhileNotConnected(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n := newMemoryNet(t, memoryConfig{})
		v := newVI(t, n.a.Nic, level)
		x := newBox(t, n.a.Nic, 2, 64)
		flushed := func() {
			t.Helper()
			postSend(t, v, x, 0, 64)
			d, err := v.SendDone()
			checkDone(t, "send", d, err, vipl.StatusFlushed)
		}
		flushed()
		stateIs(t, v, vipl.Idle)

		// Connect Pending: somebody waits and does not answer.
		waited := make(chan *vipl.Conn)
		go func() {
			c, err := n.b.ConnectWait(vipl.NetAddress{Discriminator: []byte("slow")}, patience)
			if err != nil {
				t.Error(err)
			}
			waited <- c
		}()
		requested := make(chan error)
		go func() {
			_, err := request(v, address(n.b, "slow"))
			requested <- err
		}()
		c := <-waited
		stateIs(t, v, vipl.ConnectPending)
		flushed()
		wantError(t, "disconnect while connecting", v.Disconnect(), vipl.ErrInvalidState)
		wantError(t, "destroy while connecting", v.Destroy(), vipl.ErrResource)
		if err := c.Reject(); err != nil {
			t.Error(err)
		}
		wantError(t, "request", <-requested, vipl.ErrRejected)
		stateIs(t, v, vipl.Idle)
		flushed()
	})
}

// Receives posted in Idle stay posted over a connect, and are used in order.
func TestReceivesPostedInIdle(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n := newMemoryNet(t, memoryConfig{})
		va, vb := newVI(t, n.a.Nic, level), newVI(t, n.b.Nic, level)
		xa, xb := newBox(t, n.a.Nic, 4, 64), newBox(t, n.b.Nic, 4, 64)
		for i := range 4 {
			postRecv(t, vb, xb, i, 64)
		}
		if d, err := vb.RecvDone(); d != nil || err != vipl.ErrNotDone {
			t.Fatalf("a receive in Idle is done: %v", err)
		}
		join(t, n.a.Nic, va, n.b.Nic, vb)
		for i := range 4 {
			fillPattern(xa.buf[i], i)
			postSend(t, va, xa, i, 10+i)
		}
		for i := range 4 {
			if d := received(t, vb, 0); d != xb.desc[i] || d.Length != uint32(10+i) {
				t.Fatalf("receive %d: another descriptor, or length %d", i, d.Length)
			}
			checkPattern(t, xb.buf[i][:10+i], i)
			sent(t, va, 0)
		}
	})
}

// The peer of a VI that disconnects goes to Error with everything flushed; from
// there it gets back to Idle and connects again.
func TestDisconnectAndReconnect(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n, va, vb := connected(t, memoryConfig{}, level)
		xa, xb := newBox(t, n.a.Nic, 4, 64), newBox(t, n.b.Nic, 4, 64)
		for round := range 3 {
			for i := range 2 {
				postRecv(t, va, xa, i, 64)
				postRecv(t, vb, xb, i, 64)
			}
			fillPattern(xa.buf[2], round)
			postSend(t, va, xa, 2, 64)
			received(t, vb, 0)
			checkPattern(t, xb.buf[0], round)
			sent(t, va, 0)

			if err := va.Disconnect(); err != nil {
				t.Fatal(err)
			}
			stateIs(t, va, vipl.Idle)
			for range 2 {
				received(t, va, vipl.StatusFlushed)
			}
			if d, err := va.RecvDone(); d != nil || err != vipl.ErrDescriptor {
				t.Errorf("empty queue: %v %v", d, err)
			}
			received(t, vb, vipl.StatusFlushed)
			if s := stateIs(t, vb, vipl.Error); s.Cause == nil || !s.RecvEmpty || !s.SendEmpty {
				t.Errorf("%+v", s)
			}
			// In Error everything posted completes flushed.
			postRecv(t, vb, xb, 0, 64)
			received(t, vb, vipl.StatusFlushed)
			postSend(t, vb, xb, 1, 64)
			sent(t, vb, vipl.StatusFlushed)
			if _, err := vb.ConnectRequest(vipl.NetAddress{}, vipl.NetAddress{Host: n.a.Query().Address}, time.Second); !errors.Is(err, vipl.ErrInvalidState) {
				t.Errorf("connect in Error: %v", err)
			}
			wantError(t, "destroy in Error", vb.Destroy(), vipl.ErrResource)
			for range 2 { // the second does nothing
				for _, v := range []*vipl.VI{va, vb} {
					if err := v.Disconnect(); err != nil {
						t.Error(err)
					}
				}
			}
			if s := stateIs(t, vb, vipl.Idle); s.Cause != nil {
				t.Errorf("cause in Idle: %v", s.Cause)
			}
			join(t, n.a.Nic, va, n.b.Nic, vb)
		}
	})
}

func TestBothDisconnectAtOnce(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n, va, vb := connected(t, memoryConfig{}, level)
		for range 5 {
			done := make(chan error)
			for _, v := range []*vipl.VI{va, vb} {
				go func() { done <- v.Disconnect() }()
			}
			for range 2 {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			stateIs(t, va, vipl.Idle)
			stateIs(t, vb, vipl.Idle)
			join(t, n.a.Nic, va, n.b.Nic, vb)
		}
	})
}

// What completed sends of a reliable VI handed over arrives before the
// disconnect does.
func TestDisconnectDeliversFirst(t *testing.T) {
	eachLevel(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n, va, vb := connected(t, memoryConfig{}, level)
		xa, xb := newBox(t, n.a.Nic, 8, 4000), newBox(t, n.b.Nic, 8, 4000)
		for i := range 8 {
			postRecv(t, vb, xb, i, 4000)
		}
		for i := range 8 {
			fillPattern(xa.buf[i], i)
			postSend(t, va, xa, i, 4000)
		}
		done := 0
		for ; done < 8; done++ {
			if _, err := va.SendDone(); err != nil {
				break
			}
		}
		if err := va.Disconnect(); err != nil {
			t.Fatal(err)
		}
		for i := range done {
			received(t, vb, 0)
			checkPattern(t, xb.buf[i][:4000], i)
		}
	})
}

// That takes its time on a long way that loses: as long as the peer answers.
func TestDisconnectDeliversOverALongWay(t *testing.T) {
	eachLevel(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
		synctest.Test(t, func(t *testing.T) {
			const count, size = 8, 1000
			n, va, vb := connected(t, memoryConfig{bubble: true, noPacking: true}, level)
			way := xdpnictest.Faults{Delay: 50 * time.Millisecond}
			n.wire.SetFaults(way)
			xa, xb := newBox(t, n.a.Nic, count, size), newBox(t, n.b.Nic, count, size)
			for range 20 { // until the time of a round trip is known
				postRecv(t, vb, xb, 0, size)
				postSend(t, va, xa, 0, size)
				received(t, vb, 0)
				sent(t, va, 0)
			}
			time.Sleep(time.Second)
			var sent []uint32 // the frames' numbers
			lost := 0
			lossy := way
			lossy.Drop = faultsDropping(func(p *wire.Packet) bool {
				if p.Kind != wire.KindData {
					return false
				}
				if !slices.Contains(sent, p.Seq) {
					sent = append(sent, p.Seq)
				}
				if len(sent) < 4 || p.Seq != sent[3] || lost == 2 {
					return false
				}
				lost++
				return true
			}).Drop
			n.a.queue.SetFaults(lossy)
			for i := range count {
				postRecv(t, vb, xb, i, size)
			}
			for i := range count {
				fillPattern(xa.buf[i], i)
				postSend(t, va, xa, i, size)
			}
			if err := va.Disconnect(); err != nil {
				t.Fatal(err)
			}
			n.a.queue.SetFaults(way)
			if len(sent) != count || lost != 2 {
				t.Fatalf("%d frames, one was lost %d times", len(sent), lost)
			}
			for i := range count {
				received(t, vb, 0)
				checkPattern(t, xb.buf[i][:size], i)
			}
			stateIs(t, vb, vipl.Error)
		})
	})
}

func TestDestroyRefusals(t *testing.T) {
	n, va, vb := connected(t, memoryConfig{}, vipl.ReliableDelivery)
	wantError(t, "connected", va.Destroy(), vipl.ErrResource)
	va.Disconnect()
	x := newBox(t, n.a.Nic, 1, 64)
	postRecv(t, va, x, 0, 64)
	wantError(t, "receive posted", va.Destroy(), vipl.ErrResource)
	join2 := vb.Disconnect()
	if join2 != nil {
		t.Error(join2)
	}
	join(t, n.a.Nic, va, n.b.Nic, vb)
	va.Disconnect()
	wantError(t, "flushed receive not dequeued", va.Destroy(), vipl.ErrResource)
	received(t, va, vipl.StatusFlushed)
	postSend(t, va, x, 0, 64)
	wantError(t, "send not dequeued", va.Destroy(), vipl.ErrResource)
	sent(t, va, vipl.StatusFlushed)
	if err := va.Destroy(); err != nil {
		t.Error(err)
	}
	wantError(t, "twice", va.Destroy(), vipl.ErrInvalidParameter)
	wantError(t, "disconnect of a destroyed VI", va.Disconnect(), vipl.ErrInvalidParameter)
	wantError(t, "post to a destroyed VI", va.PostRecv(x.desc[0], x.region.Handle()), vipl.ErrInvalidParameter)
	if _, err := va.Query(); !errors.Is(err, vipl.ErrInvalidParameter) {
		t.Error(err)
	}
}

// A receive that was posted before its VI got another protection tag was checked by the
// old one, and completes by the new one.
func TestTagOfAVIWithReceives(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{})
	v := newVI(t, n.a.Nic, vipl.ReliableDelivery)
	x := newBox(t, n.a.Nic, 1, 64)
	postRecv(t, v, x, 0, 64)
	tag, err := n.a.CreatePtag()
	if err != nil {
		t.Fatal(err)
	}
	told := watchErrors(n.a.Nic)
	if err := v.SetAttributes(vipl.ViAttributes{Level: vipl.ReliableDelivery, Ptag: tag}); err != nil {
		t.Fatal(err)
	}
	if err := v.Disconnect(); err != nil {
		t.Fatal(err)
	}
	received(t, v, vipl.StatusFlushed|vipl.StatusProtectionError)
	told.are(t, vipl.ErrorCompletionProtection)
}
