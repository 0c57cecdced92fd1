package vipl_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/kagent"
	"viaxdp/kagent/kagenttest"
	"viaxdp/vipl"
	"viaxdp/wire"
	"viaxdp/xdpnic/xdpnictest"
)

// A peer that goes on answering, and does not take the close, does not hold Disconnect.
func TestDisconnectFromOneWhoTakesNoClose(t *testing.T) {
	eachLevel(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
		synctest.Test(t, func(t *testing.T) {
			n, va, vb := connected(t, memoryConfig{bubble: true, silence: time.Minute}, level)
			xb := newBox(t, n.b.Nic, 1, 64)
			n.a.queue.SetFaults(faultsDropping(func(p *wire.Packet) bool { return p.Kind == wire.KindClose }))
			over, spoken := make(chan struct{}), make(chan int)
			go func() { // RDMA writes of nothing, which take no receive
				for n := 0; ; n++ {
					select {
					case <-over:
						spoken <- n
						return
					case <-time.After(50 * time.Millisecond):
					}
					xb.desc[0].SetRDMAWrite(vipl.AddressSegment{})
					if err := vb.PostSend(xb.desc[0], xb.region.Handle()); err != nil {
						t.Error(err)
					}
					if _, err := vb.SendWait(patience); err != nil { // the other side has gone
						spoken <- n
						return
					}
				}
			}()
			start := time.Now()
			if err := va.Disconnect(); err != nil {
				t.Fatal(err)
			}
			took := time.Since(start)
			close(over)
			if n := <-spoken; took < 2*time.Second || took > 6*time.Second || n < 50 {
				t.Errorf("it took %v, in which the peer spoke %d times", took, n)
			}
			stateIs(t, va, vipl.Idle)
			n.a.queue.SetFaults(xdpnictest.Faults{})
			if err := vb.Disconnect(); err != nil {
				t.Error(err)
			}
		})
	})
}

// Receives that are posted while Disconnect waits for the peer are for the next connection,
// whatever becomes of this one meanwhile.
func TestReceivesPostedBesideDisconnect(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		synctest.Test(t, func(t *testing.T) {
			n, va, vb := connected(t, memoryConfig{bubble: true}, level)
			xa, xb := newBox(t, n.a.Nic, 1, 64), newBox(t, n.b.Nic, 1, 64)
			n.wire.SetFaults(xdpnictest.Faults{Delay: 3 * time.Millisecond})
			over := make(chan error, 2)
			for _, v := range []*vipl.VI{va, vb} { // each hears the other's close while it waits
				go func() { over <- v.Disconnect() }()
			}
			synctest.Wait()
			postRecv(t, va, xa, 0, 64)
			for range 2 {
				if err := <-over; err != nil {
					t.Error(err)
				}
			}
			n.wire.SetFaults(xdpnictest.Faults{})
			join(t, n.a.Nic, va, n.b.Nic, vb)
			fillPattern(xb.buf[0], 1)
			postSend(t, vb, xb, 0, 64)
			received(t, va, 0)
			checkPattern(t, xa.buf[0], 1)
		})
	})
}

// A receive that is wrong and posted while Disconnect waits for the peer completes at
// once: what was sent before still comes, and the next connection works.
func TestWrongReceiveBesideDisconnect(t *testing.T) {
	eachLevel(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
		synctest.Test(t, func(t *testing.T) {
			n, va, vb := connected(t, memoryConfig{bubble: true}, level)
			xa, xb := newBox(t, n.a.Nic, 2, 64), newBox(t, n.b.Nic, 2, 64)
			postRecv(t, vb, xb, 0, 64)
			n.a.queue.SetFaults(faultsDropping(func(p *wire.Packet) bool { return p.Kind == wire.KindData }))
			fillPattern(xa.buf[0], 1)
			postSend(t, va, xa, 0, 64)
			over := make(chan error, 1)
			go func() { over <- va.Disconnect() }()
			synctest.Wait() // it waits for the peer
			xa.prepare(1, 64)
			xa.desc[1].Control = vipl.ControlQFence
			if err := va.PostRecv(xa.desc[1], xa.region.Handle()); err != nil {
				t.Fatal(err)
			}
			d, err := va.RecvDone()
			checkDone(t, "receive", d, err, vipl.StatusOpReceive|vipl.StatusFormatError)
			n.a.queue.SetFaults(xdpnictest.Faults{})
			received(t, vb, 0)
			checkPattern(t, xb.buf[0], 1)
			if err := <-over; err != nil {
				t.Error(err)
			}
			if err := vb.Disconnect(); err != nil {
				t.Error(err)
			}
			join(t, n.a.Nic, va, n.b.Nic, vb)
			postRecv(t, vb, xb, 1, 64)
			postSend(t, va, xa, 0, 64)
			received(t, vb, 0)
		})
	})
}

