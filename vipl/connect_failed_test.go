package vipl_test

import (
	"context"
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/base/wire"
	"viaxdp/vipl"
)

// unconfirmed has vb accept a request of va, which never gets the answer, as on a machine that gives it no CPU
// time. It returns the result of AcceptContext. meanwhile runs concurrently.
func unconfirmed(t *testing.T, ctx context.Context, n *memoryNet, va, vb *vipl.VI, meanwhile func()) (asked, accepted error) {
	t.Helper()
	to := address(n.b, "unconfirmed")
	answer := starts(func() error { return requestFor(va, to, time.Second) })
	c, err := n.b.ConnectWait(to, ackDelay)
	must(t, err)
	n.fabric.Cut(n.a.agent.Addr(), true)
	go meanwhile()
	accepted = c.AcceptContext(ctx, vb)
	n.fabric.Cut(n.a.agent.Addr(), false)
	return <-answer, accepted
}

// A connect that fails leaves the VI unchanged, even if it takes longer than the silence time: receives stay posted
// and serve the next connection.
func TestReceivesOutliveFailedAccept(t *testing.T) {
	eachLevelInBubble(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n, va, vb := unconnected(t, memoryConfig{bubble: true, silence: 600 * time.Millisecond}, level)
		xa, xb := newBox(t, n.a.NIC, 2, 64), newBox(t, n.b.NIC, 2, 64)
		postRecvs(t, vb, xb, 2, 64)
		asked, accepted := unconfirmed(t, t.Context(), n, va, vb, func() {})
		wantError(t, "request without an answer", asked, vipl.ErrTimeout)
		wantError(t, "accept without a confirmation", accepted, vipl.ErrTimeout)
		s := stateIs(t, vb, vipl.Idle)
		errorIf(t, s.Cause != nil, "cause %v", s.Cause)
		nothingDone(t, vb.RecvDone, vipl.ErrNotDone)
		n.b.errs.are(t)

		join(t, n.a.NIC, va, n.b.NIC, vb)
		for i := range 2 {
			postMessage(t, va, xa, i, 10+i, i)
		}
		for i := range 2 {
			d := received(t, vb, 0)
			fatalIf(t, d != xb.desc[i] || d.Length != uint32(10+i), "receive %d: another descriptor, or length %d", i, d.Length)
			checkPattern(t, xb.buf[i][:10+i], i)
			sent(t, va, 0)
		}
	})
}

// An accept ends with its context. The VI is Idle then, and the requester is rejected.
func TestAcceptContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, va, vb := unconnected(t, memoryConfig{bubble: true}, vipl.ReliableDelivery)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		asked, accepted := unconfirmed(t, ctx, n, va, vb, func() {})
		wantError(t, "the request", asked, vipl.ErrRejected)
		wantError(t, "the accept", accepted, vipl.ErrTimeout)
		wantError(t, "the accept", accepted, context.DeadlineExceeded)
		stateIs(t, vb, vipl.Idle)
		join(t, n.a.NIC, va, n.b.NIC, vb)
	})
}

// A connection that ends before its accept has returned is in Error when it returns, with everything flushed
// and its end reported once.
func TestAcceptOfWhatEnded(t *testing.T) {
	eachLevelInBubble(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		const silence = 200 * time.Millisecond
		n, va, vb := unconnected(t, memoryConfig{bubble: true, silence: silence}, level)
		xb := newBox(t, n.b.NIC, 1, 64)
		postRecv(t, vb, xb, 0, 64)
		n.wire.Cut(true)
		asked, accepted := unconfirmed(t, t.Context(), n, va, vb, func() {
			time.Sleep(2 * silence)
			n.fabric.Cut(n.a.agent.Addr(), false)
		})
		fatalIf(t, asked != nil || accepted != nil, "%v, %v", asked, accepted)
		s := stateIs(t, vb, vipl.Error)
		errorIf(t, s.Cause == nil, "no cause")
		received(t, vb, vipl.StatusFlushed)
		n.b.errs.are(t, vipl.ErrorConnLost)
		n.wire.Cut(false)
		noError(t, vb.Disconnect())
		stateIs(t, va, vipl.Error)
		noError(t, va.Disconnect())
		join(t, n.a.NIC, va, n.b.NIC, vb)
	})
}

// unprovenRequests is an agent whose accept fails once over is closed, although the requester has confirmed: as
// if the answers of a daemon arrive in another order than frames.
type unprovenRequests struct {
	*kagenttest.Agent
	over chan struct{}
}

