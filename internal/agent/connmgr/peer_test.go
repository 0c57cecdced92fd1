package connmgr_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/agent/connmgr"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/nstest"
)

var left, right = []byte("left"), []byte("right")

// meeting is the outcome of a peer request.
type meeting struct {
	ans           *kagent.Answer
	in            kagent.Incoming
	own, peer     kagent.Offer
	local, remote kagent.Address
	answered      time.Time // when RequestPeer returned
	err           error
}

// meet makes a peer request, and completes the connection in the part that it gets.
func meet(ctx context.Context, agent *kagenttest.Agent, local, remote kagent.Address, o kagent.Offer) (m meeting) {
	m.own = o
	m.ans, m.in, m.err = agent.RequestPeer(ctx, local, remote, o)
	m.answered = time.Now()
	m.complete()
	return m
}

// complete completes the connection of a call that has met another.
func (m *meeting) complete() {
	switch {
	case m.err != nil:
	case m.ans != nil && m.in != nil:
		m.err = errors.New("both an Answer and an Incoming")
	case m.ans != nil:
		m.peer, m.local, m.remote = m.ans.Offer, m.ans.Local, m.ans.Remote
		m.err = m.ans.Confirm()
	default:
		m.peer, m.local, m.remote = m.in.Offer(), m.in.Local(), m.in.Remote()
		m.err = m.in.Accept(context.Background(), m.own)
	}
}

// calls meet in the background.
func calls(ctx context.Context, agent *kagenttest.Agent, local, remote kagent.Address, o kagent.Offer) <-chan meeting {
	ch := make(chan meeting, 1)
	go func() { ch <- meet(ctx, agent, local, remote, o) }()
	return ch
}

// connected returns what is wrong with two meetings that should be each other's.
func connected(a, b meeting) error {
	switch {
	case a.err != nil || b.err != nil:
		return fmt.Errorf("errors %v and %v", a.err, b.err)
	case (a.ans == nil) == (b.ans == nil):
		return errors.New("two requesters, or two acceptors")
	case a.peer != b.own || b.peer != a.own:
		return errors.New("they disagree on the offers")
	case a.local.Host != b.remote.Host || !bytes.Equal(a.local.Disc, b.remote.Disc) ||
		b.local.Host != a.remote.Host || !bytes.Equal(b.local.Disc, a.remote.Disc):
		return fmt.Errorf("they disagree on the addresses: %v %v, %v %v", a.local, a.remote, b.local, b.remote)
	}
	return nil
}

// at is an address of a's, of the given family.
func at(a *kagenttest.Agent, v4 bool, disc []byte) kagent.Address {
	link := a.Link()
	if v4 {
		return kagent.Address{Host: link.IPv4[0], Disc: disc}
	}
	return kagent.Address{Host: link.IPv6[0], Disc: disc}
}

// Whichever side calls first, and however much earlier: after the second call a connect takes a round trip or a
// little more.
func TestPeersMeetInARoundTrip(t *testing.T) {
	const way = 10 * time.Millisecond
	for _, v4 := range []bool{true, false} {
		for _, gap := range []time.Duration{-3 * time.Second, -way, 0, way, 3 * time.Second} {
			for _, named := range []bool{true, false} {
				network(t, kagenttest.Faults{Delay: way}, func(t *testing.T, _ *kagenttest.Fabric, a, b *kagenttest.Agent) {
					l, r := at(a, v4, left), at(b, v4, right)
					al, br := l, r
					if !named { // leave it to the route
						al.Host, br.Host = netip.Addr{}, netip.Addr{}
					}
					var am, bm <-chan meeting
					call := func() { am = calls(within(10*time.Second), a, al, r, offer(a, t)) }
					then := func() { bm = calls(within(10*time.Second), b, br, l, offer(b, t)) }
					if gap < 0 {
						call, then = then, call
					}
					call()
					time.Sleep(gap.Abs())
					then()
					second := time.Now()
					x, y := <-am, <-bm
					if err := connected(x, y); err != nil {
						t.Fatalf("IPv4 %v, gap %v: %v", v4, gap, err)
					}
					for _, m := range []meeting{x, y} {
						if d := m.answered.Sub(second); d > 3*way {
							t.Errorf("IPv4 %v, gap %v: the answer took %v", v4, gap, d)
						}
					}
					if d := time.Since(second); d > 4*way {
						t.Errorf("IPv4 %v, gap %v: connected after %v", v4, gap, d)
					}
				})
			}
		}
	}
}

