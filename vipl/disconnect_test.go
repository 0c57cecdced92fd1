package vipl_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/base/wire"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// A peer that continues to answer, and does not acknowledge the close, does not delay Disconnect.
func TestDisconnectFromOneWhoTakesNoClose(t *testing.T) {
	eachLevelInBubble(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n, va, vb := connected(t, memoryConfig{bubble: true, silence: time.Minute}, level)
		xb := newBox(t, n.b.NIC, 200, 64)
		n.a.queue.SetFaults(faultsDropping(func(p *wire.Packet) bool { return p.Kind == wire.KindClose }))
		over, spoken := make(chan struct{}), make(chan int)
		go func() { // RDMA writes of nothing, which take no receive. With Reliable Reception they do not complete.
			for n := range xb.desc {
				select {
				case <-over:
					spoken <- n
					return
				case <-time.After(50 * time.Millisecond):
				}
				xb.desc[n].SetRDMAWrite(vipl.AddressSegment{})
				noError(t, vb.PostSend(xb.desc[n], xb.region.Handle()))
			}
		}()
		start := time.Now()
		must(t, va.Disconnect())
		took := time.Since(start)
		close(over)
		if n := <-spoken; took < 2*time.Second || took > 6*time.Second || n < 50 {
			t.Errorf("it took %v, in which the peer spoke %d times", took, n)
		}
		stateIs(t, va, vipl.Idle)
		n.a.queue.SetFaults(xdpnictest.Faults{})
		noError(t, vb.Disconnect())
	})
}

// With Reliable Reception a send whose data Disconnect has dropped does not succeed, even if the peer hears of the
// disconnect late: the frame that announces it is lost, or waits behind a full window.
func TestReceptionBesideDisconnect(t *testing.T) {
	const long = 60000
	for _, lost := range []bool{true, false} {
		inBubble(t, fmt.Sprint("lost ", lost), func(t *testing.T) {
			n, va, vb, xa, xb := connectedBoxes(t, memoryConfig{bubble: true}, vipl.ReliableReception, 2, 2, long)
			postRecv(t, va, xa, 0, long)
			postRecv(t, vb, xb, 0, long)
			n.wire.SetFaults(xdpnictest.Faults{Delay: 100 * time.Microsecond})
			if lost {
				first := true
				n.b.queue.SetFaults(faultsDropping(func(p *wire.Packet) bool {
					drops := p.Kind == wire.KindClose && first
					first = first && !drops
					return drops
				}))
			} else {
				postMessage(t, vb, xb, 1, long, 2)
			}
			postMessage(t, va, xa, 1, 64, 1)
			time.Sleep(20 * time.Microsecond) // the frames are under way, and arrive after Disconnect has begun
			over := starts(vb.Disconnect)
			_, errSend := va.SendWait(time.Second)
			noError(t, <-over)
			_, errRecv := vb.RecvDone()
			errorIf(t, !errors.Is(errSend, vipl.ErrDescriptor) || !errors.Is(errRecv, vipl.ErrDescriptor),
				"the send: %v; the receive: %v", errSend, errRecv)
			n.wire.SetFaults(xdpnictest.Faults{})
			n.b.queue.SetFaults(xdpnictest.Faults{})
			noError(t, va.Disconnect())
		})
	}
}

// Both sides disconnect while messages are under way in both directions, perhaps as many as the windows allow. Neither waits
// for what the other drops, and with Reliable Reception no send of dropped data succeeds.
func TestBothDisconnectBesideMessages(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		for _, size := range []int{64, 60_000, 1 << 20} {
			inBubble(t, fmt.Sprint(size), func(t *testing.T) {
				n, va, vb, xa, xb := connectedBoxes(t, memoryConfig{bubble: true, arena: 8 << 20}, level, 2, 2, size)
				postRecv(t, va, xa, 0, size)
				postRecv(t, vb, xb, 0, size)
				n.wire.SetFaults(xdpnictest.Faults{Delay: 3 * time.Millisecond})
				postMessage(t, va, xa, 1, size, 1)
				postMessage(t, vb, xb, 1, size, 1)
				start := time.Now()
				for _, over := range []<-chan error{starts(va.Disconnect), starts(vb.Disconnect)} {
					noError(t, <-over)
				}
				took := time.Since(start)
				errorIf(t, took > 500*time.Millisecond, "it took %v", took)
				for _, v := range []*vipl.VI{va, vb} {
					recvDone(t, v, vipl.StatusFlushed|vipl.StatusOpReceive)
					if level == vipl.ReliableReception {
						sent(t, v, vipl.StatusFlushed)
					}
				}
			})
		}
	})
}

