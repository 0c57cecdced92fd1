package connmgr_test

import (
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/kagenttest"
)

// Two VIs of one NIC, with discriminators of their own or with the same one.
func TestPeersOfOneAgent(t *testing.T) {
	for _, discs := range [][2][]byte{{left, right}, {right, left}, {echo, echo}, {nil, nil}} {
		for _, hosts := range [][2]bool{{true, true}, {false, false}, {true, false}, {false, true}} {
			for _, faults := range []kagenttest.Faults{
				{Delay: time.Millisecond},
				{Loss: 0.3, Dup: 0.5, Delay: time.Millisecond, Jitter: 20 * time.Millisecond, Seed: 3},
			} {
				network(t, faults, func(t *testing.T, _ *kagenttest.Fabric, a, _ *kagenttest.Agent) {
					local := func(i int) kagent.Address {
						if l := to(a, discs[i]); hosts[i] {
							return l
						}
						return kagent.Address{Disc: discs[i]}
					}
					xm := calls(within(20*time.Second), a, local(0), to(a, discs[1]), offer(a, t))
					time.Sleep(2 * time.Second)
					start := time.Now()
					ym := calls(within(20*time.Second), a, local(1), to(a, discs[0]), offer(a, t))
					x, y := <-xm, <-ym
					if err := connected(x, y); err != nil {
						t.Fatalf("%q %v: %v", discs, hosts, err)
					}
					if d := time.Since(start); d > 4*time.Millisecond && faults.Loss == 0 {
						t.Errorf("%q %v: connected after %v", discs, hosts, d)
					}
				})
			}
		}
	}
}

// One with itself is nobody.
func TestPeerMeetsNotItself(t *testing.T) {
	network(t, kagenttest.Faults{Dup: 1}, func(t *testing.T, _ *kagenttest.Fabric, a, _ *kagenttest.Agent) {
		if m := meet(within(time.Second), a, to(a, echo), to(a, echo), offer(a, t)); !errors.Is(m.err, kagent.ErrTimeout) {
			t.Errorf("got %+v", m)
		}
	})
}

// Many calls with one address for both ends, named or left to the route, all
// meet, each another one.
func TestManyPeersOfOneAddress(t *testing.T) {
	const n = 20
	for seed := range uint64(10) {
		faults := kagenttest.Faults{Loss: 0.2, Dup: 0.5, Delay: time.Millisecond, Jitter: 30 * time.Millisecond, Seed: seed}
		network(t, faults, func(t *testing.T, _ *kagenttest.Fabric, a, _ *kagenttest.Agent) {
			var met []<-chan meeting
			for i := range n {
				local := to(a, echo)
				if i%3 != 0 {
					local.Host = netip.Addr{}
				}
				o := offer(a, t)
				o.QoS = uint32(i)
				met = append(met, calls(within(time.Minute), a, local, to(a, echo), o))
				synctest.Wait()
			}
			var got []meeting
			for _, ch := range met {
				got = append(got, <-ch)
			}
			for i, m := range got {
				if err := connected(m, got[m.peer.QoS]); err != nil {
					t.Errorf("seed %d, calls %d and %d: %v", seed, i, m.peer.QoS, err)
				}
			}
		})
	}
}

// The request of a call that is over meets nobody, when it comes late and the
// cancellation never.
func TestOldRequestToItself(t *testing.T) {
	const way = 100 * time.Millisecond
	network(t, kagenttest.Faults{Delay: way}, func(t *testing.T, net *kagenttest.Fabric, a, _ *kagenttest.Agent) {
		old := calls(within(4*time.Millisecond), a, to(a, echo), to(a, echo), offer(a, t))
		synctest.Wait() // the request is on its way
		net.SetFaults(kagenttest.Faults{Loss: 1})
		if m := <-old; !errors.Is(m.err, kagent.ErrTimeout) {
			t.Fatalf("got %v", m.err)
		}
		net.SetFaults(kagenttest.Faults{Delay: way})
		xm := calls(within(10*time.Second), a, to(a, echo), to(a, echo), offer(a, t))
		time.Sleep(time.Second)
		ym := calls(within(10*time.Second), a, to(a, echo), to(a, echo), offer(a, t))
		if err := connected(<-xm, <-ym); err != nil {
			t.Error(err)
		}
	})
}
