package connmgr_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"viaxdp/internal/agent/connmgr"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/nstest"
)

var sameAddr = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

// neighbors returns the list that an agent with the addresses own should make if the others are there.
func neighbors(own []netip.Addr, others ...netip.Addr) (list []kagent.Neighbor) {
	for hops, addrs := range [][]netip.Addr{own, others} {
		slices.SortFunc(addrs, netip.Addr.Compare)
		for _, a := range addrs {
			list = append(list, kagent.Neighbor{Addr: a, Hops: hops})
		}
	}
	return list
}

// finds fails the test unless Discover lists the agent's own addresses and the others, after took.
func finds(t *testing.T, ctx context.Context, a *kagenttest.Agent, took time.Duration, others ...netip.Addr) {
	t.Helper()
	start := time.Now()
	got, err := a.Discover(ctx)
	nstest.Check(t, err)
	nstest.Same(t, "what "+a.Link().Name+" finds", got, neighbors(addrs(a), others...), sameAddr)
	nstest.Equal(t, "the time that it took", time.Since(start), took)
}

func addrs(a *kagenttest.Agent) []netip.Addr {
	link := a.Link()
	return slices.Concat(link.IPv4, link.IPv6)
}

// Every host with an agent on the link is found, by both families and once. A host without an agent is not.
func TestDiscover(t *testing.T) {
	faults := kagenttest.Faults{Dup: 0.5, Delay: time.Millisecond, Jitter: 10 * time.Millisecond}
	network(t, faults, func(t *testing.T, net *kagenttest.Fabric, a, b *kagenttest.Agent) {
		c := net.Agent("c", netip.MustParseAddr("10.0.0.200"))
		defer c.Close()
		net.Agent("no agent").Close()
		off := net.Agent("off the net")
		defer off.Close()
		for _, addr := range addrs(off) {
			net.Cut(addr, true)
		}
		for _, agent := range []*kagenttest.Agent{a, b, c} {
			var others []netip.Addr
			for _, x := range []*kagenttest.Agent{c, b, a} {
				for _, addr := range addrs(x) {
					if x != agent && (agent != c || addr.Is4()) { // c has no IPv6
						others = append(others, addr)
					}
				}
			}
			finds(t, context.Background(), agent, 100*time.Millisecond, others...)
		}
		nstest.Equal(t, "things that are remembered", a.Remembered()+b.Remembered(), 0)
	})
}

// The second hello replaces a lost first one.
func TestDiscoverAsksTwice(t *testing.T) {
	network(t, kagenttest.Faults{Loss: 1}, func(t *testing.T, net *kagenttest.Fabric, a, b *kagenttest.Agent) {
		time.AfterFunc(10*time.Millisecond, func() { net.SetFaults(kagenttest.Faults{}) })
		finds(t, context.Background(), a, 100*time.Millisecond, addrs(b)...)
	})
}

// When ctx ends, the answers collected so far are the result.
func TestDiscoverEndsWithContext(t *testing.T) {
	network(t, kagenttest.Faults{Delay: 10 * time.Millisecond}, func(t *testing.T, _ *kagenttest.Fabric, a, b *kagenttest.Agent) {
		for _, c := range []struct {
			time  time.Duration
			found []netip.Addr
		}{{30 * time.Millisecond, addrs(b)}, {5 * time.Millisecond, nil}} {
			finds(t, within(c.time), a, c.time, c.found...)
			time.Sleep(time.Second)
		}
		time.AfterFunc(10*time.Millisecond, func() { a.Close() })
		for range 2 { // under way, and after
			nstest.WantErr(t, "Close", nstest.Err(a.Discover(context.Background())), kagent.ErrClosed)
		}
	})
}

// Concurrent calls each get their answers, as long as the others' rate limits permit.
func TestDiscoverAtOnce(t *testing.T) {
	network(t, kagenttest.Faults{Delay: time.Millisecond}, func(t *testing.T, _ *kagenttest.Fabric, a, b *kagenttest.Agent) {
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { finds(t, context.Background(), a, 100*time.Millisecond, addrs(b)...) })
		}
		wg.Wait()
	})
}

// sink is a Transport that keeps what is sent; the test is the network.
type sink struct {
	mu       sync.Mutex
	sent     []parcel
	refuse   func(from netip.Addr) error // Broadcast; may be nil
	stall    time.Duration               // how long the next Send takes
	reflects bool                        // what is sent comes back, as from its destination
	back     chan parcel
	closed   chan struct{}
}

func newSink() *sink { return &sink{back: make(chan parcel, 1000), closed: make(chan struct{})} }

