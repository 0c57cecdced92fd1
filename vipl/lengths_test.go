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
		n := newMemoryNet(t, memoryConfig{gate: true})
		s := newSpy(t, n)
		va, vb := connect(t, n.a.Nic, n.b.Nic, level)
		xa, xb := newBox(t, n.a.Nic, 1, size), newBox(t, n.b.Nic, 1, size)
		postRecv(t, vb, xb, 0, size)
		for _, c := range cases {
			frame := c.change(s.plainFrame(vb, wire.KindData, bytes.Repeat([]byte{0xee}, size)))
			s.counted(c.name, malformed, 1, func() { s.send(frame) })
			if d, err := vb.RecvDone(); d != nil || n.b.Counters().Messages > 0 || bytes.IndexByte(xb.buf[0], 0xee) >= 0 {
				t.Errorf("%s: something was delivered: %v, %v", c.name, d, err)
			}
		}
		stateIs(t, va, vipl.Connected)
		stateIs(t, vb, vipl.Connected)
		fillPattern(xa.buf[0], 1)
		postSend(t, va, xa, 0, size)
		received(t, vb, 0)
		sent(t, va, 0)
		checkPattern(t, xb.buf[0], 1)
	})
}

// The length in a sealed frame, which only who has the key can write, must be right, too.
func TestSealedLengthsThatLie(t *testing.T) {
	const size = 128
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n := newMemoryNet(t, memoryConfig{gate: true, psk: testPSK(t, 1)})
		s := newSpy(t, n)
		va, vb := connect(t, n.a.Nic, n.b.Nic, level)
		xa, xb := newBox(t, n.a.Nic, 1, size), newBox(t, n.b.Nic, 1, size)
		postRecv(t, vb, xb, 0, size)
		for _, length := range []int{0, 1, size - 1, size + 1, 0xffff} {
			frame := va.Sealed(bytes.Repeat([]byte{0xee}, size), length)
			s.counted(fmt.Sprint(length, " bytes"), malformed, 1, func() { s.send(frame) })
			if d, err := vb.RecvDone(); d != nil || n.b.Counters().Messages > 0 || bytes.IndexByte(xb.buf[0], 0xee) >= 0 {
				t.Errorf("%d bytes: something was delivered: %v, %v", length, d, err)
			}
		}
		stateIs(t, va, vipl.Connected)
		stateIs(t, vb, vipl.Connected)
		fillPattern(xa.buf[0], 1)
		postSend(t, va, xa, 0, size)
		received(t, vb, 0)
		sent(t, va, 0)
		checkPattern(t, xb.buf[0], 1)
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
				n := newMemoryNet(t, memoryConfig{gate: true})
				s := newSpy(t, n)
				va, vb := connect(t, n.a.Nic, n.b.Nic, level)
				xb := newBox(t, n.b.Nic, 1, 64)
				postRecv(t, vb, xb, 0, 64)
				s.counted("records", malformed, 1, func() { s.send(s.plainFrame(vb, wire.KindPack, records)) })
				if n.b.Counters().Messages > 0 || bytes.IndexByte(xb.buf[0], 0xee) >= 0 {
					t.Error("something was delivered")
				}
				want := vipl.Error
				if level == vipl.UnreliableDelivery {
					want = vipl.Connected
				}
				stateIs(t, vb, want)
				stateIs(t, va, want)
			})
		})
	}
}

// A frame in several chunks that is cut, in whichever of them, is Malformed.
func TestChainsCut(t *testing.T) {
	const size = 8000
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		c := memoryConfig{gate: true, mtu: 9000, arena: 8 << 20, queue: xdpnictest.Config{MultiBuffer: true}}
		n := newMemoryNet(t, c)
		s := newSpy(t, n)
		whole, err := n.wire.Queue(xdpnictest.Config{MAC: [6]byte{2, 0xbc}, ChunkSize: 16384, TxChunks: 8, RxChunks: 8})
		if err != nil {
			t.Fatal(err)
		}
		s.queue = whole // its chunks hold such a frame
		va, vb := connect(t, n.a.Nic, n.b.Nic, level)
		xa, xb := newBox(t, n.a.Nic, 1, size), newBox(t, n.b.Nic, 1, size)
		postRecv(t, vb, xb, 0, size)
		good := s.plainFrame(vb, wire.KindData, bytes.Repeat([]byte{0xee}, size))
		chained := n.b.Counters().Chained
		_, chunk := n.b.queue.FrameCap()
		for _, end := range []int{len(good) - 1, 4*chunk + 1, 4 * chunk, 4*chunk - 1, 2 * chunk, chunk + 1, chunk} {
			s.counted(fmt.Sprint("cut to ", end), malformed, 1, func() { s.send(good[:end]) })
		}
		if got := n.b.Counters().Chained - chained; got != 6 {
			t.Errorf("%d of 6 frames came in several chunks", got)
		}
		if d, err := vb.RecvDone(); d != nil || n.b.Counters().Messages > 0 || bytes.IndexByte(xb.buf[0], 0xee) >= 0 {
			t.Errorf("something was delivered: %v, %v", d, err)
		}
		stateIs(t, va, vipl.Connected)
		fillPattern(xa.buf[0], 1)
		postSend(t, va, xa, 0, size)
		received(t, vb, 0)
		sent(t, va, 0)
		checkPattern(t, xb.buf[0], 1)
	})
}
