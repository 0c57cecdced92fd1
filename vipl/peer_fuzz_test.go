package vipl_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"viaxdp/internal/base/wire"
	"viaxdp/vipl"
)

// script gives numbers and bytes, and zeros behind its end.
type script struct{ rest []byte }

func (s *script) byte() (v byte) {
	if len(s.rest) > 0 {
		v, s.rest = s.rest[0], s.rest[1:]
	}
	return v
}

func (s *script) word() uint64 {
	var b [8]byte
	for i := range b {
		b[i] = s.byte()
	}
	return binary.LittleEndian.Uint64(b[:])
}

// near is n as a rule, else a number beside it, or any.
func (s *script) near(n uint32) uint32 {
	switch v := s.byte(); {
	case v < 200:
		return n
	case v < 250:
		return n + uint32(int8(s.byte()))
	}
	return uint32(s.word())
}

// What else is in how, beside the level.
const (
	peerLong     = 1 << iota // frames may have several chunks
	peerSealed               // the connection has a key
	peerLies                 // lengths may lie
	peerZeroCopy             // the NIC reads frames of several chunks when it sends them
	peerModes    = 1 << iota
)

// make makes a frame like a peer that knows VI, key and number.
func (p *peerBed) make(s *script, h wire.Header) (wire.Header, []byte) {
	kinds := []wire.Kind{
		wire.KindData, wire.KindAck, wire.KindProbe, wire.KindError, wire.KindClose,
		wire.KindWrite, wire.KindRead, wire.KindReadData, wire.KindPack, wire.KindSealed,
	}
	h.Kind, h.Flags = kinds[int(s.byte())%len(kinds)], wire.Flags(s.byte()&31)
	h.Seq, h.Ack, h.Window = s.near(h.Seq), s.near(h.Ack), uint16(s.byte())
	at, hidden := p.open.Segment(0, p.region).Data, p.shut.Segment(0, len(p.secret)).Data
	addrs := []uint64{at, at - 1, at + uint64(p.region) - 1, at + uint64(p.region), hidden, p.box.segs[0].Data, 0, math.MaxUint64, 1, at + 500}
	handles := []vipl.MemHandle{p.open.Handle(), p.shut.Handle(), p.box.region.Handle(), p.open.Handle() + 1, 0}
	sizes := []uint32{0, 1, uint32(p.region), uint32(p.region) + 1, 500, math.MaxUint32, uint32(p.receive), uint32(p.receive) + 1}
	place := s.byte()
	h.RemoteAddr, h.RemoteHandle = addrs[int(place>>4)%len(addrs)], uint32(handles[int(place&15)%len(handles)])
	switch v := s.byte(); {
	case v < 128:
		h.Immediate = sizes[int(v)%len(sizes)]
	case v < 250:
		h.Immediate = uint32(v - 128)
	default:
		h.Immediate, h.RemoteAddr, h.RemoteHandle = uint32(s.word()), s.word(), uint32(s.word())
	}
	n := 0
	switch v := s.byte(); {
	case v < 100: // length given by the script
		n = min(int(v), len(s.rest))
	case v < 240:
		n = int(sizes[int(v)%5])
	default: // at most one chunk, or several
		n = 1400
		if p.most > 2*n {
			n += int(v-240) * 500
		}
	}
	payload := bytes.Repeat([]byte{0xdd}, n)
	own := n
	if p.mode != 0 && n > 99 { // else nothing would come behind it
		own = 16
	}
	s.rest = s.rest[copy(payload[:own], s.rest):]
	return h, payload
}

