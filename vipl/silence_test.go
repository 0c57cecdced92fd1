package vipl_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// A peer that goes silent breaks the VI within the silence time and a quarter,
// with everything flushed, whether or not the program waits.
func TestSilentPeer(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		synctest.Test(t, func(t *testing.T) {
			const silence = 2 * time.Second
			n, va, vb := connected(t, memoryConfig{bubble: true, silence: silence}, level)
			xa, xb := newBox(t, n.a.Nic, 3, 64), newBox(t, n.b.Nic, 1, 64)
			postRecv(t, va, xa, 0, 64)
			postRecv(t, vb, xb, 0, 64)

			// Idle connections live on keepalives alone.
			time.Sleep(20 * silence)
			stateIs(t, va, vipl.Connected)
			stateIs(t, vb, vipl.Connected)
			if c := n.a.Counters(); c.Probes == 0 {
				t.Errorf("no probes: %+v", c)
			}

			n.wire.Cut(true)
			start := time.Now()
			postSend(t, va, xa, 1, 64)
			received(t, va, vipl.StatusFlushed) // waits
			if d := time.Since(start); d < silence/2 || d > silence+silence/4 {
				t.Errorf("noticed after %v", d)
			}
			want := vipl.Status(0)
			if level == vipl.ReliableReception {
				want = vipl.StatusTransportError
			}
			sent(t, va, want)
			time.Sleep(silence) // b neither posts nor polls
			if s := stateIs(t, vb, vipl.Error); s.Cause == nil || strings.Contains(s.Cause.Error(), "queue") {
				t.Errorf("cause: %v", s.Cause)
			}
			received(t, vb, vipl.StatusFlushed)
			if c := n.b.Counters(); c.PeersLost != 1 {
				t.Errorf("%+v", c)
			}
			n.wire.Cut(false)
			for _, v := range []*vipl.VI{va, vb} {
				if err := v.Disconnect(); err != nil {
					t.Error(err)
				}
			}
			join(t, n.a.Nic, va, n.b.Nic, vb)
		})
	})
}

// Where frames get through one way only, both sides know as soon as the one that hears
// nothing does: which tells the other, who would else wait for as long again.
func TestOneWaySilence(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		synctest.Test(t, func(t *testing.T) {
			const silence = time.Second
			n, va, vb := connected(t, memoryConfig{bubble: true, silence: silence}, level)
			xa := newBox(t, n.a.Nic, 1, 64)
			postRecv(t, va, xa, 0, 64)
			time.Sleep(5 * silence) // both have heard of each other
			n.a.queue.SetFaults(xdpnictest.Faults{Drop: func([]byte) bool { return true }})
			start := time.Now()
			received(t, va, vipl.StatusFlushed)
			if d := time.Since(start); d > silence+silence/4 {
				t.Errorf("noticed after %v", d)
			}
			stateIs(t, vb, vipl.Error)
			if a, b := n.a.Counters(), n.b.Counters(); a.PeersLost != 0 || b.PeersLost != 1 {
				t.Errorf("who heard counts %d lost peers, who did not %d", a.PeersLost, b.PeersLost)
			}
		})
	})
}

// Of a peer of which nothing was ever heard the cause says what that may mean.
func TestUnheardPeer(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		synctest.Test(t, func(t *testing.T) {
			const silence = time.Second
			n, va, vb := connected(t, memoryConfig{bubble: true, silence: silence}, level)
			n.wire.Cut(true)
			time.Sleep(2 * silence)
			for _, v := range []*vipl.VI{va, vb} {
				if s := stateIs(t, v, vipl.Error); s.Cause == nil || !strings.Contains(s.Cause.Error(), "another queue") {
					t.Errorf("cause: %v", s.Cause)
				}
			}
		})
	})
}

