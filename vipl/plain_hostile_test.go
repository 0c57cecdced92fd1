package vipl_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"viaxdp/internal/base/wire"
	"viaxdp/vipl"
)

// Where a frame of the tests' IPv4 hosts has its VIA header.
const viaAt = 14 + 20 + 8

// mended returns frame with a valid checksum.
func mended(frame []byte) []byte {
	wire.PutChecksum(frame[viaAt : 14+20+int(binary.BigEndian.Uint16(frame[14+20+4:]))])
	return frame
}

// On a plain connection, replayed frames, frames of the last connection of the same VIs, and frames that are
// reflected to their sender change nothing, and each is counted.
func TestReplayedAndReflectedOnPlain(t *testing.T) {
	duplicate := func(c vipl.Counters) uint64 { return c.Duplicate }
	wrongKey := func(c vipl.Counters) uint64 { return c.WrongKey }
	wrongSource := func(c vipl.Counters) uint64 { return c.WrongSource }
	unknown := func(c vipl.Counters) uint64 { return c.UnknownVI }
	corrupt := func(c vipl.Counters) uint64 { return c.Corrupt }
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		n := newMemoryNet(t, memoryConfig{gate: true})
		s := newSpy(t, n)
		va, vb := connect(t, n.a.NIC, n.b.NIC, level)
		xa, xb := newBox(t, n.a.NIC, 2, 64), newBox(t, n.b.NIC, 2, 64)
		said := 0
		talk := func() {
			t.Helper()
			said++
			fillPattern(xa.buf[0], said)
			postRecv(t, vb, xb, 0, 64)
			postSend(t, va, xa, 0, 64)
			received(t, vb, 0)
			sent(t, va, 0)
			checkPattern(t, xb.buf[0], said)
			postRecv(t, va, xa, 1, 64)
			postSend(t, vb, xb, 1, 64)
			received(t, va, 0)
			sent(t, vb, 0)
		}
		untouched := func(when string) {
			t.Helper()
			d, err := vb.RecvDone()
			errorIf(t, d != nil || n.b.Counters().Messages != uint64(said), "%s: something was delivered: %v, %v", when, d, err)
			statesAre(t, vipl.Connected, va, vb)
			talk()
		}
		talk()
		known := s.last()
		old := s.frames(0)
		var p wire.Packet
		for _, frame := range old {
			must(t, p.Decode(frame))
			if p.Kind == wire.KindData || p.Kind == wire.KindPack {
				s.counted("repeated", duplicate, 1, func() { s.send(frame) })
			}
		}
		untouched("repeated")

		back := s.frames(1) // what b has sent, back to it
		for _, frame := range back {
			b := bytes.Clone(frame)
			copy(b, b[6:12])
			copy(b[6:], s.link.SrcMAC[:])
			fatalIf(t, p.Decode(b) != nil, "not a frame")
			strange := wrongKey
			if p.VI != known.VI {
				strange = unknown
			}
			s.counted("turned back", strange, 1, func() { s.send(b) })
			binary.BigEndian.PutUint32(b[viaAt+4:], known.VI)
			binary.BigEndian.PutUint64(b[viaAt+8:], known.Key)
			s.counted("turned back, with VI and key", wrongSource, 1, func() { s.send(mended(bytes.Clone(b))) })
			src, dst := s.link.Src.As4(), s.link.Dst.As4()
			copy(b[26:], src[:])
			copy(b[30:], dst[:])
			s.counted("turned back, with VI, key and source", corrupt, 1, func() { s.send(b) })
		}
		untouched("turned back")

		for _, v := range []*vipl.VI{va, vb} {
			must(t, v.Disconnect())
		}
		old = s.frames(0) // the good-bye is among them
		join(t, n.a.NIC, va, n.b.NIC, vb)
		talk()
		now := s.last()
		fatalIf(t, now.VI != known.VI || now.Key == known.Key, "VI %#x and key %#x, before %#x and %#x", now.VI, now.Key, known.VI, known.Key)
		for _, frame := range old {
			s.counted("of the last connection", wrongKey, 1, func() { s.send(frame) })
		}
		untouched("of the last connection")
	})
}

// What a peer of a reliable VI asks for by one byte or one handle too much is neither
// written nor read: it is counted and ends the connection.
func TestReliablePeerReachesOutside(t *testing.T) {
	eachLevel(t, reliableLevels, func(t *testing.T, level vipl.ReliabilityLevel) {
		for _, kind := range []wire.Kind{wire.KindWrite, wire.KindRead} {
			name := map[wire.Kind]string{wire.KindWrite: "write", wire.KindRead: "read"}[kind]
			t.Run(name, func(t *testing.T) { testReachesOutside(t, level, kind) })
		}
	})
}

