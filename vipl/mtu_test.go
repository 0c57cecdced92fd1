package vipl_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// longerThan loses frames with IP packets longer than mtu, and counts them.
func longerThan(mtu int, lost *int) xdpnictest.Faults {
	return xdpnictest.Faults{Drop: func(frame []byte) bool {
		if len(frame) <= mtu+14 {
			return false
		}
		*lost++
		return true
	}}
}

// Connections whose longest frames need more than the interface's MTU is now break by
// the rules within half a second, on both sides, whether or not anything is sent;
// the VIs connect again with what there is.
func TestOwnMTUShrinks(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		synctest.Test(t, func(t *testing.T) {
			n, va, vb := connected(t, memoryConfig{bubble: true, silence: time.Minute}, level)
			xa, xb := newBox(t, n.a.Nic, 2, 64), newBox(t, n.b.Nic, 1, 64)
			postRecv(t, va, xa, 0, 64)
			postRecv(t, vb, xb, 0, 64)
			start := time.Now()
			n.a.agent.SetMTU(1499)
			received(t, va, vipl.StatusFlushed) // waits
			if d := time.Since(start); d != 500*time.Millisecond {
				t.Errorf("noticed after %v", d)
			}
			received(t, vb, vipl.StatusFlushed)
			if d := time.Since(start); d > 502*time.Millisecond {
				t.Errorf("the peer noticed after %v", d)
			}
			if s := stateIs(t, va, vipl.Error); !strings.Contains(fmt.Sprint(s.Cause), "the interface's MTU") {
				t.Errorf("cause: %v", s.Cause)
			}
			stateIs(t, vb, vipl.Error)
			n.a.errs.are(t, vipl.ErrorConnLost)
			n.b.errs.are(t, vipl.ErrorConnLost)
			a, b := n.a.Counters(), n.b.Counters()
			if a.PathsLost != 1 || b.PathsLost+a.PeersLost+b.PeersLost+a.SourcesLost+b.SourcesLost > 0 {
				t.Errorf("%+v, %+v", a, b)
			}
			for _, v := range []*vipl.VI{va, vb} {
				if err := v.Disconnect(); err != nil {
					t.Error(err)
				}
			}
			join(t, n.a.Nic, va, n.b.Nic, vb)
			n.a.agent.SetMTU(9000)
			n.a.agent.SetMTU(1499)
			time.Sleep(10 * time.Second)
			if s := stateIs(t, va, vipl.Connected); s.MaxPayload != 1423 {
				t.Errorf("frames of %d bytes", s.MaxPayload)
			}
		})
	})
}

// What the frames need is exact: not a byte more, over IPv4 and IPv6, sealed and not,
// with the peer's MTU as bound.
func TestOwnMTUStillDoes(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, c := range []memoryConfig{{}, {psk: testPSK(t, 1)}} {
			for _, least := range []int{1400, 1500} { // of both sides
				t.Run(fmt.Sprintf("%d, IPv6 %v, sealed %v", least, v6, c.psk != nil), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						c.bubble = true
						n := newMemoryNet(t, c)
						n.b.agent.SetMTU(least)
						to := address(n.b, "mtu")
						if v6 {
							to.Host = n.b.agent.Link().IPv6[0]
						}
						va, vb := newVI(t, n.a.Nic, vipl.ReliableDelivery), newVI(t, n.b.Nic, vipl.ReliableDelivery)
						accepted := make(chan error, 1)
						go func() {
							conn, err := n.b.ConnectWait(vipl.NetAddress{Discriminator: to.Discriminator}, patience)
							if err == nil {
								err = conn.Accept(vb)
							}
							accepted <- err
						}()
						if _, err := request(va, to); err != nil {
							t.Fatal(err)
						}
						if err := <-accepted; err != nil {
							t.Fatal(err)
						}
						n.a.agent.SetMTU(least)
						time.Sleep(10 * time.Second)
						stateIs(t, va, vipl.Connected)
						n.a.agent.SetMTU(least - 1)
						time.Sleep(time.Second)
						stateIs(t, va, vipl.Error)
						stateIs(t, vb, vipl.Error)
					})
				})
			}
		}
	}
}

// An MTU that is back within the grace has done no harm, though frames were lost, and
// connections within the host need none.
func TestOwnMTUFlaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, va, vb := connected(t, memoryConfig{bubble: true, silence: 2 * time.Second}, vipl.ReliableDelivery)
		v1, v2 := connect(t, n.a.Nic, n.a.Nic, vipl.ReliableDelivery)
		xa, xb := newBox(t, n.a.Nic, 1, 3000), newBox(t, n.b.Nic, 1, 3000)
		lost := 0
		for k := range 10 {
			postRecv(t, vb, xb, 0, 3000)
			fillPattern(xa.buf[0][:3000], k)
			n.a.agent.SetMTU(600)
			n.a.queue.SetFaults(longerThan(600, &lost))
			postSend(t, va, xa, 0, 3000)
			time.Sleep(499 * time.Millisecond)
			n.a.agent.SetMTU(1500)
			n.a.queue.SetFaults(xdpnictest.Faults{})
			received(t, vb, 0)
			checkPattern(t, xb.buf[0][:3000], k)
			sent(t, va, 0)
		}
		time.Sleep(10 * time.Second)
		stateIs(t, va, vipl.Connected)
		stateIs(t, vb, vipl.Connected)
		if a := n.a.Counters(); lost == 0 || a.PathsLost > 0 {
			t.Errorf("%d frames lost, %+v", lost, a)
		}
		n.a.agent.SetMTU(600)
		time.Sleep(10 * time.Second)
		stateIs(t, va, vipl.Error)
		stateIs(t, v1, vipl.Connected)
		stateIs(t, v2, vipl.Connected)
	})
}