// Disconnect repeats a lost frame also on a path whose round trip is longer than the silence that it usually takes for the
// peer's end.
func TestDisconnectOnSlowPath(t *testing.T) {
	eachLevelInBubble(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
		const messages = 4
		n, va, vb, xa, xb := connectedBoxes(t, memoryConfig{bubble: true}, level, messages, messages, 64)
		postRecvs(t, vb, xb, messages, 64)
		var lose atomic.Bool
		slow := faultsDropping(func(p *wire.Packet) bool { return p.Kind == wire.KindData && lose.CompareAndSwap(true, false) })
		slow.Delay = 250 * time.Millisecond
		n.wire.SetFaults(slow)
		for i := range messages {
			lose.Store(i == messages-1)
			postMessage(t, va, xa, i, 64, i)
			if i < messages-1 {
				time.Sleep(time.Second)
				recvDone(t, vb, vipl.StatusOpReceive)
			}
		}
		noError(t, va.Disconnect())
		recvDone(t, vb, vipl.StatusOpReceive)
		errorIf(t, lose.Load(), "no frame was lost")
	})
}

// A VI that disconnects while the peer answers its read, and has refused what was posted behind the read, does not wait for
// the rest of the answer.
func TestDisconnectBesideRefusal(t *testing.T) {
	const size = 1 << 20
	eachLevelInBubble(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n, va, vb := openConnected(t, memoryConfig{bubble: true, arena: 8 << 20}, level)
		xa, xb := newBox(t, n.a.NIC, 2, size), openBoxOf(t, n.b.NIC, 1, size)
		n.wire.SetFaults(xdpnictest.Faults{Delay: 3 * time.Millisecond})
		xa.desc[0].SetRDMARead(xb.remote(0), segment(xa, 0, size))
		postDesc(t, va, xa, 0)
		xa.desc[1].SetRDMAWrite(vipl.AddressSegment{Data: 1 << 20, Handle: 1}, segment(xa, 1, 64))
		postDesc(t, va, xa, 1)
		time.Sleep(10 * time.Millisecond) // the answer is under way
		start := time.Now()
		must(t, va.Disconnect())
		took := time.Since(start)
		errorIf(t, took > 500*time.Millisecond, "it took %v", took)
		q, err := vb.Query()
		must(t, err)
		errorIf(t, q.State != vipl.Error, "the peer is %v", q.State)
		n.b.errs.are(t, vipl.ErrorRDMAWriteProtection, vipl.ErrorConnLost)
	})
}

// A wrong receive breaks the connection, and the peer hears of it at once, even if the program then disconnects or closes.
func TestWrongReceiveTellsThePeer(t *testing.T) {
	for name, end := range map[string]func(*memoryHost, *vipl.VI) error{
		"nothing":    func(*memoryHost, *vipl.VI) error { return nil },
		"Disconnect": func(_ *memoryHost, v *vipl.VI) error { return v.Disconnect() },
		"Close":      func(n *memoryHost, _ *vipl.VI) error { return n.Close() },
	} {
		inBubble(t, name, func(t *testing.T) {
			c := memoryConfig{bubble: true, silence: time.Minute}
			n, va, vb, _, xb := connectedBoxes(t, c, vipl.ReliableDelivery, 1, 1, 64)
			time.Sleep(10 * time.Millisecond) // no frame of the connect is left that could bring the news
			xb.prepare(0, 64)
			xb.desc[0].Control = vipl.ControlQFence
			must(t, vb.PostRecv(xb.desc[0], xb.region.Handle()))
			noError(t, end(n.b, vb))
			time.Sleep(time.Millisecond) // enough for a frame, but before any timer
			q, err := va.Query()
			must(t, err)
			errorIf(t, q.State != vipl.Error, "the peer is %v", q.State)
			noError(t, va.Disconnect())
		})
	}
}

// Receives that are posted while Disconnect waits for the peer are for the next connection, whatever happens to
// this one meanwhile.
func TestReceivesPostedBesideDisconnect(t *testing.T) {
	eachLevelInBubble(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n, va, vb, xa, xb := connectedBoxes(t, memoryConfig{bubble: true}, level, 1, 1, 64)
		n.wire.SetFaults(xdpnictest.Faults{Delay: 3 * time.Millisecond})
		overA, overB := starts(va.Disconnect), starts(vb.Disconnect) // each hears the other's close while it waits
		synctest.Wait()
		postRecv(t, va, xa, 0, 64)
		noError(t, <-overA)
		noError(t, <-overB)
		n.wire.SetFaults(xdpnictest.Faults{})
		join(t, n.a.NIC, va, n.b.NIC, vb)
		postMessage(t, vb, xb, 0, 64, 1)
		receivedMessage(t, va, xa.buf[0], 1)
	})
}

