package vipl_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"viaxdp/internal/base/wire"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// A NIC, a VI and a descriptor are polled, posted and completed without an
// allocation.
func TestNoAllocation(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		noAllocation(t, memoryConfig{}, level, 64, 3000)
		noAllocation(t, longFrames, level, 64, 9000, 200_000)
	})
}

func noAllocation(t *testing.T, c memoryConfig, level vipl.ReliabilityLevel, sizes ...int) {
	// AllocsPerRun counts all allocations of the process, on one processor. The measurement begins when other
	// goroutines are done: connection management has its last answer, and the runtime has allocated what the
	// background goroutines block on (timers, sudogs of that processor).
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	n, va, vb := connected(t, c, level)
	most := slices.Max(sizes)
	xa, xb := newBox(t, n.a.NIC, 2, most), newBox(t, n.b.NIC, 2, most)
	mallocs := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.Mallocs
	}
	fatalIf(t, !comes(func() bool {
		before := mallocs()
		time.Sleep(5 * time.Millisecond)
		return mallocs() == before
	}), "other goroutines go on allocating")
	// Both ends are polled: one that is not acknowledges late.
	wait := func(done, other func() (*vipl.Descriptor, error)) {
		for {
			if _, err := done(); err == nil {
				return
			} else if err != vipl.ErrNotDone {
				t.Fatal(err)
			}
			other()
		}
	}
	for _, size := range sizes {
		if allocs := testing.AllocsPerRun(min(200, 1+1_000_000/size), func() {
			postRecv(t, va, xa, 0, size)
			postRecv(t, vb, xb, 0, size)
			postSend(t, va, xa, 1, size)
			wait(vb.RecvDone, va.RecvDone)
			postSend(t, vb, xb, 1, size)
			wait(va.RecvDone, vb.RecvDone)
			wait(va.SendDone, vb.RecvDone)
			wait(vb.SendDone, va.RecvDone)
		}); allocs != 0 {
			t.Errorf("%d bytes: %v allocations", size, allocs)
		}
	}
}

func malformed(c vipl.Counters) uint64 { return c.Malformed }

// target is a connection with one receive at b, and a spy that sends frames of 0xee that b must not accept.
type target struct {
	*spy
	va, vb *vipl.VI
	xa, xb *box
}

func newTarget(t *testing.T, c memoryConfig, level vipl.ReliabilityLevel, size int) *target {
	t.Helper()
	c.gate = true
	n, va, vb := connected(t, c, level)
	x := &target{newSpy(t, n), va, vb, newBox(t, n.a.NIC, 1, size), newBox(t, n.b.NIC, 1, size)}
	postRecv(t, vb, x.xb, 0, size)
	return x
}

// nothing checks that nothing was delivered.
func (x *target) nothing(what string) {
	x.t.Helper()
	if d, err := x.vb.RecvDone(); d != nil || x.n.b.Counters().Messages > 0 || bytes.IndexByte(x.xb.buf[0], 0xee) >= 0 {
		x.t.Errorf("%s: something was delivered: %v, %v", what, d, err)
	}
}

// goesOn checks that the connection is unaffected: the receive serves a's message.
func (x *target) goesOn() {
	x.t.Helper()
	stateIs(x.t, x.va, vipl.Connected)
	stateIs(x.t, x.vb, vipl.Connected)
	fillPattern(x.xa.buf[0], 1)
	postSend(x.t, x.va, x.xa, 0, len(x.xa.buf[0]))
	received(x.t, x.vb, 0)
	sent(x.t, x.va, 0)
	checkPattern(x.t, x.xb.buf[0], 1)
}

// plainFrame returns the valid frame from a to b that b expects next on v.
func (s *spy) plainFrame(v *vipl.VI, kind wire.Kind, data []byte) []byte {
	s.t.Helper()
	h, ok := v.Expects()
	fatalIf(s.t, !ok, "frames do not flow")
	template, err := wire.NewTemplate(s.link)
	must(s.t, err)
	h.Kind, h.Window, h.Length = kind, 64, uint16(len(data))
	if kind == wire.KindData {
		h.Flags = wire.FlagFirst | wire.FlagLast
	}
	return xdpnictest.Frame(&template, h, data)
}