func testReachesOutside(t *testing.T, level vipl.ReliabilityLevel, kind wire.Kind) {
	const size = 1000
	n := newMemoryNet(t, memoryConfig{gate: true})
	s := newSpy(t, n)
	tag := mustTag(t, n.b.NIC)
	around := make([]byte, 3*size)
	for i := range around {
		around[i] = 0x11
	}
	in := around[size : 2*size]
	right := vipl.MemAttributes{Ptag: tag, EnableRDMAWrite: kind == wire.KindWrite, EnableRDMARead: kind == wire.KindRead}
	wrong := vipl.MemAttributes{Ptag: tag, EnableRDMAWrite: kind != wire.KindWrite, EnableRDMARead: kind != wire.KindRead}
	foreign := right
	foreign.Ptag = mustTag(t, n.b.NIC)
	regions := make(map[string]*vipl.Region)
	for name, a := range map[string]vipl.MemAttributes{"open": right, "shut": wrong, "foreign": foreign} {
		region, err := n.b.RegisterMem(in, a)
		must(t, err)
		regions[name] = region
	}
	open := regions["open"].Handle()
	at := regions["open"].Segment(0, size).Data
	// answers counts the frames of b that have data which was read.
	answers := func() (count int) {
		var p wire.Packet
		for _, frame := range s.frames(1) {
			if p.Decode(frame) == nil && p.Kind == wire.KindReadData {
				count++
				errorIf(t, !bytes.Equal(p.Payload, in), "an answer of %d bytes, which are not the region's", len(p.Payload))
			}
		}
		return count
	}
	for _, c := range []struct {
		name   string
		addr   uint64
		handle vipl.MemHandle
		length int
		good   bool
	}{
		{"the byte before", at - 1, open, 1, false},
		{"from the byte before", at - 1, open, size, false},
		{"the byte behind", at + size, open, 1, false},
		{"one byte too many", at, open, size + 1, false},
		{"one byte too many at the end", at + size - 1, open, 2, false},
		{"address 0", 0, open, 1, false},
		{"the highest address", math.MaxUint64, open, 2, false},
		{"wrapping to the region", at - 1<<63, open, 1, false},
		{"handle 0", at, 0, 1, false},
		{"the handle one less", at, open - 1, 1, false},
		{"the next generation", at, open + 1<<20, 1, false},
		{"a region without the right", at, regions["shut"].Handle(), 1, false},
		{"a region of another tag", at, regions["foreign"].Handle(), 1, false},
		{"all of the region", at, open, size, true},
	} {
		var vis [2]*vipl.VI
		for i, h := range []*memoryHost{n.a, n.b} {
			a := vipl.VIAttributes{Level: level, EnableRDMAWrite: true, EnableRDMARead: true}
			if i == 1 {
				a.Ptag = tag
			}
			v, err := h.CreateVI(a, nil, nil)
			must(t, err)
			vis[i] = v
		}
		join(t, n.a.NIC, vis[0], n.b.NIC, vis[1])
		h, ok := vis[1].Expects()
		fatalIf(t, !ok, "frames do not flow")
		h.Kind, h.Window, h.RemoteAddr, h.RemoteHandle = kind, 64, c.addr, uint32(c.handle)
		var data []byte
		if kind == wire.KindRead {
			h.Immediate = uint32(c.length)
		} else {
			h.Flags = wire.FlagFirst | wire.FlagLast
			data = bytes.Repeat([]byte{0xee}, c.length)
		}
		before := n.b.Counters()
		if c.good {
			s.counted(c.name, func(c vipl.Counters) uint64 { return c.Writes + c.Reads }, 1, func() { s.forge(h, data) })
			stateIs(t, vis[1], vipl.Connected)
			equal(t, "RDMARefused", n.b.Counters().RDMARefused, before.RDMARefused)
		} else {
			s.counted(c.name, func(c vipl.Counters) uint64 { return c.RDMARefused }, 1, func() { s.forge(h, data) })
			stateIs(t, vis[1], vipl.Error)
			stateIs(t, vis[0], vipl.Error) // its peer hears of it
			after := n.b.Counters()
			errorIf(t, after.Writes+after.Reads != before.Writes+before.Reads, "%s: counted as done", c.name)
			i := bytes.IndexByte(around, 0xee)
			fatalIf(t, i >= 0, "%s: byte %d was written", c.name, i-size)
			fatalIf(t, answers() > 0, "%s: it was answered", c.name)
		}
	}
	switch {
	case kind == wire.KindRead && answers() != 1:
		t.Errorf("%d answers, want one", answers())
	case kind == wire.KindWrite && !bytes.Equal(around, slicesOf(size, 0x11, 0xee, 0x11)):
		t.Error("the write is not exactly in the region")
	}
	for name, region := range regions { // at the end of a test that has come to it: a panic leaves the engine locked
		err := region.Deregister()
		errorIf(t, err != nil, "%s: %v", name, err)
	}
}

// slicesOf is size bytes of each of these values.
func slicesOf(size int, values ...byte) (b []byte) {
	for _, v := range values {
		b = append(b, bytes.Repeat([]byte{v}, size)...)
	}
	return b
}

// An unreliable VI serves no reads, of what is open neither.
func TestUnreliableServesNoReads(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{gate: true})
	s := newSpy(t, n)
	va, vb := openVI(t, n.a.NIC, vipl.UnreliableDelivery), openVI(t, n.b.NIC, vipl.UnreliableDelivery)
	join(t, n.a.NIC, va, n.b.NIC, vb)
	x := openBox(t, n.b.NIC)
	for k := range 3 {
		h, _ := vb.Expects()
		h.Kind, h.Immediate = wire.KindRead, 8
		h.RemoteAddr, h.RemoteHandle = x.remote(0).Data, uint32(x.region.Handle())
		s.counted(fmt.Sprint("read ", k), func(c vipl.Counters) uint64 { return c.Malformed }, 1, func() { s.forge(h, nil) })
	}
	var p wire.Packet
	for _, frame := range s.frames(1) {
		errorIf(t, p.Decode(frame) == nil && p.Kind == wire.KindReadData, "it was answered")
	}
	stateIs(t, vb, vipl.Connected)
}
