package vipl

import (
	"cmp"
	"fmt"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/reliable"
	"viaxdp/internal/base/secure"
	"viaxdp/internal/base/wire"
)

// conn is the engine's state of a VI's connection. It exists until Disconnect, also while the VI is in Error: it
// then tells the peer that the connection is broken.
type conn struct {
	vi   *VI
	open bool     // frames flow; false: broken or closed
	loop bool     // the peer is a VI of this interface
	shm  *shmLink // the link to it, if it is on another queue
	// resentLoop reports, with loop, that retransmitted frames may be queued.
	resentLoop bool

	key      uint64 // the key that frames to this side carry
	peer     wire.Host
	source   source
	template wire.Template
	header   wire.Header     // destination and key are filled in; holds the window that was last sent to the peer
	payload  int             // most bytes of a message in one frame
	cut      int             // the same for the message that is being sent
	inChunk  int             // the same for a frame that fits in one TX chunk
	inPack   int             // the same for a frame of several messages, which the peer must receive in one chunk
	secure   *secure.Session // seals frames; nil: they are plain
	overhead int             // bytes that sealing adds to a frame
	bare     bool            // checksums cover headers only
	summed   bool            // sum is that of the payload of the frame that is being built
	sum      uint32          // CRC32C
	packs    bool            // small messages may share a frame, and frames a doorbell
	byRef    bool            // frames that name the program's memory are outstanding, or descriptors wait for such frames

	chunks   int                // TX chunks of frames that the peer has not acknowledged
	sender   *reliable.Sender   // nil on an unreliable VI
	receiver *reliable.Receiver // nil on an unreliable VI
	seq      uint32             // unreliable: next number to send
	expect   uint32             // unreliable: next number expected
	firstSeq uint32             // number of the peer's first frame

	// The message that is arriving.
	part    wire.Kind // its kind after its first frame has arrived; else 0
	written uint32    // bytes of an RDMA write

	earlyErr error // why the connection broke before the outcome of the connect was known

	established func() // reports the first frame to connection management; called once

	rdma    connRDMA
	gso     connGSO
	refusal refusal
	ending  ending
	batch   connBatch
	ack     connAck

	opened   int64 // when it was installed
	heard    int64 // when a frame last arrived
	moved    int64 // when the peer last had all frames of this side, acknowledged some, or answered a read
	probed   int64 // when the last probe was sent
	resetAt  int64 // when a reset was last sent
	due      int64 // lower bound of the next timer, see timerHeap
	timer    int   // place in the heap + 1
	inReady  bool  // in readyList.conns
	inHanded bool  // in doorbell.handed
}

// newConn prepares the engine's state of a connection. ours and theirs are the two sides' offers, path is the path
// to the peer, and s seals frames; nil: frames are plain.
func newConn(v *VI, ours, theirs kagent.Offer, path kagent.Path, s *secure.Session) (*conn, error) {
	path.PortOffset = theirs.PortOffset
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
	if path.Loopback {
		room = inChunk
	} else {
		room = v.port.frameRoom(room, inChunk, s != nil)
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
		seq:    ours.Seq, expect: theirs.Seq, firstSeq: theirs.Seq,
	}
	c.initGSO(&path)
	c.ending.signal.init()
	if v.attrs.Level != UnreliableDelivery {
		c.sender = reliable.NewSender(ours.Seq, int(theirs.Window))
		if cmp.Or(v.attrs.Congestion, v.nic.congested) == CongestionCubic {
			c.sender.UseCubic()
		}
		c.receiver = reliable.NewReceiver(theirs.Seq, v.port.windowOf(1)) // the window grows when other connections end
	}
	return c, nil
}

// frameRoom returns the most data in a frame: the path has room for room bytes, and a chunk for inChunk behind the headers.
func (p *port) frameRoom(room, inChunk int, sealed bool) int {
	segs := p.nic.MaxSegs()
	if segs < leastSegs {
		return inChunk
	}
	tx, _ := p.nic.FrameCap()
	chunks := p.shares.txChunks / 4
	if sealed {
		chunks = (p.shares.txChunks - controlSpare) / 4 // the sealed copy needs as many again
	}
	// One segment for the headers; one more where the data begins and ends within a chunk's length.
	return min(room, (segs-2)*tx, max(inChunk, chunks*tx))
}

// hasTaken reports whether a frame of the peer's sequence was accepted. It may have carried data.
func (c *conn) hasTaken() bool {
	if c.receiver != nil {
		return c.receiver.Next() != c.firstSeq
	}
	return c.expect != c.firstSeq
}

// putChecksum fills in the checksum of a frame. b holds its header and the first data, rest the remaining data.
func (c *conn) putChecksum(b []byte, rest ...[]byte) {
	if c.secure != nil {
		return // the seal's tag replaces it
	}
	if c.summed {
		c.summed = false
		wire.PutChecksumAfter(c.sum, b)
		return
	}
	if c.bareData(wire.KindOf(b)) {
		wire.PutHeaderChecksum(b)
		return
	}
	wire.PutChecksum(b, rest...)
}

