package vipl

// Step 3 of the table in ARCHITECTURE.md, by segmentation offload. Frames of one connection that are sent in a row, all as
// long as the path takes, leave by one system call as a GSO packet (package gso; gso_rx.go receives it). On the way to a
// host on a virtual link it costs the kernel little more than one frame.
//
//	the TX ring:  | headers, frame |  | headers, frame |  | headers, frame |      one pass of the kernel each
//	GSO packet:   | headers | frame | frame | frame |                             one pass
//
// The frames are built, sealed, numbered and kept like all others. New frames wait in gsoSender until the packet is full or
// the doorbell rings. A frame that is alone then goes on the TX ring; so do retransmissions, control frames, and the frames
// of a packet that the kernel refuses.
//
// Not every path carries such packets, and one is lost whole. So the first one of a connection is short, and the next leaves
// when it has arrived. Then their length doubles while packets arrive, and is halved when frames are lost. Where that leaves
// nothing of it, the connection uses the TX ring for a while, and then tries again. A packet has arrived when its first frame
// is acknowledged that was sent once: a retransmission arrives also where packets do not.
//
// An unreliable VI gets no acknowledgements otherwise. So a frame of the first packet, and then one of every gsoAskEvery, asks
// for one. An answer that does not come within gsoUnheard counts as a loss.

import (
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/agent/provider"
	"viaxdp/internal/base/gso"
	"viaxdp/internal/base/wire"
	"viaxdp/xdpnic"
)

const (
	gsoLeast = 3     // frames; fewer are faster on the TX ring, unless they are long
	gsoLong  = 9_000 // bytes of fewer frames that are long
	gsoFirst = 8     // frames of the first packet of a connection
	// gsoDeferAt is how many outstanding frames make a message wait for room for a packet. The peer acknowledges as many
	// unasked, so the wait is short.
	gsoDeferAt = ackPacketFrames
	// gsoBytes is how long packets become. With the headroom of generic XDP, which makes a packet contiguous, one fits in 64 KB.
	// A packet that leaves while nothing is under way ends at gsoShort: the peer wakes up for it, and copies it, while the
	// kernel passes on the next. A message of 64 KiB is two thirds and one third: nothing else happens while the last is copied.
	gsoBytes   = 64_900
	gsoShort   = 47_200
	gsoRestMin = 20 * time.Millisecond // how long a connection uses the TX ring after losses; doubles
	gsoRestMax = 10 * time.Second

	// Of unreliable VIs: how many frames leave in packets before one asks again, and how long the answer may take.
	gsoAskEvery = 512
	gsoUnheard  = 50 * time.Millisecond
)

// gsoSender has the frames of the next GSO packet. Invariant: it is empty, or they are those of c, are not on the TX ring,
// and all but the last are c.gso.path.Size bytes long.
type gsoSender struct {
	out    provider.GSO // nil: none
	off    error        // why it is not used
	c      *conn
	first  uint32 // number of the first frame
	most   int    // frames that the packet may have
	bytes  int
	frames []gsoFrame
	pieces [][]byte
}

// gsoFrame is a frame that waits: entries as for the TX ring. retain is as for provider.Port.SendSegs.
type gsoFrame struct {
	segs   [gsoSegs]xdpnic.Desc
	n      int
	retain bool
}

// gsoSegs is the most entries of a frame that joins a packet: headers and, by reference, 16 KB in pages.
const gsoSegs = 6

// connGSO is the state of a connection's GSO packets.
type connGSO struct {
	path      gso.Path // its Size is the UDP payload of a frame that is as long as possible
	heard     bool     // the peer has said what it takes
	peer      int      // bytes of the longest packet that the peer takes; 0: it takes none
	peerFrame int      // path.Size of the peer; 0: it has not said

	most   int           // frames of the longest packet
	short  int           // frames of a packet that leaves while nothing is under way
	limit  int           // frames of the next packet; 1: none for now
	tried  bool          // a packet has left, and what became of it is open
	mark   uint32        // its first frame; of an unreliable VI the one that asked for an acknowledgement
	again  bool          // frame mark was sent again
	proven bool          // packets arrive
	steady bool          // after a loss limit grows by one, not twofold
	losses uint64        // reductions of the window by loss, when last seen
	end    uint32        // the frame behind the last packet
	atRisk bool          // frames of packets were under way since then
	rest   time.Duration // how long the next rest from packets lasts
	until  int64         // end of the present one

	asked   int64 // unreliable: when frame mark left
	unasked int   // frames in packets since then
}

func (g *gsoSender) init(out provider.GSO) {
	g.out = out
	g.frames = make([]gsoFrame, 0, gso.MaxFrames)
	g.pieces = make([][]byte, 0, gsoSegs*gso.MaxFrames)
}

