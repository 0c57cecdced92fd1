package vipl_test

import (
	"bytes"
	"encoding/binary"
	"sync"
	"testing"
	"time"

	"viaxdp/internal/base/wire"
	"viaxdp/vipl"
	"viaxdp/xdpnic/xdpnictest"
)

// unread is what the region is full of that is not open. It is no part of any script.
const unread = "nobody may read this"

const peerBuffers = 8

// peerBed is a host b, whose peer sends it the frames of a script. It serves many scripts, each with VIs of its
// own.
type peerBed struct {
	n      *memoryNet
	queue  *xdpnictest.Queue // of the peer
	most   int               // bytes of a frame that gets to b
	ways   [2]wire.Template  // of frames to a, and to b
	tag    *vipl.Ptag
	around []byte // in the middle of it is what is open
	before []byte // what was there before a frame
	secret []byte // memory that peers must not read
	open   *vipl.Region
	shut   *vipl.Region
	box    *box
	broken bool // an input has failed, and left VIs and descriptors behind

	region  int // bytes of the region that is open, and of each that is not
	receive int // bytes that a receive takes; the buffer is longer

	mode byte // of the script that plays

	mu    sync.Mutex
	told  bool     // a part of secret was sent
	late  bool     // that something was sent which was written when its send was done
	heard [][]byte // sealed frames that b has sent
}

// newPeerBed opens one. Its frames have one chunk, or several if long is set.
func newPeerBed(f *testing.F, long, zeroCopy bool) *peerBed {
	p := &peerBed{region: 1000, receive: 100}
	c := memoryConfig{gate: true, silence: time.Hour} // only the peer breaks connections
	spoken := xdpnictest.Config{}
	if long {
		p.region, p.receive = 6000, 5000
		c.mtu, c.arena, c.queue.MultiBuffer = 9000, 8<<20, true
		c.zeroCopy, c.queue.ZeroCopy = zeroCopy, zeroCopy
		spoken.ChunkSize, spoken.TxChunks, spoken.RxChunks = 16384, 8, 8 // so that a chunk holds such a frame
	}
	p.n = newMemoryNet(f, c)
	p.around, p.before, p.secret = make([]byte, 3*p.region), make([]byte, 3*p.region), make([]byte, p.region)
	p.queue = p.n.attacker(f, spoken)
	a, b := p.n.a, p.n.b
	if _, p.most = b.queue.FrameCap(); long {
		p.most *= 6
	}
	for i, to := range []*memoryHost{a, b} {
		p.ways[i] = templateTo(f, []*memoryHost{b, a}[i], to)
		to.ErrorCallback(func(vipl.ErrorDescriptor) {})
		to.queue.SetFaults(xdpnictest.Faults{Drop: func(frame []byte) bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			if bytes.Contains(frame, []byte(unread)) {
				p.told = true
			}
			if bytes.Contains(frame, []byte(afterwards)) {
				p.late = true
			}
			if p.mode&peerSealed != 0 && to == b {
				p.heard = append(p.heard, bytes.Clone(frame))
			}
			return true // the script speaks for the peer
		}})
	}
	p.tag = mustTag(f, b.NIC)
	var err error
	p.open, err = b.RegisterMem(p.around[p.region:2*p.region], vipl.MemAttributes{Ptag: p.tag, EnableRDMAWrite: true, EnableRDMARead: true})
	must(f, err)
	p.shut, err = b.RegisterMem(p.secret, vipl.MemAttributes{Ptag: p.tag})
	must(f, err)
	p.box = newBoxOf(f, b.NIC, p.tag, peerBuffers, 1, p.receive+28)
	f.Cleanup(func() {
		for _, r := range []*vipl.Region{p.open, p.shut} {
			noError(f, r.Deregister())
		}
	})
	return p
}