// A receive that is wrong and posted while Disconnect waits for the peer completes at
// once: what was sent before still comes, and the next connection works.
func TestWrongReceiveBesideDisconnect(t *testing.T) {
	eachLevelInBubble(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n, va, vb, xa, xb := connectedBoxes(t, memoryConfig{bubble: true}, level, 2, 2, 64)
		postRecv(t, vb, xb, 0, 64)
		n.a.queue.SetFaults(faultsDropping(func(p *wire.Packet) bool { return p.Kind == wire.KindData }))
		postMessage(t, va, xa, 0, 64, 1)
		over := starts(va.Disconnect)
		synctest.Wait() // it waits for the peer
		xa.prepare(1, 64)
		xa.desc[1].Control = vipl.ControlQFence
		must(t, va.PostRecv(xa.desc[1], xa.region.Handle()))
		recvDone(t, va, vipl.StatusOpReceive|vipl.StatusFormatError)
		n.a.queue.SetFaults(xdpnictest.Faults{})
		receivedMessage(t, vb, xb.buf[0], 1)
		noError(t, <-over)
		noError(t, vb.Disconnect())
		join(t, n.a.NIC, va, n.b.NIC, vb)
		postRecv(t, vb, xb, 1, 64)
		postSend(t, va, xa, 0, 64)
		received(t, vb, 0)
	})
}

// Close of the NIC during a Disconnect delivers what was sent before, as the Disconnect would.
func TestCloseBesideDisconnect(t *testing.T) {
	for name, end := range map[string]func(n *vipl.NIC) error{
		"close": (*vipl.NIC).Close, "farewell": func(n *vipl.NIC) error { n.Farewell(); return nil },
	} {
		inBubble(t, name, func(t *testing.T) {
			n, va, vb, xa, xb := connectedBoxes(t, memoryConfig{bubble: true}, vipl.ReliableDelivery, 1, 1, 64)
			postRecv(t, vb, xb, 0, 64)
			n.a.queue.SetFaults(faultsDropping(func(p *wire.Packet) bool { return p.Kind == wire.KindData }))
			postMessage(t, va, xa, 0, 64, 1)
			sent(t, va, 0)
			disconnected := starts(va.Disconnect)
			synctest.Wait() // it waits for the peer
			ended := starts(func() error { return end(n.a.NIC) })
			time.Sleep(20 * time.Millisecond)
			errorIf(t, len(ended) > 0, "it did not wait for the peer")
			n.a.queue.SetFaults(xdpnictest.Faults{})
			receivedMessage(t, vb, xb.buf[0], 1)
			noError(t, <-disconnected)
			noError(t, <-ended)
		})
	}
}

// leaving is another handle's agent. One of its answers arrives after the handle has closed.
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

// A Disconnect that ends after the Close of its handle takes nothing from other handles on the queue: each
// connection has its share of the chunks.
func TestDisconnectEndsBehindClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, v1, w1 := connected(t, memoryConfig{bubble: true}, vipl.ReliableDelivery)
		connect(t, n.a.NIC, n.b.NIC, vipl.ReliableDelivery)
		agent := &leaving{n.a.agent, make(chan struct{})}
		other, err := vipl.Open(vipl.Provider{Port: n.a.queue, Agent: agent, Arena: n.a.arena, Silence: time.Minute})
		must(t, err)
		v3, _ := connect(t, other, n.b.NIC, vipl.ReliableDelivery)

		var window atomic.Uint32
		n.a.queue.SetFaults(faultsDropping(func(p *wire.Packet) bool {
			window.Store(uint32(p.Window))
			return false
		}))
		x, y := newBox(t, n.a.NIC, 1, 8), newBox(t, n.b.NIC, 1, 8)
		granted := func(connections uint32) {
			t.Helper()
			postRecv(t, w1, y, 0, 8)
			postSend(t, v1, x, 0, 8)
			sent(t, v1, 0)
			received(t, w1, 0)
			got, want := window.Load(), uint32(xdpnictest.DefaultChunks*3/4)/connections
			errorIf(t, got != want, "with %d connections each may send %d frames, want %d", connections, got, want)
		}
		granted(3)
		n.b.queue.Cut(true)
		over := starts(v3.Disconnect)
		synctest.Wait()
		noError(t, other.Close())
		noError(t, <-over)
		n.b.queue.Cut(false)
		granted(2)
	})
}

// lateAnswers is an agent whose answers to requests arrive late.
type lateAnswers struct {
	*kagenttest.Agent
	wait time.Duration
}

func (a lateAnswers) Request(ctx context.Context, local, remote kagent.Address, o kagent.Offer) (*kagent.Answer, error) {
	answer, err := a.Agent.Request(ctx, local, remote, o)
	time.Sleep(a.wait)
	return answer, err
}