// Addresses that do not match crosswise, byte for byte, do not meet: the call continues until its time is over,
// and leaves no state at the other side.
func TestPeersThatDoNotMatch(t *testing.T) {
	network(t, kagenttest.Faults{Delay: time.Millisecond}, func(t *testing.T, net *kagenttest.Fabric, a, b *kagenttest.Agent) {
		c := net.Agent("c")
		defer c.Close()
		pairs := []struct{ aLocal, aRemote, bLocal, bRemote kagent.Address }{
			{to(a, left), to(b, right), to(b, left), to(a, right)},
			{to(a, left), to(b, right), to(b, []byte("Right")), to(a, left)},
			{to(a, left), to(b, right), to(b, []byte("right\x00")), to(a, left)},
			{to(a, left), to(b, right), to(b, right), to(a, []byte("lef"))},
			{to(a, left), to(b, right), to(b, right), to(a, nil)},
			{to(a, left), to(b, right), to(b, right), to(c, left)},
			{to(a, left), to(c, right), to(b, right), to(a, left)},
			{to(a, left), at(b, false, right), to(b, right), to(a, left)},
			{kagent.Address{Disc: left}, to(b, right), at(b, false, right), at(a, false, left)},
		}
		for i, p := range pairs {
			start := time.Now()
			am := calls(within(time.Second), a, p.aLocal, p.aRemote, offer(a, t))
			bm := calls(within(time.Second), b, p.bLocal, p.bRemote, offer(b, t))
			time.Sleep(500 * time.Millisecond)
			if n := c.Remembered(); i < 7 && n != 0 {
				t.Errorf("%d: a stranger's request is remembered, %d things", i, n)
			}
			for _, m := range []meeting{<-am, <-bm} {
				nstest.ErrorIf(t, !errors.Is(m.err, kagent.ErrTimeout) || !errors.Is(m.err, context.DeadlineExceeded), "%d: %+v", i, m)
			}
			nstest.Equal(t, "the time of the calls", time.Since(start), time.Second)
			time.Sleep(5 * time.Second) // what the cancellations left is forgotten
		}
	})
}

// Two calls meet after a host without an agent has got one.
func TestPeerStartsLater(t *testing.T) {
	for _, swap := range []bool{false, true} {
		network(t, kagenttest.Faults{Delay: time.Millisecond}, func(t *testing.T, net *kagenttest.Fabric, a, b *kagenttest.Agent) {
			if swap {
				a, b = b, a
			}
			local, remote := to(a, left), to(b, right)
			nstest.Must(t, b.Close())
			am := calls(within(10*time.Second), a, local, remote, offer(a, t))
			time.Sleep(2 * time.Second)
			late := net.Agent("late", remote.Host)
			defer late.Close()
			lm := meet(within(time.Second), late, remote, local, offer(late, t))
			nstest.Check(t, connected(<-am, lm))
		})
	}
}

