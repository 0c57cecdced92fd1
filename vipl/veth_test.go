package vipl_test

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
	"time"

	"viaxdp/internal/base/wire"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
	"viaxdp/xdpnic/xdpnictest"
)

// ends opens a NIC at both ends of a veth pair.
func ends(t testing.TB, o nstest.Options, opts ...vipl.Option) (a, b *vipl.NIC) {
	t.Helper()
	na, nb := nstest.Pair(t, o)
	nics := make([]*vipl.NIC, 2)
	for i, ns := range []*nstest.NS{na, nb} {
		must(t, ns.Do(func() (err error) {
			nics[i], err = vipl.OpenNIC(ns.Name, append([]vipl.Option{vipl.WithSilence(time.Minute)}, opts...)...)
			return err
		}))
		t.Cleanup(func() {
			noError(t, nics[i].Close())
		})
	}
	return nics[0], nics[1]
}

// box is memory with descriptors, each with its buffer.
type box struct {
	region *vipl.Region
	desc   []*vipl.Descriptor
	buf    [][]byte
	segs   []vipl.DataSegment
}

func newBox(t testing.TB, n *vipl.NIC, count, size int) *box {
	t.Helper()
	tag, err := n.CreatePtag()
	must(t, err)
	return newBoxTagged(t, n, tag, count, (size+63)&^63)
}

// connect makes a connected pair of VIs.
func connect(t testing.TB, a, b *vipl.NIC, level vipl.ReliabilityLevel) (va, vb *vipl.VI) {
	t.Helper()
	var err error
	va, err = a.CreateVI(vipl.VIAttributes{Level: level}, nil, nil)
	must(t, err)
	vb, err = b.CreateVI(vipl.VIAttributes{Level: level}, nil, nil)
	must(t, err)
	join(t, a, va, b, vb)
	return va, vb
}

func join(t testing.TB, a *vipl.NIC, va *vipl.VI, b *vipl.NIC, vb *vipl.VI) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		c, err := b.ConnectWait(vipl.NetAddress{Discriminator: []byte("test")}, ackDelay)
		if err == nil {
			err = c.Accept(vb)
		}
		done <- err
	}()
	var err error
	if !comes(func() bool { // the other goroutine may not wait yet: "no match"
		_, err = va.ConnectRequest(vipl.NetAddress{}, vipl.NetAddress{Host: b.Query().Address, Discriminator: []byte("test")}, ackDelay)
		return err == nil
	}) {
		t.Fatal(err)
	}
	must(t, <-done)
}

func TestPingPong(t *testing.T) {
	for _, level := range []vipl.ReliabilityLevel{vipl.UnreliableDelivery, vipl.ReliableDelivery, vipl.ReliableReception} {
		t.Run(level.String(), func(t *testing.T) {
			// An unreliable megabyte comes at once, before anybody looks.
			a, b := ends(t, nstest.Options{})
			va, vb := connect(t, a, b, level)
			for _, size := range []int{0, 1, 64, 1424, 1425, 65536, vipl.MaxTransferSize} {
				ba, bb := newBox(t, a, 2, max(size, 1)), newBox(t, b, 2, max(size, 1))
				for i := range ba.buf[0] {
					ba.buf[0][i] = byte(i * 7)
				}
				post := func(v *vipl.VI, x *box, i int, send bool) {
					t.Helper()
					seg := x.segs[i]
					seg.Length = uint32(size)
					x.desc[i].SetSegments(seg)
					var err error
					if send {
						err = v.PostSend(x.desc[i], x.region.Handle())
					} else {
						err = v.PostRecv(x.desc[i], x.region.Handle())
					}
					must(t, err)
				}
				post(vb, bb, 0, false)
				post(va, ba, 1, false)
				post(va, ba, 0, true)
				if d, err := vb.RecvWait(ackDelay); err != nil || d != bb.desc[0] {
					t.Fatalf("%d bytes: %v %v", size, err, d)
				}
				if !bytes.Equal(bb.buf[0][:size], ba.buf[0][:size]) || int(bb.desc[0].Length) != size {
					t.Fatalf("%d bytes: other bytes, length %d", size, bb.desc[0].Length)
				}
				copy(bb.buf[1], bb.buf[0])
				post(vb, bb, 1, true)
				must(t, errOf(va.RecvWait(ackDelay)))
				fatalIf(t, !bytes.Equal(ba.buf[1][:size], ba.buf[0][:size]), "%d bytes: other bytes back", size)
				for _, v := range []*vipl.VI{va, vb} {
					must(t, errOf(v.SendWait(ackDelay)))
				}
			}
			t.Logf("%+v", a.Counters())
			must(t, va.Disconnect())
			stateIs(t, vb, vipl.Error)
		})
	}
}

// joined is a connection on a queue of its own, at both ends.
type joined struct {
	va, vb *vipl.VI
	xa, xb *box
}

