package connmgr_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/kagenttest"
	"viaxdp/internal/base/wire"
)

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
			Start: drawMS(t, 300, "start"), Timeout: 20*time.Millisecond + drawMS(t, 10000, "timeout"), Pause: drawMS(t, 500, "pause"),
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
