package vipl_test

import (
	"math"
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
	eachLevelInBubble(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		const silence = 2 * time.Second
		n, va, vb, xa, xb := connectedBoxes(t, memoryConfig{bubble: true, silence: silence}, level, 3, 1, 64)
		postRecv(t, va, xa, 0, 64)
		postRecv(t, vb, xb, 0, 64)

		// Idle connections live on keepalives alone.
		time.Sleep(20 * silence)
		statesAre(t, vipl.Connected, va, vb)
		c := n.a.Counters()
		errorIf(t, c.Probes == 0, "no probes: %+v", c)

		n.wire.Cut(true)
		start := time.Now()
		postSend(t, va, xa, 1, 64)
		received(t, va, vipl.StatusFlushed) // waits
		d := time.Since(start)
		errorIf(t, d < silence/2 || d > silence+silence/4, "noticed after %v", d)
		want := vipl.Status(0)
		if level == vipl.ReliableReception {
			want = vipl.StatusTransportError
		}
		sent(t, va, want)
		time.Sleep(silence) // b neither posts nor polls
		s := stateIs(t, vb, vipl.Error)
		errorIf(t, s.Cause == nil || strings.Contains(s.Cause.Error(), "queue"), "cause: %v", s.Cause)
		received(t, vb, vipl.StatusFlushed)
		equal(t, "PeersLost", n.b.Counters().PeersLost, 1)
		n.wire.Cut(false)
		disconnect(t, va, vb)
		join(t, n.a.NIC, va, n.b.NIC, vb)
	})
}

// If frames get through in one direction only, both sides detect it as soon as the side that receives nothing
// does: it notifies the other one, which would otherwise wait for as long again.
func TestOneWaySilence(t *testing.T) {
	eachLevelInBubble(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		const silence = time.Second
		n, va, vb := connected(t, memoryConfig{bubble: true, silence: silence}, level)
		xa := newBox(t, n.a.NIC, 1, 64)
		postRecv(t, va, xa, 0, 64)
		time.Sleep(5 * silence) // both have heard of each other
		n.a.queue.SetFaults(xdpnictest.Faults{Drop: func([]byte) bool { return true }})
		start := time.Now()
		received(t, va, vipl.StatusFlushed)
		d := time.Since(start)
		errorIf(t, d > silence+silence/4, "noticed after %v", d)
		stateIs(t, vb, vipl.Error)
		a, b := n.a.Counters(), n.b.Counters()
		errorIf(t, a.PeersLost != 0 || b.PeersLost != 1, "lost peers: a %d, b %d", a.PeersLost, b.PeersLost)
	})
}

// If no frame of a peer ever arrived, the cause explains what that may mean.
func TestUnheardPeer(t *testing.T) {
	eachLevelInBubble(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		const silence = time.Second
		n, va, vb := connected(t, memoryConfig{bubble: true, silence: silence}, level)
		n.wire.Cut(true)
		time.Sleep(2 * silence)
		for _, v := range []*vipl.VI{va, vb} {
			s := stateIs(t, v, vipl.Error)
			errorIf(t, s.Cause == nil || !strings.Contains(s.Cause.Error(), "another queue"), "cause: %v", s.Cause)
		}
	})
}

// A disconnect that the peer does not hear of ends all the same, and the peer
// finds out by silence.
func TestDisconnectUnheard(t *testing.T) {
	eachLevelInBubble(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n, va, vb := connected(t, memoryConfig{bubble: true, silence: time.Second}, level)
		n.wire.Cut(true)
		start := time.Now()
		noError(t, va.Disconnect())
		d := time.Since(start)
		errorIf(t, d > 500*time.Millisecond, "disconnect took %v", d)
		stateIs(t, va, vipl.Idle)
		stateIs(t, vb, vipl.Connected)
		time.Sleep(1500 * time.Millisecond)
		stateIs(t, vb, vipl.Error)
		n.wire.Cut(false)
	})
}

// A new connection without posts and polls stays alive, too, although the goroutine that sleeps for the port
// went to sleep before there was a timer.
func TestNewConnectionIsKeptAlive(t *testing.T) {
	eachLevelInBubble(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n, va, vb := unconnected(t, memoryConfig{bubble: true, silence: 100 * time.Millisecond}, level)
		for range 3 {
			time.Sleep(50 * time.Millisecond) // both ports sleep
			join(t, n.a.NIC, va, n.b.NIC, vb)
			time.Sleep(5 * time.Second)
			statesAre(t, vipl.Connected, va, vb)
			va.Disconnect()
			vb.Disconnect()
		}
	})
}