// initGSO prepares a connection for GSO packets.
func (c *conn) initGSO(path *kagent.Path) {
	c.gso = connGSO{limit: gsoFirst, rest: gsoRestMin, path: gso.Path{
		Src: path.Src.Unmap(), Dst: netip.AddrPortFrom(path.Dst.Unmap(), path.DstPort()), Tagged: path.VLAN != 0,
		Size: wire.HeaderLen + c.payload + c.overhead,
	}}
	c.gso.most = min(gsoBytes/c.gso.path.Size, gso.MaxFrames)
	c.gso.short = min(gsoShort/c.gso.path.Size, gso.MaxFrames)
}

// gsoUsable reports whether frames of the connection may be sent in packets.
func (p *port) gsoUsable(c *conn) bool {
	return p.gso.out != nil && p.gso.off == nil && c.gso.short >= 2 && c.gso.peer >= c.gso.short*c.gso.path.Size && !c.loop && c.shm == nil
}

// longestPacket returns how many bytes of a message the longest packet of the connection carries; 0: no packets are sent.
func (p *port) longestPacket(c *conn) int {
	if !p.gsoUsable(c) {
		return 0
	}
	return min(c.gso.most, c.gso.peer/c.gso.path.Size) * c.payload
}

// announce fills in what an acknowledgement tells the peer of GSO packets, in its RemoteAddr: the longest one that this side
// takes and, above, how long the frames in its own are.
func (p *port) announce(c *conn) {
	c.header.RemoteAddr = uint64(p.rx.gso.takes)
	if p.gso.out != nil && !c.loop && c.shm == nil {
		c.header.RemoteAddr |= uint64(c.gso.path.Size) << 32
	}
}

// tellGSO tells the peer at the beginning of a connection, which may carry no bare acknowledgement for long.
func (p *port) tellGSO(c *conn) {
	if p.rx.gso.takes > 0 && c != nil && c.open && !c.loop && c.shm == nil {
		p.oweBareAck(c)
	}
}

// learnGSO takes what an acknowledgement says: what announce has written and, of an unreliable VI, that a packet has arrived.
func (c *conn) learnGSO(pkt *wire.Packet) {
	g := &c.gso
	if c.sender == nil && g.tried && int32(pkt.Ack-g.mark) > 0 {
		g.arrived()
	}
	g.heard = true
	g.peer = min(int(uint32(pkt.RemoteAddr)), gso.MaxBytes)
	g.peerFrame = min(int(pkt.RemoteAddr>>32), wire.MaxDatagram)
}

// unheardGSO reports whether the next frame asks for an acknowledgement because the peer has not said yet what packets it takes,
// or that was lost: data may carry all other acknowledgements. Only messages of several frames need to know. A side that takes
// none itself does not ask: its peer hardly takes any, and then says nothing.
func (p *port) unheardGSO(c *conn) bool {
	return !c.gso.heard && p.gso.out != nil && p.rx.gso.takes > 0 && !c.loop && c.shm == nil && c.header.Flags&(wire.FlagFirst|wire.FlagLast) == wire.FlagLast
}

// joinGSOAlone is joinGSO for a frame in one chunk.
func (p *port) joinGSOAlone(c *conn, addr uint64, size int, retain bool) bool {
	if c.gso.peer == 0 {
		return false
	}
	segs := [1]xdpnic.Desc{{Addr: addr, Len: uint32(size)}}
	return p.joinGSO(c, segs[:], retain)
}

// joinGSO adds a frame to the packet that is being collected. False: it goes on the TX ring.
func (p *port) joinGSO(c *conn, segs []xdpnic.Desc, retain bool) bool {
	g := &p.gso
	n := -c.template.Len()
	for i := range segs {
		n += int(segs[i].Len)
	}
	if len(g.frames) == 0 || g.c != c {
		if n != c.gso.path.Size || !p.gsoUsable(c) {
			return false
		}
		p.sendGSO()
		if !c.adaptGSO(p) {
			return false
		}
		g.c, g.first, g.most = c, c.nextSeq(), c.gsoFrames()
	}
	if len(segs) > gsoSegs || len(g.frames) == cap(g.frames) {
		return false
	}
	g.add(segs, n, retain)
	c.gso.unasked++
	if n < c.gso.path.Size || len(g.frames) >= g.most || g.bytes+c.gso.path.Size > c.gso.peer {
		p.sendGSO()
	}
	return true
}

