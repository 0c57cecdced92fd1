package vipl_test

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/base/wire"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// faultsDropping loses the frames that drop chooses.
func faultsDropping(drop func(*wire.Packet) bool) xdpnictest.Faults {
	var p wire.Packet
	return xdpnictest.Faults{Drop: func(frame []byte) bool { return p.Decode(frame) == nil && drop(&p) }}
}

// stream sends count messages of changing length, at most most bytes, from va to vb and checks what
// arrives: every message if all, else at most once and in order. Each is intact.
func stream(t *testing.T, n *memoryNet, va, vb *vipl.VI, count, most int, all bool) (arrived int) {
	t.Helper()
	const posted = 32
	length := func(k int) int { return 4 + (k*977)%(most-4) }
	xa, xb := newBox(t, n.a.NIC, posted, most), newBox(t, n.b.NIC, posted, most)
	postRecvs(t, vb, xb, posted, most)
	var over atomic.Bool
	var taken atomic.Int64
	sender := make(chan struct{})
	defer func() { // also when the test fails: the sender must not outlive its memory
		over.Store(true)
		<-sender
	}()
	go func() {
		defer close(sender)
		for k := range count {
			if k >= posted {
				if d, err := va.SendWait(ackDelay); err != nil {
					t.Errorf("send %d: %v %v", k-posted, err, d)
					return
				}
			}
			x := k % posted
			// No more messages than receives are posted: else a reliable VI breaks.
			for int(taken.Load())+posted/2 <= k && all && !over.Load() {
				time.Sleep(50 * time.Microsecond)
			}
			fillPattern(xa.buf[x][:length(k)], k)
			binary.BigEndian.PutUint32(xa.buf[x], uint32(k))
			xa.prepare(x, length(k))
			xa.desc[x].SetImmediate(uint32(k))
			if err := va.PostSend(xa.desc[x], xa.region.Handle()); err != nil {
				t.Errorf("post %d: %v", k, err)
				return
			}
		}
	}()
	next := 0
	wait := ackDelay
	if !all {
		wait = 100 * time.Millisecond
	}
	for i := 0; next < count; i++ {
		d, err := vb.RecvWait(wait)
		if err == vipl.ErrTimeout && !all {
			select {
			case <-sender:
				return arrived
			default:
				i--
				continue
			}
		}
		if err != nil {
			over.Store(true)
			s, _ := vb.Query()
			t.Fatalf("message %d: %v %v: %v; %+v", next, err, d, s.Cause, n.b.Counters())
		}
		k, _ := d.Immediate()
		if d != xb.desc[i%posted] || int(k) < next || int(k) >= count || all && int(k) != next || int(d.Length) != length(int(k)) {
			over.Store(true)
			t.Fatalf("message %d of %d bytes, want %d of %d", k, d.Length, next, length(next))
		}
		b := xb.buf[i%posted][:d.Length]
		got := binary.BigEndian.Uint32(b)
		fatalIf(t, got != k, "message %d with the bytes of %d", k, got)
		fill := make([]byte, len(b))
		fillPattern(fill, int(k))
		copy(b[:4], fill[:4])
		checkPattern(t, b, int(k))
		arrived++
		next = int(k) + 1
		postRecv(t, vb, xb, i%posted, most)
		taken.Add(1)
	}
	<-sender
	return arrived
}

// storm is what befalls a stream.
type storm struct {
	name   string
	config memoryConfig
	most   int // bytes of a message; 0: 6000
	faults xdpnictest.Faults
	lies   xdpnictest.Lies
	took   func(q xdpnictest.Stats) uint64 // how often it took place
	check  func(a, b vipl.Counters) bool   // nil: nothing more is expected
}

// longStorm has queues of few chunks, for frames of several.
func longStorm(chunks int) memoryConfig {
	c := longFrames
	c.queue.RxChunks, c.queue.TxChunks, c.arena = chunks, chunks, 16<<20
	return c
}