func (a unprovenRequests) Wait(ctx context.Context, local kagent.Address) (kagent.Incoming, error) {
	in, err := a.Agent.Wait(ctx, local)
	if err != nil {
		return nil, err
	}
	return unprovenRequest{in, a.over}, nil
}

type unprovenRequest struct {
	kagent.Incoming
	over chan struct{}
}

func (d unprovenRequest) Accept(ctx context.Context, o kagent.Offer) error {
	if err := d.Incoming.Accept(ctx, o); err != nil {
		return err
	}
	<-d.over
	return kagent.ErrVanished
}

// A VI that has received a frame of the requester is connected with it, whatever happens to the confirmation:
// the requester is connected, and a receive has its message.
func TestFrameOutweighsConfirmation(t *testing.T) {
	eachLevelInBubble(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n, va, vb, over := unproven(t, level)
		xa, xb := newBox(t, n.a.NIC, 2, 64), newBox(t, n.b.NIC, 2, 64)
		postRecvs(t, va, xa, 2, 64)
		accepted := accepts(n.a.NIC, address(n.a, "doubted"), va)
		must(t, request(vb, address(n.a, "doubted")))
		for i := range 2 {
			postMessage(t, vb, xb, i, 64, i)
			equal(t, "receive", received(t, va, 0), xa.desc[i])
			checkPattern(t, xa.buf[i], i)
			sent(t, vb, 0)
			if i == 0 {
				close(over)
				must(t, <-accepted)
			}
		}
		stateIs(t, va, vipl.Connected)
	})
}

// unproven makes a net in a bubble, with a VI at each end. An accept on host a does not return until over is
// closed, and then fails.
func unproven(t *testing.T, level vipl.ReliabilityLevel) (n *memoryNet, va, vb *vipl.VI, over chan struct{}) {
	t.Helper()
	over = make(chan struct{})
	n = newMemoryNet(t, memoryConfig{bubble: true, agent: func(a *kagenttest.Agent) kagent.Agent { return unprovenRequests{a, over} }})
	return n, newVI(t, n.a.NIC, level), newVI(t, n.b.NIC, level), over
}

// accepting connects vb with va, and sends a message to va, whose accept does not return until over is closed.
// It is for a bubble.
func accepting(t *testing.T) (n *memoryNet, va, vb *vipl.VI, over chan struct{}, accepted <-chan error) {
	t.Helper()
	n, va, vb, over = unproven(t, vipl.ReliableDelivery)
	xa, xb := newBox(t, n.a.NIC, 1, 64), newBox(t, n.b.NIC, 1, 64)
	postRecv(t, va, xa, 0, 64)
	accepted = accepts(n.a.NIC, address(n.a, "doubted"), va)
	must(t, request(vb, address(n.a, "doubted")))
	postSend(t, vb, xb, 0, 64)
	received(t, va, 0)
	sent(t, vb, 0)
	return n, va, vb, over, accepted
}

// A program that has received a message, or lost the connection again, may disconnect although the accept that
// made the connection has not returned to another goroutine yet.
func TestDisconnectBeforeAcceptReturns(t *testing.T) {
	for name, lost := range map[string]bool{"connected": false, "lost": true} {
		inBubble(t, name, func(t *testing.T) {
			_, va, vb, over, accepted := accepting(t)
			if lost {
				must(t, vb.Disconnect())
				stateIs(t, va, vipl.Error)
			}
			ended := starts(va.Disconnect)
			synctest.Wait()
			close(over)
			wantError(t, "accept", <-accepted, nil)
			wantError(t, "disconnect", <-ended, nil)
			stateIs(t, va, vipl.Idle)
		})
	}
}

// Close does not wait for an accept that does not return.
func TestCloseBeforeAcceptReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, _, _, over, accepted := accepting(t)
		start := time.Now()
		time.AfterFunc(5*time.Second, func() { close(over) })
		noError(t, n.a.Close())
		took := time.Since(start)
		errorIf(t, took > time.Second, "it took %v", took)
		errorIf(t, <-accepted == nil, "it is connected on a NIC that is closed")
	})
}

// The peer is notified of the program's end at once, although the accept has not returned.
func TestFarewellBeforeAcceptReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, _, vb, over, accepted := accepting(t)
		time.AfterFunc(5*time.Second, func() { close(over) })
		n.a.Farewell()
		stateIs(t, vb, vipl.Error)
		wantError(t, "accept", <-accepted, nil)
	})
}

