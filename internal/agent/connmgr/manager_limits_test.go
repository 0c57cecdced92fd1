package connmgr_test

import (
	"context"
	"errors"
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

// The first data frame is as good as a Confirm.
func TestEstablishedByData(t *testing.T) {
	network(t, kagenttest.Faults{Delay: time.Millisecond}, func(t *testing.T, net *kagenttest.Fabric, a, b *kagenttest.Agent) {
		go a.Request(within(10*time.Second), kagent.Address{}, to(b, echo), offer(a, t))
		in, err := b.Wait(within(time.Second), kagent.Address{Disc: echo})
		nstest.Must(t, err)
		in.Established() // before Accept: means nothing
		accepted := accept(in)
		nstest.FatalIf(t, len(accepted) > 0, "Accept returned before anything came")
		in.Established()
		in.Established()
		nstest.Check(t, <-accepted)
	})
}

// polledSink is a sink whose Poll is the test's.
type polledSink struct {
	*sink
	poll func() bool
}

func (p *polledSink) Poll() bool { return p.poll() }

// A server that waits takes the request off the transport itself, so that no goroutine need be woken.
func TestWaitPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &polledSink{sink: newSink()}
		m := connmgr.NewManager(p, 0).For(0)
		defer m.Close()
		polls := 0
		p.poll = func() bool {
			if polls++; polls == 3 {
				m.Receive(bytesOf(t, requestOf(5, echo)), here4, agent4)
			}
			return polls == 3
		}
		_, err := m.Wait(within(time.Second), kagent.Address{Disc: echo})
		nstest.Must(t, err)
		nstest.Equal(t, "polls until the request", polls, 3)
	})
}

// An acceptor that was stopped for longer than its peer may be silent processes the peer's messages when it
// continues.
func TestAcceptGoesOn(t *testing.T) {
	alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
		in := takes(t, m, listens(t, m), 5, agent4)
		const stopped = 4 * time.Second
		s.stall = stopped
		accepted := background(func() error { return in.Accept(within(time.Minute), kagent.Offer{VI: 1, Key: 9, Level: 1}) })
		time.Sleep(stopped + 100*time.Millisecond)
		m.Receive(bytesOf(t, wire.CM{Type: wire.CMConfirm, ID: 5, Cookie: 9}), here4, agent4)
		nstest.Check(t, <-accepted)
	})
}

// The same holds if it was stopped after it had sent the Accept many times. This takes real time: what waits for a mutex stops
// the clock of a bubble.
func TestAcceptGoesOnAfterManySent(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 4 s")
	}
	s := newSink()
	m := connmgr.NewManager(s, 0).For(0)
	defer func() { nstest.Check(t, m.Close()) }()
	in := takes(t, m, listens(t, m), 5, agent4)
	accepted := background(func() error { return in.Accept(within(time.Minute), kagent.Offer{VI: 1, Key: 9, Level: 1}) })
	time.Sleep(time.Second)
	resume := m.Hold()
	time.Sleep(3 * time.Second)
	go m.Receive(bytesOf(t, wire.CM{Type: wire.CMConfirm, ID: 5, Cookie: 9}), here4, agent4)
	time.Sleep(10 * time.Millisecond) // the Accept is first
	resume()
	nstest.Check(t, <-accepted)
}

// An acceptor that gives up notifies the requester, which has not confirmed yet.
func TestAcceptTimesOut(t *testing.T) {
	network(t, kagenttest.Faults{}, func(t *testing.T, net *kagenttest.Fabric, a, b *kagenttest.Agent) {
		served := background(func() error {
			in, err := b.Wait(within(time.Second), kagent.Address{Disc: echo})
			if err == nil {
				err = in.Accept(within(time.Second), offer(b, t))
			}
			return err
		})
		synctest.Wait()
		ans, err := a.Request(within(time.Second), kagent.Address{}, to(b, echo), offer(a, t))
		nstest.Must(t, err)
		nstest.WantErr(t, "Accept", <-served, kagent.ErrTimeout)
		synctest.Wait()
		nstest.WantErr(t, "Confirm", ans.Confirm(), kagent.ErrRejected)
	})
}