// onQueues connects VIs over a veth pair with so many queues, one pair a queue,
// each on a NIC handle of its own. A veth takes a frame in on the queue of the
// number on which its peer sent it.
func onQueues(t testing.TB, n int) []joined {
	t.Helper()
	na, nb := nstest.Pair(t, nstest.Options{Queues: n})
	var list []joined
	for q := range n {
		nics := make([]*vipl.NIC, 2)
		for i, ns := range []*nstest.NS{na, nb} {
			must(t, ns.Do(func() (err error) {
				// Connections wait while the others are made.
				nics[i], err = vipl.OpenNIC(ns.Name, vipl.WithQueue(q), vipl.WithMode(xdpnic.ModeNative, true),
					vipl.WithArena(8<<20), vipl.WithSilence(20*time.Second))
				return err
			}))
			t.Cleanup(func() {
				noError(t, nics[i].Close())
			})
		}
		j := joined{xa: openBox(t, nics[0]), xb: openBox(t, nics[1])}
		j.va, j.vb = openVI(t, nics[0], vipl.ReliableDelivery), openVI(t, nics[1], vipl.ReliableDelivery)
		join(t, nics[0], j.va, nics[1], j.vb)
		list = append(list, j)
	}
	return list
}

// Two and four VIs on as many queues, all at the same time: every byte arrives,
// and frames of one never at the socket of another.
func TestQueues(t *testing.T) {
	for _, n := range []int{2, 4} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			list := onQueues(t, n)
			t.Run("traffic", func(t *testing.T) {
				for q, j := range list {
					t.Run(fmt.Sprint(q), func(t *testing.T) {
						t.Parallel()
						for _, size := range []int{1, 1000, 20_000} {
							transfer(t, j.va, j.vb, j.xa, j.xb, 100, size)
							transfer(t, j.vb, j.va, j.xb, j.xa, 100, size)
						}
					})
				}
			})
		})
	}
}

// Messages of 1 KiB in one direction, both ends of a connection driven by one
// goroutine, over 1, 2 and 4 queues: messages a second of all together.
func BenchmarkQueues(b *testing.B) {
	for _, n := range []int{1, 2, 4} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			list := onQueues(b, n)
			const size, depth = 1024, 4
			b.ResetTimer()
			var wg sync.WaitGroup
			for _, j := range list {
				wg.Go(func() {
					for k := range b.N/n + 1 {
						i := k % depth
						if k >= depth {
							sent(b, j.va, 0)
							received(b, j.vb, 0)
						}
						postRecv(b, j.vb, j.xb, i, size)
						postSend(b, j.va, j.xa, i, size)
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
		})
	}
}

// A peer that tells a large window and acknowledges all frames but the first, or one after
// the other as slowly as it can, does not keep the TX chunks from other connections:
// it has half of them at most, and messages to other peers go at once.
func TestOnePeerDoesNotKeepTheChunks(t *testing.T) {
	const chunks, count, others = 512, 2000, 20
	for name, ranges := range map[string]bool{"all but the first": true, "none": false} {
		t.Run(name, func(t *testing.T) {
			eachLevelInBubble(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
				c := memoryConfig{gate: true, bubble: true, noPacking: true, silence: time.Hour, queue: xdpnictest.Config{TxChunks: chunks}}
				n := newMemoryNet(t, c)
				third := n.open(t, "c", c)
				s := newSpy(t, n)
				_, greedy := connect(t, n.a.NIC, n.b.NIC, level)
				vb, vc := connect(t, n.b.NIC, third.NIC, level)
				n.a.queue.Cut(true)
				xg, xb, xc := newBox(t, n.b.NIC, count, 64), newBox(t, n.b.NIC, others, 64), newBox(t, third.NIC, others, 64)
				for i := range count {
					postSend(t, greedy, xg, i, 64)
				}
				// First it acknowledges as an honest peer does, so that much may be under way.
				for stuck, last, round := 0, uint32(0), 0; stuck < 20; round++ {
					h, _ := greedy.Expects()
					h.Kind, h.Window = wire.KindAck, 1024
					next := greedy.NextFrame()
					var payload []byte
					if round < 4 {
						h.Ack = next
					} else if ranges {
						payload = make([]byte, wire.RangeLen)
						wire.PutRange(payload, wire.AckRange{Start: h.Ack + 1, End: next})
					}
					s.counted("acknowledgement", func(c vipl.Counters) uint64 { return c.Frames }, 1, func() { s.forge(h, payload) })
					time.Sleep(100 * time.Microsecond)
					n.b.Poll()
					if stuck++; greedy.NextFrame() != last {
						last, stuck = greedy.NextFrame(), 0
					}
				}
				o := n.b.queue.Owners()
				kept := o.Held + o.InFlight
				errorIf(t, kept < chunks/4 || kept > chunks/2, "the peer keeps %d chunks of %d", kept, chunks)
				for i := range others {
					postRecv(t, vc, xc, i, 64)
					postSend(t, vb, xb, i, 64)
				}
				start := time.Now()
				for range others {
					received(t, vc, 0)
					sent(t, vb, 0)
				}
				took := time.Since(start)
				errorIf(t, took > time.Millisecond, "%d messages to another peer took %v", others, took)
			})
		})
	}
}
