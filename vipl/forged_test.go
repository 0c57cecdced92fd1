package vipl_test

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"viaxdp/vipl"
	"viaxdp/wire"
	"viaxdp/xdpnic/xdpnictest"
)

// Frames of others that the demux program let through, as it may while a VI is
// replaced, reach no descriptor: the engine checks VI number, key and source
// again.
func TestForgedFrames(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n, va, vb := connected(t, memoryConfig{gate: true}, level)
		xa, xb := newBox(t, n.a.Nic, 1, 64), newBox(t, n.b.Nic, 2, 64)
		var mu sync.Mutex
		var seen wire.Header // what a neighbour on the wire could read
		n.a.queue.SetFaults(faultsDropping(func(p *wire.Packet) bool {
			mu.Lock()
			defer mu.Unlock()
			if p.Kind == wire.KindData { // and not a probe, which has no number
				seen = p.Header
			}
			return false
		}))
		postRecv(t, vb, xb, 0, 64)
		postRecv(t, vb, xb, 1, 64)
		postSend(t, va, xa, 0, 64)
		received(t, vb, 0)
		mu.Lock()
		good := seen
		mu.Unlock()
		good.Kind, good.Flags, good.Seq, good.Length = wire.KindData, wire.FlagFirst|wire.FlagLast, good.Seq+1, 0

		forger, err := n.wire.Queue(xdpnictest.Config{MAC: [6]byte{2, 0xbb}})
		if err != nil {
			t.Fatal(err)
		}
		other := netip.MustParseAddr("10.250.0.9")
		for _, f := range []struct {
			name     string
			from     netip.Addr
			change   func(*wire.Header)
			counter  func(vipl.Counters) uint64
			reliable bool // there is no such thing on an unreliable VI
		}{
			{"key", n.a.agent.Addr(), func(h *wire.Header) { h.Key ^= 1 }, func(c vipl.Counters) uint64 { return c.WrongKey }, false},
			{"source", other, func(*wire.Header) {}, func(c vipl.Counters) uint64 { return c.WrongSource }, false},
			{"generation", n.a.agent.Addr(), func(h *wire.Header) { h.VI += 1 << 16 }, func(c vipl.Counters) uint64 { return c.UnknownVI }, false},
			{"beyond the window", n.a.agent.Addr(), func(h *wire.Header) { h.Seq += 5000 }, func(c vipl.Counters) uint64 { return c.Outside }, true},
			{"acknowledgement of what was never sent", n.a.agent.Addr(), func(h *wire.Header) { h.Kind, h.Flags, h.Ack = wire.KindAck, 0, h.Ack+100 },
				func(c vipl.Counters) uint64 { return c.BadAcks }, true},
		} {
			if f.reliable && level == vipl.UnreliableDelivery {
				continue
			}
			h := good
			f.change(&h)
			before := f.counter(n.b.Counters())
			forge(t, forger, wire.Link{
				SrcMAC: n.a.agent.Link().MAC, DstMAC: n.b.agent.Link().MAC, Src: f.from, Dst: n.b.agent.Addr(),
			}, h)
			for start := time.Now(); f.counter(n.b.Counters()) == before; {
				if d, err := vb.RecvDone(); err != vipl.ErrNotDone {
					t.Fatalf("%s: a forged frame completed %v, %v", f.name, d, err)
				}
				if time.Since(start) > patience {
					t.Fatalf("%s: the frame was not counted: %+v", f.name, n.b.Counters())
				}
			}
			if d, err := vb.RecvDone(); err != vipl.ErrNotDone {
				t.Fatalf("%s: a forged frame completed %v, %v", f.name, d, err)
			}
		}
		// What is right in all, and comes by a lane that is not the connection's.
		before := n.b.Counters().WrongSource
		l := wire.Link{SrcMAC: n.a.agent.Link().MAC, DstMAC: n.b.agent.Link().MAC, Src: n.a.agent.Addr(), Dst: n.b.agent.Addr()}
		n.b.ArriveByLane(forged(t, l, good))
		if d, err := vb.RecvDone(); err != vipl.ErrNotDone {
			t.Fatalf("lane: a frame of another way completed %v, %v", d, err)
		}
		if c := n.b.Counters(); c.WrongSource != before+1 {
			t.Errorf("lane: the frame was not counted: %+v", c)
		}
		// The connection stands, and the sequence was not moved.
		postSend(t, va, xa, 0, 64)
		received(t, vb, 1)
	})
}

// forge sends one frame with header h and no payload.
func forge(t *testing.T, q *xdpnictest.Queue, l wire.Link, h wire.Header) {
	t.Helper()
	frame := forged(t, l, h)
	addr, chunk, ok := q.Alloc()
	if !ok {
		t.Fatal("no chunk")
	}
	if !q.Send(addr, copy(chunk, frame), false) {
		t.Fatal("the ring is full")
	}
	if err := q.Flush(); err != nil {
		t.Fatal(err)
	}
}

// forged is such a frame.
func forged(t *testing.T, l wire.Link, h wire.Header) []byte {
	t.Helper()
	template, err := wire.NewTemplate(l)
	if err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, template.Len()+wire.HeaderLen)
	b := template.Put(frame, wire.HeaderLen)
	h.Put(b)
	wire.PutChecksum(b)
	return frame
}