// Even in a flood of requests, an acceptor whose Confirm was lost gets another.
func TestFloodAndLostConfirm(t *testing.T) {
	alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
		r, accept := requested(t, m, s)
		nstest.Must(t, r.ans.Confirm())
		for i := range uint64(5000) {
			m.Receive(bytesOf(t, requestOf(1+i, echo)), here4, agent4)
		}
		s.take()
		m.Receive(accept, here4, agent4)
		nstest.Equal(t, "the answer to another Accept", s.one(t).Type, wire.CMConfirm)
	})
}

// The same holds beside another user's programs, whose requests end without a connection.
func TestRequestsOfOthersAndLostConfirm(t *testing.T) {
	alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
		r, accept := requested(t, m, s)
		nstest.Must(t, r.ans.Confirm())
		over, cancel := context.WithCancel(t.Context())
		cancel()
		for range connmgr.MaxFinished {
			_, err := m.For(7).Request(over, kagent.Address{}, kagent.Address{Host: there4, Disc: echo}, kagent.Offer{VI: 1, Key: 7, Level: 1})
			nstest.WantErr(t, "a request that is given up", err, context.Canceled)
		}
		s.take()
		m.Receive(accept, here4, agent4)
		nstest.Equal(t, "the answer to another Accept", s.one(t).Type, wire.CMConfirm)
	})
}

// A request goes to a wait for its host, and if there is none to one for any host.
func TestWaitForHost(t *testing.T) {
	network(t, kagenttest.Faults{Delay: time.Millisecond}, func(t *testing.T, _ *kagenttest.Fabric, a, b *kagenttest.Agent) {
		var waits []<-chan error
		for _, host := range []netip.Addr{{}, at(b, false, nil).Host, b.Addr()} {
			waits = append(waits, background(func() error {
				return nstest.Err(b.Wait(within(time.Minute), kagent.Address{Host: host, Disc: echo}))
			}))
		}
		synctest.Wait()
		for left := 2; left >= 0; left -= 2 { // that for b.Addr(), and that for any
			go a.Request(within(time.Second), kagent.Address{}, to(b, echo), offer(a, t))
			nstest.Check(t, <-waits[left])
			nstest.ErrorIf(t, len(waits[1])+len(waits[max(left-2, 1)]) > 0, "another wait has got the request")
			time.Sleep(time.Second) // the grace of the wait
		}
	})
}

// A server that waits in a loop, or polls, misses no request.
func TestGrace(t *testing.T) {
	network(t, kagenttest.Faults{}, func(t *testing.T, _ *kagenttest.Fabric, a, b *kagenttest.Agent) {
		var wg sync.WaitGroup
		const n = 10
		for range n {
			wg.Go(func() {
				time.Sleep(10 * time.Millisecond)
				ans, err := a.Request(within(5*time.Second), kagent.Address{}, to(b, echo), offer(a, t))
				if err == nil {
					err = ans.Confirm()
				}
				nstest.Check(t, err)
			})
		}
		for served := 0; served < n; {
			in, err := b.Wait(within(0), kagent.Address{Disc: echo})
			if err != nil {
				time.Sleep(20 * time.Millisecond)
				continue
			}
			nstest.Check(t, in.Accept(within(time.Second), offer(b, t)))
			served++
		}
		wg.Wait()

		// Requests in a queue to which no Wait returns are refused.
		_, err := a.Request(within(5*time.Second), kagent.Address{}, to(b, echo), offer(a, t))
		nstest.ErrorIf(t, !errors.Is(err, kagent.ErrNoMatch), "after the server has gone: %v", err)
	})
}