// Frames with inconsistent lengths are Malformed, even if their checksum is right: none of their contents is
// delivered, and the connection continues.
func TestLengthsThatLie(t *testing.T) {
	const size, udpAt, lengthAt = 128, 14 + 20 + 4, viaAt + 26
	word := func(at int, f func(is uint16) uint16) func([]byte) []byte {
		return func(b []byte) []byte {
			binary.BigEndian.PutUint16(b[at:], f(binary.BigEndian.Uint16(b[at:])))
			return b
		}
	}
	add := func(n int) func(uint16) uint16 { return func(is uint16) uint16 { return is + uint16(n) } }
	be := func(n uint16) func(uint16) uint16 { return func(uint16) uint16 { return n } }
	sum := func(b []byte) []byte { // over the frame as it arrived, whatever its VIA header contains
		wire.PutChecksum(b[viaAt:])
		return b
	}
	cases := []struct {
		name   string
		change func(b []byte) []byte
	}{
		{"UDP: one more than there is", word(udpAt, add(1))},
		{"UDP: one less than the header says", word(udpAt, add(-1))},
		{"UDP: 0", word(udpAt, be(0))},
		{"UDP: its own header alone", word(udpAt, be(8))},
		{"UDP: one less than ours", word(udpAt, be(8+wire.HeaderLen-1))},
		{"UDP: ours alone", word(udpAt, be(8+wire.HeaderLen))},
		{"UDP: all ones", word(udpAt, be(0xffff))},
		{"header: one more", func(b []byte) []byte { return sum(word(lengthAt, add(1))(b)) }},
		{"header: one less", func(b []byte) []byte { return sum(word(lengthAt, add(-1))(b)) }},
		{"header: 0", func(b []byte) []byte { return sum(word(lengthAt, be(0))(b)) }},
		{"header: all ones", func(b []byte) []byte { return sum(word(lengthAt, be(0xffff))(b)) }},
		{"frame: a byte is missing", func(b []byte) []byte { return b[:len(b)-1] }},
		{"frame: ends with our header", func(b []byte) []byte { return b[:viaAt+wire.HeaderLen] }},
		{"frame: ends in our header", func(b []byte) []byte { return b[:viaAt+wire.HeaderLen-1] }},
		{"frame: ends with UDP", func(b []byte) []byte { return b[:viaAt] }},
		{"frame: ends with Ethernet", func(b []byte) []byte { return b[:14] }},
	}
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		x := newTarget(t, memoryConfig{}, level, size)
		for _, c := range cases {
			frame := c.change(x.plainFrame(x.vb, wire.KindData, bytes.Repeat([]byte{0xee}, size)))
			x.counted(c.name, malformed, 1, func() { x.send(frame) })
			x.nothing(c.name)
		}
		x.goesOn()
	})
}

// The length in a sealed frame must be right, too, although only a side with the key can write it.
func TestSealedLengthsThatLie(t *testing.T) {
	const size = 128
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		x := newTarget(t, memoryConfig{psk: testPSK(t, 1)}, level, size)
		for _, length := range []int{0, 1, size - 1, size + 1, 0xffff} {
			frame, what := x.va.Sealed(bytes.Repeat([]byte{0xee}, size), length), fmt.Sprint(length, " bytes")
			x.counted(what, malformed, 1, func() { x.send(frame) })
			x.nothing(what)
		}
		x.goesOn()
	})
}

