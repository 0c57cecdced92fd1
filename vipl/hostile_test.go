package vipl_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
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
	s := &spy{t: t, n: n, queue: n.attacker(t, xdpnictest.Config{}), link: linkTo(n.a, n.b)}
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
	s.send(forged(s.t, s.link, h, payload))
}

// forged is such a frame from one host to another.
func forged(t *testing.T, l wire.Link, h wire.Header, payload []byte) []byte {
	t.Helper()
	template, err := wire.NewTemplate(l)
	must(t, err)
	h.Length = uint16(len(payload))
	return xdpnictest.Frame(&template, h, payload)
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
	got := counter(s.n.b.Counters()) - before
	errorIf(s.t, got != n, "%s: counted %d times, want %d", what, got, n)
}

// Where a frame of the tests' IPv4 hosts has its VIA header.
const viaAt = 14 + 20 + 8

// turned is a frame of b on its way back to b.
func (s *spy) turned(frame []byte) []byte {
	b := bytes.Clone(frame)
	copy(b, b[6:12])
	copy(b[6:], s.link.SrcMAC[:])
	return b
}

// posing is that frame with VI and key of b, and a as its source.
func (s *spy) posing(turned []byte, known wire.Header) []byte {
	b := bytes.Clone(turned)
	src, dst := s.link.Src.As4(), s.link.Dst.As4()
	copy(b[26:], src[:])
	copy(b[30:], dst[:])
	binary.BigEndian.PutUint32(b[viaAt+4:], known.VI)
	binary.BigEndian.PutUint64(b[viaAt+8:], known.Key)
	return b
}

// expected is the header of a valid frame of that kind, which b expects next on v.
func (s *spy) expected(v *vipl.VI, kind wire.Kind) wire.Header {
	s.t.Helper()
	h, ok := v.Expects()
	fatalIf(s.t, !ok, "frames do not flow")
	h.Kind, h.Window = kind, 64
	if kind == wire.KindData || kind == wire.KindWrite {
		h.Flags = wire.FlagFirst | wire.FlagLast
	}
	return h
}

// overheard is a connection whose sides talk, and an attacker on the wire between them.
type overheard struct {
	target
	said int // messages to b
}

func newOverheard(t *testing.T, psk *vipl.PSK, level vipl.ReliabilityLevel) *overheard {
	t.Helper()
	n, va, vb, xa, xb := connectedBoxes(t, memoryConfig{gate: true, psk: psk}, level, 2, 2, 64)
	return &overheard{target{newSpy(t, n), va, vb, xa, xb}, 0}
}

// talk sends a message each way.
func (o *overheard) talk() {
	o.t.Helper()
	o.said++
	fillPattern(o.xa.buf[0], o.said)
	exchangeOne(o.t, o.va, o.vb, o.xa, o.xb)
	checkPattern(o.t, o.xb.buf[0], o.said)
}

// untouched checks that the attacker has changed nothing.
func (o *overheard) untouched(when string) {
	o.t.Helper()
	d, err := o.vb.RecvDone()
	got := o.n.b.Counters().Messages
	errorIf(o.t, d != nil || got != uint64(o.said), "%s: %d messages of %d were delivered: %v, %v", when, got, o.said, d, err)
	statesAre(o.t, vipl.Connected, o.va, o.vb)
	o.talk()
}

// again connects the same VIs again.
func (o *overheard) again() {
	o.t.Helper()
	disconnect(o.t, o.va, o.vb)
	join(o.t, o.n.a.NIC, o.va, o.n.b.NIC, o.vb)
	o.talk()
}