// Close of the NIC beside a Disconnect gives the peer what was sent before, as that would.
func TestCloseBesideDisconnect(t *testing.T) {
	for name, end := range map[string]func(n *vipl.Nic) error{
		"close": (*vipl.Nic).Close, "farewell": func(n *vipl.Nic) error { n.Farewell(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, va, vb := connected(t, memoryConfig{bubble: true}, vipl.ReliableDelivery)
				xa, xb := newBox(t, n.a.Nic, 1, 64), newBox(t, n.b.Nic, 1, 64)
				postRecv(t, vb, xb, 0, 64)
				n.a.queue.SetFaults(faultsDropping(func(p *wire.Packet) bool { return p.Kind == wire.KindData }))
				fillPattern(xa.buf[0], 1)
				postSend(t, va, xa, 0, 64)
				sent(t, va, 0)
				disconnected, ended := make(chan error, 1), make(chan error, 1)
				go func() { disconnected <- va.Disconnect() }()
				synctest.Wait() // it waits for the peer
				go func() { ended <- end(n.a.Nic) }()
				time.Sleep(20 * time.Millisecond)
				if len(ended) > 0 {
					t.Error("it did not wait for the peer")
				}
				n.a.queue.SetFaults(xdpnictest.Faults{})
				received(t, vb, 0)
				checkPattern(t, xb.buf[0], 1)
				for _, over := range []chan error{disconnected, ended} {
					if err := <-over; err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}

// leaving is another handle's part of an agent, of which an answer comes behind the handle's end.
type leaving struct {
	*kagenttest.Agent
	closed chan struct{}
}

func (a *leaving) Remove(uint32) error {
	<-a.closed
	return kagent.ErrClosed
}

func (a *leaving) Close() error {
	close(a.closed)
	return nil
}

// A Disconnect that ends behind the Close of its handle takes nothing from other handles on
// the queue: each connection has its part of the chunks.
func TestDisconnectEndsBehindClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, v1, w1 := connected(t, memoryConfig{bubble: true}, vipl.ReliableDelivery)
		connect(t, n.a.Nic, n.b.Nic, vipl.ReliableDelivery)
		agent := &leaving{n.a.agent, make(chan struct{})}
		other, err := vipl.Open(vipl.Provider{Port: n.a.queue, Agent: agent, Arena: n.a.arena, Silence: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		v3, _ := connect(t, other, n.b.Nic, vipl.ReliableDelivery)

		var window atomic.Uint32
		n.a.queue.SetFaults(faultsDropping(func(p *wire.Packet) bool {
			window.Store(uint32(p.Window))
			return false
		}))
		x, y := newBox(t, n.a.Nic, 1, 8), newBox(t, n.b.Nic, 1, 8)
		granted := func(connections uint32) {
			t.Helper()
			postRecv(t, w1, y, 0, 8)
			postSend(t, v1, x, 0, 8)
			sent(t, v1, 0)
			received(t, w1, 0)
			if got, want := window.Load(), uint32(xdpnictest.DefaultChunks*3/4)/connections; got != want {
				t.Errorf("with %d connections each may send %d frames, want %d", connections, got, want)
			}
		}
		granted(3)
		n.b.queue.Cut(true)
		over := make(chan error)
		go func() { over <- v3.Disconnect() }()
		synctest.Wait()
		if err := other.Close(); err != nil {
			t.Error(err)
		}
		if err := <-over; err != nil {
			t.Error(err)
		}
		n.b.queue.Cut(false)
		granted(2)
	})
}