// Records with inconsistent lengths, in a frame with several messages, are no messages. Their checksum is
// right, so the peer has sent them: a reliable VI ends the connection; an unreliable one, which has no such
// frames, continues.
func TestRecordLengthsThatLie(t *testing.T) {
	for name, records := range map[string][]byte{
		"one byte too many":       {0, 5, 0, 0, 0xee, 0xee, 0xee, 0xee},
		"all ones":                {0xff, 0xff, 0, 0, 0xee, 0xee, 0xee, 0xee},
		"a record cut":            {0, 0, 0},
		"no room for immediate":   {0, 0, 0, byte(wire.FlagImmediate), 0, 0, 0},
		"no room for an address":  {0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		"its immediate as length": {0, 4, 0, byte(wire.FlagImmediate), 0xee, 0xee, 0xee, 0xee},
	} {
		t.Run(name, func(t *testing.T) {
			eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
				x := newTarget(t, memoryConfig{}, level, 64)
				x.counted("records", malformed, 1, func() { x.send(x.plainFrame(x.vb, wire.KindPack, records)) })
				errorIf(t, x.n.b.Counters().Messages > 0 || bytes.IndexByte(x.xb.buf[0], 0xee) >= 0, "something was delivered")
				want := vipl.Error
				if level == vipl.UnreliableDelivery {
					want = vipl.Connected
				}
				stateIs(t, x.vb, want)
				stateIs(t, x.va, want)
			})
		})
	}
}

// A frame in several chunks that is cut, in whichever of them, is Malformed.
func TestChainsCut(t *testing.T) {
	const size = 8000
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		c := memoryConfig{mtu: 9000, arena: 8 << 20, queue: xdpnictest.Config{MultiBuffer: true}}
		x := newTarget(t, c, level, size)
		whole, err := x.n.wire.Queue(xdpnictest.Config{MAC: [6]byte{2, 0xbc}, ChunkSize: 16384, TxChunks: 8, RxChunks: 8})
		must(t, err)
		x.queue = whole // its chunks hold such a frame
		good := x.plainFrame(x.vb, wire.KindData, bytes.Repeat([]byte{0xee}, size))
		chained := x.n.b.Counters().Chained
		_, chunk := x.n.b.queue.FrameCap()
		for _, end := range []int{len(good) - 1, 4*chunk + 1, 4 * chunk, 4*chunk - 1, 2 * chunk, chunk + 1, chunk} {
			x.counted(fmt.Sprint("cut to ", end), malformed, 1, func() { x.send(good[:end]) })
		}
		equal(t, "frames of several chunks", x.n.b.Counters().Chained-chained, 6)
		x.nothing("cut")
		x.goesOn()
	})
}

// A descriptor takes as many bytes of its region as it has segments: 32 and 16 for
// each, and it may end with the region.
func TestDescriptorAtTheEndOfItsRegion(t *testing.T) {
	n, va, vb := connected(t, memoryConfig{}, vipl.ReliableDelivery)
	tag := mustTag(t, n.a.NIC)
	whole, err := n.a.AllocMem(4096, vipl.MemAttributes{Ptag: tag})
	must(t, err)
	xb := newBox(t, n.b.NIC, 1, 64)
	for _, c := range []struct {
		bytes, segments int
		good            bool
	}{
		{31, 0, false}, {32, 0, true}, {32, 1, false}, {47, 1, false}, {48, 1, true}, {48, 2, false}, {63, 2, false},
		{64, 2, true}, {64, 3, false}, {79, 3, false}, {80, 3, true}, {48, 65535, false},
	} {
		home, err := n.a.RegisterMem(whole.Bytes()[:c.bytes], vipl.MemAttributes{Ptag: tag})
		must(t, err)
		d, err := whole.Descriptor(0, 3)
		must(t, err)
		d.SetSegments(whole.Segment(1024, 3), whole.Segment(1027, 4), whole.Segment(1031, 5))
		d.SegCount = uint16(c.segments)
		if d.Length = 0; c.segments <= 3 {
			d.Length = []uint32{0, 3, 7, 12}[c.segments]
		}
		if c.good {
			postRecv(t, vb, xb, 0, 64)
		}
		switch err := va.PostSend(d, home.Handle()); {
		case !c.good && !errors.Is(err, vipl.ErrInvalidParameter), c.good && err != nil:
			t.Errorf("%d segments in %d bytes: %v", c.segments, c.bytes, err)
		case c.good:
			sent(t, va, 0)
			equal(t, "length", received(t, vb, 0).Length, d.Length)
		}
		noError(t, home.Deregister())
	}
}