// An interface that loses its address and has too small an MTU ends a connection once.
func TestAddressAndMTU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, va, _ := connected(t, memoryConfig{bubble: true}, vipl.ReliableDelivery)
		n.a.agent.Change(moves[0].away)
		n.a.agent.SetMTU(600)
		time.Sleep(10 * time.Second)
		stateIs(t, va, vipl.Error)
		if a := n.a.Counters(); a.SourcesLost != 1 || a.PathsLost > 0 {
			t.Errorf("%+v", a)
		}
	})
}

// Where long frames do not get through any more, and short ones do, so that both
// sides hear each other, a reliable connection on which a long one is under way
// breaks two silences after it, and many tries. One on which none is,
// and an unreliable one, which misses messages, live.
func TestPathsLost(t *testing.T) {
	const silence, limit = vipl.DefaultSilence, 2 * vipl.DefaultSilence
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		synctest.Test(t, func(t *testing.T) {
			n, va, vb := connected(t, memoryConfig{bubble: true, silence: silence}, level)
			short, peer := connect(t, n.a.Nic, n.b.Nic, level)
			xa, xb := newBox(t, n.a.Nic, 4, 3000), newBox(t, n.b.Nic, 4, 3000)
			postRecv(t, va, xa, 0, 64)
			postRecv(t, vb, xb, 0, 3000)
			postRecv(t, vb, xb, 1, 3000)
			time.Sleep(3 * silence)
			lost := 0
			n.a.queue.SetFaults(longerThan(1000, &lost))
			start := time.Now()
			postSend(t, va, xa, 1, 3000)
			postSend(t, va, xa, 2, 64) // it comes, and waits for the other where order is kept
			talk := func(d time.Duration) {
				for end := start.Add(d); time.Now().Before(end); {
					postRecv(t, peer, xb, 2, 64)
					postSend(t, short, xa, 3, 64)
					received(t, peer, 0)
					sent(t, short, 0)
					time.Sleep(100 * time.Millisecond)
				}
			}
			talk(limit - 200*time.Millisecond)
			stateIs(t, va, vipl.Connected)
			stateIs(t, vb, vipl.Connected)
			if level == vipl.UnreliableDelivery {
				talk(5 * silence)
				received(t, vb, 0) // the short one
				stateIs(t, va, vipl.Connected)
				stateIs(t, vb, vipl.Connected)
				if a, b := n.a.Counters(), n.b.Counters(); lost == 0 || a.PathsLost+b.PathsLost > 0 || b.Lost == 0 {
					t.Errorf("%d frames lost, %+v, %+v", lost, a, b)
				}
				return
			}
			received(t, va, vipl.StatusFlushed) // waits
			if d := time.Since(start); d < limit || d > limit+5*time.Millisecond {
				t.Errorf("noticed after %v", d)
			}
			if lost < 16 {
				t.Errorf("%d frames were lost, a connection must not end by fewer", lost)
			}
			received(t, vb, vipl.StatusFlushed)
			if d := time.Since(start); d > limit+10*time.Millisecond {
				t.Errorf("the peer noticed after %v", d)
			}
			if s := stateIs(t, va, vipl.Error); !strings.Contains(fmt.Sprint(s.Cause), "a smaller MTU on the way") {
				t.Errorf("cause: %v", s.Cause)
			}
			n.a.errs.are(t, vipl.ErrorConnLost)
			n.b.errs.are(t, vipl.ErrorConnLost)
			a, b := n.a.Counters(), n.b.Counters()
			if a.PathsLost != 1 || b.PathsLost+a.PeersLost+b.PeersLost+a.SourcesLost+b.SourcesLost > 0 {
				t.Errorf("%+v, %+v", a, b)
			}
			talk(5 * silence)
			stateIs(t, short, vipl.Connected)
			stateIs(t, peer, vipl.Connected)
		})
	})
}

// Nothing but the loss of all tries ends a connection: under loss, either way, and in
// short bursts, messages one by one, which are lost most dearly, go on with the usual silence.
func TestLossIsNoPathLost(t *testing.T) {
	for _, f := range []xdpnictest.Faults{
		{Seed: 1, Loss: 0.05},
		{Seed: 3, Loss: 0.15},
		{Seed: 2, Burst: 0.02, BurstLen: 2},
	} {
		t.Run(fmt.Sprintf("loss %v, bursts %v", f.Loss, f.Burst), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := memoryConfig{bubble: true, silence: vipl.DefaultSilence}
				n, va, vb := connected(t, c, vipl.ReliableReception)
				xa, xb := newBox(t, n.a.Nic, 1, 3000), newBox(t, n.b.Nic, 1, 3000)
				n.wire.SetFaults(f)
				for k := range 2000 {
					fillPattern(xa.buf[0][:3000], k)
					postRecv(t, vb, xb, 0, 3000)
					postSend(t, va, xa, 0, 3000)
					if _, err := vb.RecvWait(patience); err != nil {
						a, b := stateIs(t, va, vipl.Error), stateIs(t, vb, vipl.Error)
						t.Fatalf("message %d: %v; %v; %v; %+v", k, err, a.Cause, b.Cause, n.a.Counters())
					}
					checkPattern(t, xb.buf[0][:3000], k)
					sent(t, va, 0)
				}
				if s := n.a.queue.Stats(); s.Lost+s.LostBurst < 100 {
					t.Errorf("the fault did not take place: %+v", s)
				}
				n.wire.SetFaults(xdpnictest.Faults{})
			})
		})
	}
}
