package connmgr_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/base/wire"
)

// The actions of a client with its request, and of a server with what it gets.
type (
	clientPlan struct {
		Start, Timeout, Pause time.Duration
		Decline               bool
	}
	serverPlan struct {
		Pause  time.Duration
		Action int // accept, reject, no answer
	}
	schedule struct {
		Faults  kagenttest.Faults
		Self    bool // both ends are one agent
		Listen  bool // a Listener instead of Waits
		Clients []clientPlan
		Servers []serverPlan
	}
)

const (
	doAccept = iota
	doReject
	doNothing
)

// longestStreak keeps the network from being silent for so long that one side considers the other gone although
// it may be connected: an acceptor sends its Accept at least a dozen times before it does, and each third of
// each third is confirmed.
const longestStreak = 2

// drawMS draws a time of up to max milliseconds.
func drawMS(t *rapid.T, max int, label string) time.Duration {
	return time.Duration(rapid.IntRange(0, max).Draw(t, label)) * time.Millisecond
}

func drawFaults(t *rapid.T, loss float64) kagenttest.Faults {
	return kagenttest.Faults{
		Loss: rapid.Float64Range(0, loss).Draw(t, "loss"), Streak: longestStreak,
		Dup:   rapid.Float64Range(0, 0.5).Draw(t, "dup"),
		Delay: drawMS(t, 5, "delay"), Jitter: drawMS(t, 40, "jitter"), Seed: rapid.Uint64().Draw(t, "seed"),
	}
}

func drawSchedule(t *rapid.T) schedule {
	s := schedule{Faults: drawFaults(t, 0.4), Self: rapid.Bool().Draw(t, "self"), Listen: rapid.Bool().Draw(t, "listen")}
	for range rapid.IntRange(1, 6).Draw(t, "clients") {
		s.Clients = append(s.Clients, clientPlan{
			Start: drawMS(t, 300, "start"), Timeout: 50*time.Millisecond + drawMS(t, 20000, "timeout"),
			Pause: drawMS(t, 500, "pause"), Decline: rapid.IntRange(0, 4).Draw(t, "decline") == 0,
		})
	}
	for range rapid.IntRange(1, 6).Draw(t, "servers") {
		s.Servers = append(s.Servers,
			serverPlan{Pause: drawMS(t, 2000, "pause"), Action: rapid.IntRange(0, 2).Draw(t, "action")})
	}
	return s
}

// check has schedules play in bubbles. run returns what it finds wrong.
func check[S any](t *testing.T, draw func(*rapid.T) S, run func(*S) []string) {
	rapid.Check(t, func(rt *rapid.T) {
		s := draw(rt)
		var wrong []string
		synctest.Test(t, func(t *testing.T) { wrong = run(&s) })
		if len(wrong) > 0 {
			rt.Fatalf("%+v: %q", s, wrong)
		}
	})
}

// side is one side's view of a connection in the end.
type side struct {
	own, peer kagent.Offer
	err       error
	plan      int // what the server did
}