// peerSeeds are scripts without lies, by steps.
var peerSeeds = [][]string{
	{"\x00\x00\x0f\x00\x00\x20\x00\x00\x05hello", "\x01", "\x00\x01\x02\x00\x00\x00\x00\x00\x00"},
	{"\x00\x05\x03\x00\x00\x20\x00\x01\xa0", "\x00\x05\x03\x00\x00\x20\x10\x01\x01x", "\x00\x06\x03\x00\x00\x20\x00\x02\x00"},
	{"\x02", "\x02", "\x00\x07\x03\x00\x00\x20\x00\x00\x20abcdefghijklmnopqrstuvwxyz012345", "\x00\x01\x00\x00\xfa\x01\x20\x00\x00",
		"\x08", "\x00\x00\x00\x01\x00\x00\x00\x09"},
	{"\x00\x08\x03\x00\x00\x20\x00\x00\x30\x00\x04\x00\x00abcd\x00\x04\x00\x00efgh", "\x00\x03\x00\x00\x00\x20\x00\x82\x00", "\x04"},
	{"\x00\x06\x03\x00\x00\x20\x41\x04\x00"}, // a read of what is shut
	{"\x00\x05\x03\x00\x00\x20\x41\x00\x68"}, // a write to it
	{"\x00\x05\x03\x00\x00\x20\x20\x00\x68"}, // writes over the end, and before the beginning
	{"\x00\x05\x03\x00\x00\x20\x10\x00\x66"},
	{"\x00\x00\x0f\x00\x00\x20\x00\x00\x66"}, // a message longer than its receive
	// A write of the whole region, a read of it, a message as long as its receive may be, and one like it that is early.
	{"\x00\x05\x03\x00\x00\x20\x00\x00\x66" + sixteen, "\x00\x06\x03\x00\x00\x20\x00\x02\x00", "\x01",
		"\x00\x00\x03\x00\x00\x20\x00\x00\xf2" + sixteen, "\x00\x00\x03\xc8\x01\x00\x20\x00\x00\xf3" + sixteen,
		"\x00\x00\x03\x00\x00\x20\x00\x00\xf3" + sixteen},
	// Messages in one frame. The first takes several chunks, and the last is truncated.
	{"\x00\x08\x03\x00\x00\x20\x00\x00\xf5\x0e\x00\x00\x00" + sixteen[4:], "\x00\x08\x03\x00\x00\x20\x00\x00\xff\x22\x00\x00\x00" + sixteen[4:]},
	// Lengths of each kind, one after the other.
	{"\x00\x00\x03\x00\x00\x20\x00\x00\x10" + sixteen, "\x00\x00\x03\x00\x00\x20\x00\x00\xf1" + sixteen,
		"\x00\x05\x03\x00\x00\x20\x00\x00\xf1" + sixteen, "\x00\x00\x03\x00\x00\x20\x00\x00\x10" + sixteen,
		"\x00\x00\x03\x00\x00\x20\x00\x00\xf1" + sixteen, "\x00\x03\x00\x00\x00\x20\x00\x00\x00",
		"\x00\x05\x03\x00\x00\x20\x00\x00\xf1" + sixteen, "\x00\x04\x00\x00\x00\x20\x00\x00\x00"},
	// Receives that reach past the end of the region that is open: a message that fits, in one frame, in two, and
	// together with others; and one that does not.
	{"\x08", "\x08", hello, hello, "\x00\x00\x03\x00\x00\x20\x00\x00\x10" + sixteen, "\x00\x00\x03\x00\x00\x20\x00\x00\x20" + sixteen + sixteen},
	{"\x08", "\x08", hello, hello, "\x00\x00\x01\x00\x00\x20\x00\x00\x10" + sixteen, "\x00\x00\x02\x00\x00\x20\x00\x00\x04" + sixteen[:4],
		"\x00\x00\x01\x00\x00\x20\x00\x00\x10" + sixteen, "\x00\x00\x02\x00\x00\x20\x00\x00\x05" + sixteen[:5]},
	{"\x08", "\x08", hello, hello, "\x00\x08\x03\x00\x00\x20\x00\x00\x24\x00\x04\x00\x00abcd\x00\x18\x00\x00" + sixteen + "abcdefgh"},
	// A stalled NIC: a send and a write that are acknowledged before they leave, and one of them breaks the
	// connection; and one that is acknowledged, and not taken.
	{"\x07", "\x02", peerAckOne, "\x06", "\x07"},
	{"\x07", "\x03", peerAckOne, "\x06", "\x02", "\x07"},
	{"\x02", "\x07", "\x03", "\x00\x03\x00\x00\x00\x20\x00\x00\x00", "\x06", "\x07"},
	{"\x07", "\x02", peerAckOne},
}

// peerAckOne is an acknowledgement of one frame more than was acknowledged.
const peerAckOne = "\x00\x01\x00\x00\xc8\x01\x20\x00\x00\x00"

const (
	sixteen = "0123456789abcdef"
	hello   = "\x00\x00\x03\x00\x00\x20\x00\x00\x05hello"
)

// peerScript is what a mode makes of them: where lengths lie, each frame does so in another way.
func peerScript(mode byte, steps []string) (text []byte) {
	for i, step := range steps {
		text = append(text, step...)
		if mode&peerLies != 0 && step[0] == 0 {
			text = append(text, byte(i+1)%lies, byte(1+i*37), byte(i&3), 0x80)
		}
	}
	return text
}

// A peer may send what it likes, as the one that the connection is with, while the program does what programs do:
// nothing outside of what is open is written or read, nothing comes down, descriptors are given back once and no more,
// no chunk is kept, and nothing leaves that the program has written behind the end of a send, also where its NIC stalls.
// how is the level, and what frames there are: of several chunks, sealed, with lengths that lie.
func FuzzPeer(f *testing.F) {
	psk := testPSK(f, 1)
	for how := range byte(3 * peerModes) {
		for _, steps := range peerSeeds {
			f.Add(how, peerScript(how/3, steps))
		}
	}
	beds := [3]*peerBed{newPeerBed(f, false, false), newPeerBed(f, true, false), newPeerBed(f, true, true)}
	f.Fuzz(func(t *testing.T, how byte, text []byte) {
		s := &script{text[:min(len(text), 512)]}
		if bytes.Contains(text, []byte(unread)) || bytes.Contains(text, []byte(afterwards)) {
			return
		}
		level, mode := levels[how%3], how/3%peerModes
		p := beds[0]
		if mode&peerLong != 0 {
			p = beds[1+mode&peerZeroCopy/peerZeroCopy]
		}
		if p.broken {
			t.Skip("an input before this one has failed")
		}
		defer func() { p.broken = t.Failed() }()
		p.renew(mode)
		attrs := vipl.VIAttributes{Level: level, Ptag: p.tag, EnableRDMAWrite: true}
		attrs.EnableRDMARead = attrs.Level != vipl.UnreliableDelivery
		if p.mode&peerSealed != 0 {
			attrs.PSK = psk
		}
		vb := createVI(t, p.n.b.NIC, attrs, nil, nil)
		attrs.Ptag = nil
		va := createVI(t, p.n.a.NIC, attrs, nil, nil)
		join(t, p.n.a.NIC, va, p.n.b.NIC, vb)
		p.play(t, s, va, vb)
		if what := p.intact(); what != "" {
			t.Fatal(what)
		}
	})
}

