package vipl

import (
	"fmt"

	"viaxdp/kagent"
	"viaxdp/reliable"
	"viaxdp/secure"
	"viaxdp/wire"
)

// conn is the connection of a VI as the engine keeps it. It exists from the
// connection's making until Disconnect, also while the VI is in Error: it then
// tells the peer so.
type conn struct {
	vi   *VI
	open bool      // frames flow; false: broken or closed
	loop bool      // the peer is a VI of this interface
	lane *portLane // the way to it, if it is on another queue

	key      uint64 // that frames to us carry
	peer     wire.Host
	source   source
	template wire.Template
	header   wire.Header     // destination and key filled in, and the window that the peer was told
	payload  int             // bytes of a message in one frame, at most
	cut      int             // likewise of the message that is being sent
	inChunk  int             // likewise in a frame that is built in one chunk
	inPack   int             // likewise of several messages, for a frame that the peer gets in one chunk
	secure   *secure.Session // seals frames; nil: they are plain
	overhead int             // bytes that this adds to a frame
	bare     bool            // checksums are of headers alone
	packs    bool            // small messages may share a frame, and frames a doorbell
	lent     bool            // frames are under way, or descriptors wait for them, of which the memory is lent

	sender   *reliable.Sender   // nil on an unreliable VI, as receiver
	receiver *reliable.Receiver //
	seq      uint32             // unreliable: next number to send
	expect   uint32             // unreliable: next number to come

	// the message that is arriving
	part    wire.Kind // of which kind it is, once its first frame has come; else 0
	written uint32    // bytes of an RDMA write

	deaf  error // why this side breaks the connection once the peer has the answers to its reads
	early error // why it broke before the connect's outcome was known

	reads    int     // RDMA reads of ours that are under way
	answers  answers // to the peer's RDMA reads
	replied  bool    // the peer does not have all frames of answers that were sent,
	replySeq uint32  // the last of them with this number

	closing   bool // Disconnect has begun
	closeSeq  uint32
	closeSent bool
	closed    signal // raised when closeDone becomes true
	closeDone bool

	established func() // tells connection management of the first frame, once

	opened      int64       // when it was put in place
	heard       int64       // when a frame came last
	moved       int64       // when the peer last had all frames of ours, or acknowledged some
	probed      int64       // when a probe went last
	toldAt      int64       // when the peer was told last that the connection is broken
	refused     wire.Reason // why this side broke it at a message of the peer, else 0
	refusedSeq  uint32      // a number of that message's frames
	refusedPart int         // messages of its frame that arrived before it
	unpacking   bool        // a frame is being delivered of which more messages follow
	due         int64       // lower bound of the next timer, see timerHeap
	timer       int         // place in the heap + 1
	oweBy       int64       // when the acknowledgement that is owed is due
	patience    patience    // of acknowledgements that are owed
	owedSlot    int         // place in port.owed + 1
	gathered    gathering   // small messages that wait
	hurry       bool        // they do not wait
	postedAt    int64       // when the program posted a send last
	dense       bool        // and soon after the one before
	streaming   bool        // they have waited lately
	heldAt      int64       // when one was last left to wait
	inHeld      bool        // in port.holding
	inReady     bool        // in port.ready
	inHanded    bool        // in port.handed
}

// newConn prepares the engine's side of a connection: ours are our numbers,
// theirs the peer's, path the way there, s what seals its frames, if anything does.
func newConn(v *VI, ours, theirs kagent.Offer, path kagent.Path, s *secure.Session) (*conn, error) {
	template, err := wire.NewTemplate(path.Link)
	if err != nil {
		return nil, fmt.Errorf("headers for %v: %w", path.Dst, err)
	}
	overhead := 0
	if s != nil {
		overhead = wire.SealOverhead
	}
	tx, rx := v.port.nic.FrameCap()
	head := template.Len() + wire.HeaderLen + overhead
	room := wire.PayloadRoom(path.MTU, path.Dst.Is6(), int(theirs.MaxPayload)) - overhead
	inChunk := min(room, tx-head)
	if segs := v.port.nic.MaxSegs(); path.Loopback || segs < leastSegs {
		room = inChunk
	} else {
		// One segment for the headers; one more where the data begins and ends
		// within a chunk's length.
		chunks := v.port.txChunks / 4
		if s != nil {
			chunks = (v.port.txChunks - controlSpare) / 4 // as many again for the sealed form
		}
		room = min(room, (segs-2)*tx, max(inChunk, chunks*tx))
	}
	if room < minPayload {
		return nil, fmt.Errorf("path to %v leaves %d bytes of a frame for data, and %d are needed: raise the MTU",
			path.Dst, room, minPayload)
	}
	c := &conn{
		vi: v, loop: path.Loopback, source: sourceOf(&path, wire.PacketLen(path.Dst.Is6(), room+overhead)), key: ours.Key, peer: wire.HostOf(path.Dst), template: template,
		secure: s, overhead: overhead,
		bare: ours.BareData && theirs.BareData, packs: !v.nic.noPacking,
		payload: room, inChunk: inChunk, inPack: min(inChunk, rx-head),
		header: wire.Header{VI: theirs.VI, Key: theirs.Key, Window: ours.Window},
		seq:    ours.Seq, expect: theirs.Seq,
	}
	c.closed.init()
	if v.attrs.Level != UnreliableDelivery {
		c.sender = reliable.NewSender(ours.Seq, int(theirs.Window))
		c.receiver = reliable.NewReceiver(theirs.Seq, maxWindow)
	}
	return c, nil
}