type parcel struct {
	b    []byte
	from netip.Addr
	to   netip.AddrPort
}

func (s *sink) Send(b []byte, from netip.Addr, to netip.AddrPort) error {
	s.mu.Lock()
	stall := s.stall
	s.stall = 0
	s.mu.Unlock()
	time.Sleep(stall)
	s.mu.Lock()
	defer s.mu.Unlock()
	p := parcel{bytes.Clone(b), from, to}
	s.sent = append(s.sent, p)
	if s.reflects {
		select {
		case s.back <- p:
		default: // a storm: there are too many already
		}
	}
	return nil
}

func (s *sink) Broadcast(b []byte, from netip.Addr) error {
	if s.refuse != nil {
		if err := s.refuse(from); err != nil {
			return err
		}
	}
	return s.Send(b, from, netip.AddrPortFrom(connmgr.Everyone(from.Is4()), wire.Port))
}

func (s *sink) take() []parcel {
	s.mu.Lock()
	defer s.mu.Unlock()
	sent := s.sent
	s.sent = nil
	return sent
}

// said is take, with the messages parsed.
func (s *sink) said(t *testing.T) (all []wire.CM) {
	t.Helper()
	for _, p := range s.take() {
		msg, err := wire.ParseCM(p.b)
		nstest.Must(t, err)
		all = append(all, msg)
	}
	return all
}

// one returns what was sent, which is to be one message.
func (s *sink) one(t *testing.T) wire.CM {
	t.Helper()
	all := s.said(t)
	nstest.FatalIf(t, len(all) != 1, "%d messages", len(all))
	return all[0]
}

// last returns the last message that was sent; the zero value: there was none.
func (s *sink) last(t *testing.T) (msg wire.CM) {
	t.Helper()
	if all := s.said(t); len(all) > 0 {
		msg = all[len(all)-1]
	}
	return msg
}

func (s *sink) Serve(h connmgr.Handler) error {
	for {
		select {
		case p := <-s.back:
			h.Receive(p.b, here4, p.to)
		case <-s.closed:
			return nil
		}
	}
}

func (s *sink) Close() error {
	close(s.closed)
	return nil
}

// alone runs f in a bubble with a manager on a sink.
func alone(t *testing.T, f func(t *testing.T, m connmgr.Client, s *sink)) {
	on(t, func(s *sink) *connmgr.Manager { return connmgr.NewManager(s, 0) }, f)
}

// resumed is alone with the manager of the next agent.
func resumed(t *testing.T, f func(t *testing.T, m connmgr.Client, s *sink), kept ...connmgr.Kept) {
	on(t, func(s *sink) *connmgr.Manager { return connmgr.Resume(s, 0, kept...) }, f)
}

func on(t *testing.T, start func(*sink) *connmgr.Manager, f func(t *testing.T, m connmgr.Client, s *sink)) {
	synctest.Test(t, func(t *testing.T) {
		s := newSink()
		m := start(s)
		defer func() { nstest.Check(t, m.Close()) }()
		f(t, m.For(0), s)
	})
}

// background runs f in a goroutine, and returns its error.
func background(f func() error) <-chan error {
	ch := make(chan error, 1)
	go func() { ch <- f() }()
	return ch
}

func bytesOf(t *testing.T, m wire.CM) []byte {
	t.Helper()
	b, err := m.Append(nil)
	nstest.Must(t, err)
	return b
}

var (
	here4, here6     = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fe80::1")
	there4, there6   = netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fe80::2")
	agent4, agent6   = netip.AddrPortFrom(there4, wire.Port), netip.AddrPortFrom(there6, wire.Port)
	toAll4, toAll6   = netip.MustParseAddr("255.255.255.255"), netip.MustParseAddr("ff02::1")
	mapped, withZone = netip.AddrFrom16(toAll4.As16()), toAll6.WithZone("via0")
)