// If one side of a peer-to-peer connect cannot connect with the other, because an interface's MTU is too small, the other
// one is told: it does not wait until its time is over, and the next attempt of both succeeds.
func TestPeerThatCannotConnect(t *testing.T) {
	for _, host := range []string{"a", "b"} {
		inBubble(t, host, func(t *testing.T) {
			n, va, vb := unconnected(t, memoryConfig{bubble: true}, vipl.ReliableDelivery)
			small := n.a
			if host == "b" {
				small = n.b
			}
			small.agent.SetMTU(200)
			for _, want := range [][2]error{{vipl.ErrRejected, vipl.ErrResource}, {nil, nil}} {
				peersEnd(t, n, va, vb, want)
				small.agent.SetMTU(1500)
			}
		})
	}
}

// connectPeers connects two VIs that request each other, and returns both outcomes. va's host asks.
func connectPeers(t *testing.T, n *memoryNet, va, vb *vipl.VI) (errA, errB error) {
	t.Helper()
	a, b := address(n.a, "left"), address(n.b, "right")
	must(t, errors.Join(va.ConnectPeerRequest(a, b, ackDelay), vb.ConnectPeerRequest(b, a, ackDelay)))
	_, errA = va.ConnectPeerWait()
	_, errB = vb.ConnectPeerWait()
	return errA, errB
}

// peersEnd is connectPeers. The one that asks and the one that accepts have to end within a second as wanted.
func peersEnd(t *testing.T, n *memoryNet, va, vb *vipl.VI, want [2]error) {
	t.Helper()
	start := time.Now()
	errA, errB := connectPeers(t, n, va, vb)
	wantError(t, "the side that asks", errA, want[0])
	wantError(t, "the side that accepts", errB, want[1])
	took := time.Since(start)
	errorIf(t, took > time.Second, "it took %v", took)
}

// fullTable is an agent that cannot enter a VI in the table while full is set.
type fullTable struct {
	*kagenttest.Agent
	full *atomic.Bool
}

func (a fullTable) Enter(num uint32, key uint64, peer netip.Addr) error {
	if a.full.Load() {
		return kagent.ErrNoVI
	}
	return a.Agent.Enter(num, key, peer)
}

// If the side that asks cannot use the answer of a peer-to-peer connect, the side that accepts is told, too: it does not
// wait for another call of that side.
func TestAskingPeerThatCannotConnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var full atomic.Bool
		n, va, vb := unconnected(t, memoryConfig{bubble: true, agent: func(a *kagenttest.Agent) kagent.Agent { return fullTable{a, &full} }}, vipl.ReliableDelivery)
		for _, want := range [][2]error{{vipl.ErrResource, vipl.ErrRejected}, {nil, nil}} {
			full.Store(want[0] != nil)
			peersEnd(t, n, va, vb, want)
		}
	})
}

// A peer that breaks the connection before it refuses leaves the VI in Error, with its receives flushed and the loss reported:
// a VI that is Idle again has its receives.
func TestErrorFrameBeforeReject(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		r := newRefusing(t, memoryConfig{})
		n := r.n
		r.a.then = func(num uint32, key uint64) error {
			frames := n.a.Counters().Frames
			r.queue.SendFrame(&r.template, wire.Header{Kind: wire.KindError, VI: num, Key: key, Immediate: uint32(wire.ReasonClosed)}, nil)
			for n.a.Counters().Frames == frames {
				n.a.Poll()
			}
			return &kagent.RejectedError{Reason: wire.CMReasonProgram}
		}
		va, vb := newVI(t, n.a.NIC, level), newVI(t, n.b.NIC, level)
		xa := newBox(t, n.a.NIC, 1, 64)
		postRecv(t, va, xa, 0, 64)
		accepted := accepts(n.b.NIC, address(n.b, "breaks"), vb)
		wantError(t, "request", request(va, address(n.b, "breaks")), vipl.ErrRejected)
		if err := <-accepted; err != nil { // the Cancel came before va's error frame
			wantError(t, "accept", err, vipl.ErrRejected)
		} else {
			stateIs(t, vb, vipl.Error)
			n.b.errs.are(t, vipl.ErrorConnLost)
		}
		stateIs(t, va, vipl.Error)
		received(t, va, vipl.StatusFlushed)
		n.a.errs.are(t, vipl.ErrorConnLost)
		noError(t, va.Disconnect())
		stateIs(t, va, vipl.Idle)
	})
}
