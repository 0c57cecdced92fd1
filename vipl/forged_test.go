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
			seen = p.Header
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
			name    string
			from    netip.Addr
			change  func(*wire.Header)
			counter func(vipl.Counters) uint64
		}{
			{"key", n.a.agent.Addr(), func(h *wire.Header) { h.Key ^= 1 }, func(c vipl.Counters) uint64 { return c.WrongKey }},
			{"source", other, func(*wire.Header) {}, func(c vipl.Counters) uint64 { return c.WrongSource }},
			{"generation", n.a.agent.Addr(), func(h *wire.Header) { h.VI += 1 << 16 }, func(c vipl.Counters) uint64 { return c.UnknownVI }},
		} {
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
				if time.Since(start) > 5*time.Second {
					t.Fatalf("%s: the frame was not counted: %+v", f.name, n.b.Counters())
				}
			}
			if d, err := vb.RecvDone(); err != vipl.ErrNotDone {
				t.Fatalf("%s: a forged frame completed %v, %v", f.name, d, err)
			}
		}
		// The connection stands, and the sequence was not moved.
		postSend(t, va, xa, 0, 64)
		received(t, vb, 1)
	})
}

// forge sends one frame with header h and no payload.
func forge(t *testing.T, q *xdpnictest.Queue, l wire.Link, h wire.Header) {
	t.Helper()
	template, err := wire.NewTemplate(l)
	if err != nil {
		t.Fatal(err)
	}
	addr, chunk, ok := q.Alloc()
	if !ok {
		t.Fatal("no chunk")
	}
	b := template.Put(chunk, wire.HeaderLen)
	h.Put(b)
	wire.Seal(b)
	if !q.Send(addr, template.Len()+len(b), false) {
		t.Fatal("the ring is full")
	}
	if err := q.Flush(); err != nil {
		t.Fatal(err)
	}
}