// run plays a schedule and returns what it finds wrong. Clients are known by
// the QoS of their offers.
func (s *schedule) run() (wrong []string) {
	var mu sync.Mutex
	bad := func(format string, a ...any) {
		mu.Lock()
		defer mu.Unlock()
		wrong = append(wrong, fmt.Sprintf(format, a...))
	}
	net := kagenttest.NewFabric(s.Faults)
	a := net.Agent("a")
	b := a
	if !s.Self {
		b = net.Agent("b")
	}
	makeOffer := func(agent *kagenttest.Agent, i int) kagent.Offer {
		num, err := agent.NewVI()
		if err != nil {
			bad("NewVI: %v", err)
		}
		return kagent.Offer{VI: num, Key: kagent.NewKey(), Seq: kagent.NewSeq(), Level: 1, QoS: uint32(i)}
	}
	wait := b.Wait
	if s.Listen {
		l, err := b.Listen(kagent.Address{Disc: echo})
		if err != nil {
			bad("Listen: %v", err)
			return wrong
		}
		defer l.Close()
		wait = func(ctx context.Context, _ kagent.Address) (kagent.Incoming, error) { return l.Wait(ctx) }
	}
	servers := make(map[uint32]side)
	clients := make([]side, len(s.Clients))
	var wg sync.WaitGroup
	for _, p := range s.Servers {
		wg.Go(func() {
			in, err := wait(within(10*time.Second), kagent.Address{Disc: echo})
			if err != nil {
				return
			}
			time.Sleep(p.Pause)
			r := side{own: makeOffer(b, 0), peer: in.Offer(), plan: p.Action}
			switch p.Action {
			case doAccept:
				r.err = in.Accept(context.Background(), r.own)
			case doReject:
				r.err = in.Reject(wire.CMReasonProgram)
			case doNothing:
				<-in.Done()
				r.err = in.Err()
			}
			mu.Lock()
			defer mu.Unlock()
			if _, again := servers[r.peer.QoS]; again {
				wrong = append(wrong, fmt.Sprintf("client %d came in twice", r.peer.QoS))
			}
			servers[r.peer.QoS] = r
		})
	}
	for i, p := range s.Clients {
		wg.Go(func() {
			time.Sleep(p.Start)
			r := side{own: makeOffer(a, i)}
			defer func() { clients[i] = r }()
			ans, err := a.Request(within(p.Timeout), kagent.Address{Disc: client}, to(b, echo), r.own)
			if r.err = err; err != nil {
				return
			}
			r.peer = ans.Offer
			time.Sleep(p.Pause)
			if p.Decline {
				ans.Decline(wire.CMReasonMismatch)
				r.err = context.Canceled
				return
			}
			r.err = ans.Confirm()
		})
	}
	wg.Wait()
	for i, c := range clients {
		server, met := servers[uint32(i)]
		if err := agree(c, server, met); err != nil {
			bad("client %d: %v", i, err)
		}
	}
	time.Sleep(20 * time.Second)
	stays := 0
	if s.Listen {
		stays = 1 // the listener's door
	}
	if n := b.Remembered(); n != stays {
		bad("the acceptor remembers %d things, not %d", n, stays)
	}
	if n := a.Remembered(); n != 0 && !s.Self {
		bad("the requester remembers %d things", n)
	}
	if err := errors.Join(a.Close(), b.Close()); err != nil {
		bad("close: %v", err)
	}
	return wrong
}

// agree returns an error if the outcomes of a client, and of its server if it has met one, contradict each
// other.
func agree(c, server side, met bool) error {
	connected := c.err == nil
	switch {
	case connected && (!met || server.plan != doAccept):
		return errors.New("it is connected and no server accepted it")
	case connected && server.err != nil:
		return fmt.Errorf("it is connected and its server has %w", server.err)
	case connected && (c.peer != server.own || c.own != server.peer):
		return errors.New("it and its server disagree on the offers")
	case connected:
		return nil
	case met && server.plan == doAccept && server.err == nil:
		return fmt.Errorf("its server is connected and it has %w", c.err)
	case errors.Is(c.err, kagent.ErrRejected):
		if !met || server.plan != doReject {
			return fmt.Errorf("it was rejected, but not by its server: %w", c.err)
		}
		return nil
	case errors.Is(c.err, kagent.ErrTimeout), errors.Is(c.err, kagent.ErrNoMatch), errors.Is(c.err, context.Canceled):
		return nil
	}
	return c.err
}

// For any network and any change of mind at any time, both sides agree on the outcome, and nothing stays in
// memory.
func TestSchedules(t *testing.T) {
	check(t, drawSchedule, (*schedule).run)
}

type (
	// peerPlan is one call of RequestPeer and what comes after it.
	peerPlan struct {
		Right                 bool // the side that calls
		Pair                  int  // the addresses that it calls with
		Route                 bool // local host left to the route
		Start, Timeout, Pause time.Duration
		Refuse                bool // decline, or reject
	}
	peerSchedule struct {
		Faults kagenttest.Faults
		Self   bool // both sides are one agent
		Calls  []peerPlan
	}
)