// play executes one step of the script: a frame of the peer, or an action of the program.
func (p *peerBed) play(t *testing.T, s *script, va, vb *vipl.VI) {
	t.Helper()
	free := p.box.desc[:len(p.box.desc):len(p.box.desc)]
	of := make(map[*vipl.Descriptor]int) // the buffer
	for i, d := range p.box.desc {
		of[d] = i
	}
	posted := make(map[*vipl.Descriptor]bool)
	post := func(prepare func(d *vipl.Descriptor, i int), on func(*vipl.Descriptor, vipl.MemHandle) error) {
		if len(free) == 0 {
			return
		}
		d := free[0]
		d.Control = 0
		prepare(d, of[d])
		for i, b := 0, p.box.buf[of[d]]; i < p.receive; i++ {
			b[i] = 0x77 // what is sent, if it is
		}
		if on(d, p.box.region.Handle()) == nil {
			posted[d], free = true, free[1:]
		}
	}
	done := func(take func() (*vipl.Descriptor, error)) {
		for d, _ := take(); d != nil; d, _ = take() {
			fatalIf(t, !posted[d], "a descriptor was given back that was not posted")
			delete(posted, d)
			free = append(free, d)
			copy(p.box.buf[of[d]][:p.receive], bytes.Repeat([]byte(afterwards), 1+p.receive/len(afterwards)))
		}
	}
	stalled := false
	stall := func(on bool) {
		stalled = on
		p.stall(on)
	}
	segment := func(i int) vipl.DataSegment {
		g := p.box.segs[i]
		g.Length = uint32(p.receive)
		return g
	}
	recv := func(d *vipl.Descriptor, i int) { d.SetSegments(segment(i)) }
	remote := vipl.AddressSegment{Data: 1 << 20, Handle: 1}
	post(recv, vb.PostRecv)
	post(recv, vb.PostRecv)
	for len(s.rest) > 0 {
		switch what := s.byte(); what % 16 {
		case 1:
			post(recv, vb.PostRecv)
		case 2:
			post(recv, vb.PostSend)
		case 3:
			post(func(d *vipl.Descriptor, i int) { d.SetRDMAWrite(remote, segment(i)) }, vb.PostSend)
		case 4, 5:
			post(func(d *vipl.Descriptor, i int) { d.SetRDMARead(remote, segment(i)) }, vb.PostSend)
		case 6:
			done(vb.SendDone)
			done(vb.RecvDone)
		case 7:
			stall(!stalled)
		case 8: // past the end of what is open
			post(func(d *vipl.Descriptor, _ int) { d.SetSegments(p.open.Segment(p.region-20, p.receive), segment(0)) }, vb.PostRecv)
		default:
			if head, ok := vb.Expects(); ok {
				h, payload := p.make(s, head)
				var l lie
				if p.mode&peerLies != 0 {
					l = lie{s.byte() % lies, uint16(s.byte()) | uint16(s.byte())<<8, s.byte()}
				}
				if frame, spoilt := p.frame(1, va, h, payload, l); spoilt {
					p.spoil(t, vb, frame, l)
				} else {
					p.tell(t, frame, l)
				}
			}
		}
	}
	p.listen(t, va)
	// The peer breaks the connection, unless it is broken, as it does at the other end.
	for i, v := range []*vipl.VI{va, vb} {
		for h, ok := v.Expects(); ok; h, ok = v.Expects() {
			h.Kind, h.Immediate = wire.KindError, uint32(wire.ReasonClosed)
			frame, _ := p.frame(i, []*vipl.VI{vb, va}[i], h, nil, lie{})
			p.send(t, i, frame)
		}
	}
	done(vb.SendDone)
	done(vb.RecvDone)
	if p.mode&(peerZeroCopy|peerSealed) != 0 {
		stall(false) // Disconnect would wait for the first, and take away the key of the second
	}
	p.listen(t, va)
	disconnect(t, va, vb)
	done(vb.SendDone)
	done(vb.RecvDone)
	stall(false)
	fatalIf(t, len(posted) > 0, "%d descriptors were not given back", len(posted))
	for _, v := range []*vipl.VI{va, vb} {
		must(t, v.Destroy())
	}
}