// Close ends everything under way, on both sides.
func TestCloseEndsEverything(t *testing.T) {
	network(t, kagenttest.Faults{Delay: time.Millisecond}, func(t *testing.T, net *kagenttest.Fabric, a, b *kagenttest.Agent) {
		l, err := b.Listen(kagent.Address{Disc: []byte("l")})
		nstest.Must(t, err)
		nstest.WantErr(t, "second listener", nstest.Err(b.Listen(kagent.Address{Disc: []byte("l")})), kagent.ErrListening)
		ctx := context.Background()
		ends := []<-chan error{
			background(func() error { return nstest.Err(l.Wait(ctx)) }),
			background(func() error { return nstest.Err(b.Wait(ctx, kagent.Address{Disc: []byte("w")})) }),
			background(func() error { return nstest.Err(b.Request(ctx, kagent.Address{}, to(a, echo), offer(b, t))) }),
		}
		in, err := a.Wait(ctx, kagent.Address{Disc: echo})
		nstest.Must(t, err)
		go a.Wait(ctx, kagent.Address{Disc: []byte("x")})
		pending := background(func() error {
			return nstest.Err(a.Request(ctx, kagent.Address{}, to(b, []byte("p")), offer(a, t)))
		})
		nstest.Must(t, nstest.Err(b.Wait(ctx, kagent.Address{Disc: []byte("p")})))
		synctest.Wait()
		b.Close()
		for _, end := range ends {
			nstest.WantErr(t, "after Close", <-end, kagent.ErrClosed)
		}
		nstest.WantErr(t, "the other side's request", <-pending, kagent.ErrRejected)
		<-in.Done()
		nstest.WantErr(t, "the other side's Incoming", in.Err(), kagent.ErrCancelled)
		nstest.WantErr(t, "Wait after Close", nstest.Err(b.Wait(ctx, kagent.Address{})), kagent.ErrClosed)
		nstest.WantErr(t, "request to a host without agent", nstest.Err(a.Request(within(time.Second), kagent.Address{}, to(b, echo), offer(a, t))), kagent.ErrNoMatch)
		nstest.Check(t, b.Close())
	})
}

// Arguments that cannot be sent are refused beforehand.
func TestBadArguments(t *testing.T) {
	network(t, kagenttest.Faults{}, func(t *testing.T, _ *kagenttest.Fabric, a, b *kagenttest.Agent) {
		ctx := within(time.Second)
		long := make([]byte, wire.CMMaxDisc+1)
		good := offer(a, t)
		nstest.ErrorIf(t, nstest.Err(b.Wait(ctx, kagent.Address{Disc: long})) == nil, "Wait on a discriminator that is too long")
		nstest.WantErr(t, "Request to a discriminator that is too long", nstest.Err(a.Request(ctx, kagent.Address{}, to(b, long), good)), wire.ErrCM)
		wrongLevel, noVI := good, good
		wrongLevel.Level, noVI.VI = 3, 0
		nstest.WantErr(t, "Request with a wrong level", nstest.Err(a.Request(ctx, kagent.Address{}, to(b, echo), wrongLevel)),
			wire.ErrCM)
		nstest.WantErr(t, "Request without a VI", nstest.Err(a.Request(ctx, kagent.Address{}, to(b, echo), noVI)), wire.ErrCM)
		for _, h := range []netip.Addr{{}, netip.IPv4Unspecified(), netip.MustParseAddr("224.0.0.1"),
			netip.MustParseAddr("ff02::1"), netip.IPv6Unspecified()} {
			nstest.WantErr(t, h.String(), nstest.Err(a.Request(ctx, kagent.Address{}, kagent.Address{Host: h}, good)),
				kagent.ErrUnreachable)
		}
	})
}

// A user that takes one discriminator for many hosts holds up the connections of others no longer than with as many
// discriminators.
func TestManyHostsOfOneDiscriminator(t *testing.T) {
	m := connmgr.NewManager(newSink(), 0)
	defer m.Close()
	best := func(same bool) (take, expire time.Duration) {
		for range 3 { // other processes may run meanwhile
			took, expired := m.TimeDoors(1<<15, same)
			if take == 0 || took < take {
				take = took
			}
			if expire == 0 || expired < expire {
				expire = expired
			}
		}
		return take, expire
	}
	take, expire := best(true)
	takeEach, expireEach := best(false)
	t.Logf("one discriminator: taken in %v, expired in %v; many: %v, %v", take, expire, takeEach, expireEach)
	if take > 10*takeEach || expire > 10*expireEach {
		t.Errorf("one discriminator for many hosts: taken in %v, expired in %v; as many discriminators: %v, %v", take, expire, takeEach, expireEach)
	}
	nstest.Equal(t, "what is remembered", m.Remembered(), 0)
}

// Nor does a user that makes many peer requests with the same addresses.
func TestManyPeerRequests(t *testing.T) {
	m := connmgr.NewManager(newSink(), 0)
	defer m.Close()
	best := func(same bool) time.Duration {
		least := time.Hour
		for range 3 { // other processes may run meanwhile
			least = min(least, m.TimePeers(1<<14, same))
		}
		return least
	}
	if same, each := best(true), best(false); same > 10*each {
		t.Errorf("with the same addresses: %v, with as many addresses: %v", same, each)
	}
}
