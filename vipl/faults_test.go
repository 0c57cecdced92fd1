package vipl_test

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"testing"
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

// stream sends count messages of changing length from va to vb and checks what
// arrives: every message if all, else at most once and in order. Each is intact.
func stream(t *testing.T, n *memoryNet, va, vb *vipl.VI, count int, all bool) (arrived int) {
	t.Helper()
	const most, posted = 6000, 32
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

var storms = []struct {
	name   string
	faults xdpnictest.Faults
	took   func(xdpnictest.Stats) uint64
}{
	{"loss", xdpnictest.Faults{Seed: 1, Loss: 0.05}, func(s xdpnictest.Stats) uint64 { return s.Lost }},
	{"bursts", xdpnictest.Faults{Seed: 2, Burst: 0.005, BurstLen: 20}, func(s xdpnictest.Stats) uint64 { return s.LostBurst }},
	{"duplicates", xdpnictest.Faults{Seed: 3, Dup: 0.2}, func(s xdpnictest.Stats) uint64 { return s.Duplicated }},
	{"reordering", xdpnictest.Faults{Seed: 4, Reorder: 0.1}, func(s xdpnictest.Stats) uint64 { return s.Reordered }},
	{"corruption", xdpnictest.Faults{Seed: 5, Corrupt: 0.05}, func(s xdpnictest.Stats) uint64 { return s.Corrupted }},
	{"jitter", xdpnictest.Faults{Seed: 6, Delay: 100 * time.Microsecond, Jitter: 300 * time.Microsecond}, func(s xdpnictest.Stats) uint64 { return s.Delayed }},
	{"all", xdpnictest.Faults{Seed: 7, Loss: 0.03, Burst: 0.002, Dup: 0.05, Reorder: 0.05, Corrupt: 0.03, Jitter: 100 * time.Microsecond}, func(s xdpnictest.Stats) uint64 {
		return min(s.Lost, s.LostBurst, s.Duplicated, s.Reordered, s.Corrupted, s.Delayed) // each of them
	}},
}

// Reliable VIs deliver exactly once, in order and intact through anything, an
// unreliable one at most once, in order and intact.
func TestStorms(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		for _, storm := range storms {
			t.Run(storm.name, func(t *testing.T) {
				// A burst of 20 lasts for longer than the usual silence when what it takes
				// are single frames, sent again more and more seldom.
				n, va, vb := connected(t, memoryConfig{silence: time.Minute}, level)
				n.wire.SetFaults(storm.faults)
				const count = 300
				arrived := stream(t, n, va, vb, count, level != vipl.UnreliableDelivery)
				if took := storm.took(n.a.queue.Stats()); took == 0 {
					t.Errorf("the fault did not take place: %+v", n.a.queue.Stats())
				}
				errorIf(t, arrived == 0, "%d of %d messages arrived", arrived, count)
				n.wire.SetFaults(xdpnictest.Faults{})
				statesAre(t, vipl.Connected, va, vb)
				t.Logf("%d of %d; %+v", arrived, count, n.b.Counters())
			})
		}
	})
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
				stream(t, n, p[0], p[1], 300, true)
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
			stream(t, n, va, vb, 300, true)
			n.a.queue.SetFaults(xdpnictest.Faults{})
			if c := n.a.Counters(); again == 0 || c.Resent < again {
				t.Errorf("%d frames say so, %+v", again, c)
			} else if (name == "long") != (c.ByReference > 0) {
				t.Errorf("frames of several chunks: %+v", c)
			}
		})
	}
}
