package vipl_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"viaxdp/internal/base/wire"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// spy is an attacker on the wire between two hosts. It has seen the frames of both directions, and sends any
// frames as if it were the first host.
type spy struct {
	t     *testing.T
	n     *memoryNet
	queue *xdpnictest.Queue
	link  wire.Link // from a to b

	mu   sync.Mutex
	seen [2][][]byte // frames from a, and from b
}

func newSpy(t *testing.T, n *memoryNet) *spy {
	t.Helper()
	q, err := n.wire.Queue(xdpnictest.Config{MAC: [6]byte{2, 0xbb}})
	must(t, err)
	s := &spy{t: t, n: n, queue: q, link: wire.Link{
		SrcMAC: n.a.agent.Link().MAC, DstMAC: n.b.agent.Link().MAC, Src: n.a.agent.Addr(), Dst: n.b.agent.Addr(),
	}}
	for i, h := range []*memoryHost{n.a, n.b} {
		h.queue.SetFaults(xdpnictest.Faults{Drop: func(frame []byte) bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.seen[i] = append(s.seen[i], bytes.Clone(frame))
			return false
		}})
	}
	return s
}

// frames gives those seen until now, of a or of b.
func (s *spy) frames(from int) [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen[from][:len(s.seen[from]):len(s.seen[from])]
}

// last is the header of the last frame from a that has a message, or may have.
func (s *spy) last() wire.Header {
	s.t.Helper()
	var p wire.Packet
	for _, frame := range slices.Backward(s.frames(0)) {
		if p.Decode(frame) == nil && (p.Kind == wire.KindData || p.Kind == wire.KindSealed) {
			return p.Header
		}
	}
	s.t.Fatal("no frame was seen")
	return p.Header
}

// send puts a frame on the wire as it is.
func (s *spy) send(frame []byte) {
	s.t.Helper()
	for s.queue.TxFree() == 0 {
		s.queue.Reap()
	}
	fatalIf(s.t, !s.queue.SendBytes(frame), "the ring is full")
}

// forge sends a frame with that header and payload, and with valid lengths and checksum.
func (s *spy) forge(h wire.Header, payload []byte) {
	s.t.Helper()
	template, err := wire.NewTemplate(s.link)
	must(s.t, err)
	h.Length = uint16(len(payload))
	s.send(xdpnictest.Frame(&template, h, payload))
}

// counted waits until a counter of b has grown by n.
func (s *spy) counted(what string, counter func(vipl.Counters) uint64, n uint64, do func()) {
	s.t.Helper()
	before := counter(s.n.b.Counters())
	do()
	for start := time.Now(); counter(s.n.b.Counters()) < before+n; s.n.b.Poll() {
		if time.Since(start) > ackDelay {
			s.t.Fatalf("%s: counted %d times, want %d: %+v", what, counter(s.n.b.Counters())-before, n, s.n.b.Counters())
		}
	}
	if got := counter(s.n.b.Counters()) - before; got != n {
		s.t.Errorf("%s: counted %d times, want %d", what, got, n)
	}
}