// A server sends no frame to a requester that does not confirm, neither while it waits nor in the end: the
// request may be spoofed. Frames are sent only once the connection is established.
func TestNothingToTheUnproven(t *testing.T) {
	eachLevelInBubble(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		const silence = 600 * time.Millisecond
		n := newMemoryNet(t, memoryConfig{bubble: true, silence: silence, agent: func(a *kagenttest.Agent) kagent.Agent {
			return lateAnswers{a, 3 * silence}
		}})
		victim := n.fabric.Agent("victim")
		defer victim.Close()
		n.fabric.Cut(victim.Addr(), true)
		request := wire.CM{
			Type: wire.CMRequest, ID: 5, VI: 0x10007, Key: 7, Window: 64, MaxPayload: 1472, Level: uint8(level),
			MaxTransfer: vipl.MaxTransferSize, To: []byte("x"),
		}
		datagram, err := request.Append(nil)
		must(t, err)
		l, err := n.b.Listen(vipl.NetAddress{Discriminator: []byte("x")})
		must(t, err)
		defer l.Close()
		receive := func(b []byte, from netip.Addr) {
			n.b.agent.Receive(b, n.b.agent.Addr(), netip.AddrPortFrom(from, wire.Port))
		}
		receive(datagram, victim.Addr())
		c, err := l.Wait(t.Context())
		must(t, err)
		vb := newVI(t, n.b.NIC, level)
		before := n.b.queue.Stats()
		time.AfterFunc(2*silence, func() { // which ends a connection that there is
			link := n.b.agent.Link()
			n.b.agent.Change(func(l *kagent.Link) { l.MAC[5]++ })
			time.AfterFunc(2*silence, func() { n.b.agent.Change(func(l *kagent.Link) { l.MAC = link.MAC }) })
		})
		wantError(t, "accept", c.Accept(vb), vipl.ErrTimeout)
		equal(t, "TxFrames", n.b.queue.Stats().TxFrames, before.TxFrames)
		stateIs(t, vb, vipl.Idle)
		time.Sleep(2 * silence)

		// A requester that confirms late has a connection that lives: silence counts from then on.
		va := newVI(t, n.a.NIC, level)
		accepted := acceptsNext(t.Context(), l, vb)
		must(t, errOf(va.ConnectRequest(vipl.NetAddress{}, address(n.b, "x"), ackDelay)))
		must(t, <-accepted)
		time.Sleep(10 * silence)
		statesAre(t, vipl.Connected, va, vb)
	})
}

// A Wait for the completions of a VI that is disconnected returns with the first, also while Disconnect waits for
// further ones and a handler's goroutine sleeps for the port.
func TestWaitBesideFlush(t *testing.T) {
	for _, shared := range []bool{true, false} {
		inBubble(t, fmt.Sprint("completion queue ", shared), func(t *testing.T) {
			c := longFrames
			c.bubble, c.silence, c.zeroCopy, c.queue.ZeroCopy = true, time.Hour, true, true
			n := newMemoryNet(t, c)
			var cq *vipl.CQ
			if shared {
				cq = createCQ(t, n.b.NIC, 2)
			}
			va := openVI(t, n.a.NIC, vipl.ReliableDelivery)
			vb := createVI(t, n.b.NIC, vipl.VIAttributes{Level: vipl.ReliableDelivery}, cq, nil)
			join(t, n.a.NIC, va, n.b.NIC, vb)
			xa, xb := newBox(t, n.a.NIC, 2, byRefBytes), newBox(t, n.b.NIC, 2, byRefBytes)
			postRecvs(t, va, xa, 2, byRefBytes)
			must(t, openVI(t, n.b.NIC, vipl.ReliableDelivery).RecvNotify(func(*vipl.VI, *vipl.Descriptor) {}))
			const first, second = time.Second, 3 * time.Second
			start := time.Now()
			for i, late := range []time.Duration{first, second} { // until the NIC has read it
				n.b.queue.SetLies(xdpnictest.Lies{LateCompletion: late})
				postSend(t, vb, xb, i, byRefBytes)
				received(t, va, 0)
			}
			n.b.queue.SetLies(xdpnictest.Lies{})
			over := starts(vb.Disconnect)
			time.Sleep(first / 2)
			wait := func() error { return errOf(vb.SendWait(time.Minute)) }
			if shared {
				wait = func() error { return errOf2(cq.Wait(time.Minute)) }
			}
			noError(t, wait())
			took := time.Since(start)
			errorIf(t, took < first || took > first+100*time.Millisecond, "it took %v", took)
			noError(t, <-over)
			took = time.Since(start)
			errorIf(t, took < second || took > second+100*time.Millisecond, "Disconnect took %v", took)
		})
	}
}
