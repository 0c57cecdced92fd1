package vipl_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/base/wire"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// Messages are cut to what the path and both ends' chunks take, over IPv4 and
// IPv6.
func TestPaths(t *testing.T) {
	for _, c := range []struct {
		mtuA, mtuB, chunk int
		payload           int // over IPv4, -1: too small to be of use
		long              bool
	}{
		{1500, 1500, 2048, 1424, false},
		{1500, 576, 2048, 500, false},
		{576, 1500, 2048, 500, false},
		{9000, 9000, 2048, 2048 - 256 - 18 - 28 - 48, false},
		{3500, 3500, 4096, 3424, false},
		{65535, 65535, 4096, 4096 - 256 - 18 - 28 - 48, false},
		{332, 332, 2048, 256, false},
		{331, 331, 2048, -1, false},
		{9000, 9000, 4096, 8924, true},
		{9000, 9000, 2048, 8924, true},
		{9000, 2000, 4096, 1924, true},
		{65000, 65535, 4096, 64924, true},
	} {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d-%d-%d-%v-%v", c.mtuA, c.mtuB, c.chunk, c.long, v6), func(t *testing.T) {
				n := newMemoryNet(t, memoryConfig{queue: xdpnictest.Config{ChunkSize: c.chunk, MultiBuffer: c.long}})
				n.a.agent.SetMTU(c.mtuA)
				n.b.agent.SetMTU(c.mtuB)
				va, vb := newVI(t, n.a.NIC, vipl.ReliableDelivery), newVI(t, n.b.NIC, vipl.ReliableDelivery)
				to := address(n.b, "path")
				want := c.payload
				if v6 {
					link := n.b.agent.Link()
					to.Host = link.IPv6[0]
					want -= 20
				}
				accepted := starts(func() error {
					conn, err := n.b.ConnectWait(vipl.NetAddress{Discriminator: []byte("path")}, ackDelay)
					if err == nil {
						if err = conn.Accept(vb); err != nil {
							conn.Reject()
						}
					}
					return err
				})
				err := request(va, to)
				acceptErr := <-accepted
				if want < 256 {
					errorIf(t, err == nil || acceptErr == nil || !errors.Is(acceptErr, vipl.ErrResource), "connected over a path with %d bytes: %v, %v", want, err, acceptErr)
					statesAre(t, vipl.Idle, va, vb)
					return
				}
				if err != nil || acceptErr != nil {
					t.Fatal(err, acceptErr)
				}
				for _, v := range []*vipl.VI{va, vb} {
					equal(t, "MaxPayload", stateIs(t, v, vipl.Connected).MaxPayload, want)
				}
				xa, xb := newBox(t, n.a.NIC, 2, 100_000), newBox(t, n.b.NIC, 2, 100_000)
				for k, size := range []int{want, want + 1, 100_000} {
					fillPattern(xa.buf[0], k)
					fillPattern(xb.buf[1], k)
					postRecv(t, vb, xb, 0, 100_000)
					postRecv(t, va, xa, 1, 100_000)
					postSend(t, va, xa, 0, size)
					receivedMessage(t, vb, xb.buf[0][:size], k)
					postSend(t, vb, xb, 1, size)
					receivedMessage(t, va, xa.buf[1][:size], k)
					sent(t, va, 0)
					sent(t, vb, 0)
				}
				s := n.b.queue.Stats()
				errorIf(t, s.RxTooLong > 0, "%d frames were too long", s.RxTooLong)
			})
		}
	}
}