// An attacker that sees everything of a connection with a key and sends any frames changes nothing: frames of
// every kind as a plain connection would accept them, and sealed frames that were changed, repeated, reflected,
// or come from the last connection.
func TestForgedOnSealed(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		o := newOverheard(t, testPSK(t, 1), level)
		o.talk()
		known := o.last() // VI and key, and what else is in clear

		kinds := []wire.Kind{
			wire.KindData, wire.KindAck, wire.KindProbe, wire.KindError, wire.KindClose,
			wire.KindWrite, wire.KindRead, wire.KindReadData, wire.KindPack,
		}
		unsealed := func(c vipl.Counters) uint64 { return c.Unsealed }
		forgeries := func(c vipl.Counters) uint64 { return c.Forged }
		wrongKey := func(c vipl.Counters) uint64 { return c.WrongKey }
		for _, k := range kinds {
			h := wire.Header{Kind: k, VI: known.VI, Key: known.Key, Immediate: uint32(wire.ReasonClosed)}
			o.counted(fmt.Sprintf("plain frame of kind %d", k), unsealed, 1, func() { o.forge(h, nil) })
		}
		old := o.frames(0)
		replayed := func(c vipl.Counters) uint64 { return c.Replayed }
		for i, frame := range old {
			o.counted("repeated", replayed, 1, func() { o.send(frame) })
			for name, change := range map[string]func(b []byte){
				"number":       func(b []byte) { binary.BigEndian.PutUint64(b[16:], uint64(1000+i)) },
				"high number":  func(b []byte) { binary.BigEndian.PutUint64(b[16:], math.MaxUint64) },
				"epoch":        func(b []byte) { b[3]++; b[23] = 200 },
				"another text": func(b []byte) { b[30] ^= 1; b[22] = 1 },
				"another tag":  func(b []byte) { b[len(b)-1] ^= 1; b[22] = 1 },
			} {
				b := bytes.Clone(frame)
				change(b[viaAt:])
				o.counted(name, forgeries, 1, func() { o.send(b) })
			}
		}
		for _, frame := range o.frames(1) {
			b := o.posing(o.turned(frame), known)
			number := b[viaAt+16:]
			binary.BigEndian.PutUint64(number, 500+binary.BigEndian.Uint64(number))
			o.counted("turned back", forgeries, 1, func() { o.send(b) })
		}
		o.untouched("with a key")

		o.again()
		known = o.last()
		for _, frame := range old {
			o.counted("of the last connection", wrongKey, 1, func() { o.send(frame) })
			b := bytes.Clone(frame)
			binary.BigEndian.PutUint64(b[viaAt+8:], known.Key)
			binary.BigEndian.PutUint64(b[viaAt+16:], 1000)
			o.counted("of the last connection, with this one's key", forgeries, 1, func() { o.send(b) })
		}
		o.untouched("of the last connection")
	})
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
		o := newOverheard(t, nil, level)
		o.talk()
		known := o.last()
		var p wire.Packet
		for _, frame := range o.frames(0) {
			must(t, p.Decode(frame))
			if p.Kind == wire.KindData || p.Kind == wire.KindPack {
				o.counted("repeated", duplicate, 1, func() { o.send(frame) })
			}
		}
		o.untouched("repeated")

		for _, frame := range o.frames(1) {
			must(t, p.Decode(frame))
			strange := wrongKey
			if p.VI != known.VI {
				strange = unknown
			}
			back := o.turned(frame)
			o.counted("turned back", strange, 1, func() { o.send(back) })
			b := o.posing(back, known)
			o.counted("turned back, with VI, key and source", corrupt, 1, func() { o.send(b) })
			copy(b[26:], frame[26:34]) // not from a
			wire.PutChecksum(b[viaAt : 14+20+int(binary.BigEndian.Uint16(b[14+20+4:]))])
			o.counted("turned back, with VI and key", wrongSource, 1, func() { o.send(b) })
		}
		o.untouched("turned back")

		o.again()
		old := o.frames(0) // the good-bye is among them
		now := o.last()
		fatalIf(t, now.VI != known.VI || now.Key == known.Key, "VI %#x and key %#x, before %#x and %#x", now.VI, now.Key, known.VI, known.Key)
		for _, frame := range old {
			must(t, p.Decode(frame))
			if p.Key == known.Key {
				o.counted("of the last connection", wrongKey, 1, func() { o.send(frame) })
			}
		}
		o.untouched("of the last connection")
	})
}

// target is a connection, and an attacker on the wire.
type target struct {
	*spy
	va, vb *vipl.VI
	xa, xb *box
}

// newTarget makes one with a receive at b. The attacker sends frames of 0xee that b must not accept.
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