// An attacker that sees everything of a connection with a key and sends any frames changes nothing: frames of
// every kind as a plain connection would accept them, and sealed frames that were changed, repeated, reflected,
// or come from the last connection.
func TestForgedOnSealed(t *testing.T) {
	unsealed := func(c vipl.Counters) uint64 { return c.Unsealed }
	forged := func(c vipl.Counters) uint64 { return c.Forged }
	replayed := func(c vipl.Counters) uint64 { return c.Replayed }
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n := newMemoryNet(t, memoryConfig{gate: true, psk: testPSK(t, 1)})
		s := newSpy(t, n)
		va, vb := connect(t, n.a.NIC, n.b.NIC, level)
		xa, xb := newBox(t, n.a.NIC, 2, 64), newBox(t, n.b.NIC, 2, 64)
		talk := func() {
			t.Helper()
			postRecv(t, vb, xb, 0, 64)
			postSend(t, va, xa, 0, 64)
			received(t, vb, 0)
			sent(t, va, 0)
			postRecv(t, va, xa, 1, 64)
			postSend(t, vb, xb, 1, 64)
			received(t, va, 0)
			sent(t, vb, 0)
		}
		talk()
		known := s.last() // VI and key, and what else is in clear

		kinds := []wire.Kind{
			wire.KindData, wire.KindAck, wire.KindProbe, wire.KindError, wire.KindClose,
			wire.KindWrite, wire.KindRead, wire.KindReadData, wire.KindPack,
		}
		for _, k := range kinds {
			h := wire.Header{Kind: k, VI: known.VI, Key: known.Key, Immediate: uint32(wire.ReasonClosed)}
			s.counted(fmt.Sprintf("plain frame of kind %d", k), unsealed, 1, func() { s.forge(h, nil) })
		}
		old := s.frames(0)
		var p wire.Packet
		for i, frame := range old {
			must(t, p.Decode(frame))
			clear, sealed := p.Sealed()
			at := len(frame) - len(clear) - len(sealed)
			s.counted("repeated", replayed, 1, func() { s.send(frame) })
			for name, change := range map[string]func(b []byte){
				"number":       func(b []byte) { binary.BigEndian.PutUint64(b[16:], uint64(1000+i)) },
				"high number":  func(b []byte) { binary.BigEndian.PutUint64(b[16:], math.MaxUint64) },
				"epoch":        func(b []byte) { b[3]++; b[23] = 200 },
				"another text": func(b []byte) { b[30] ^= 1; b[22] = 1 },
				"another tag":  func(b []byte) { b[len(b)-1] ^= 1; b[22] = 1 },
			} {
				b := bytes.Clone(frame)
				change(b[at:])
				s.counted(name, forged, 1, func() { s.send(b) })
			}
		}
		for _, frame := range s.frames(1) { // what b has sent, back to it
			fatalIf(t, p.Decode(frame) != nil, "not a frame")
			clear, _ := p.Sealed()
			b := bytes.Clone(frame)
			copy(b, b[6:12]) // not where it came from
			copy(b[6:], s.link.SrcMAC[:])
			src, dst := s.link.Src.As4(), s.link.Dst.As4()
			copy(b[26:], src[:])
			copy(b[30:], dst[:])
			at := 14 + 20 + 8
			binary.BigEndian.PutUint32(b[at+4:], known.VI)
			binary.BigEndian.PutUint64(b[at+8:], known.Key)
			binary.BigEndian.PutUint64(b[at+16:], 500+binary.BigEndian.Uint64(clear[16:]))
			s.counted("turned back", forged, 1, func() { s.send(b) })
		}
		d, err := vb.RecvDone()
		errorIf(t, d != nil || n.b.Counters().Messages != 1, "something was delivered: %v, %v", d, err)
		statesAre(t, vipl.Connected, va, vb)
		talk()

		// The last connection of the same VIs.
		for _, v := range []*vipl.VI{va, vb} {
			must(t, v.Disconnect())
		}
		join(t, n.a.NIC, va, n.b.NIC, vb)
		talk()
		known = s.last()
		for _, frame := range old {
			s.counted("of the last connection", func(c vipl.Counters) uint64 { return c.WrongKey }, 1, func() { s.send(frame) })
			b := bytes.Clone(frame)
			at := 14 + 20 + 8
			binary.BigEndian.PutUint64(b[at+8:], known.Key)
			binary.BigEndian.PutUint64(b[at+16:], 1000)
			s.counted("of the last connection, with this one's key", forged, 1, func() { s.send(b) })
		}
		talk()
	})
}

// A peer may ask for 16 RDMA reads before the first is answered. One more ends the connection.
func TestReadsAtOnce(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{gate: true})
	s := newSpy(t, n)
	va, vb := openVI(t, n.a.NIC, vipl.ReliableDelivery), openVI(t, n.b.NIC, vipl.ReliableDelivery)
	join(t, n.a.NIC, va, n.b.NIC, vb)
	from := openBox(t, n.b.NIC).remote(0)
	n.a.queue.Cut(true) // a, which has not asked, acknowledges no answer
	ask := func() {
		at, _ := vb.Expects()
		s.forge(wire.Header{
			Kind: wire.KindRead, VI: at.VI, Key: at.Key, Seq: at.Seq, Immediate: boxSize,
			RemoteAddr: from.Data, RemoteHandle: uint32(from.Handle),
		}, nil)
	}
	for range 16 {
		s.counted("read", func(c vipl.Counters) uint64 { return c.Frames }, 1, ask)
	}
	stateIs(t, vb, vipl.Connected)
	s.counted("one more", func(c vipl.Counters) uint64 { return c.Malformed }, 1, ask)
	stateIs(t, vb, vipl.Error)
	n.a.queue.Cut(false)
}