// latePort is a queue whose sleepers get a CPU late, once, on request.
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

// An engine that did not run for longer than the silence time does not attribute that to the peer: the peer
// stays alive, and its death is detected as usual.
func TestLateEngine(t *testing.T) {
	eachLevelInBubble(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		const silence = time.Second
		port := &latePort{}
		c := memoryConfig{bubble: true, silence: silence, port: over(port, &port.Queue)}
		n := newMemoryNet(t, c)
		c.silence = time.Minute // so that it does not ask by itself, nor minds
		far := n.open(t, "c", c)
		va, vb := connect(t, far.NIC, n.b.NIC, level)
		xa, xb := newBox(t, far.NIC, 1, 64), newBox(t, n.b.NIC, 2, 64)
		postRecv(t, vb, xb, 0, 64)
		time.Sleep(5 * silence)
		for _, late := range []time.Duration{silence, 3 * silence, 10 * silence} {
			port.late.Store(int64(late))
			time.Sleep(late + 2*silence)
			fatalIf(t, port.late.Load() != 0, "no sleeper was late")
			stateIs(t, vb, vipl.Connected)
		}
		postSend(t, va, xa, 0, 64)
		received(t, vb, 0)
		postRecv(t, vb, xb, 1, 64)
		n.wire.Cut(true)
		start := time.Now()
		received(t, vb, vipl.StatusFlushed)
		d := time.Since(start)
		errorIf(t, d < silence/2 || d > silence+silence/4, "noticed after %v", d)
		equal(t, "PeersLost", n.b.Counters().PeersLost, 1)
		n.wire.Cut(false)
		va.Disconnect()
	})
}

// A program that polls now and then keeps neither its acknowledgements nor its
// retransmissions waiting for long.
func TestSlowPolling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, va, vb, xa, xb := connectedBoxes(t, memoryConfig{bubble: true}, vipl.ReliableReception, 1, 1, 64)
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
			d := time.Since(start)
			errorIf(t, d > 30*time.Millisecond, "send %d was acknowledged after %v", k, d)
			received(t, vb, 0)
		}
		close(stop)
		<-polled
	})
}

// When a peer is back after a silence in which the timer has backed off, what waits arrives soon, and the loss of a
// frame is detected as soon as before.
func TestTimerAfterSilence(t *testing.T) {
	eachLevelInBubble(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n, va, vb, xa, xb := connectedBoxes(t, memoryConfig{bubble: true, noPacking: true}, level, 4, 4, 64)
		for i := range xb.desc {
			postRecv(t, vb, xb, i, 64)
		}
		postSend(t, va, xa, 0, 64)
		received(t, vb, 0)
		n.wire.Cut(true)
		postSend(t, va, xa, 1, 64)
		time.Sleep(2 * time.Second)
		n.wire.Cut(false)
		start := time.Now()
		received(t, vb, 0)
		errorIf(t, time.Since(start) > time.Second, "what waited came after %v", time.Since(start))
		time.Sleep(time.Millisecond) // it is acknowledged

		frames := 0
		n.a.queue.SetFaults(xdpnictest.Faults{Drop: func([]byte) bool { frames++; return frames == 2 }})
		postSend(t, va, xa, 2, 64)
		postSend(t, va, xa, 3, 64)
		start = time.Now()
		received(t, vb, 0)
		received(t, vb, 0)
		took := time.Since(start)
		errorIf(t, took > 10*time.Millisecond, "it came after %v", took)
		resent := n.a.Counters().Resent
		errorIf(t, frames < 3 || resent < 2, "nothing was lost: %d frames, %d sent again", frames, resent)
	})
}

// A silence time without an end ends no connection, and does not overflow.
func TestEndlessSilence(t *testing.T) {
	eachLevelInBubble(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n, va, vb, xa, xb := connectedBoxes(t, memoryConfig{bubble: true, silence: math.MaxInt64}, level, 1, 1, 64)
		n.wire.SetFaults(xdpnictest.Faults{Delay: 3 * time.Millisecond})
		postRecv(t, vb, xb, 0, 64)
		postMessage(t, va, xa, 0, 64, 1)
		receivedMessage(t, vb, xb.buf[0], 1)
		time.Sleep(time.Hour)
		statesAre(t, vipl.Connected, va, vb)
		for _, h := range []*memoryHost{n.a, n.b} {
			probes := h.Counters().Probes
			errorIf(t, probes > 0, "%d probes", probes)
		}
	})
}