// sendMiddle sends those of the next frames of e that join the packet as the one before them has, and are the last neither of
// the packet nor of the message. They differ from that one in their numbers and data alone, so most checks of sendNext are
// made once for all of them.
func (p *port) sendMiddle(c *conn, e *posted, now int64) {
	g := &p.gso
	size := c.gso.path.Size
	h, whole := &c.header, c.template.Len()+size
	if g.c != c || len(g.frames) == 0 || c.sender == nil || c.secure != nil || c.cut > c.inChunk || size != wire.HeaderLen+c.cut ||
		whole > wire.WindowUnit || len(p.taps) > 0 || c.rdma.answers.waiting() {
		return
	}
	n := min(g.most, cap(g.frames)) - len(g.frames)
	n = min(n, (c.gso.peer-g.bytes)/size) - 1
	n = min(n, int(e.length-e.moved-1)/c.cut, p.nic.TxFree()-p.shares.spare, p.shares.tx-1-c.chunks)
	for ; n > 0 && c.sender.Room() > 1; n-- { // with less, the frame would ask for an acknowledgement
		addr, b, ok := p.buildPiece(c, e, c.cut)
		if !ok {
			break
		}
		h.Seq = c.sender.Next()
		h.Put(b)
		c.putChecksum(b)
		segs := [1]xdpnic.Desc{{Addr: addr, Len: uint32(whole)}}
		g.add(segs[:], size, true)
		c.chunks++
		c.sender.Send(now, addr<<tagShift|uint64(whole), 1)
	}
	p.timers.schedule(c, c.sender.Deadline())
}

// add adds a frame of n bytes besides the lower headers, for which there is room.
func (g *gsoSender) add(segs []xdpnic.Desc, n int, retain bool) {
	g.frames = g.frames[:len(g.frames)+1]
	f := &g.frames[len(g.frames)-1]
	f.n, f.retain = copy(f.segs[:], segs), retain
	g.bytes += n
}

// gsoFrames returns how many frames the packet that now begins may have. One that would end at gsoShort takes the rest of the
// message as well if that is too little for a packet. An unreliable VI does not know what is under way, and counts as idle.
func (c *conn) gsoFrames() int {
	if (c.sender == nil || c.sender.Idle()) && c.framesLeft() >= c.gso.short+gsoLeast {
		return min(c.gso.limit, c.gso.short)
	}
	return min(c.gso.limit, c.gso.most)
}

// framesLeft returns how many frames of the message, or of the answer to a read, are still to leave, with the one that was
// just built.
func (c *conn) framesLeft() int {
	left := 0 // bytes behind it
	if c.header.Kind == wire.KindReadData {
		left = c.rdma.answers.left() - c.answerPiece()
	} else if e := c.vi.send.waiting(); e != nil {
		left = int(e.length - e.moved)
	}
	return 1 + (left+c.payload-1)/c.payload
}

// defersGSO reports whether the next frames of a message wait for an acknowledgement because the window has no room for a
// packet: these frames would go by the TX ring, and so might those after them. left is how many bytes of the message are
// still to be sent.
func (p *port) defersGSO(c *conn, left int) bool {
	if !c.gso.proven || c.gso.limit < gsoLeast || p.gso.c == c && len(p.gso.frames) > 0 {
		return false
	}
	return c.sender != nil && c.sender.Outstanding() >= gsoDeferAt && left > c.payload &&
		!c.sender.Admits(min(gsoLeast, (left+c.payload-1)/c.payload), wire.Units(c.template.Len()+c.gso.path.Size)) && p.gsoUsable(c)
}

// adaptGSO decides how many frames the packet has that now begins. False: none may.
func (c *conn) adaptGSO(p *port) bool {
	g := &c.gso
	switch {
	case c.lossGSO(p):
		if g.limit /= 2; g.limit < gsoLeast || g.tried && !g.proven {
			g.rested(p)
			if c.secure != nil {
				p.oweBareAck(c) // the peer may not have heard how long the frames are, and cannot divide a sealed packet without
			}
		}
		g.tried, g.steady = false, true
	case g.tried && c.sender != nil && int32(c.sender.Unacked()-g.mark) > 0:
		g.arrived()
	}
	if g.limit < gsoLeast {
		if p.now() < g.until {
			return false
		}
		g.limit, g.tried, g.proven = gsoLeast, false, false
	}
	return g.proven || !g.tried
}

// lossGSO reports whether a packet may have been lost since the last call. While all frames go by the TX ring, losses say
// nothing of packets: messages of two frames would keep later, longer ones from them for good.
func (c *conn) lossGSO(p *port) bool {
	g := &c.gso
	if c.sender == nil {
		return g.tried && p.now()-g.asked > int64(gsoUnheard)
	}
	s := c.sender.Stats()
	losses := s.LossRounds + s.Timeouts
	lost := losses != g.losses && g.atRisk || g.tried && g.again
	g.losses, g.atRisk = losses, g.atRisk && int32(g.end-c.sender.Unacked()) > 0
	return lost
}

// arrived records that the packet that was tried has arrived, and makes the next ones longer.
func (g *connGSO) arrived() {
	g.tried, g.proven, g.rest = false, true, gsoRestMin
	if g.steady {
		g.limit++
	} else {
		g.limit *= 2
	}
	g.limit = min(g.limit, max(g.most, gsoLeast)) // of long frames joinGSO takes fewer
}