// Cancelling a call before the two meet leaves nothing; after that the other side is notified.
func TestPeerCancel(t *testing.T) {
	network(t, kagenttest.Faults{Delay: time.Millisecond}, func(t *testing.T, _ *kagenttest.Fabric, a, b *kagenttest.Agent) {
		for _, c := range []struct{ quits, stays *kagenttest.Agent }{{a, b}, {b, a}} {
			ctx, cancel := context.WithCancel(context.Background())
			gone := calls(ctx, c.quits, to(c.quits, left), to(c.stays, right), offer(c.quits, t))
			time.Sleep(time.Second)
			cancel()
			nstest.WantErr(t, "cancelled", (<-gone).err, context.Canceled)
			late := meet(within(time.Second), c.stays, to(c.stays, right), to(c.quits, left), offer(c.stays, t))
			nstest.WantErr(t, "a call after the other is over", late.err, kagent.ErrTimeout)
		}

		ctx, cancel := context.WithCancel(context.Background())
		am := calls(ctx, a, to(a, left), to(b, right), offer(a, t))
		_, in, err := b.RequestPeer(within(time.Second), to(b, right), to(a, left), offer(b, t))
		nstest.Must(t, err)
		time.Sleep(time.Second)
		start := time.Now()
		cancel()
		<-in.Done()
		nstest.Equal(t, "the time until the news", time.Since(start), time.Millisecond)
		nstest.WantErr(t, "Accept", in.Accept(within(time.Second), offer(b, t)), kagent.ErrCancelled)
		nstest.WantErr(t, "the requester", (<-am).err, context.Canceled)

		bm := calls(within(time.Second), b, to(b, right), to(a, left), offer(b, t))
		ans, _, err := a.RequestPeer(within(time.Second), to(a, left), to(b, right), offer(a, t))
		nstest.Must(t, err)
		ans.Decline(wire.CMReasonResources)
		declined := (<-bm).err
		nstest.WantErr(t, "declined", declined, kagent.ErrCancelled)
		nstest.WantErr(t, "declined, not given up", declined, kagent.ErrRejected)
	})
}

// Calls with the same addresses meet in the order in which they were made, on any network.
func TestPeersMeetInOrder(t *testing.T) {
	const n = 20
	for seed := range uint64(10) {
		faults := kagenttest.Faults{Loss: 0.3, Dup: 0.5, Delay: time.Millisecond, Jitter: 30 * time.Millisecond, Seed: seed}
		network(t, faults, func(t *testing.T, _ *kagenttest.Fabric, a, b *kagenttest.Agent) {
			// Calls that give up step out of the line, wherever they are.
			var gone []<-chan meeting
			quit := func() {
				gone = append(gone, calls(within(200*time.Millisecond), a, to(a, left), to(b, right), offer(a, t)))
				synctest.Wait()
			}
			var am, bm []<-chan meeting
			for i := range n {
				if i%5 == 0 {
					quit()
				}
				am = append(am, calls(within(time.Minute), a, to(a, left), to(b, right), offer(a, t)))
				synctest.Wait()
			}
			for _, g := range gone {
				nstest.WantErr(t, "one that gave up", (<-g).err, kagent.ErrTimeout)
			}
			time.Sleep(time.Second) // no copy of their requests is on the way
			for range n {
				bm = append(bm, calls(within(time.Minute), b, to(b, right), to(a, left), offer(b, t)))
				synctest.Wait()
			}
			for i := range n {
				if err := connected(<-am[i], <-bm[i]); err != nil {
					t.Errorf("seed %d, call %d: %v", seed, i, err)
				}
			}
		})
	}
}

// A program that is slow to accept does not delay the next call with the same addresses.
func TestSlowPeerHoldsNobodyUp(t *testing.T) {
	network(t, kagenttest.Faults{Delay: time.Millisecond}, func(t *testing.T, _ *kagenttest.Fabric, a, b *kagenttest.Agent) {
		slow := calls(within(time.Minute), a, to(a, left), to(b, right), offer(a, t))
		_, in, err := b.RequestPeer(within(time.Second), to(b, right), to(a, left), offer(b, t))
		nstest.Must(t, err)
		am := calls(within(time.Second), a, to(a, left), to(b, right), offer(a, t))
		nstest.Check(t, connected(meet(within(time.Second), b, to(b, right), to(a, left), offer(b, t)), <-am))
		time.Sleep(10 * time.Second)
		nstest.Check(t, in.Accept(within(time.Second), offer(b, t)))
		nstest.Check(t, (<-slow).err)
	})
}