// Checksums cover the data unless neither side wants it; the header's is always
// there.
func TestChecksumOfData(t *testing.T) {
	for _, c := range []struct {
		a, b, long bool
		bare       bool
	}{{false, false, false, false}, {true, false, false, false}, {false, true, true, false}, {true, true, false, true}, {true, true, true, true}} {
		config := memoryConfig{}
		if c.long {
			config = longFrames
		}
		n := newMemoryNet(t, config)
		config.bareData = c.a
		n.a = n.open(t, "c", config)
		config.bareData = c.b
		n.b = n.open(t, "d", config)
		va, vb := connect(t, n.a.NIC, n.b.NIC, vipl.ReliableDelivery)
		covered, bare := 0, 0
		var p wire.Packet
		n.wire.SetFaults(xdpnictest.Faults{Drop: func(frame []byte) bool {
			if p.Decode(frame) == nil && p.Kind == wire.KindData {
				if p.Verify() == nil {
					covered++
				}
				if p.VerifyHeader() == nil {
					bare++
				}
			}
			return false
		}})
		xa, xb := newBox(t, n.a.NIC, 1, 10_000), newBox(t, n.b.NIC, 1, 10_000)
		for k := range 20 {
			fillPattern(xa.buf[0], k)
			postRecv(t, vb, xb, 0, 10_000)
			postSend(t, va, xa, 0, 10_000)
			receivedMessage(t, vb, xb.buf[0][:10_000], k)
			sent(t, va, 0)
		}
		n.wire.SetFaults(xdpnictest.Faults{}) // what is sent again is not counted any more
		errorIf(t, c.bare && (covered > 0 || bare < 20) || !c.bare && (bare > 0 || covered < 20), "%+v: %d frames with data in their checksum, %d without", c, covered, bare)
	}
}

// Without packing each message has a frame of its own, also those of a list,
// which are all there when the first is sent.
func TestNoPacking(t *testing.T) {
	for _, off := range []bool{false, true} {
		n, va, vb := connected(t, memoryConfig{noPacking: off}, vipl.ReliableDelivery)
		const count = 300
		xa, xb := newBox(t, n.a.NIC, count, 64), newBox(t, n.b.NIC, count, 64)
		postRecvs(t, vb, xb, count, 64)
		for i := range count {
			xa.prepare(i, 64)
		}
		listed(t, "sends", count, nil)(va.PostSends(xa.desc, xa.region.Handle()))
		for range count {
			received(t, vb, 0)
			sent(t, va, 0)
		}
		packed := n.a.Counters().Packed
		errorIf(t, (packed == 0) != off, "packing off %v: %d messages shared a frame", off, packed)
	}
}

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

// What the frames need is exact: not a byte more, over IPv4 and IPv6, sealed and not,
// with the peer's MTU as bound.
func TestOwnMTUStillDoes(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, c := range []memoryConfig{{}, {psk: testPSK(t, 1)}} {
			for _, least := range []int{1400, 1500} { // of both sides
				inBubble(t, fmt.Sprintf("%d, IPv6 %v, sealed %v", least, v6, c.psk != nil), func(t *testing.T) {
					c.bubble = true
					n := newMemoryNet(t, c)
					n.b.agent.SetMTU(least)
					to := address(n.b, "mtu")
					if v6 {
						to.Host = n.b.agent.Link().IPv6[0]
					}
					va, vb := newVI(t, n.a.NIC, vipl.ReliableDelivery), newVI(t, n.b.NIC, vipl.ReliableDelivery)
					accepted := accepts(n.b.NIC, vipl.NetAddress{Discriminator: to.Discriminator}, vb)
					must(t, request(va, to))
					must(t, <-accepted)
					n.a.agent.SetMTU(least)
					time.Sleep(10 * time.Second)
					stateIs(t, va, vipl.Connected)
					n.a.agent.SetMTU(least - 1)
					time.Sleep(time.Second)
					statesAre(t, vipl.Error, va, vb)
				})
			}
		}
	}
}

// An MTU that is back within the grace has done no harm, though frames were lost.
func TestOwnMTUFlaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, va, vb := connected(t, memoryConfig{bubble: true, silence: 2 * time.Second}, vipl.ReliableDelivery)
		xa, xb := newBox(t, n.a.NIC, 1, 3000), newBox(t, n.b.NIC, 1, 3000)
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
			receivedMessage(t, vb, xb.buf[0][:3000], k)
			sent(t, va, 0)
		}
		time.Sleep(10 * time.Second)
		statesAre(t, vipl.Connected, va, vb)
		a := n.a.Counters()
		errorIf(t, lost == 0 || a.PathsLost > 0, "%d frames lost, %+v", lost, a)
	})
}