// An attacker on the path of a plain connection knows VI, key and source, and can do what the peer can, but no
// more: nothing outside of an open region is written or read, by one byte or by far, and every attempt is
// counted.
func TestPeerWritesOutside(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{gate: true})
	s := newSpy(t, n)
	va, vb := openVI(t, n.a.NIC, vipl.UnreliableDelivery), openVI(t, n.b.NIC, vipl.UnreliableDelivery)
	join(t, n.a.NIC, va, n.b.NIC, vb)
	xa, xb := newBox(t, n.a.NIC, 1, 64), newBox(t, n.b.NIC, 3, 4096)
	postRecv(t, vb, xb, 0, 64)
	postSend(t, va, xa, 0, 64)
	received(t, vb, 0)
	known := s.last()
	seq := known.Seq

	// A region of 1000 bytes in the middle of others' memory, and one that is shut.
	const size = 1000
	tag := mustTag(t, n.b.NIC)
	around := make([]byte, 3*size)
	in := around[size : 2*size]
	open, err := n.b.RegisterMem(in, vipl.MemAttributes{Ptag: tag, EnableRDMAWrite: true})
	must(t, err)
	shut, err := n.b.RegisterMem(in, vipl.MemAttributes{Ptag: tag, EnableRDMARead: true})
	must(t, err)
	at := open.Segment(0, size).Data
	write := func(addr uint64, h vipl.MemHandle, length int) {
		seq++
		s.forge(wire.Header{
			Kind: wire.KindWrite, Flags: wire.FlagFirst | wire.FlagLast, VI: known.VI, Key: known.Key, Seq: seq,
			RemoteAddr: addr, RemoteHandle: uint32(h),
		}, bytes.Repeat([]byte{0xee}, length))
	}
	refused := func(c vipl.Counters) uint64 { return c.RDMARefused }
	for _, c := range []struct {
		name   string
		addr   uint64
		handle vipl.MemHandle
		length int
	}{
		{"the byte before", at - 1, open.Handle(), 1},
		{"from the byte before", at - 1, open.Handle(), size},
		{"the byte behind", at + size, open.Handle(), 1},
		{"one byte too many", at, open.Handle(), size + 1},
		{"one byte too many at the end", at + size - 1, open.Handle(), 2},
		{"address 0", 0, open.Handle(), 1},
		{"the highest address", math.MaxUint64, open.Handle(), 2},
		{"wrapping to the region", at - 1<<63, open.Handle(), 1},
		{"handle 0", at, 0, 1},
		{"the next handle", at, open.Handle() + 1<<20, 1},
		{"the handle one less", at, open.Handle() - 1, 1},
		{"a region that is shut", at, shut.Handle(), 1},
		{"its descriptors' region", xb.segs[0].Data, xb.region.Handle(), 1},
	} {
		s.counted(c.name, refused, 1, func() { write(c.addr, c.handle, c.length) })
	}
	if i := bytes.IndexByte(around, 0xee); i >= 0 {
		t.Errorf("byte %d was written", i-size)
	}
	s.counted("all of the region", func(c vipl.Counters) uint64 { return c.Writes }, 1, func() { write(at, open.Handle(), size) })
	for i, b := range around {
		fatalIf(t, (b == 0xee) != (i >= size && i < 2*size), "byte %d: %#x", i-size, b)
	}
	s.counted("no bytes at all", func(c vipl.Counters) uint64 { return c.Writes }, 1, func() { write(math.MaxUint64, 0, 0) })
	stateIs(t, vb, vipl.Connected)
	for _, r := range []*vipl.Region{open, shut} {
		noError(t, r.Deregister())
	}
}