// putChecksum fills in the checksum of a frame: its header and the data in b, the
// rest of the data in rest.
func (c *conn) putChecksum(b []byte, rest ...[]byte) {
	if c.secure != nil {
		return // the seal's tag stands for it
	}
	if c.bareData(wire.KindOf(b)) {
		wire.PutHeaderChecksum(b)
		return
	}
	wire.PutChecksum(b, rest...)
}

// bareData says whether frames of that kind have a checksum of the header alone:
// those with nothing but the program's data behind it.
func (c *conn) bareData(k wire.Kind) bool {
	return c.bare && (k == wire.KindData || k == wire.KindWrite || k == wire.KindReadData)
}

func (c *conn) verify(pkt *wire.Packet) error {
	if c.bareData(pkt.Kind) {
		return pkt.VerifyHeader()
	}
	return pkt.Verify()
}

// minPayload is the least room for data in a frame: a path below an MTU of
// about 320 bytes is of no use.
const minPayload = 256

// offer makes this side's numbers for a new connection, which will be one more. Under
// the lock.
func (v *VI) offer(mtu int, v6 bool) kagent.Offer {
	nic := v.port.nic
	_, rx := nic.FrameCap()
	if nic.MaxSegs() >= leastSegs {
		rx *= max(1, nic.RxChunks()/4) // a frame takes no more chunks than that
	}
	ip := 20
	if v6 {
		ip = 40
	}
	const ethernet, udp = 18, 8
	return kagent.Offer{
		VI: v.num, Key: kagent.NewKey(), Seq: kagent.NewSeq(), Window: uint16(v.port.windowOf(v.port.active + 1)),
		MaxPayload: uint16(min(mtu-ip-udp, rx-ethernet-ip-udp, 0xffff-ip-udp)),
		Level:      uint8(v.attrs.Level), MaxTransfer: uint32(v.attrs.MaxTransferSize), QoS: uint32(v.attrs.QoS),
		RDMAWrite: v.attrs.EnableRdmaWrite, RDMARead: v.attrs.EnableRdmaRead, BareData: v.nic.bareData,
	}
}

// install puts a connection in place, from when on its frames are taken. Under
// the lock.
func (p *port) install(c *conn, now int64) {
	i := int(c.vi.num & 0xffff)
	for len(p.vis) <= i {
		p.vis = append(p.vis, nil)
	}
	p.active++
	before := p.window
	if p.share(); p.window < before {
		for _, v := range p.vis {
			if v != nil {
				p.tellWindow(v.conn, now)
			}
		}
	}
	p.vis[i] = c.vi
	c.vi.conn = c
	c.open = true
	c.opened, c.heard, c.moved = now, now, now
	p.leaveSpare()
	p.timers.schedule(c, now+p.silence/4)
	p.lookSource(c, now)
}

// leaveSpare says how many TX chunks data leaves unused: those of acknowledgements
// and the like, and, where connections have a key, the sealed copy of a frame.
func (p *port) leaveSpare() {
	p.spare = controlSpare
	for _, v := range p.vis {
		if v != nil && v.conn != nil && v.conn.secure != nil {
			p.spare = max(p.spare, controlSpare+v.conn.chunksFor(wire.HeaderLen+v.conn.payload))
		}
	}
	p.spare = min(p.spare, p.txChunks/2) // data gets some, too, however few there are
}

// uninstall ends it. Under the lock.
func (p *port) uninstall(c *conn) {
	p.abandon(c)
	p.vis[c.vi.num&0xffff] = nil
	c.vi.conn = nil
	p.leaveSpare()
	if c.lane != nil {
		p.leaveLane(c.lane)
		c.lane = nil
	}
}

// enqueue has c's sends looked at before the turn ends.
func (p *port) enqueue(c *conn) {
	if !c.inReady {
		c.inReady = true
		p.ready = append(p.ready, c)
	}
}

// owe notes that the peer has an acknowledgement to get, of the frame in hand.
func (p *port) owe(c *conn, now int64) {
	if c.owedSlot == 0 {
		p.oweUntil(c, c.patience.owes(now, len(p.owed)+1))
	}
	switch {
	case c.receiver == nil || c.receiver.Urgent() || c.receiver.Unacked() >= p.ackEvery:
		c.oweBy = now // due before the turn ends
	case p.pkt.Flags&wire.FlagAckSoon != 0:
		c.oweBy = min(c.oweBy, now+ackSoon)
		if len(p.pkt.Rest) > 0 {
			p.lookSoon() // the peer's program waits for the memory, and ours may be busy
		}
	case len(p.pkt.Rest) > 0 || c.vi.attrs.Level == ReliableReception || c.receiver.Held() > 0:
		c.oweBy = min(c.oweBy, now+ackDelay) // nothing may come behind the last of a burst, which does not ask
	}
}

// oweUntil notes that the peer has an acknowledgement to get, which waits until by at most.
func (p *port) oweUntil(c *conn, by int64) {
	if c.owedSlot != 0 {
		c.oweBy = min(c.oweBy, by)
		return
	}
	p.owed = append(p.owed, c)
	c.owedSlot = len(p.owed)
	c.oweBy = by
}

// pressed notes that the peer asks again. When it has something to get by now, that
// waited for too long.
func (c *conn) pressed() {
	if c.owedSlot != 0 {
		c.patience.pressed()
	}
}

// settle notes that it has got it.
func (p *port) settle(c *conn) {
	if c.owedSlot == 0 {
		return
	}
	i, last := c.owedSlot-1, len(p.owed)-1
	p.owed[i] = p.owed[last]
	p.owed[i].owedSlot = i + 1
	p.owed[last] = nil
	p.owed = p.owed[:last]
	c.owedSlot = 0
}
