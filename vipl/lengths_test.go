package vipl_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"viaxdp/vipl"
	"viaxdp/wire"
	"viaxdp/xdpnic/xdpnictest"
)

func malformed(c vipl.Counters) uint64 { return c.Malformed }

// target is a connection with one receive at b, and a spy whose frames of 0xee b does not take.
type target struct {
	*spy
	va, vb *vipl.VI
	xa, xb *box
}

func newTarget(t *testing.T, c memoryConfig, level vipl.ReliabilityLevel, size int) *target {
	t.Helper()
	c.gate = true
	n, va, vb := connected(t, c, level)
	x := &target{newSpy(t, n), va, vb, newBox(t, n.a.Nic, 1, size), newBox(t, n.b.Nic, 1, size)}
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

// goesOn checks that the connection is as if nothing had been: the receive serves a's message.
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

// plainFrame is a frame from a to b as b waits for it on v, all right.
func (s *spy) plainFrame(v *vipl.VI, kind wire.Kind, data []byte) []byte {
	s.t.Helper()
	h, ok := v.Expects()
	if !ok {
		s.t.Fatal("frames do not flow")
	}
	template, err := wire.NewTemplate(s.link)
	if err != nil {
		s.t.Fatal(err)
	}
	h.Kind, h.Window, h.Length = kind, 64, uint16(len(data))
	if kind == wire.KindData {
		h.Flags = wire.FlagFirst | wire.FlagLast
	}
	frame := make([]byte, template.Len()+wire.HeaderLen+len(data))
	b := template.Put(frame, wire.HeaderLen+len(data))
	h.Put(b)
	copy(b[wire.HeaderLen:], data)
	wire.PutChecksum(b)
	return frame
}

// Frames whose lengths do not go together are Malformed, whatever their checksum says:
// nothing of them is delivered, and the connection goes on.
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
	sum := func(b []byte) []byte { // over the frame as it came, its VIA header says what it will
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

// The length in a sealed frame, which only who has the key can write, must be right, too.
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

// Records of a frame with several messages whose lengths do not go together are no
// messages. Their checksum is right, so that the peer has sent them so: a reliable VI
// ends the connection, an unreliable one, which has no such frames, goes on.
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
				if x.n.b.Counters().Messages > 0 || bytes.IndexByte(x.xb.buf[0], 0xee) >= 0 {
					t.Error("something was delivered")
				}
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
		if err != nil {
			t.Fatal(err)
		}
		x.queue = whole // its chunks hold such a frame
		good := x.plainFrame(x.vb, wire.KindData, bytes.Repeat([]byte{0xee}, size))
		chained := x.n.b.Counters().Chained
		_, chunk := x.n.b.queue.FrameCap()
		for _, end := range []int{len(good) - 1, 4*chunk + 1, 4 * chunk, 4*chunk - 1, 2 * chunk, chunk + 1, chunk} {
			x.counted(fmt.Sprint("cut to ", end), malformed, 1, func() { x.send(good[:end]) })
		}
		if got := x.n.b.Counters().Chained - chained; got != 6 {
			t.Errorf("%d of 6 frames came in several chunks", got)
		}
		x.nothing("cut")
		x.goesOn()
	})
}