// Close ends the calls that ask and those in the queue, and the other side's calls that have met.
func TestCloseEndsPeers(t *testing.T) {
	network(t, kagenttest.Faults{Delay: time.Millisecond}, func(t *testing.T, _ *kagenttest.Fabric, a, b *kagenttest.Agent) {
		var waiting []<-chan meeting
		for range 3 {
			waiting = append(waiting, calls(context.Background(), b, to(b, left), to(a, left), offer(b, t)))
		}
		am := calls(context.Background(), a, to(a, right), to(b, right), offer(a, t))
		_, in, err := b.RequestPeer(context.Background(), to(b, right), to(a, right), offer(b, t))
		nstest.Must(t, err)
		nstest.Must(t, b.Close())
		for _, w := range waiting {
			nstest.WantErr(t, "after Close", (<-w).err, kagent.ErrClosed)
		}
		nstest.WantErr(t, "Incoming", in.Err(), kagent.ErrClosed)
		nstest.WantErr(t, "the other side's call", (<-am).err, kagent.ErrRejected)
		nstest.WantErr(t, "a call after Close", meet(context.Background(), b, to(b, left), to(a, left), offer(a, t)).err,
			kagent.ErrClosed)
	})
}

// Many calls with one address for both ends, named or left to the route, all
// meet, each another one.
func TestManyPeersOfOneAddress(t *testing.T) {
	const n = 20
	for seed := range uint64(10) {
		faults := kagenttest.Faults{Loss: 0.2, Dup: 0.5, Delay: time.Millisecond, Jitter: 30 * time.Millisecond, Seed: seed}
		network(t, faults, func(t *testing.T, _ *kagenttest.Fabric, a, _ *kagenttest.Agent) {
			var wg sync.WaitGroup
			got := make([]meeting, n)
			for i := range got {
				local := to(a, echo)
				if i%3 != 0 {
					local.Host = netip.Addr{}
				}
				o := offer(a, t)
				o.QoS = uint32(i)
				wg.Go(func() { got[i] = meet(within(time.Minute), a, local, to(a, echo), o) })
				synctest.Wait()
			}
			wg.Wait()
			for i, m := range got {
				if err := connected(m, got[m.peer.QoS]); err != nil {
					t.Errorf("seed %d, calls %d and %d: %v", seed, i, m.peer.QoS, err)
				}
			}
		})
	}
}

// The request of a call that is over meets no call, if it arrives late and the cancellation never does.
func TestOldRequestToItself(t *testing.T) {
	const way = 100 * time.Millisecond
	network(t, kagenttest.Faults{Delay: way}, func(t *testing.T, net *kagenttest.Fabric, a, _ *kagenttest.Agent) {
		old := calls(within(4*time.Millisecond), a, to(a, echo), to(a, echo), offer(a, t))
		synctest.Wait() // the request is on its way
		net.SetFaults(kagenttest.Faults{Loss: 1})
		nstest.WantErr(t, "the old one", (<-old).err, kagent.ErrTimeout)
		net.SetFaults(kagenttest.Faults{Delay: way})
		xm := calls(within(10*time.Second), a, to(a, echo), to(a, echo), offer(a, t))
		time.Sleep(time.Second)
		ym := calls(within(10*time.Second), a, to(a, echo), to(a, echo), offer(a, t))
		nstest.Check(t, connected(<-xm, <-ym))
	})
}

// A peer's Request is answered by this side's only if that is no longer: the source address may be spoofed.
func TestPeerRequestGetsNoLongerAnswer(t *testing.T) {
	alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
		handshake := make([]byte, wire.CMShareLen)
		background(func() error {
			_, _, err := m.RequestPeer(within(time.Minute), kagent.Address{Host: here4, Disc: left}, kagent.Address{Host: there4, Disc: right},
				kagent.Offer{VI: 1, Key: 7, Level: 1, Handshake: kagent.Opaque(handshake)})
			return err
		})
		synctest.Wait()
		s.take()
		msg := requestOf(5, left)
		msg.From, msg.Flags = right, wire.CMPeer
		m.Receive(bytesOf(t, msg), here4, agent4)
		nstest.Equal(t, "messages after a shorter request", len(s.take()), 0)
		msg.Handshake = handshake
		m.Receive(bytesOf(t, msg), here4, agent4)
		nstest.Equal(t, "the answer to one as long", s.one(t).Type, wire.CMRequest)
	})
}