// A wire that is cut for less than the silence costs a reliable VI nothing.
func TestShortSilence(t *testing.T) {
	eachLevel(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
		synctest.Test(t, func(t *testing.T) {
			const silence = 2 * time.Second
			n, va, vb := connected(t, memoryConfig{bubble: true, silence: silence}, level)
			xa, xb := newBox(t, n.a.Nic, 10, 3000), newBox(t, n.b.Nic, 10, 3000)
			for i := range 10 {
				postRecv(t, vb, xb, i, 3000)
			}
			n.wire.Cut(true)
			for i := range 10 {
				fillPattern(xa.buf[i][:3000], i)
				postSend(t, va, xa, i, 3000)
			}
			time.Sleep(silence / 2)
			n.wire.Cut(false)
			start := time.Now()
			for i := range 10 {
				received(t, vb, 0)
				checkPattern(t, xb.buf[i][:3000], i)
				sent(t, va, 0)
			}
			if d := time.Since(start); d > silence/2 {
				t.Errorf("took %v to recover", d)
			}
		})
	})
}

// A disconnect that the peer does not hear of ends all the same, and the peer
// finds out by silence.
func TestDisconnectUnheard(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		synctest.Test(t, func(t *testing.T) {
			n, va, vb := connected(t, memoryConfig{bubble: true, silence: time.Second}, level)
			n.wire.Cut(true)
			start := time.Now()
			if err := va.Disconnect(); err != nil {
				t.Error(err)
			}
			if d := time.Since(start); d > 500*time.Millisecond {
				t.Errorf("disconnect took %v", d)
			}
			stateIs(t, va, vipl.Idle)
			stateIs(t, vb, vipl.Connected)
			time.Sleep(1500 * time.Millisecond)
			stateIs(t, vb, vipl.Error)
			n.wire.Cut(false)
		})
	})
}

// Long ways: the timers adapt, and nothing is sent more often than needed.
func TestLongDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, va, vb := connected(t, memoryConfig{bubble: true, silence: 10 * time.Second}, vipl.ReliableReception)
		n.wire.SetFaults(xdpnictest.Faults{Delay: 50 * time.Millisecond})
		xa, xb := newBox(t, n.a.Nic, 1, 3000), newBox(t, n.b.Nic, 1, 3000)
		for k := range 50 {
			fillPattern(xa.buf[0], k)
			postRecv(t, vb, xb, 0, 3000)
			postSend(t, va, xa, 0, 3000)
			received(t, vb, 0)
			checkPattern(t, xb.buf[0][:3000], k)
			sent(t, va, 0)
		}
		if c := n.a.Counters(); c.Resent > 60 {
			t.Errorf("%d frames sent again of 150", c.Resent)
		}
	})
}

// A new connection on which nobody posts or polls lives, too, though whoever
// sleeps for the port went to sleep before there was a timer.
func TestNewConnectionIsKeptAlive(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		synctest.Test(t, func(t *testing.T) {
			n := newMemoryNet(t, memoryConfig{bubble: true, silence: 100 * time.Millisecond})
			va, vb := newVI(t, n.a.Nic, level), newVI(t, n.b.Nic, level)
			for range 3 {
				time.Sleep(50 * time.Millisecond) // both ports sleep
				join(t, n.a.Nic, va, n.b.Nic, vb)
				time.Sleep(5 * time.Second)
				stateIs(t, va, vipl.Connected)
				stateIs(t, vb, vipl.Connected)
				va.Disconnect()
				vb.Disconnect()
			}
		})
	})
}

// latePort is a queue whose sleepers get a CPU late, once, when they are to.
type latePort struct {
	*xdpnictest.Queue
	late atomic.Int64 // ns
}

func (p *latePort) Wait(d time.Duration) error {
	if late := p.late.Swap(0); late > 0 {
		time.Sleep(d + time.Duration(late))
		return nil
	}
	return p.Queue.Wait(d)
}

