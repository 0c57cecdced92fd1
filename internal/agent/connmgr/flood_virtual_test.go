package connmgr_test

import (
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

// The kinds of servers. Each serves until ctx ends.
var servers = map[string]func(ctx context.Context, t *testing.T, b *kagenttest.Agent, o kagent.Offer){
	// As vianet: each request is accepted by a goroutine of its own, which takes one of a few places.
	"listener with places": func(ctx context.Context, t *testing.T, b *kagenttest.Agent, o kagent.Offer) {
		l, err := b.Listen(kagent.Address{Disc: echo})
		if err != nil {
			t.Error(err)
			return
		}
		defer l.Close()
		places := make(chan struct{}, 128)
		var work sync.WaitGroup
		defer work.Wait()
		for {
			in, err := l.Wait(ctx)
			if err != nil {
				return
			}
			select {
			case places <- struct{}{}:
				work.Go(func() {
					in.Accept(within(5*time.Second), o)
					<-places
				})
			default:
				in.Reject(wire.CMReasonProgram)
			}
		}
	},
	// As a program of one thread: VipConnectWait, VipConnectAccept.
	"one by one": oneByOne(false),
	// A server that refuses unknown requesters.
	"by name": oneByOne(true),
}

func oneByOne(named bool) func(context.Context, *testing.T, *kagenttest.Agent, kagent.Offer) {
	return func(ctx context.Context, _ *testing.T, b *kagenttest.Agent, o kagent.Offer) {
		for {
			in, err := b.Wait(ctx, kagent.Address{Disc: echo})
			switch {
			case err != nil:
				return
			case named && string(in.Remote().Disc) != string(client):
				in.Reject(wire.CMReasonProgram)
			default:
				in.Accept(within(5*time.Second), o)
			}
		}
	}
}

// During 10,000 requests a second with spoofed sources, no connect is refused, and 99 of 100 take less than 50
// ms. A recorded request that comes from many ports is also a spoofed one.
func TestDialsBesideFlood(t *testing.T) {
	sources := map[string]func(n uint32) netip.AddrPort{
		"many hosts":             spoofed,
		"many ports of one":      func(n uint32) netip.AddrPort { return netip.AddrPortFrom(spoofed(1).Addr(), uint16(n)) },
		"many ports of a dialer": func(n uint32) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(n)) },
	}
	for kind, serve := range servers {
		for whose, source := range sources {
			t.Run(kind+", "+whose, func(t *testing.T) {
				network(t, kagenttest.Faults{Delay: 500 * time.Microsecond}, func(t *testing.T, _ *kagenttest.Fabric, a, b *kagenttest.Agent) {
					const rate = 10_000
					lasts, dials := 6*time.Second, 300
					if testing.Short() {
						lasts, dials = lasts/3, dials/3
					}
					ctx, cancel := context.WithCancel(t.Context())
					var served, flooded sync.WaitGroup
					served.Go(func() { serve(ctx, t, b, offer(b, t)) })
					synctest.Wait()
					msg := requestOf(1, echo)
					msg.Handshake = make([]byte, wire.CMShareLen)
					flooded.Go(func() {
						for n := uint32(1); n <= uint32(lasts.Seconds()*rate); n++ {
							if whose == "many hosts" {
								msg.ID = uint64(n)
							}
							b.Receive(bytesOf(t, msg), b.Addr(), source(n))
							time.Sleep(time.Second / rate)
						}
					})
					time.Sleep(20 * time.Millisecond)
					late := 0
					ao := offer(a, t)
					for range dials {
						start := time.Now()
						ans, err := a.Request(within(10*time.Second), kagent.Address{Disc: client}, to(b, echo), ao)
						nstest.Must(t, err)
						nstest.Must(t, ans.Confirm())
						if time.Since(start) > 50*time.Millisecond {
							late++
						}
						time.Sleep(lasts/time.Duration(dials) - 2*time.Millisecond)
					}
					nstest.ErrorIf(t, late > dials/100, "%d of %d dials took more than 50 ms", late, dials)
					flooded.Wait()
					if n := b.Counters(); n.Retries < uint64(lasts.Seconds()*rate)/2 || n.Refused > 0 {
						t.Errorf("%+v", n)
					}
					if kept := b.Remembered(); kept > 2*dials+2*32+32 {
						t.Errorf("%d things are remembered", kept)
					}
					cancel()
					served.Wait()
				})
			})
		}
	}
}