func storms(t *testing.T) []storm {
	all := xdpnictest.Faults{Loss: 0.03, Burst: 0.002, Dup: 0.05, Reorder: 0.05, Corrupt: 0.03, Jitter: 100 * time.Microsecond}
	few := xdpnictest.Faults{Loss: 0.03, Corrupt: 0.03, Dup: 0.03, Reorder: 0.03, Jitter: 20 * time.Microsecond}
	resent := func(a, _ vipl.Counters) bool {
		return a.Resent > 0 && a.ByReference > 0
	}
	sealed := func(long bool) func(a, b vipl.Counters) bool {
		return func(a, b vipl.Counters) bool {
			return a.Rekeyed > 0 && b.Forged > 0 && b.Replayed > 0 && b.Unsealed == 0 && a.ByReference == 0 &&
				long == (b.Chained > 0) && (b.Lost > 0 || a.Resent > 0 && b.OutOfOrder > 0)
		}
	}
	lost := func(s xdpnictest.Stats) uint64 { return s.Lost }
	return []storm{
		{name: "loss", faults: xdpnictest.Faults{Loss: 0.05}, took: lost},
		{name: "bursts", faults: xdpnictest.Faults{Burst: 0.005, BurstLen: 20}, took: func(s xdpnictest.Stats) uint64 { return s.LostBurst }},
		{name: "duplicates", faults: xdpnictest.Faults{Dup: 0.2}, took: func(s xdpnictest.Stats) uint64 { return s.Duplicated }},
		{name: "reordering", faults: xdpnictest.Faults{Reorder: 0.1}, took: func(s xdpnictest.Stats) uint64 { return s.Reordered }},
		{name: "corruption", faults: xdpnictest.Faults{Corrupt: 0.05}, took: func(s xdpnictest.Stats) uint64 { return s.Corrupted }},
		{name: "jitter", faults: xdpnictest.Faults{Delay: 100 * time.Microsecond, Jitter: 300 * time.Microsecond},
			took: func(s xdpnictest.Stats) uint64 { return s.Delayed }},
		{name: "all", faults: all, took: func(s xdpnictest.Stats) uint64 { // each of them
			return min(s.Lost, s.LostBurst, s.Duplicated, s.Reordered, s.Corrupted, s.Delayed)
		}},
		{name: "all, long frames", config: longStorm(256), most: 100_000, faults: few, took: lost, check: resent},
		{name: "all, long frames, few chunks", config: longStorm(32), most: 100_000, faults: few, took: lost, check: resent},
		{name: "all, with a key", config: sealedNet(t, memoryConfig{}), faults: all, took: lost, check: sealed(false)},
		{name: "all, long frames, with a key", config: sealedNet(t, longFrames), faults: all, took: lost, check: sealed(true)},
		// A kernel that lies costs time, not correctness. No chunk is lost but those that it never gave back.
		{name: "completions never come", config: memoryConfig{leaky: true}, lies: xdpnictest.Lies{LostCompletion: 0.02},
			took: func(s xdpnictest.Stats) uint64 { return s.LiedLostCompletion }},
		{name: "completions come twice", lies: xdpnictest.Lies{DoubleCompletion: 0.2},
			took: func(s xdpnictest.Stats) uint64 { return s.LiedDoubleCompletion }},
		{name: "completions of other addresses", lies: xdpnictest.Lies{WildCompletion: 0.2},
			took: func(s xdpnictest.Stats) uint64 { return s.LiedWildCompletion }},
		{name: "completions come late", lies: xdpnictest.Lies{LateCompletion: 500 * time.Microsecond},
			took: func(s xdpnictest.Stats) uint64 { return s.TxCompleted }},
		{name: "arrivals at other addresses", lies: xdpnictest.Lies{WildRx: 0.2}, took: func(s xdpnictest.Stats) uint64 { return s.LiedWildRx }},
		{name: "arrivals of other lengths", lies: xdpnictest.Lies{RxLength: 0.05}, took: func(s xdpnictest.Stats) uint64 { return s.LiedLength }},
		{name: "arrivals in two segments", lies: xdpnictest.Lies{Split: 0.05}, took: func(s xdpnictest.Stats) uint64 { return s.LiedSplit }},
		{name: "ring full", lies: xdpnictest.Lies{RefuseSend: 0.2}, took: func(s xdpnictest.Stats) uint64 { return s.LiedSend }},
		{name: "doorbell fails", lies: xdpnictest.Lies{FlushError: 0.2}, took: func(s xdpnictest.Stats) uint64 { return s.LiedFlush }},
		{name: "doorbell does nothing", lies: xdpnictest.Lies{Stall: 0.2}, took: func(s xdpnictest.Stats) uint64 { return s.Stalled }},
		{name: "all but lost completions", lies: xdpnictest.Lies{
			DoubleCompletion: 0.05, WildCompletion: 0.05, WildRx: 0.05, RxLength: 0.02, Split: 0.02, RefuseSend: 0.05,
			FlushError: 0.05, Stall: 0.05, LateCompletion: 100 * time.Microsecond,
		}, took: func(s xdpnictest.Stats) uint64 { return s.LiedWildRx }},
	}
}

// Reliable VIs deliver exactly once, in order and intact through anything that the way does to frames, or the kernel
// says, an unreliable one at most once, in order and intact.
func TestStorms(t *testing.T) {
	for i, s := range storms(t) {
		t.Run(s.name, func(t *testing.T) {
			which := levels
			if s.most > 0 {
				which = reliableLevels // an unreliable VI may lose every message of many frames
			}
			eachLevel(t, which, func(t *testing.T, level vipl.ReliabilityLevel) {
				// A burst of 20 lasts for longer than the usual silence when what it takes
				// are single frames, sent again more and more seldom.
				s.config.silence = time.Minute
				n, va, vb := connected(t, s.config, level)
				s.faults.Seed, s.lies.Seed = uint64(1+i), uint64(11+i)
				n.wire.SetFaults(s.faults)
				n.a.queue.SetLies(s.lies)
				n.b.queue.SetLies(s.lies)
				count := 300
				if s.most > 0 {
					count = 100
				}
				arrived := stream(t, n, va, vb, count, cmp.Or(s.most, 6000), level != vipl.UnreliableDelivery)
				errorIf(t, arrived == 0, "%d of %d messages arrived", arrived, count)
				errorIf(t, s.took(n.a.queue.Stats())+s.took(n.b.queue.Stats()) == 0, "it did not take place: %+v", n.a.queue.Stats())
				a, b := n.a.Counters(), n.b.Counters()
				errorIf(t, s.check != nil && !s.check(a, b), "%+v\n%+v", a, b)
				n.wire.SetFaults(xdpnictest.Faults{})
				n.a.queue.SetLies(xdpnictest.Lies{})
				n.b.queue.SetLies(xdpnictest.Lies{})
				statesAre(t, vipl.Connected, va, vb)
			})
		})
	}
}

