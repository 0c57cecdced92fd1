package connmgr_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/agent/connmgr"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/nstest"
)

var (
	echo   = []byte("echo")
	client = []byte("client")
)

func offer(a kagent.Agent, t testing.TB) kagent.Offer {
	t.Helper()
	num, err := a.NewVI()
	nstest.Must(t, err)
	return kagent.Offer{
		VI: num, Key: kagent.NewKey(), Seq: kagent.NewSeq(), Window: 256, MaxPayload: 1472, Level: 2,
		RDMAWrite: true, MaxTransfer: 1 << 20,
	}
}

// within is a context that ends after d of the bubble's time.
func within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	context.AfterFunc(ctx, cancel)
	return ctx
}

// network runs f in a bubble with two agents on a fabric. With a delay, nothing
// arrives before all goroutines wait: a Wait may then be called after the
// Request that it is for.
func network(t *testing.T, faults kagenttest.Faults, f func(t *testing.T, net *kagenttest.Fabric, a, b *kagenttest.Agent)) {
	synctest.Test(t, func(t *testing.T) {
		net := kagenttest.NewFabric(faults)
		a, b := net.Agent("a"), net.Agent("b")
		defer b.Close()
		defer a.Close()
		f(t, net, a, b)
	})
}

func to(a *kagenttest.Agent, disc []byte) kagent.Address {
	return kagent.Address{Host: a.Addr(), Disc: disc}
}

// serve takes one request at b and accepts it. It returns when b waits.
func serve(b *kagenttest.Agent, disc []byte, o kagent.Offer) <-chan error {
	served := background(func() error {
		in, err := b.Wait(within(time.Minute), kagent.Address{Disc: disc})
		if err != nil {
			return err
		}
		return in.Accept(within(20*time.Second), o)
	})
	synctest.Wait()
	return served
}

// listens has a program listen at echo.
func listens(t *testing.T, m connmgr.Client) kagent.Listener {
	t.Helper()
	l, err := m.Listen(kagent.Address{Disc: echo})
	nstest.Must(t, err)
	return l
}

// takes has a program at a listener take the request of a stranger.
func takes(t *testing.T, m connmgr.Client, l kagent.Listener, id uint64, from netip.AddrPort) kagent.Incoming {
	t.Helper()
	m.Receive(bytesOf(t, requestOf(id, echo)), here4, from)
	in, err := l.Wait(within(time.Second))
	nstest.Must(t, err)
	return in
}

// Both sides get the other's offer, address and discriminator.
func TestConnect(t *testing.T) {
	network(t, kagenttest.Faults{Delay: time.Millisecond}, func(t *testing.T, _ *kagenttest.Fabric, a, b *kagenttest.Agent) {
		ao, bo := offer(a, t), offer(b, t)
		var in kagent.Incoming
		served := background(func() (err error) {
			if in, err = b.Wait(within(time.Minute), kagent.Address{Disc: echo}); err != nil {
				return err
			}
			return in.Accept(within(20*time.Second), bo)
		})
		synctest.Wait()
		start := time.Now()
		ans, err := a.Request(within(time.Second), kagent.Address{Disc: client}, to(b, echo), ao)
		nstest.Must(t, err)
		if d := time.Since(start); d > 5*time.Millisecond {
			t.Errorf("the answer took %v on a network of 1 ms", d)
		}
		time.Sleep(time.Second)
		nstest.FatalIf(t, len(served) > 0, "Accept returned before the requester confirmed")
		nstest.Must(t, ans.Confirm())
		nstest.Must(t, <-served)
		nstest.Check(t, connected(
			meeting{ans: ans, own: ao, peer: ans.Offer, local: ans.Local, remote: ans.Remote},
			meeting{in: in, own: bo, peer: in.Offer(), local: in.Local(), remote: in.Remote()}))
		nstest.Equal(t, "the requester's address", fmt.Sprint(ans.Local), fmt.Sprint(to(a, client)))
		nstest.Equal(t, "the acceptor's address", fmt.Sprint(ans.Remote), fmt.Sprint(to(b, echo)))
		nstest.WantErr(t, "second Accept", in.Accept(within(time.Second), bo), kagent.ErrState)
		nstest.WantErr(t, "Reject after Accept", in.Reject(0), kagent.ErrState)
	})
}

// Without a Wait, the answer takes one round trip.
func TestNoMatchTakesARoundTrip(t *testing.T) {
	network(t, kagenttest.Faults{Delay: 2 * time.Millisecond}, func(t *testing.T, _ *kagenttest.Fabric, a, b *kagenttest.Agent) {
		go b.Wait(within(time.Second), kagent.Address{Disc: []byte("other")})
		go b.Wait(within(time.Second), kagent.Address{Host: netip.MustParseAddr("10.9.9.9"), Disc: echo})
		synctest.Wait()
		for _, disc := range [][]byte{echo, nil, []byte("othe"), []byte("other ")} {
			start := time.Now()
			nstest.WantErr(t, string(disc), nstest.Err(a.Request(within(time.Second), kagent.Address{}, to(b, disc), offer(a, t))),
				kagent.ErrNoMatch)
			nstest.Equal(t, "the time until the answer", time.Since(start), 4*time.Millisecond)
		}
	})
}