// A cookie is valid for one address, one exchange and one discriminator, for two seconds at most, and brings a
// request in once.
func TestCookies(t *testing.T) {
	alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
		l := listens(t, m)
		other, err := m.Listen(kagent.Address{Disc: []byte("other")})
		nstest.Must(t, err)
		say := (&flood{t: t, m: m, s: s}).say
		for n := range uint32(32) { // until places are short
			say(requestOf(100+uint64(n), echo), spoofed(n))
		}
		msg := requestOf(7, echo)
		retry := say(msg, agent4)
		nstest.FatalIf(t, retry.Type != wire.CMRetry || retry.ID != msg.ID, "the answer is %+v", retry)
		right := msg
		right.Cookie = retry.Cookie
		for _, c := range []struct {
			change func(m *wire.CM)
			from   netip.AddrPort
		}{
			{func(m *wire.CM) { m.Cookie ^= 1 }, agent4},
			{func(m *wire.CM) { m.ID++ }, agent4},
			{func(m *wire.CM) { m.To = []byte("other") }, agent4},
			{func(m *wire.CM) { m.From = []byte("other") }, agent4},
			{func(m *wire.CM) { m.Flags ^= wire.CMRDMAWrite }, agent4},
			{func(*wire.CM) {}, netip.AddrPortFrom(there4, wire.Port+1)},
			{func(*wire.CM) {}, netip.AddrPortFrom(here4, wire.Port)},
		} {
			wrong := right
			c.change(&wrong)
			nstest.Equal(t, fmt.Sprintf("the answer to %+v", wrong), say(wrong, c.from).Type, wire.CMRetry)
		}
		if a := say(right, agent4); a.Type != wire.CMPending {
			t.Fatalf("the right cookie is answered by %v", a.Type)
		}
		in, err := l.Wait(within(time.Second)) // before those that have not proven their addresses
		nstest.FatalIf(t, err != nil || in.Remote().Host != there4, "%v, %v", in, err)
		nstest.ErrorIf(t, nstest.Err(l.Wait(within(time.Millisecond))) == nil,
			"a request of an unproven address was handed out while cookies are asked for")
		nstest.ErrorIf(t, nstest.Err(other.Wait(within(time.Millisecond))) == nil, "a request has come to another discriminator")
		in.Reject(wire.CMReasonProgram)
		for range 40 { // as long as the exchange is remembered, and the cookie is good
			if a := say(right, agent4); a.Type == wire.CMPending || a.Type == 0 {
				t.Fatalf("the same request is answered by %v", a.Type)
			}
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(3 * time.Second) // it is forgotten
		nstest.Equal(t, "the answer to a cookie of seven seconds ago", say(right, agent4).Type, wire.CMRetry)
	})
}

// A host is served without a cookie while another one does not answer.
func TestUnprovenOfOneHost(t *testing.T) {
	alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
		l := listens(t, m)
		for n := range uint16(100) {
			m.Receive(bytesOf(t, requestOf(1+uint64(n), echo)), here4, netip.AddrPortFrom(there4, 1000+n))
		}
		s.take()
		m.Receive(bytesOf(t, requestOf(1, echo)), here4, spoofed(1))
		nstest.Equal(t, "answers to the first request of another host", len(s.take()), 0)
		came := 0
		for ; ; came++ {
			if _, err := l.Wait(within(time.Millisecond)); err != nil {
				break
			}
		}
		nstest.ErrorIf(t, came != 16+1, "%d requests came in", came)
	})
}

// In a full queue a request of an unproven address is evicted, or else one of the host with the most requests.
func TestFairShareOfHosts(t *testing.T) {
	alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
		f := &flood{t: t, m: m, s: s}
		l := f.listen(0, "x")
		f.ask(1, "x") // of a host that asks once
		first := spoofed(f.n).Addr()
		unproven := bytesOf(t, requestOf(900, []byte("x")))
		m.Receive(unproven, here4, spoofed(900))
		for n := range 500 { // and of one that asks as often as it likes
			msg := requestOf(1000+uint64(n), []byte("x"))
			f.prove(msg, agent4)
		}
		m.Receive(bytesOf(t, requestOf(1100, []byte("x"))), here4, agent4)
		nstest.Equal(t, "the answer to one that was evicted", s.one(t).Type, wire.CMReject)
		m.Receive(unproven, here4, spoofed(900))
		nstest.Equal(t, "the answer to one of an unproven address", s.one(t).Type, wire.CMReject)
		in := f.take(l)
		if host := in.Remote().Host; host != first || m.Pending(0) != 64 {
			t.Errorf("the first request is of %v; %d are pending", host, m.Pending(0))
		}
	})
}

// Of hosts whose requests fill a queue, those count that have the most there, not those that had the most taken.
func TestTakenRequestsDoNotCount(t *testing.T) {
	alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
		l := listens(t, m)
		f := &flood{t: t, m: m, s: s}
		id := uint64(0)
		ask := func(from netip.AddrPort) {
			id++
			f.prove(requestOf(id, echo), from)
		}
		for range 100 {
			ask(agent4)
			in, err := l.Wait(within(time.Millisecond))
			nstest.Must(t, err)
			nstest.Must(t, in.Reject(wire.CMReasonProgram))
		}
		ask(agent4)
		for range 64 {
			ask(spoofed(1))
		}
		in, err := l.Wait(within(time.Millisecond))
		nstest.Must(t, err)
		nstest.Equal(t, "the first request is of", in.Remote().Host, there4)
	})
}