// bareData reports whether frames of kind k have a checksum of the header only: those in which only the program's
// data follows the header.
func (c *conn) bareData(k wire.Kind) bool {
	return c.bare && (k == wire.KindData || k == wire.KindWrite || k == wire.KindReadData)
}

func (c *conn) verify(pkt *wire.Packet) error {
	if c.bareData(pkt.Kind) {
		return pkt.VerifyHeader()
	}
	return pkt.Verify()
}

// minPayload is the least room for data in a frame. A path with an MTU below about 320 bytes is refused.
const minPayload = 256

// offer returns this side's parameters for a new connection, which will be one more on the port. Under the lock.
func (v *VI) offer(mtu int, v6 bool) kagent.Offer {
	return kagent.Offer{
		VI: v.num, Key: kagent.NewKey(), Seq: kagent.NewSeq(), Window: uint16(v.port.windowOf(v.port.shares.active + 1)),
		MaxPayload: uint16(v.port.longestDatagram(mtu, v6)),
		Level:      uint8(v.attrs.Level), MaxTransfer: uint32(v.attrs.MaxTransferSize), QoS: uint32(v.attrs.QoS),
		RDMAWrite: v.attrs.EnableRDMAWrite, RDMARead: v.attrs.EnableRDMARead, BareData: v.nic.bareData, PortOffset: v.nic.info.PortOffset,
	}
}

// longestDatagram returns the bytes of UDP payload of the longest frame that this side takes.
func (p *port) longestDatagram(mtu int, v6 bool) int {
	_, rx := p.nic.FrameCap()
	if p.nic.MaxSegs() >= leastSegs {
		rx *= max(1, p.nic.RxChunks()/4) // a frame takes no more chunks than that
	}
	ip := 20
	if v6 {
		ip = 40
	}
	const ethernet, udp = 18, 8
	return min(mtu-ip-udp, rx-ethernet-ip-udp, 0xffff-ip-udp)
}

// nativeMTU returns the bytes of a message in one frame over IPv4, without a key, to a peer with the same NIC.
func (p *port) nativeMTU(mtu int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	tx, _ := p.nic.FrameCap()
	room := wire.PayloadRoom(mtu, false, max(1, p.longestDatagram(mtu, false)))
	return p.frameRoom(room, min(room, wire.PayloadRoom(tx-14, false, 0)), false)
}

// viTable has the VIs of a port.
type viTable struct {
	connected []*VI           // by the low 16 bits of the VI number; nil: none
	own       map[uint32]bool // numbers of all
}

// find returns the connected VI with the given number, or nil.
func (t *viTable) find(num uint32) *VI {
	if i := int(num & 0xffff); i < len(t.connected) && t.connected[i] != nil && t.connected[i].num == num {
		return t.connected[i]
	}
	return nil
}

func (t *viTable) put(v *VI) {
	i := int(v.num & 0xffff)
	for len(t.connected) <= i {
		t.connected = append(t.connected, nil)
	}
	t.connected[i] = v
}

func (t *viTable) drop(v *VI) { t.connected[v.num&0xffff] = nil }

// enlist and delist record which numbers are those of this port.
func (t *viTable) enlist(num uint32) {
	if t.own == nil {
		t.own = make(map[uint32]bool)
	}
	t.own[num] = true
}

func (t *viTable) delist(num uint32) { delete(t.own, num) }

// install activates a connection: its frames are accepted from now on. Under the lock.
func (p *port) install(c *conn, now int64) {
	before := p.shares.window
	if p.countConn(1); p.shares.window < before {
		for _, v := range p.vis.connected {
			if v != nil {
				p.tellWindow(v.conn, now)
			}
		}
	}
	p.ready.reserve(p.shares.active)
	if c.sender != nil && c.payload > c.inChunk {
		p.long.kept.reserve(p.shares.txChunks, p.long.most)
	}
	p.vis.put(c.vi)
	c.vi.conn = c
	c.vi.recv.rewindHead()
	c.open = true
	c.opened, c.heard, c.moved = now, now, now
	if c.secure != nil {
		p.leaveSpare()
	}
	p.timers.schedule(c, now+p.silence/4)
	p.checkSource(c, now)
}

// uninstall undoes install. Under the lock.
func (p *port) uninstall(c *conn) {
	p.abandon(c)
	p.vis.drop(c.vi)
	c.vi.conn = nil
	if c.secure != nil {
		p.leaveSpare()
	}
	if c.shm != nil {
		p.leaveLink(c.shm)
		c.shm = nil
	}
}

// unproven reports whether the requester of a connection that is being accepted has not yet proven its address. The
// Request may be spoofed, so no frame is sent there.
func (c *conn) unproven() bool { return c.established != nil && c.vi.state == ConnectPending }