// A cancellation by the requester reaches the acceptor.
func TestCancel(t *testing.T) {
	network(t, kagenttest.Faults{Delay: time.Millisecond}, func(t *testing.T, _ *kagenttest.Fabric, a, b *kagenttest.Agent) {
		ctx, cancel := context.WithCancel(context.Background())
		asked := background(func() error { return nstest.Err(a.Request(ctx, kagent.Address{}, to(b, echo), offer(a, t))) })
		in, err := b.Wait(within(time.Second), kagent.Address{Disc: echo})
		nstest.Must(t, err)
		nstest.Must(t, in.Err())
		cancel()
		nstest.WantErr(t, "Request", <-asked, context.Canceled)
		start := time.Now()
		<-in.Done()
		nstest.Equal(t, "the time until the news", time.Since(start), time.Millisecond)
		nstest.WantErr(t, "Incoming", in.Err(), kagent.ErrCancelled)
	})
}

// A requester that declines the answer ends the acceptor's Accept.
func TestDecline(t *testing.T) {
	network(t, kagenttest.Faults{Delay: time.Millisecond}, func(t *testing.T, _ *kagenttest.Fabric, a, b *kagenttest.Agent) {
		served := serve(b, echo, offer(b, t))
		ans, err := a.Request(within(time.Second), kagent.Address{}, to(b, echo), offer(a, t))
		nstest.Must(t, err)
		ans.Decline(wire.CMReasonMismatch)
		nstest.WantErr(t, "Accept", <-served, kagent.ErrCancelled)
		nstest.ErrorIf(t, ans.Confirm() == nil, "Confirm after Decline succeeded")
	})
}

// A requester that vanishes without a message ends the calls that wait for it.
func TestVanish(t *testing.T) {
	network(t, kagenttest.Faults{Delay: time.Millisecond}, func(t *testing.T, net *kagenttest.Fabric, a, b *kagenttest.Agent) {
		go a.Request(within(10*time.Second), kagent.Address{}, to(b, echo), offer(a, t))
		in, err := b.Wait(within(time.Second), kagent.Address{Disc: echo})
		nstest.Must(t, err)
		time.Sleep(5 * time.Second)
		if err := in.Err(); err != nil {
			t.Fatalf("the requester is alive, and %v", err)
		}
		net.Cut(a.Addr(), true)
		<-in.Done()
		nstest.WantErr(t, "pending", in.Err(), kagent.ErrVanished)

		net.Cut(a.Addr(), false)
		time.Sleep(10 * time.Second)
		go a.Request(within(10*time.Second), kagent.Address{}, to(b, echo), offer(a, t))
		in, err = b.Wait(within(time.Second), kagent.Address{Disc: echo})
		nstest.Must(t, err)
		net.Cut(a.Addr(), true)
		start := time.Now()
		nstest.WantErr(t, "accepting", in.Accept(context.Background(), offer(b, t)), kagent.ErrVanished)
		if d := time.Since(start); d > 4*time.Second {
			t.Errorf("it took %v", d)
		}
	})
}

// A request for a discriminator whose listener is about to come back has no answer, so that the requester repeats it. It is
// answered when the program listens again, and refused once the program does not. At first this is so for each discriminator,
// at which a program may have been in Wait.
func TestKeptDiscriminator(t *testing.T) {
	resumed(t, func(t *testing.T, m connmgr.Client, s *sink) {
		ask := func(id uint64, disc string, want ...wire.CMType) {
			t.Helper()
			m.Receive(bytesOf(t, requestOf(id, []byte(disc))), here4, agent4)
			synctest.Wait()
			var got []wire.CMType
			for _, msg := range s.said(t) {
				got = append(got, msg.Type)
			}
			nstest.ErrorIf(t, !slices.Equal(got, want), "request %d for %q: %v, want %v", id, disc, got, want)
		}
		ask(1, string(echo))
		ask(2, "gone")
		ask(3, "another")
		waited := background(func() error { return nstest.Err(m.Wait(within(time.Second), kagent.Address{Disc: []byte("another")})) })
		synctest.Wait()
		ask(3, "another") // repeated
		nstest.Must(t, <-waited)
		time.Sleep(2 * time.Second) // programs of the previous agent have come back
		ask(1, string(echo))
		ask(2, "gone")
		ask(4, "another", wire.CMNoMatch)
		l, err := m.For(7).Listen(kagent.Address{Disc: echo})
		nstest.Must(t, err)
		m.ReleaseDisc(string(echo), 7)
		m.ReleaseDisc("gone", 7)
		ask(2, "gone", wire.CMNoMatch) // repeated
		ask(1, string(echo))
		in, err := l.Wait(within(time.Second))
		nstest.Must(t, err)
		nstest.Equal(t, "the VI that asks", in.Offer().VI, 1)
		nstest.Must(t, l.Close())
	}, connmgr.Kept{Disc: string(echo), User: 7}, connmgr.Kept{Disc: "gone", User: 7})
}
