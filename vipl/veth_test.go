package vipl_test

import (
	"context"
	"fmt"
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
	return openNIC(t, na, opts...), openNIC(t, nb, opts...)
}

// openNIC opens the interface of a namespace until the end of the test.
func openNIC(t testing.TB, ns *nstest.NS, opts ...vipl.Option) (n *vipl.NIC) {
	t.Helper()
	n = nstest.In(t, ns, func() (*vipl.NIC, error) {
		return vipl.OpenNIC(ns.Name, append([]vipl.Option{vipl.WithSilence(time.Minute)}, opts...)...)
	})
	t.Cleanup(func() { noError(t, n.Close()) })
	return n
}

// openQueues opens two queues of an interface.
func openQueues(t testing.TB) (nics [2]*vipl.NIC) {
	t.Helper()
	na, _ := nstest.Pair(t, nstest.Options{Queues: 2})
	for i := range nics {
		nics[i] = openNIC(t, na, vipl.WithQueue(i), vipl.WithMode(xdpnic.ModeNative, true))
	}
	return nics
}

// box is memory with descriptors, each with its buffer.
type box struct {
	region *vipl.Region
	desc   []*vipl.Descriptor
	buf    [][]byte
	segs   []vipl.DataSegment
}

// newBox makes count descriptors, with buffers of size bytes.
func newBox(t testing.TB, n *vipl.NIC, count, size int) *box {
	t.Helper()
	return newBoxOf(t, n, mustTag(t, n), count, 1, (size+63)&^63)
}

// newBoxOf is newBox with memory of a given tag, and descriptors of up to segs segments.
func newBoxOf(t testing.TB, n *vipl.NIC, tag *vipl.Ptag, count, segs, size int) *box {
	t.Helper()
	room := (vipl.ControlSegmentSize + segs*vipl.DataSegmentSize + 63) &^ 63
	b := &box{}
	var err error
	b.region, err = n.AllocMem(count*(room+size), vipl.MemAttributes{Ptag: tag})
	must(t, err)
	for i := range count {
		d, err := b.region.Descriptor(i*room, segs)
		must(t, err)
		off := count*room + i*size
		b.desc = append(b.desc, d)
		b.buf = append(b.buf, b.region.Bytes()[off:off+size])
		b.segs = append(b.segs, b.region.Segment(off, size))
	}
	return b
}

func mustTag(t testing.TB, n *vipl.NIC) *vipl.Ptag {
	t.Helper()
	tag, err := n.CreatePtag()
	must(t, err)
	return tag
}

// connect makes a connected pair of VIs.
func connect(t testing.TB, a, b *vipl.NIC, level vipl.ReliabilityLevel) (va, vb *vipl.VI) {
	t.Helper()
	va, vb = newVI(t, a, level), newVI(t, b, level)
	join(t, a, va, b, vb)
	return va, vb
}

// accepts accepts one request with v, and gives what becomes of that.
func accepts(n *vipl.NIC, local vipl.NetAddress, v *vipl.VI) <-chan error {
	return starts(func() error {
		c, err := n.ConnectWait(local, ackDelay)
		if err == nil {
			err = c.Accept(v)
		}
		return err
	})
}

// acceptsNext is accepts for the next request that a listener gets.
func acceptsNext(ctx context.Context, l *vipl.Listener, v *vipl.VI) <-chan error {
	return starts(func() error {
		c, err := l.Wait(ctx)
		if err == nil {
			err = c.Accept(v)
		}
		return err
	})
}

// starts runs f in a goroutine, and gives its error.
func starts(f func() error) <-chan error {
	over := make(chan error, 1)
	go func() { over <- f() }()
	return over
}

func join(t testing.TB, a *vipl.NIC, va *vipl.VI, b *vipl.NIC, vb *vipl.VI) {
	t.Helper()
	done := accepts(b, vipl.NetAddress{Discriminator: []byte("test")}, vb)
	var err error
	if !comes(func() bool { // the other goroutine may not wait yet: "no match"
		_, err = va.ConnectRequest(vipl.NetAddress{}, vipl.NetAddress{Host: b.Query().Address, Discriminator: []byte("test")}, ackDelay)
		return err == nil
	}) {
		t.Fatal(err)
	}
	must(t, <-done)
}

// joined is a connection on a queue of its own, at both ends.
type joined struct {
	va, vb *vipl.VI
	xa, xb *box
}

// onQueues connects VIs over a veth pair with n queues, one pair of VIs for each queue, each on a NIC handle of
// its own. A veth receives a frame on the queue with the number on which its peer sent it.
func onQueues(t testing.TB, n int) []joined {
	t.Helper()
	na, nb := nstest.Pair(t, nstest.Options{Queues: n})
	var list []joined
	for q := range n {
		var nics [2]*vipl.NIC
		for i, ns := range []*nstest.NS{na, nb} {
			nics[i] = openNIC(t, ns, vipl.WithQueue(q), vipl.WithMode(xdpnic.ModeNative, true), vipl.WithArena(8<<20),
				vipl.WithSilence(20*time.Second)) // connections wait while the others are made
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
	t.Parallel()
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

// A peer that grants a large window and acknowledges all frames but the first, or acknowledges as slowly as it
// can, does not keep the TX chunks from other connections: it has half of them at most, and messages to other
// peers are sent at once.
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
