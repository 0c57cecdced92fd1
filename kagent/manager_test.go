package kagent_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/kagent"
	"viaxdp/kagent/kagenttest"
	"viaxdp/wire"
)

var (
	echo   = []byte("echo")
	client = []byte("client")
)

func offer(a kagent.Agent, t testing.TB) kagent.Offer {
	t.Helper()
	num, err := a.NewVI()
	if err != nil {
		t.Fatal(err)
	}
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

type accepted struct {
	in  *kagent.Incoming
	err error
}

// serve takes one request at b and accepts it.
func serve(b *kagenttest.Agent, disc []byte, o kagent.Offer) <-chan accepted {
	ch := make(chan accepted, 1)
	go func() {
		in, err := b.Wait(within(time.Minute), kagent.Address{Disc: disc})
		if err == nil {
			err = in.Accept(within(20*time.Second), o)
		}
		ch <- accepted{in, err}
	}()
	return ch
}

// Both sides learn the other's offer, address and discriminator.
func TestConnect(t *testing.T) {
	network(t, kagenttest.Faults{Delay: time.Millisecond}, func(t *testing.T, _ *kagenttest.Fabric, a, b *kagenttest.Agent) {
		ao, bo := offer(a, t), offer(b, t)
		served := serve(b, echo, bo)
		synctest.Wait()
		start := time.Now()
		ans, err := a.Request(within(time.Second), kagent.Address{Disc: client}, to(b, echo), ao)
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d > 5*time.Millisecond {
			t.Errorf("the answer took %v on a network of 1 ms", d)
		}
		if ans.Offer != bo {
			t.Errorf("requester got %+v, want %+v", ans.Offer, bo)
		}
		if ans.Remote.Host != b.Addr() || !bytes.Equal(ans.Remote.Disc, echo) ||
			ans.Local.Host != a.Addr() || !bytes.Equal(ans.Local.Disc, client) {
			t.Errorf("ends of the connection: %+v, %+v", ans.Local, ans.Remote)
		}
		select {
		case <-served:
			t.Fatal("Accept returned before the requester confirmed")
		case <-time.After(time.Second):
		}
		if err := ans.Confirm(); err != nil {
			t.Fatal(err)
		}
		got := <-served
		if got.err != nil {
			t.Fatal(got.err)
		}
		if got.in.Offer() != ao {
			t.Errorf("acceptor got %+v, want %+v", got.in.Offer(), ao)
		}
		if r, l := got.in.Remote(), got.in.Local(); r.Host != a.Addr() || !bytes.Equal(r.Disc, client) ||
			l.Host != b.Addr() || !bytes.Equal(l.Disc, echo) {
			t.Errorf("ends of the connection: %+v, %+v", l, r)
		}
		if err := got.in.Accept(within(time.Second), bo); !errors.Is(err, kagent.ErrState) {
			t.Errorf("second Accept: %v", err)
		}
		if err := got.in.Reject(0); !errors.Is(err, kagent.ErrState) {
			t.Errorf("Reject after Accept: %v", err)
		}
	})
}

// On a bad network each outcome is still the right one.
func TestLossyOutcomes(t *testing.T) {
	outcomes := []struct {
		name string
		run  func(t *testing.T, a, b *kagenttest.Agent)
	}{
		{"accept", func(t *testing.T, a, b *kagenttest.Agent) {
			served := serve(b, echo, offer(b, t))
			synctest.Wait()
			ans, err := a.Request(within(20*time.Second), kagent.Address{}, to(b, echo), offer(a, t))
			if err != nil {
				t.Fatal(err)
			}
			if err := ans.Confirm(); err != nil {
				t.Fatal(err)
			}
			if got := <-served; got.err != nil {
				t.Fatal(got.err)
			}
		}},
		{"reject", func(t *testing.T, a, b *kagenttest.Agent) {
			go func() {
				in, err := b.Wait(within(time.Minute), kagent.Address{Disc: echo})
				if err == nil {
					err = in.Reject(wire.CMReasonProgram)
				}
				if err != nil {
					t.Error(err)
				}
			}()
			synctest.Wait()
			_, err := a.Request(within(20*time.Second), kagent.Address{}, to(b, echo), offer(a, t))
			var rejected *kagent.RejectedError
			if !errors.As(err, &rejected) || rejected.Reason != wire.CMReasonProgram || !errors.Is(err, kagent.ErrRejected) {
				t.Fatalf("got %v", err)
			}
		}},
		{"no match", func(t *testing.T, a, b *kagenttest.Agent) {
			_, err := a.Request(within(20*time.Second), kagent.Address{}, to(b, echo), offer(a, t))
			if !errors.Is(err, kagent.ErrNoMatch) {
				t.Fatalf("got %v", err)
			}
		}},
		{"time-out", func(t *testing.T, a, b *kagenttest.Agent) {
			// The other side's program takes the request and says nothing.
			got := make(chan *kagent.Incoming, 1)
			go func() {
				in, err := b.Wait(within(time.Minute), kagent.Address{Disc: echo})
				if err != nil {
					t.Error(err)
				}
				got <- in
			}()
			synctest.Wait()
			_, err := a.Request(within(10*time.Second), kagent.Address{}, to(b, echo), offer(a, t))
			if !errors.Is(err, kagent.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("got %v", err)
			}
			in := <-got
			<-in.Done()
			err = in.Accept(within(time.Second), offer(b, t))
			if !errors.Is(err, kagent.ErrCancelled) && !errors.Is(err, kagent.ErrVanished) {
				t.Fatalf("Accept of a request that timed out: %v", err)
			}
		}},
	}
	for _, o := range outcomes {
		t.Run(o.name, func(t *testing.T) {
			for seed := range uint64(20) {
				faults := kagenttest.Faults{
					Loss: 0.4, Dup: 0.3, Delay: time.Millisecond, Jitter: 20 * time.Millisecond, Seed: seed,
				}
				network(t, faults, func(t *testing.T, _ *kagenttest.Fabric, a, b *kagenttest.Agent) { o.run(t, a, b) })
			}
		})
	}
}

// One request makes one Incoming, however often it is repeated.
func TestDuplicatesMakeOneIncoming(t *testing.T) {
	network(t, kagenttest.Faults{Dup: 1, Jitter: 50 * time.Millisecond}, func(t *testing.T, _ *kagenttest.Fabric, a, b *kagenttest.Agent) {
		l, err := b.Listen(kagent.Address{Disc: echo})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		var wg sync.WaitGroup
		wg.Go(func() {
			ans, err := a.Request(within(time.Second), kagent.Address{}, to(b, echo), offer(a, t))
			if err != nil {
				t.Error(err)
				return
			}
			if err := ans.Confirm(); err != nil {
				t.Error(err)
			}
		})
		in, err := l.Wait(within(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(500 * time.Millisecond)
		if err := in.Accept(within(time.Second), offer(b, t)); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if in, err := l.Wait(within(10 * time.Second)); !errors.Is(err, kagent.ErrTimeout) {
			t.Fatalf("a second Incoming: %v, %v", in, err)
		}
	})
}

// Nobody waits: the answer takes one round trip.
func TestNoMatchTakesARoundTrip(t *testing.T) {
	network(t, kagenttest.Faults{Delay: 2 * time.Millisecond}, func(t *testing.T, _ *kagenttest.Fabric, a, b *kagenttest.Agent) {
		go b.Wait(within(time.Second), kagent.Address{Disc: []byte("other")})
		go b.Wait(within(time.Second), kagent.Address{Host: netip.MustParseAddr("10.9.9.9"), Disc: echo})
		synctest.Wait()
		for _, disc := range [][]byte{echo, nil, []byte("othe"), []byte("other ")} {
			start := time.Now()
			_, err := a.Request(within(time.Second), kagent.Address{}, to(b, disc), offer(a, t))
			if !errors.Is(err, kagent.ErrNoMatch) {
				t.Errorf("%q: %v", disc, err)
			}
			if d := time.Since(start); d != 4*time.Millisecond {
				t.Errorf("%q: the answer took %v", disc, d)
			}
		}
	})
}

// The requester's change of mind reaches the acceptor.
func TestCancel(t *testing.T) {
	network(t, kagenttest.Faults{Delay: time.Millisecond}, func(t *testing.T, _ *kagenttest.Fabric, a, b *kagenttest.Agent) {
		ctx, cancel := context.WithCancel(context.Background())
		errc := make(chan error, 1)
		go func() {
			_, err := a.Request(ctx, kagent.Address{}, to(b, echo), offer(a, t))
			errc <- err
		}()
		in, err := b.Wait(within(time.Second), kagent.Address{Disc: echo})
		if err != nil {
			t.Fatal(err)
		}
		if err := in.Err(); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := <-errc; !errors.Is(err, context.Canceled) {
			t.Errorf("Request: %v", err)
		}
		start := time.Now()
		<-in.Done()
		if d := time.Since(start); d != time.Millisecond {
			t.Errorf("the news took %v", d)
		}
		if err := in.Err(); !errors.Is(err, kagent.ErrCancelled) {
			t.Errorf("Incoming: %v", err)
		}
	})
}

// A requester that declines the answer ends the acceptor's Accept.
func TestDecline(t *testing.T) {
	network(t, kagenttest.Faults{Delay: time.Millisecond}, func(t *testing.T, _ *kagenttest.Fabric, a, b *kagenttest.Agent) {
		served := serve(b, echo, offer(b, t))
		synctest.Wait()
		ans, err := a.Request(within(time.Second), kagent.Address{}, to(b, echo), offer(a, t))
		if err != nil {
			t.Fatal(err)
		}
		ans.Decline(wire.CMReasonMismatch)
		if got := <-served; !errors.Is(got.err, kagent.ErrCancelled) {
			t.Errorf("Accept: %v", got.err)
		}
		if err := ans.Confirm(); err == nil {
			t.Error("Confirm after Decline succeeded")
		}
	})
}

// A requester that is gone without a word ends what waits for it.
func TestVanish(t *testing.T) {
	network(t, kagenttest.Faults{Delay: time.Millisecond}, func(t *testing.T, net *kagenttest.Fabric, a, b *kagenttest.Agent) {
		go a.Request(within(10*time.Second), kagent.Address{}, to(b, echo), offer(a, t))
		in, err := b.Wait(within(time.Second), kagent.Address{Disc: echo})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if err := in.Err(); err != nil {
			t.Fatalf("the requester is alive, and %v", err)
		}
		net.Cut(a.Addr(), true)
		<-in.Done()
		if err := in.Err(); !errors.Is(err, kagent.ErrVanished) {
			t.Errorf("pending: %v", err)
		}

		net.Cut(a.Addr(), false)
		time.Sleep(10 * time.Second)
		go a.Request(within(10*time.Second), kagent.Address{}, to(b, echo), offer(a, t))
		if in, err = b.Wait(within(time.Second), kagent.Address{Disc: echo}); err != nil {
			t.Fatal(err)
		}
		net.Cut(a.Addr(), true)
		start := time.Now()
		if err := in.Accept(context.Background(), offer(b, t)); !errors.Is(err, kagent.ErrVanished) {
			t.Errorf("accepting: %v", err)
		}
		if d := time.Since(start); d > 4*time.Second {
			t.Errorf("it took %v", d)
		}
	})
}

// The first data frame is as good as a Confirm.
func TestEstablishedByData(t *testing.T) {
	network(t, kagenttest.Faults{Delay: time.Millisecond}, func(t *testing.T, net *kagenttest.Fabric, a, b *kagenttest.Agent) {
		go a.Request(within(10*time.Second), kagent.Address{}, to(b, echo), offer(a, t))
		in, err := b.Wait(within(time.Second), kagent.Address{Disc: echo})
		if err != nil {
			t.Fatal(err)
		}
		in.Established() // before Accept: means nothing
		errc := make(chan error, 1)
		go func() { errc <- in.Accept(within(time.Second), offer(b, t)) }()
		synctest.Wait()
		select {
		case err := <-errc:
			t.Fatalf("Accept returned %v before anything came", err)
		default:
		}
		in.Established()
		in.Established()
		if err := <-errc; err != nil {
			t.Error(err)
		}
	})
}

// An acceptor that gives up tells the requester, which has not confirmed yet.
func TestAcceptTimesOut(t *testing.T) {
	network(t, kagenttest.Faults{}, func(t *testing.T, net *kagenttest.Fabric, a, b *kagenttest.Agent) {
		errc := make(chan error, 1)
		go func() {
			in, err := b.Wait(within(time.Second), kagent.Address{Disc: echo})
			if err == nil {
				err = in.Accept(within(time.Second), offer(b, t))
			}
			errc <- err
		}()
		synctest.Wait()
		ans, err := a.Request(within(time.Second), kagent.Address{}, to(b, echo), offer(a, t))
		if err != nil {
			t.Fatal(err)
		}
		if err := <-errc; !errors.Is(err, kagent.ErrTimeout) {
			t.Errorf("Accept: %v", err)
		}
		synctest.Wait()
		if err := ans.Confirm(); !errors.Is(err, kagent.ErrRejected) {
			t.Errorf("Confirm: %v", err)
		}
	})
}

// A lost Confirm is repeated when the Accept is.
func TestLostConfirm(t *testing.T) {
	network(t, kagenttest.Faults{}, func(t *testing.T, net *kagenttest.Fabric, a, b *kagenttest.Agent) {
		served := serve(b, echo, offer(b, t))
		synctest.Wait()
		ans, err := a.Request(within(time.Second), kagent.Address{}, to(b, echo), offer(a, t))
		if err != nil {
			t.Fatal(err)
		}
		net.Cut(a.Addr(), true)
		if err := ans.Confirm(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(1500 * time.Millisecond)
		select {
		case got := <-served:
			t.Fatalf("Accept returned %v without a Confirm", got.err)
		default:
		}
		net.Cut(a.Addr(), false)
		if got := <-served; got.err != nil {
			t.Error(got.err)
		}
	})
}

// Several waits are served each by one request, and by discriminator and
// address.
func TestWaitsDoNotMix(t *testing.T) {
	network(t, kagenttest.Faults{Dup: 0.5, Jitter: 10 * time.Millisecond}, func(t *testing.T, _ *kagenttest.Fabric, a, b *kagenttest.Agent) {
		link := b.Link()
		discs := []string{"", "a", "ab", "abc"}
		locals := []kagent.Address{}
		for _, d := range discs {
			for _, h := range []netip.Addr{{}, link.IPv4[0], link.IPv6[0]} {
				locals = append(locals, kagent.Address{Host: h, Disc: []byte(d)})
			}
		}
		var wg sync.WaitGroup
		for i, local := range locals {
			wg.Go(func() {
				in, err := b.Wait(within(time.Minute), local)
				if err != nil {
					t.Errorf("%v: %v", local, err)
					return
				}
				if got := in.Local(); string(got.Disc) != string(local.Disc) || local.Host.IsValid() && got.Host != local.Host {
					t.Errorf("a request to %v reached the wait for %v", got, local)
				}
				o := offer(b, t)
				o.QoS = uint32(i)
				if err := in.Accept(within(5*time.Second), o); err != nil {
					t.Errorf("%v: %v", local, err)
				}
			})
		}
		synctest.Wait()
		for _, d := range discs {
			// Three requests for each discriminator: by IPv4, by IPv6, and
			// one which only the wait for any address is left for.
			for _, h := range []netip.Addr{link.IPv4[0], link.IPv6[0], link.IPv4[0]} {
				ans, err := a.Request(within(5*time.Second), kagent.Address{}, kagent.Address{Host: h, Disc: []byte(d)}, offer(a, t))
				if err != nil {
					t.Errorf("%q %v: %v", d, h, err)
					continue
				}
				if err := ans.Confirm(); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Second) // the grace of the wait that it used up
			}
		}
		wg.Wait()
	})
}

// A server that waits in a loop, or polls, misses nobody.
func TestGrace(t *testing.T) {
	network(t, kagenttest.Faults{}, func(t *testing.T, _ *kagenttest.Fabric, a, b *kagenttest.Agent) {
		var wg sync.WaitGroup
		const n = 10
		for range n {
			wg.Go(func() {
				time.Sleep(10 * time.Millisecond)
				ans, err := a.Request(within(5*time.Second), kagent.Address{}, to(b, echo), offer(a, t))
				if err != nil {
					t.Error(err)
					return
				}
				if err := ans.Confirm(); err != nil {
					t.Error(err)
				}
			})
		}
		for served := 0; served < n; {
			in, err := b.Wait(within(0), kagent.Address{Disc: echo})
			if err != nil {
				time.Sleep(20 * time.Millisecond)
				continue
			}
			if err := in.Accept(within(time.Second), offer(b, t)); err != nil {
				t.Error(err)
			}
			served++
		}
		wg.Wait()

		// And a queue that nobody comes back to is told.
		_, err := a.Request(within(5*time.Second), kagent.Address{}, to(b, echo), offer(a, t))
		if !errors.Is(err, kagent.ErrNoMatch) {
			t.Errorf("after the server has gone: %v", err)
		}
	})
}

// What the network makes an agent remember is bounded, and the newest at a
// discriminator are those that are kept.
func TestBacklogIsBounded(t *testing.T) {
	network(t, kagenttest.Faults{}, func(t *testing.T, net *kagenttest.Fabric, a, b *kagenttest.Agent) {
		l, err := b.Listen(kagent.Address{Disc: echo})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		var wg sync.WaitGroup
		var mu sync.Mutex
		outcome := map[error]int{}
		for range 200 {
			time.Sleep(time.Millisecond)
			wg.Go(func() {
				_, err := a.Request(within(2*time.Second), kagent.Address{}, to(b, echo), offer(a, t))
				mu.Lock()
				defer mu.Unlock()
				for _, e := range []error{kagent.ErrRejected, kagent.ErrTimeout} {
					if errors.Is(err, e) {
						outcome[e]++
					}
				}
			})
		}
		wg.Wait()
		if outcome[kagent.ErrRejected] != 136 || outcome[kagent.ErrTimeout] != 64 {
			t.Errorf("outcomes %v: want 136 rejected and 64 that waited", outcome)
		}
	})
}

// Close ends all that is under way, on both sides.
func TestCloseEndsEverything(t *testing.T) {
	network(t, kagenttest.Faults{Delay: time.Millisecond}, func(t *testing.T, net *kagenttest.Fabric, a, b *kagenttest.Agent) {
		l, err := b.Listen(kagent.Address{Disc: []byte("l")})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Listen(kagent.Address{Disc: []byte("l")}); !errors.Is(err, kagent.ErrListening) {
			t.Errorf("second listener: %v", err)
		}
		ctx := context.Background()
		errs := make(chan error, 4)
		go func() { _, err := l.Wait(ctx); errs <- err }()
		go func() { _, err := b.Wait(ctx, kagent.Address{Disc: []byte("w")}); errs <- err }()
		go func() {
			_, err := b.Request(ctx, kagent.Address{}, to(a, echo), offer(b, t))
			errs <- err
		}()
		in, err := a.Wait(ctx, kagent.Address{Disc: echo})
		if err != nil {
			t.Fatal(err)
		}
		go a.Wait(ctx, kagent.Address{Disc: []byte("x")})
		pending := make(chan error, 1)
		go func() {
			_, err := a.Request(ctx, kagent.Address{}, to(b, []byte("p")), offer(a, t))
			pending <- err
		}()
		if _, err := b.Wait(ctx, kagent.Address{Disc: []byte("p")}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		b.Close()
		for range 3 {
			if err := <-errs; !errors.Is(err, kagent.ErrClosed) {
				t.Errorf("after Close: %v", err)
			}
		}
		if err := <-pending; !errors.Is(err, kagent.ErrRejected) {
			t.Errorf("the other side's request: %v", err)
		}
		<-in.Done()
		if err := in.Err(); !errors.Is(err, kagent.ErrCancelled) {
			t.Errorf("the other side's Incoming: %v", err)
		}
		if _, err := b.Wait(ctx, kagent.Address{}); !errors.Is(err, kagent.ErrClosed) {
			t.Errorf("Wait after Close: %v", err)
		}
		if _, err := a.Request(within(time.Second), kagent.Address{}, to(b, echo), offer(a, t)); !errors.Is(err, kagent.ErrNoMatch) {
			t.Errorf("request to a host without agent: %v", err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Both ends in one agent: the same exchange has two sides here.
func TestSelf(t *testing.T) {
	network(t, kagenttest.Faults{Dup: 0.5, Loss: 0.2, Seed: 7}, func(t *testing.T, _ *kagenttest.Fabric, a, _ *kagenttest.Agent) {
		served := serve(a, echo, offer(a, t))
		synctest.Wait()
		ans, err := a.Request(within(10*time.Second), kagent.Address{}, to(a, echo), offer(a, t))
		if err != nil {
			t.Fatal(err)
		}
		if err := ans.Confirm(); err != nil {
			t.Fatal(err)
		}
		if got := <-served; got.err != nil {
			t.Fatal(got.err)
		}
	})
}

// What cannot be sent is refused before it is.
func TestBadArguments(t *testing.T) {
	network(t, kagenttest.Faults{}, func(t *testing.T, _ *kagenttest.Fabric, a, b *kagenttest.Agent) {
		ctx := within(time.Second)
		long := make([]byte, wire.CMMaxDisc+1)
		good := offer(a, t)
		if _, err := b.Wait(ctx, kagent.Address{Disc: long}); err == nil {
			t.Error("Wait on a discriminator that is too long")
		}
		if _, err := a.Request(ctx, kagent.Address{}, to(b, long), good); !errors.Is(err, wire.ErrCM) {
			t.Errorf("Request to a discriminator that is too long: %v", err)
		}
		bad := good
		bad.Level = 3
		if _, err := a.Request(ctx, kagent.Address{}, to(b, echo), bad); !errors.Is(err, wire.ErrCM) {
			t.Errorf("Request with a wrong level: %v", err)
		}
		bad = good
		bad.VI = 0
		if _, err := a.Request(ctx, kagent.Address{}, to(b, echo), bad); !errors.Is(err, wire.ErrCM) {
			t.Errorf("Request without a VI: %v", err)
		}
		for _, h := range []string{"0.0.0.0", "224.0.0.1", "ff02::1", "::"} {
			if _, err := a.Request(ctx, kagent.Address{}, kagent.Address{Host: netip.MustParseAddr(h)}, good); !errors.Is(err, kagent.ErrUnreachable) {
				t.Errorf("Request to %s: %v", h, err)
			}
		}
		if _, err := a.Request(ctx, kagent.Address{}, kagent.Address{}, good); !errors.Is(err, kagent.ErrUnreachable) {
			t.Errorf("Request to nowhere: %v", err)
		}
	})
}