// VIs that together hold all TX chunks, each for frames that wait for a lost one, continue: a lost frame has its
// chunk, and is retransmitted although another VI waits for a chunk first.
func TestLossWithoutAFreeChunk(t *testing.T) {
	const vis = 4
	n := newMemoryNet(t, memoryConfig{queue: xdpnictest.Config{TxChunks: 24}, silence: time.Minute})
	var pairs [vis][2]*vipl.VI
	for i := range pairs {
		pairs[i][0], pairs[i][1] = connect(t, n.a.NIC, n.b.NIC, vipl.ReliableDelivery)
	}
	n.wire.SetFaults(xdpnictest.Faults{Seed: 11, Loss: 0.05, Reorder: 0.05})
	t.Run("streams", func(t *testing.T) {
		for i, p := range pairs {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				stream(t, n, p[0], p[1], 300, 6000, true)
			})
		}
	})
	s := n.a.queue.Stats()
	errorIf(t, s.Lost == 0, "nothing was lost: %+v", s)
}

// Every retransmission, short or long, is marked as such, and no other frame is: so the peer can distinguish
// lost frames from late ones.
func TestAgain(t *testing.T) {
	for name, config := range map[string]memoryConfig{"short": {}, "long": longFrames} {
		t.Run(name, func(t *testing.T) {
			n, va, vb := connected(t, config, vipl.ReliableDelivery)
			first, again := map[uint32]bool{}, uint64(0)
			n.a.queue.SetFaults(faultsDropping(func(p *wire.Packet) bool {
				if p.Kind == wire.KindAck {
					return false
				}
				equal(t, "frame", p.Flags&wire.FlagAgain != 0, first[p.Seq])
				if first[p.Seq] {
					again++
					return false
				}
				first[p.Seq] = true
				return p.Seq%5 == 0
			}))
			stream(t, n, va, vb, 300, 6000, true)
			n.a.queue.SetFaults(xdpnictest.Faults{})
			if c := n.a.Counters(); again == 0 || c.Resent < again {
				t.Errorf("%d frames say so, %+v", again, c)
			} else if (name == "long") != (c.ByReference > 0) {
				t.Errorf("frames of several chunks: %+v", c)
			}
		})
	}
}

// pollFor polls for a time of the bubble, so often that timers are checked, too, and the library's own goroutine
// stays away.
func pollFor(n *vipl.NIC, d time.Duration) {
	const step = 10 * time.Microsecond
	for ; d > 0; d -= step {
		time.Sleep(min(d, step))
		for range 300 {
			n.Poll()
		}
	}
}

// If an acknowledgement was to be carried by a retransmission for which the ring has no room, it is sent bare: the
// peer need not retransmit what has arrived.
func TestAcknowledgementOfARefusedFrame(t *testing.T) {
	for _, size := range []int{8, 20_000} {
		inBubble(t, fmt.Sprint(size), func(t *testing.T) {
			c := longFrames
			c.bubble = true
			n, va, vb := connected(t, c, vipl.ReliableReception)
			polling(t, n, va, vb)
			xa, xb := newBox(t, n.a.NIC, 1, size), newBox(t, n.b.NIC, 1, size)
			postRecv(t, va, xa, 0, size)
			own := newBox(t, n.a.NIC, 1, size)
			n.a.queue.SetFaults(faultsDropping(func(p *wire.Packet) bool { return p.Kind == wire.KindData }))
			postSend(t, va, own, 0, size) // asked for after two milliseconds
			pollFor(n.a.NIC, 1980*time.Microsecond)
			before := n.b.Counters().Resent
			postSend(t, vb, xb, 0, 8)
			n.a.Poll()
			received(t, va, 0) // its acknowledgement may wait for 50 us
			n.a.queue.SetLies(xdpnictest.Lies{RefuseSend: 1})
			pollFor(n.a.NIC, 30*time.Microsecond)
			fatalIf(t, n.a.queue.Stats().LiedSend == 0, "nothing was refused")
			n.a.queue.SetLies(xdpnictest.Lies{})
			pollFor(n.a.NIC, 100*time.Microsecond) // and the peer sends again after 200
			synctest.Wait()
			if d, err := vb.SendDone(); d == nil || n.b.Counters().Resent != before {
				t.Errorf("the peer has not heard of it: %v, %d frames sent again", err, n.b.Counters().Resent-before)
			}
		})
	}
}