// renew makes the memory what it was.
func (p *peerBed) renew(mode byte) {
	clear(p.around)
	copy(p.secret, bytes.Repeat([]byte(unread), p.region/len(unread)))
	for _, b := range p.box.buf {
		clear(b)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode, p.told, p.late, p.heard = mode, false, false, nil
}

// intact returns a violation, or "": memory written, or contents sent, that must not be.
func (p *peerBed) intact() string {
	nothing := make([]byte, p.region)
	if !bytes.Equal(p.around[:p.region], nothing) || !bytes.Equal(p.around[2*p.region:], nothing) {
		return "written beside the region that is open"
	}
	if !bytes.Equal(p.secret, bytes.Repeat([]byte(unread), p.region/len(unread))) {
		return "written to the region that is shut"
	}
	for _, b := range p.box.buf {
		if !bytes.Equal(b[p.receive:], nothing[:len(b)-p.receive]) {
			return "written behind a receive"
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.told {
		return "the peer got secret memory"
	}
	if p.late {
		return "the peer was told what the program wrote after a send was done"
	}
	return ""
}

// stall stops b's NIC, or lets it go on with what it has.
func (p *peerBed) stall(on bool) {
	var l xdpnictest.Lies
	if on {
		l.Stall = 1
	}
	p.n.b.queue.SetLies(l)
	if !on {
		_ = p.n.b.queue.Flush()
		p.n.b.Poll()
	}
}

// listen opens what b has sent to va since, as the peer can.
func (p *peerBed) listen(t *testing.T, va *vipl.VI) {
	t.Helper()
	p.mu.Lock()
	heard := p.heard
	p.heard = nil
	p.mu.Unlock()
	for _, frame := range heard {
		plain, err := va.Unseal(frame)
		fatalIf(t, err != nil, "the peer cannot open a frame of %d bytes: %v", len(frame), err)
		fatalIf(t, bytes.Contains(plain, []byte(unread)), "the peer got secret memory in a sealed frame")
		fatalIf(t, bytes.Contains(plain, []byte(afterwards)), "the peer was told, under seal, what the program wrote after a send was done")
	}
}

// lie is how a frame differs from its header.
type lie struct {
	about byte
	n     uint16
	bits  byte
}

const (
	lieNot    = iota
	lieHeader // its length is another one
	lieUDP    // that of UDP is
	lieCut    // the end is missing
	liePad    // there is something behind the end, as Ethernet has it: no lie
	lieFlip   // some bits of a byte are others
	lieOpen   // not sealed
	lies
)

// frame makes one of header and payload, that by would send to a (0) or b (1). spoilt: with the lie it is none that a
// host may take.
func (p *peerBed) frame(to int, by *vipl.VI, h wire.Header, payload []byte, l lie) (frame []byte, spoilt bool) {
	way := &p.ways[to]
	h.Length = uint16(len(payload))
	if l.about == lieHeader {
		h.Length += l.n
		spoilt = l.n != 0
	}
	frame = xdpnictest.Frame(way, h, payload)
	if sealed := p.mode&peerSealed != 0; sealed && l.about != lieOpen {
		frame = by.Seal(frame[way.Len():])
	} else {
		spoilt = spoilt || sealed
	}
	switch l.about {
	case lieUDP:
		at := viaAt - 4
		binary.BigEndian.PutUint16(frame[at:], binary.BigEndian.Uint16(frame[at:])+l.n)
		spoilt = l.n != 0
	case lieCut:
		n := int(l.n) % (len(frame) - 14 + 1)
		frame, spoilt = frame[:len(frame)-n], n > 0
	case liePad:
		n := min(int(l.n), p.most-len(frame))
		frame = append(frame, bytes.Repeat([]byte{l.bits}, n)...)
	case lieFlip:
		frame[viaAt+int(l.n)%(len(frame)-viaAt)] ^= max(1, l.bits)
		spoilt = true
	}
	return frame, spoilt
}

// send sends a frame to a (0) or b (1), and waits until it was looked at.
func (p *peerBed) send(t *testing.T, to int, frame []byte) {
	t.Helper()
	host := []*memoryHost{p.n.a, p.n.b}[to]
	for p.queue.TxFree() == 0 {
		p.queue.Reap()
	}
	frames := host.Counters().Frames
	fatalIf(t, !p.queue.SendBytes(frame), "the ring is full")
	for start := time.Now(); host.Counters().Frames == frames; host.Poll() {
		if time.Since(start) > ackDelay/4 { // less than an input may take
			t.Fatalf("a frame does not arrive: %+v", host.Counters())
		}
	}
}

// tell sends b a frame whose lengths and seal are right, with any contents.
func (p *peerBed) tell(t *testing.T, frame []byte, l lie) {
	t.Helper()
	before := p.n.b.Counters()
	p.send(t, 1, frame)
	now := p.n.b.Counters()
	fatalIf(t, now.Corrupt != before.Corrupt || now.Forged != before.Forged, "lie %+v: a frame that is right was not taken: %+v, before it %+v", l, now, before)
}

// spoil sends b a frame that changes nothing.
func (p *peerBed) spoil(t *testing.T, vb *vipl.VI, frame []byte, l lie) {
	t.Helper()
	head, _ := vb.Expects()
	before := p.n.b.Counters()
	copy(p.before, p.around)
	p.send(t, 1, frame)
	now, ok := vb.Expects()
	fatalIf(t, !ok || now != head, "lie %+v: b waits for %+v, before it for %+v", l, now, head)
	after := p.n.b.Counters()
	fatalIf(t, after.Messages != before.Messages, "lie %+v: a message was delivered", l)
	fatalIf(t, drops(after) != drops(before)+1, "lie %+v: no drop is counted: %+v, before it %+v", l, after, before)
	fatalIf(t, !bytes.Equal(p.around, p.before), "lie %+v: something was written", l)
}

// drops is how many frames were no frames that a host may take.
func drops(c vipl.Counters) uint64 {
	return c.Malformed + c.UnknownVI + c.WrongKey + c.Corrupt + c.Unsealed + c.Forged + c.Replayed
}
