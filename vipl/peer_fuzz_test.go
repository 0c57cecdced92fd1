package vipl_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"viaxdp/vipl"
	"viaxdp/wire"
	"viaxdp/xdpnic/xdpnictest"
)

// unread is what the region is full of that is not open. It is no part of any script.
const unread = "nobody may read this"

const (
	peerRegion  = 1000 // bytes of the region that is open, and of each that is not
	peerReceive = 100  // bytes that a receive takes, of a buffer of 128
	peerBuffers = 8
)

// peerBed is a host b, whose peer sends it what a script says. It serves many scripts, each with VIs of its own.
type peerBed struct {
	n      *memoryNet
	queue  *xdpnictest.Queue // of the peer
	ways   [2]wire.Template  // of frames to a, and to b
	frame  []byte
	tag    *vipl.Ptag
	around []byte // in the middle of it is what is open
	secret []byte // what nobody may read
	open   *vipl.Region
	shut   *vipl.Region
	box    *box
	told   atomic.Bool // that was sent
	broken bool        // an input has failed, and left VIs and descriptors behind
}

func newPeerBed(f *testing.F) *peerBed {
	p := &peerBed{
		n: newMemoryNet(f, memoryConfig{gate: true}), frame: make([]byte, 4096), around: make([]byte, 3*peerRegion),
		secret: make([]byte, peerRegion),
	}
	var err error
	if p.queue, err = p.n.wire.Queue(xdpnictest.Config{MAC: [6]byte{2, 0xbb}}); err != nil {
		f.Fatal(err)
	}
	a, b := p.n.a, p.n.b
	for i, to := range []*memoryHost{a, b} {
		from := []*memoryHost{b, a}[i]
		if p.ways[i], err = wire.NewTemplate(wire.Link{
			SrcMAC: from.agent.Link().MAC, DstMAC: to.agent.Link().MAC, Src: from.agent.Addr(), Dst: to.agent.Addr(),
		}); err != nil {
			f.Fatal(err)
		}
		to.ErrorCallback(func(vipl.ErrorDescriptor) {})
		to.queue.SetFaults(xdpnictest.Faults{Drop: func(frame []byte) bool {
			if bytes.Contains(frame, []byte(unread)) {
				p.told.Store(true)
			}
			return true // the script speaks for the peer
		}})
	}
	p.tag = mustTag(f, b.Nic)
	if p.open, err = b.RegisterMem(p.around[peerRegion:2*peerRegion], vipl.MemAttributes{
		Ptag: p.tag, EnableRdmaWrite: true, EnableRdmaRead: true,
	}); err != nil {
		f.Fatal(err)
	}
	if p.shut, err = b.RegisterMem(p.secret, vipl.MemAttributes{Ptag: p.tag}); err != nil {
		f.Fatal(err)
	}
	p.box = newBoxTagged(f, b.Nic, p.tag, peerBuffers, 128)
	f.Cleanup(func() {
		for _, r := range []*vipl.Region{p.open, p.shut} {
			if err := r.Deregister(); err != nil {
				f.Error(err)
			}
		}
	})
	return p
}

// renew makes the memory what it was.
func (p *peerBed) renew() {
	clear(p.around)
	copy(p.secret, bytes.Repeat([]byte(unread), peerRegion/len(unread)))
	for _, b := range p.box.buf {
		clear(b)
	}
	p.told.Store(false)
}

// send sends a frame to a (0) or b (1), its lengths and checksum right, and waits until it was looked at.
func (p *peerBed) send(t *testing.T, to int, h wire.Header, payload []byte) {
	t.Helper()
	way, host := &p.ways[to], []*memoryHost{p.n.a, p.n.b}[to]
	h.Length = uint16(len(payload))
	b := way.Put(p.frame, wire.HeaderLen+len(payload))
	h.Put(b)
	copy(b[wire.HeaderLen:], payload)
	wire.PutChecksum(b)
	addr, chunk, ok := p.queue.Alloc()
	for ; !ok; addr, chunk, ok = p.queue.Alloc() {
		p.queue.Reap()
	}
	frames := host.Counters().Frames
	if !p.queue.Send(addr, copy(chunk, p.frame[:way.Len()+wire.HeaderLen+len(payload)]), false) {
		t.Fatal("the ring is full")
	}
	if err := p.queue.Flush(); err != nil {
		t.Fatal(err)
	}
	for start := time.Now(); host.Counters().Frames == frames; host.Poll() {
		if time.Since(start) > patience/4 { // less than an input may take
			t.Fatalf("a frame does not arrive: %+v", host.Counters())
		}
	}
}

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

// make makes a frame as a peer can, who knows VI, key and number.
func (p *peerBed) make(s *script, h wire.Header) (wire.Header, []byte) {
	kinds := []wire.Kind{
		wire.KindData, wire.KindAck, wire.KindProbe, wire.KindError, wire.KindClose,
		wire.KindWrite, wire.KindRead, wire.KindReadData, wire.KindPack, wire.KindSealed,
	}
	h.Kind, h.Flags = kinds[int(s.byte())%len(kinds)], wire.Flags(s.byte()&31)
	h.Seq, h.Ack, h.Window = s.near(h.Seq), s.near(h.Ack), uint16(s.byte())
	at, hidden := p.open.Segment(0, peerRegion).Data, p.shut.Segment(0, len(p.secret)).Data
	addrs := []uint64{at, at - 1, at + peerRegion - 1, at + peerRegion, hidden, p.box.segs[0].Data, 0, math.MaxUint64, 1, at + 500}
	handles := []vipl.MemHandle{p.open.Handle(), p.shut.Handle(), p.box.region.Handle(), p.open.Handle() + 1, 0}
	sizes := []uint32{0, 1, peerRegion, peerRegion + 1, 500, math.MaxUint32, peerReceive, peerReceive + 1}
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
	case v < 100: // as much as a script says itself
		n = min(int(v), len(s.rest))
	case v < 240:
		n = int(sizes[int(v)%5])
	default:
		n = 1400
	}
	payload := bytes.Repeat([]byte{0xdd}, n)
	s.rest = s.rest[copy(payload, s.rest):]
	return h, payload
}