// leftGSO records that a packet has left, whose first frame has number first.
func (c *conn) leftGSO(first uint32, frames int) {
	g := &c.gso
	if c.sender == nil {
		return
	}
	g.end, g.atRisk = first+uint32(frames), true
	if !g.tried {
		g.tried, g.mark, g.again = true, first, false
	}
}

// resent records that a frame was sent again.
func (g *connGSO) resent(seq uint32) { g.again = g.again || seq == g.mark }

// ringedGSO records that frames from first on went by the TX ring instead. An answer to one that asked says nothing of packets.
func (c *conn) ringedGSO(first uint32) {
	if g := &c.gso; c.sender == nil && int32(g.mark-first) >= 0 {
		g.tried = false
	}
}

// asksGSO reports whether the next frame of an unreliable VI asks for an acknowledgement, and records that it does. It
// will be in a packet, since with it enough frames wait for one.
func (p *port) asksGSO(c *conn) bool {
	g := &c.gso
	if g.tried || p.gso.c != c || len(p.gso.frames) != min(gsoLeast, g.most)-1 || g.proven && g.limit >= g.most && g.unasked < gsoAskEvery {
		return false
	}
	g.tried, g.mark, g.asked, g.unasked = true, c.seq, p.now(), 0
	return true
}

// rested lets the connection use the TX ring for a while.
func (g *connGSO) rested(p *port) {
	g.limit, g.until = 1, p.now()+int64(g.rest)
	g.rest = min(2*g.rest, gsoRestMax)
}

// sendGSO sends the frames that wait.
func (p *port) sendGSO() {
	g := &p.gso
	if len(g.frames) == 0 {
		return
	}
	c, frames, bytes := g.c, g.frames, g.bytes
	g.frames, g.bytes = g.frames[:0], 0
	if len(frames) < gsoLeast && bytes < gsoLong || !p.offload(c, frames) {
		c.ringedGSO(g.first)
		for i := range frames { // what finds no room is lost, and sent again like any lost frame
			f := &frames[i]
			if !p.nic.SendSegs(f.segs[:f.n], f.retain) {
				f.drop(p)
			}
		}
		return
	}
	c.leftGSO(g.first, len(frames))
	p.stats.GSOSent++
	p.stats.GSOSentFrames += uint64(len(frames))
	for i := range frames {
		frames[i].drop(p)
	}
}

// drop gives back the chunks of a frame that is not kept for a retransmission.
func (f *gsoFrame) drop(p *port) {
	if f.retain {
		return
	}
	for _, s := range f.segs[:f.n] {
		p.nic.Release(s.Addr)
	}
}

// offload sends a packet. False: it did not leave.
func (p *port) offload(c *conn, frames []gsoFrame) bool {
	g := &p.gso
	if p.nic.Pending() > 0 { // those come first, acknowledgements above all
		_ = p.nic.Flush() // ring reports an error that persists
	}
	g.pieces = g.pieces[:0]
	for i := range frames {
		from := uint64(c.template.Len())
		for _, s := range frames[i].segs[:frames[i].n] {
			g.pieces = append(g.pieces, p.mem[s.Addr+from:s.Addr+uint64(s.Len)])
			from = 0
		}
	}
	first := frames[0].segs[0].Addr
	err := g.out.Send(&c.gso.path, p.mem[first:first+uint64(c.template.Len())], g.pieces)
	if err == nil {
		return true
	}
	p.stats.GSOErrors++
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOBUFS):
		return false
	case errors.Is(err, unix.EIO), errors.Is(err, unix.ENOPROTOOPT), errors.Is(err, unix.EOPNOTSUPP):
		g.off = err // the interface cannot, or the kernel
	default:
		c.gso.rested(p)
	}
	return false
}

// dropGSO forgets the path of c and its frames that wait, because the connection has ended.
func (p *port) dropGSO(c *conn) {
	g := &p.gso
	if g.out != nil {
		g.out.Release(&c.gso.path)
	}
	if g.c != c {
		return
	}
	for i := range g.frames {
		g.frames[i].drop(p)
	}
	g.c, g.frames, g.bytes = nil, g.frames[:0], 0
}

// none returns why no packets are sent, or "".
func (g *gsoSender) none() string {
	switch {
	case g.out == nil:
		return "switched off (WithSegmentation), not in generic mode, or opened in another network namespace (Info)"
	case g.off != nil:
		return "the kernel refuses packets of several frames from this interface: " + g.off.Error()
	}
	return ""
}

// close closes what packets are sent by; the engine has stopped.
func (g *gsoSender) close() {
	if g.out != nil {
		_ = g.out.Close()
	}
}

// pending returns the number of frames that wait for the doorbell.
func (p *port) pending() int { return p.nic.Pending() + len(p.gso.frames) }