// Cookies are required for two minutes after a flood, however many requesters prove their addresses meanwhile.
func TestCookiesAreRequiredForSomeTime(t *testing.T) {
	alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
		f := &flood{t: t, m: m, s: s}
		l := f.listen(0, string(echo))
		for n := range uint32(100) {
			m.Receive(bytesOf(t, requestOf(1000+uint64(n), echo)), here4, spoofed(1000+n))
		}
		honest := func() {
			f.ask(1, string(echo))
			nstest.Must(t, f.take(l).Reject(wire.CMReasonProgram))
		}
		time.Sleep(5 * time.Second) // those that are unproven have ended
		for range 120 {
			honest()
			time.Sleep(time.Second)
		}
		f.n++
		nstest.Equal(t, "the answer, two minutes after a flood", f.say(requestOf(1, echo), spoofed(f.n)).Type, 0)
	})
}

// accept accepts a request, and returns when the first Accept is sent.
func accept(in kagent.Incoming) <-chan error {
	accepted := background(func() error {
		return in.Accept(within(10*time.Second), kagent.Offer{VI: 2, Key: 9, Level: 2})
	})
	synctest.Wait()
	return accepted
}

// A Confirm is repeated until the acceptor has acknowledged it, and no longer.
func TestConfirmIsAcknowledged(t *testing.T) {
	alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
		r, accept := requested(t, m, s)
		time.Sleep(50 * time.Millisecond) // the program takes its time: the acceptor hears that its Accept has come
		said := s.said(t)
		for _, msg := range said {
			nstest.ErrorIf(t, msg.Type != wire.CMRequest || msg.Cookie != 9, "%+v", msg)
		}
		nstest.ErrorIf(t, len(said) != 3, "%d messages while the program thinks", len(said))
		nstest.Must(t, r.ans.Confirm())
		time.Sleep(time.Second)
		if n := len(s.take()); n < 5 {
			t.Errorf("%d Confirms in a second", n)
		}
		m.Receive(bytesOf(t, wire.CM{Type: wire.CMConfirmed, ID: r.msg.ID}), here4, agent4)
		m.Receive(accept, here4, agent4) // it was under way
		if msg := s.one(t); msg.Type != wire.CMConfirm || msg.Cookie != 9 {
			t.Errorf("a late Accept is answered by %+v", msg)
		}
		time.Sleep(time.Minute)
		nstest.Equal(t, "messages after the acceptor's word", len(s.take()), 0)
	})
}

// A request with a late answer proves its address meanwhile, and is then safe from unproven ones.
func TestProvenWhileItWaits(t *testing.T) {
	network(t, kagenttest.Faults{Delay: time.Millisecond}, func(t *testing.T, _ *kagenttest.Fabric, a, b *kagenttest.Agent) {
		l, err := b.Listen(kagent.Address{Disc: echo})
		nstest.Must(t, err)
		asked := background(func() error {
			ans, err := a.Request(within(10*time.Second), kagent.Address{Disc: client}, to(b, echo), offer(a, t))
			if err == nil {
				err = ans.Confirm()
			}
			return err
		})
		time.Sleep(100 * time.Millisecond)
		for n := range uint32(1000) {
			b.Receive(bytesOf(t, requestOf(1+uint64(n), echo)), b.Addr(), spoofed(n))
		}
		in, err := l.Wait(within(time.Second))
		if err != nil || in.Remote().Host != a.Addr() {
			t.Fatal(in, err)
		}
		nstest.Check(t, in.Accept(within(time.Second), offer(b, t)))
		nstest.Check(t, <-asked)
	})
}

// An Accept that waits for an address which does not answer gives way to a request of one that
// has, and in a flood at once.
func TestUnprovenGivesWay(t *testing.T) {
	for name, c := range map[string]struct {
		beside func(f *flood)
		within time.Duration
	}{
		"nobody else":                   {func(*flood) {}, 3200 * time.Millisecond},
		"a request of a proven address": {func(f *flood) { f.ask(1, "x") }, 1100 * time.Millisecond},
		"a flood": {func(f *flood) {
			for n := range uint32(1000) {
				f.m.Receive(bytesOf(f.t, requestOf(1000+uint64(n), []byte("x"))), here4, spoofed(1000+n))
			}
		}, 300 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
				f := &flood{t: t, m: m, s: s}
				l := f.listen(0, "x")
				m.Receive(bytesOf(t, requestOf(500, []byte("x"))), here4, spoofed(500))
				in := f.take(l)
				start := time.Now()
				accepted := accept(in)
				c.beside(f)
				err := <-accepted
				if d := time.Since(start); !errors.Is(err, kagent.ErrVanished) || d > c.within || d < 150*time.Millisecond {
					t.Errorf("%v after %v", err, d)
				}
			})
		})
	}
}