// A peer may send what it likes, as the one that the connection is with, while the program does what programs do:
// nothing outside of what is open is written or read, nothing comes down, descriptors are given back once and no more,
// and no chunk is kept.
func FuzzPeer(f *testing.F) {
	for level := range byte(3) {
		f.Add(level, []byte("\x00\x00\x0f\x00\x00\x20\x00\x00\x05hello\x01\x00\x01\x02\x00\x00\x00\x00\x00\x00"))
		f.Add(level, []byte("\x00\x05\x03\x00\x00\x20\x00\x01\xa0\x00\x05\x03\x00\x00\x20\x10\x01\x01x\x00\x06\x03\x00\x00\x20\x00\x02\x00"))
		f.Add(level, []byte("\x02\x02\x00\x07\x03\x00\x00\x20\x00\x00\x20abcdefghijklmnopqrstuvwxyz012345\x00\x01\x00\x00\xfa\x01\x20\x00\x00\x08\x00\x00\x00\x01\x00\x00\x00\x09"))
		f.Add(level, []byte("\x00\x08\x03\x00\x00\x20\x00\x00\x30\x00\x04\x00\x00abcd\x00\x04\x00\x00efgh\x00\x03\x00\x00\x00\x20\x00\x82\x00\x04"))
		f.Add(level, []byte("\x00\x06\x03\x00\x00\x20\x41\x04\x00")) // a read of what is shut
		f.Add(level, []byte("\x00\x05\x03\x00\x00\x20\x41\x00\x68")) // a write to it
		f.Add(level, []byte("\x00\x05\x03\x00\x00\x20\x20\x00\x68")) // writes over the end, and before the beginning
		f.Add(level, []byte("\x00\x05\x03\x00\x00\x20\x10\x00\x66"))
		f.Add(level, []byte("\x00\x00\x0f\x00\x00\x20\x00\x00\x66")) // a message longer than its receive
	}
	p := newPeerBed(f)
	f.Fuzz(func(t *testing.T, level byte, text []byte) {
		s := &script{text[:min(len(text), 512)]}
		if bytes.Contains(text, []byte(unread)) {
			return
		}
		if p.broken {
			t.Skip("an input before this one has failed")
		}
		defer func() { p.broken = t.Failed() }()
		p.renew()
		attrs := vipl.ViAttributes{Level: levels[int(level)%len(levels)], Ptag: p.tag, EnableRdmaWrite: true}
		attrs.EnableRdmaRead = attrs.Level != vipl.UnreliableDelivery
		vb, err := p.n.b.CreateVi(attrs, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		attrs.Ptag = nil
		va, err := p.n.a.CreateVi(attrs, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		join(t, p.n.a.Nic, va, p.n.b.Nic, vb)
		p.play(t, s, va, vb)
		if !bytes.Equal(p.around[:peerRegion], make([]byte, peerRegion)) || !bytes.Equal(p.around[2*peerRegion:], make([]byte, peerRegion)) {
			t.Fatal("written beside the region that is open")
		}
		if !bytes.Equal(p.secret, bytes.Repeat([]byte(unread), peerRegion/len(unread))) {
			t.Fatal("written to the region that is shut")
		}
		if p.told.Load() {
			t.Fatal("the peer was told what nobody may read")
		}
		for i, b := range p.box.buf {
			if !bytes.Equal(b[peerReceive:], make([]byte, len(b)-peerReceive)) {
				t.Fatalf("written behind receive %d", i)
			}
		}
	})
}

// play does what the script says: a frame of the peer, or something of the program.
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
		if on(d, p.box.region.Handle()) == nil {
			posted[d], free = true, free[1:]
		}
	}
	done := func(take func() (*vipl.Descriptor, error)) {
		for d, _ := take(); d != nil; d, _ = take() {
			if !posted[d] {
				t.Fatal("a descriptor was given back that was not posted")
			}
			delete(posted, d)
			free = append(free, d)
		}
	}
	segment := func(i int) vipl.DataSegment {
		g := p.box.segs[i]
		g.Length = peerReceive
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
		default:
			if head, ok := vb.Expects(); ok {
				h, payload := p.make(s, head)
				p.send(t, 1, h, payload)
			}
		}
	}
	// The peer breaks it, if nobody has, as it does the other end of it.
	for i, v := range []*vipl.VI{va, vb} {
		for h, ok := v.Expects(); ok; h, ok = v.Expects() {
			h.Kind, h.Immediate = wire.KindError, uint32(wire.ReasonClosed)
			p.send(t, i, h, nil)
		}
	}
	for _, v := range []*vipl.VI{va, vb} {
		if err := v.Disconnect(); err != nil {
			t.Fatal(err)
		}
	}
	done(vb.SendDone)
	done(vb.RecvDone)
	if len(posted) > 0 {
		t.Fatalf("%d descriptors were not given back", len(posted))
	}
	for _, v := range []*vipl.VI{va, vb} {
		if err := v.Destroy(); err != nil {
			t.Fatal(err)
		}
	}
}