// A hello to all hosts is answered to its sender, from an address of the transport's choice, in as many bytes.
// One that was sent to this host alone, or from another port, is not.
func TestHelloIsAnswered(t *testing.T) {
	alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
		hello := bytesOf(t, wire.CM{Type: wire.CMHello, ID: 77})
		for _, c := range []struct {
			local  netip.Addr
			from   netip.AddrPort
			answer bool
		}{
			{toAll4, agent4, true}, {toAll6, agent6, true}, {mapped, agent4, true}, {withZone, agent6, true},
			{here4, agent4, false}, {here6, agent6, false}, {netip.Addr{}, agent4, false},
			{toAll4, netip.AddrPortFrom(there4, wire.Port+1), false},
			{netip.MustParseAddr("224.0.0.1"), agent4, false}, {netip.MustParseAddr("10.0.0.255"), agent4, false},
		} {
			m.Receive(hello, c.local, c.from)
			sent := s.take()
			if !c.answer {
				nstest.ErrorIf(t, len(sent) != 0, "from %v to %v: answered %v", c.from, c.local, sent)
				continue
			}
			nstest.FatalIf(t, len(sent) != 1 || sent[0].to != c.from || sent[0].from.IsValid() || len(sent[0].b) > len(hello),
				"from %v to %v: answered %v", c.from, c.local, sent)
			got, err := wire.ParseCM(sent[0].b)
			nstest.ErrorIf(t, err != nil || got.Type != wire.CMHere || got.ID != 77, "the answer is %+v, %v", got, err)
		}
		nstest.Equal(t, "things that are remembered", m.Remembered(), 0)
	})
}

// No more than 100 hellos in a second are answered.
func TestAnswersAreRationed(t *testing.T) {
	alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
		for range 3 {
			for id := range uint64(1000) {
				m.Receive(bytesOf(t, wire.CM{Type: wire.CMHello, ID: id + 1}), toAll4, agent4)
				time.Sleep(900 * time.Microsecond)
			}
			nstest.Equal(t, "answers", len(s.take()), 100)
			time.Sleep(100 * time.Millisecond)
		}
	})
}

// Only an answer to this very hello counts, and none goes to the host itself.
func TestOnlyOwnAnswersCount(t *testing.T) {
	alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
		var list []kagent.Neighbor
		ended := background(func() (err error) {
			list, err = m.Discover(context.Background(), []netip.Addr{here6, here4})
			return err
		})
		synctest.Wait()
		hellos := s.take()
		if len(hellos) != 2 || hellos[0].from != here6 || hellos[1].from != here4 ||
			hellos[0].to.Addr() != toAll6 || hellos[1].to.Addr() != toAll4 {
			t.Fatalf("hellos: %v", hellos)
		}
		asked, err := wire.ParseCM(hellos[0].b)
		nstest.FatalIf(t, err != nil || asked.Type != wire.CMHello, "%+v, %v", asked, err)
		m.Receive(hellos[0].b, toAll6, netip.AddrPortFrom(here6, wire.Port)) // as it comes back from the link
		nstest.Equal(t, "answers to itself", len(s.take()), 0)
		here := func(id uint64, from netip.Addr) {
			m.Receive(bytesOf(t, wire.CM{Type: wire.CMHere, ID: id}), here4, netip.AddrPortFrom(from, wire.Port))
		}
		here(asked.ID, there6.WithZone("via0"))
		here(asked.ID, there4)
		here(asked.ID, there6)
		here(asked.ID, here4)
		here(asked.ID+1, netip.MustParseAddr("10.0.0.3"))
		nstest.Check(t, <-ended)
		nstest.Same(t, "what is found", list, neighbors([]netip.Addr{here4, here6}, there4, there6), sameAddr)
		here(asked.ID, there4) // too late
		nstest.Equal(t, "things that are remembered", m.Remembered(), 0)
	})
}

// The number of answers that Discover collects is bounded.
func TestDiscoverIsBounded(t *testing.T) {
	alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
		found := make(chan int, 1)
		go func() {
			list, err := m.Discover(context.Background(), []netip.Addr{here4})
			nstest.Check(t, err)
			found <- len(list)
		}()
		synctest.Wait()
		answer := bytesOf(t, wire.CM{Type: wire.CMHere, ID: s.one(t).ID})
		for i := range 10000 {
			m.Receive(answer, here4, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), wire.Port))
		}
		nstest.Equal(t, "addresses", <-found, 4096)
	})
}

// If no hello can be sent, Discover fails; one family that works is enough.
func TestDiscoverCannotAsk(t *testing.T) {
	alone(t, func(t *testing.T, m connmgr.Client, s *sink) {
		list, err := m.Discover(context.Background(), nil)
		nstest.ErrorIf(t, err != nil || len(list) != 0, "no address: %v, %v", list, err)
		down := errors.New("the link is down")
		s.refuse = func(netip.Addr) error { return down }
		nstest.WantErr(t, "both are down", nstest.Err(m.Discover(context.Background(), []netip.Addr{here4, here6})), down)
		s.refuse = func(from netip.Addr) error {
			if from == here6 {
				return down
			}
			return nil
		}
		list, err = m.Discover(context.Background(), []netip.Addr{here4, here6})
		nstest.WantErr(t, "only IPv6 is down", err, nil)
		nstest.Same(t, "what is found", list, neighbors([]netip.Addr{here4, here6}), sameAddr)
	})
}