func drawPeerSchedule(t *rapid.T) peerSchedule {
	s := peerSchedule{Faults: drawFaults(t, 0.3), Self: rapid.Bool().Draw(t, "self")}
	for range rapid.IntRange(2, 14).Draw(t, "calls") {
		s.Calls = append(s.Calls, peerPlan{
			Right: rapid.Bool().Draw(t, "right"), Pair: rapid.IntRange(0, 2).Draw(t, "pair"),
			Start: drawMS(t, 300, "start"), Timeout: 20*time.Millisecond + drawMS(t, 10000, "timeout"),
			Pause:  drawMS(t, 500, "pause"),
			Route:  rapid.Bool().Draw(t, "route"),
			Refuse: rapid.IntRange(0, 5).Draw(t, "refuse") == 0,
		})
	}
	return s
}

// peerDiscs are the discriminators of the two sides in each pair. The last one
// is the same on both, and so at one agent the same address.
var peerDiscs = [3][2]string{{"a", "b"}, {"b", "a"}, {"c", "c"}}

// run plays a schedule and returns what it finds wrong. Calls are known by the
// QoS of their offers.
func (s *peerSchedule) run() (wrong []string) {
	net := kagenttest.NewFabric(s.Faults)
	sides := [2]*kagenttest.Agent{net.Agent("a")}
	if sides[1] = sides[0]; !s.Self {
		sides[1] = net.Agent("b")
	}
	ends := make([]meeting, len(s.Calls))
	refused := errors.New("refused here")
	var wg sync.WaitGroup
	for i, p := range s.Calls {
		wg.Go(func() {
			time.Sleep(p.Start)
			here, there := 0, 1
			if p.Right {
				here, there = 1, 0
			}
			local := to(sides[here], []byte(peerDiscs[p.Pair][here]))
			remote := to(sides[there], []byte(peerDiscs[p.Pair][there]))
			m := meeting{own: kagent.Offer{VI: 1, Key: kagent.NewKey(), Level: 1, QoS: uint32(i)}, local: local, remote: remote}
			defer func() { ends[i] = m }()
			if p.Route {
				local.Host = netip.Addr{}
			}
			m.ans, m.in, m.err = sides[here].RequestPeer(within(p.Timeout), local, remote, m.own)
			if m.err != nil {
				return
			}
			time.Sleep(p.Pause)
			switch {
			case m.ans != nil && p.Refuse:
				m.ans.Decline(wire.CMReasonQoS)
				m.err = refused
			case p.Refuse:
				m.err = errors.Join(refused, m.in.Reject(wire.CMReasonQoS))
			default:
				m.complete()
			}
		})
	}
	wg.Wait()
	for i, m := range ends {
		if m.err == nil {
			if err := connected(m, ends[m.peer.QoS]); err != nil || m.peer.QoS == uint32(i) {
				wrong = append(wrong, fmt.Sprintf("calls %d and %d: %v", i, m.peer.QoS, err))
			}
			continue
		}
		known := []error{refused, kagent.ErrTimeout, kagent.ErrRejected, kagent.ErrCancelled, kagent.ErrVanished}
		if !slices.ContainsFunc(known, func(e error) bool { return errors.Is(m.err, e) }) {
			wrong = append(wrong, fmt.Sprintf("call %d: %v", i, m.err))
		}
	}
	time.Sleep(20 * time.Second)
	for _, a := range sides {
		if n := a.Remembered(); n != 0 {
			wrong = append(wrong, fmt.Sprintf("%d things are remembered", n))
		}
		if err := a.Close(); err != nil {
			wrong = append(wrong, err.Error())
		}
	}
	return wrong
}

// For any network, order of calls and refusals: a call is connected only with a call that is connected with it,
// by the same addresses, and nothing stays in memory.
func TestPeerSchedules(t *testing.T) {
	check(t, drawPeerSchedule, (*peerSchedule).run)
}