// Where long frames do not get through any more, and short ones do, so that both
// sides hear each other, a reliable connection on which a long one is under way
// breaks two silences after it, and many tries. One on which none is,
// and an unreliable one, which misses messages, live.
func TestPathsLost(t *testing.T) {
	const silence, limit = vipl.DefaultSilence, 2 * vipl.DefaultSilence
	eachLevelInBubble(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n, va, vb := connected(t, memoryConfig{bubble: true, silence: silence}, level)
		short, peer := connect(t, n.a.NIC, n.b.NIC, level)
		xa, xb := newBox(t, n.a.NIC, 4, 3000), newBox(t, n.b.NIC, 4, 3000)
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
		statesAre(t, vipl.Connected, va, vb)
		if level == vipl.UnreliableDelivery {
			talk(5 * silence)
			received(t, vb, 0) // the short one
			statesAre(t, vipl.Connected, va, vb)
			a, b := n.a.Counters(), n.b.Counters()
			errorIf(t, lost == 0 || a.PathsLost+b.PathsLost > 0 || b.Lost == 0, "%d frames lost, %+v, %+v", lost, a, b)
			return
		}
		received(t, va, vipl.StatusFlushed) // waits
		if d := time.Since(start); d < limit || d > limit+5*time.Millisecond {
			t.Errorf("noticed after %v", d)
		}
		errorIf(t, lost < 16, "%d frames were lost, a connection must not end by fewer", lost)
		received(t, vb, vipl.StatusFlushed)
		if d := time.Since(start); d > limit+10*time.Millisecond {
			t.Errorf("the peer noticed after %v", d)
		}
		s := stateIs(t, va, vipl.Error)
		errorIf(t, !strings.Contains(fmt.Sprint(s.Cause), "a smaller MTU on the path"), "cause: %v", s.Cause)
		n.a.errs.are(t, vipl.ErrorConnLost)
		n.b.errs.are(t, vipl.ErrorConnLost)
		a, b := n.a.Counters(), n.b.Counters()
		errorIf(t, a.PathsLost != 1 || b.PathsLost+a.PeersLost+b.PeersLost+a.SourcesLost+b.SourcesLost > 0, "%+v, %+v", a, b)
		talk(5 * silence)
		statesAre(t, vipl.Connected, short, peer)
	})
}

// Nothing but the loss of all tries ends a connection: under loss, either way, and in
// short bursts, messages one by one, which are lost most dearly, go on with the usual silence.
func TestLossIsNoPathLost(t *testing.T) {
	messages := 2000
	if testing.Short() {
		messages /= 4
	}
	for _, f := range []xdpnictest.Faults{
		{Seed: 1, Loss: 0.05},
		{Seed: 3, Loss: 0.15},
		{Seed: 2, Burst: 0.02, BurstLen: 2},
	} {
		inBubble(t, fmt.Sprintf("loss %v, bursts %v", f.Loss, f.Burst), func(t *testing.T) {
			c := memoryConfig{bubble: true, silence: vipl.DefaultSilence}
			n, va, vb, xa, xb := connectedBoxes(t, c, vipl.ReliableReception, 1, 1, 3000)
			n.wire.SetFaults(f)
			for k := range messages {
				fillPattern(xa.buf[0][:3000], k)
				postRecv(t, vb, xb, 0, 3000)
				postSend(t, va, xa, 0, 3000)
				if _, err := vb.RecvWait(ackDelay); err != nil {
					a, b := stateIs(t, va, vipl.Error), stateIs(t, vb, vipl.Error)
					t.Fatalf("message %d: %v; %v; %v; %+v", k, err, a.Cause, b.Cause, n.a.Counters())
				}
				checkPattern(t, xb.buf[0][:3000], k)
				sent(t, va, 0)
			}
			s := n.a.queue.Stats()
			errorIf(t, s.Lost+s.LostBurst < uint64(messages)/20, "the fault did not take place: %+v", s)
			n.wire.SetFaults(xdpnictest.Faults{})
		})
	}
}

// NativeMTU is what a frame carries of a message to a peer with the same NIC, also if the frame takes several chunks.
func TestNativeMTU(t *testing.T) {
	for name, c := range map[string]memoryConfig{
		"1500":              {},
		"9000":              {mtu: 9000, arena: 8 << 20, queue: longFrames.queue},
		"9000, one chunk":   {mtu: 9000},
		"65535":             longFrames,
		"65535, few chunks": {mtu: 65535, arena: 8 << 20, queue: xdpnictest.Config{ChunkSize: 4096, MultiBuffer: true, RxChunks: 64, TxChunks: 32}},
	} {
		t.Run(name, func(t *testing.T) {
			n, va, _ := connected(t, c, vipl.ReliableDelivery)
			equal(t, "NativeMTU", n.a.Query().NativeMTU, stateIs(t, va, vipl.Connected).MaxPayload)
		})
	}
}