// Foreign frames that the demux program let through, as it may while a VI is replaced, reach no descriptor: the
// engine checks VI number, key and source again.
func TestForgedFrames(t *testing.T) {
	wrongKey := func(c vipl.Counters) uint64 { return c.WrongKey }
	wrongSource := func(c vipl.Counters) uint64 { return c.WrongSource }
	unknown := func(c vipl.Counters) uint64 { return c.UnknownVI }
	outside := func(c vipl.Counters) uint64 { return c.OutsideWindow }
	badAcks := func(c vipl.Counters) uint64 { return c.BadAcks }
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
		x := newTarget(t, memoryConfig{}, level, 64)
		ack := func(h *wire.Header) { h.Kind, h.Flags = wire.KindAck, 0 }
		other := x.link
		other.Src = netip.MustParseAddr("10.250.0.9")
		for _, f := range []struct {
			name     string
			from     wire.Link
			change   func(*wire.Header)
			payload  int
			counter  func(vipl.Counters) uint64
			reliable bool // there is no such thing on an unreliable VI
		}{
			{"key", x.link, func(h *wire.Header) { h.Key ^= 1 }, 0, wrongKey, false},
			{"source", other, func(*wire.Header) {}, 0, wrongSource, false},
			{"generation", x.link, func(h *wire.Header) { h.VI += 1 << 16 }, 0, unknown, false},
			{"beyond the window", x.link, func(h *wire.Header) { h.Seq += 5000 }, 0, outside, true},
			{"acknowledgement of what was never sent", x.link, func(h *wire.Header) { ack(h); h.Ack += 100 }, 0, badAcks, true},
			{"ranges in disorder", x.link, ack, 2 * wire.RangeLen, badAcks, true},
		} {
			if f.reliable && level == vipl.UnreliableDelivery {
				continue
			}
			h := x.expected(x.vb, wire.KindData)
			f.change(&h)
			x.counted(f.name, f.counter, 1, func() { x.send(forged(t, f.from, h, make([]byte, f.payload))) })
			x.nothing(f.name)
		}
		// A frame that is valid, but arrives on a link that is not the connection's.
		good := forged(t, x.link, x.expected(x.vb, wire.KindData), nil)
		x.counted("by another link", wrongSource, 1, func() { x.n.b.ArriveByLink(good) })
		x.nothing("by another link")
		x.goesOn() // and the sequence was not moved
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
				malformed := func(c vipl.Counters) uint64 { return c.Malformed }
				x.counted("records", malformed, 1, func() { x.forge(x.expected(x.vb, wire.KindPack), records) })
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

// A peer may ask for 16 RDMA reads before the first is answered. One more ends the connection.
func TestReadsAtOnce(t *testing.T) {
	n := newMemoryNet(t, memoryConfig{gate: true})
	s := newSpy(t, n)
	_, vb := openPair(t, n.a.NIC, n.b.NIC, vipl.ReliableDelivery)
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

// A peer, or an attacker on the path of a plain connection who knows VI, key and source, asks for one byte or one
// handle too much: nothing is written or read, every attempt is counted, and a reliable connection ends. An unreliable
// VI serves no reads, of what is open neither.
func TestPeerReachesOutside(t *testing.T) {
	eachLevel(t, levels, func(t *testing.T, level vipl.ReliabilityLevel) {
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
	around := bytes.Repeat([]byte{0x11}, 3*size)
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
	served := func(c vipl.Counters) uint64 { return c.Writes + c.Reads }
	refused, after := func(c vipl.Counters) uint64 { return c.RDMARefused }, vipl.Error
	noReads := level == vipl.UnreliableDelivery && kind == wire.KindRead
	if level == vipl.UnreliableDelivery {
		after = vipl.Connected
	}
	if noReads {
		refused = func(c vipl.Counters) uint64 { return c.Malformed }
	}
	// answers counts the frames of b that have data which was read.
	answers := func() (count int) {
		var p wire.Packet
		for _, frame := range s.frames(1) {
			if p.Decode(frame) == nil && p.Kind == wire.KindReadData {
				count++
				errorIf(t, len(p.Payload) > 0 && !bytes.Equal(p.Payload, in), "an answer of %d bytes, which are not the region's", len(p.Payload))
			}
		}
		return count
	}
	good := 0
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
		{"no bytes at all", math.MaxUint64, 0, 0, true},
		{"all of the region", at, open, size, true},
	} {
		va := openVI(t, n.a.NIC, level)
		vb := createVI(t, n.b.NIC, vipl.VIAttributes{
			Level: level, Ptag: tag, EnableRDMAWrite: true, EnableRDMARead: level != vipl.UnreliableDelivery,
		}, nil, nil)
		join(t, n.a.NIC, va, n.b.NIC, vb)
		h, data := s.expected(vb, kind), []byte(nil)
		h.RemoteAddr, h.RemoteHandle = c.addr, uint32(c.handle)
		if kind == wire.KindRead {
			h.Immediate = uint32(c.length)
		} else {
			data = bytes.Repeat([]byte{0xee}, c.length)
		}
		counter, want, isServed := refused, after, c.good && !noReads
		if isServed {
			counter, want = served, vipl.Connected
			good++
		}
		before := n.b.Counters()
		s.counted(c.name, counter, 1, func() { s.forge(h, data) })
		if kind == wire.KindWrite || !isServed { // a has not asked for an answer, and ends the connection
			statesAre(t, want, vb, va)
		}
		now := n.b.Counters()
		errorIf(t, served(now)+refused(now) != served(before)+refused(before)+1, "%s: counted twice", c.name)
		if !isServed {
			i := bytes.IndexByte(around, 0xee)
			fatalIf(t, i >= 0, "%s: byte %d was written", c.name, i-size)
			fatalIf(t, answers() > good, "%s: it was answered", c.name)
		}
	}
	want := bytes.Repeat([]byte{0x11}, 3*size)
	if kind == wire.KindWrite {
		copy(want[size:], bytes.Repeat([]byte{0xee}, size))
	} else {
		equal(t, "answers", answers(), good)
	}
	errorIf(t, !bytes.Equal(around, want), "the write is not exactly in the region")
	for name, region := range regions { // at the end of a test that has come to it: a panic leaves the engine locked
		wantError(t, name, region.Deregister(), nil)
	}
}