// An engine that was kept from its work for longer than the silence does not take
// that for the peer's: which lives, and when it has died is noticed as ever.
func TestLateEngine(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		synctest.Test(t, func(t *testing.T) {
			const silence = time.Second
			var port *latePort
			c := memoryConfig{bubble: true, silence: silence, port: func(q *xdpnictest.Queue) vipl.Port {
				port = &latePort{Queue: q}
				return port
			}}
			n := newMemoryNet(t, c)
			c.silence = time.Minute // so that it does not ask by itself, nor minds
			far := n.open(t, "c", c)
			va, vb := connect(t, far.Nic, n.b.Nic, level)
			xa, xb := newBox(t, far.Nic, 1, 64), newBox(t, n.b.Nic, 2, 64)
			postRecv(t, vb, xb, 0, 64)
			time.Sleep(5 * silence)
			for _, late := range []time.Duration{silence, 3 * silence, 10 * silence} {
				port.late.Store(int64(late))
				time.Sleep(late + 2*silence)
				if port.late.Load() != 0 {
					t.Fatal("nobody was late")
				}
				stateIs(t, vb, vipl.Connected)
			}
			postSend(t, va, xa, 0, 64)
			received(t, vb, 0)
			postRecv(t, vb, xb, 1, 64)
			n.wire.Cut(true)
			start := time.Now()
			received(t, vb, vipl.StatusFlushed)
			if d := time.Since(start); d < silence/2 || d > silence+silence/4 {
				t.Errorf("noticed after %v", d)
			}
			if c := n.b.Counters(); c.PeersLost != 1 {
				t.Errorf("%+v", c)
			}
			n.wire.Cut(false)
			va.Disconnect()
		})
	})
}

// A program that polls now and then keeps neither its acknowledgements nor its
// retransmissions waiting for long.
func TestSlowPolling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, va, vb := connected(t, memoryConfig{bubble: true}, vipl.ReliableReception)
		xa, xb := newBox(t, n.a.Nic, 1, 64), newBox(t, n.b.Nic, 1, 64)
		stop := make(chan struct{})
		polled := make(chan struct{})
		go func() {
			defer close(polled)
			for {
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
					vb.Query()
				}
			}
		}()
		for k := range 20 {
			postRecv(t, vb, xb, 0, 64)
			start := time.Now()
			postSend(t, va, xa, 0, 64)
			sent(t, va, 0)
			if d := time.Since(start); d > 30*time.Millisecond {
				t.Errorf("send %d was acknowledged after %v", k, d)
			}
			received(t, vb, 0)
		}
		close(stop)
		<-polled
	})
}

// When a peer is back after a silence in which the timer has become slow, a frame that is
// then lost is missed as soon as ever.
func TestTimerAfterSilence(t *testing.T) {
	eachLevel(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
		synctest.Test(t, func(t *testing.T) {
			n, va, vb := connected(t, memoryConfig{bubble: true, noPacking: true}, level)
			xa, xb := newBox(t, n.a.Nic, 4, 64), newBox(t, n.b.Nic, 4, 64)
			for i := range xb.desc {
				postRecv(t, vb, xb, i, 64)
			}
			postSend(t, va, xa, 0, 64)
			received(t, vb, 0)
			n.wire.Cut(true)
			postSend(t, va, xa, 1, 64)
			time.Sleep(2 * time.Second)
			n.wire.Cut(false)
			received(t, vb, 0)
			time.Sleep(time.Millisecond) // it is acknowledged

			frames := 0
			n.a.queue.SetFaults(xdpnictest.Faults{Drop: func([]byte) bool { frames++; return frames == 2 }})
			postSend(t, va, xa, 2, 64)
			postSend(t, va, xa, 3, 64)
			start := time.Now()
			received(t, vb, 0)
			received(t, vb, 0)
			if took := time.Since(start); took > 10*time.Millisecond {
				t.Errorf("it came after %v", took)
			}
			if resent := n.a.Counters().Resent; frames < 3 || resent < 2 {
				t.Errorf("nothing was lost: %d frames, %d sent again", frames, resent)
			}
		})
	})
}
