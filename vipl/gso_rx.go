package vipl

// Step 7 of the table in ARCHITECTURE.md, which is 2 in rx.go, for GSO packets: several frames of a connection that arrive as
// one UDP datagram, in several chunks. A peer sends
// them by segmentation offload (gso.go), and nothing on the way has divided them. Each of the frames has its own header,
// and is processed as if it had arrived alone. Frames and even headers may begin in one chunk and end in the next.
//
// A chunk is recycled when the packet has been processed and no frame in it is kept for later: holds counts both.

import (
	"viaxdp/internal/agent/provider"
	"viaxdp/internal/base/wire"
	"viaxdp/xdpnic"
)

// gsoChunks is how many chunks of 4096 bytes the longest packet takes.
const gsoChunks = (wire.MaxPacket + wire.WindowUnit - 1) / wire.WindowUnit

// gsoReceiver takes GSO packets apart. Invariant: holds has for each chunk, by its place in memory, how many kept frames
// of GSO packets have bytes in it, and one more while such a packet in it is being processed.
type gsoReceiver struct {
	takes  int // bytes of the longest packet, of UDP payload, that peers may send; 0: none
	holds  []uint16
	chunk  uint64 // bytes
	inner  bool   // the frame that is being received is one of a packet's
	pieces []xdpnic.Frame
	head   [wire.HeaderLen]byte // a header that lay in two chunks
}

// innerTag marks the tags of kept frames that are part of a packet: they have no lower headers.
const innerTag = 1 << 63

// useGSO sends packets by out, if it is not nil, and lets peers send packets if frames of several chunks can be received
// and a packet takes a small part of the chunks. Under the lock.
func (p *port) useGSO(out provider.GSO) {
	p.gso.init(out)
	if _, rx := p.nic.FrameCap(); p.nic.MaxSegs() >= leastSegs && rx >= wire.WindowUnit && p.nic.RxChunks() >= 4*gsoChunks {
		p.rx.gso.init(len(p.mem), p.nic)
	}
}

func (g *gsoReceiver) init(memory int, nic provider.Port) {
	tx, _ := nic.FrameCap()
	g.takes, g.chunk = wire.MaxDatagram, uint64(tx)
	g.holds = make([]uint16, uint64(memory)/g.chunk+1)
	g.pieces = make([]xdpnic.Frame, 0, gsoChunks)
}

func (g *gsoReceiver) hold(addr uint64) { g.holds[addr/g.chunk]++ }

// drop ends a hold, and reports whether the chunk may be recycled.
func (g *gsoReceiver) drop(addr uint64) bool {
	n := &g.holds[addr/g.chunk]
	*n = max(*n, 1) - 1
	return *n == 0
}

// recycleKept ends the lease of a frame that was kept.
func (p *port) recycleKept(frame []xdpnic.Frame) {
	g := &p.rx.gso
	for i := range frame {
		if g.holds == nil || g.drop(frame[i].Addr) {
			p.nic.Recycle(frame[i].Addr)
		}
	}
}

// isGSO reports whether the packet that was decoded has several frames, and returns the bytes of each frame but the last.
func (p *port) isGSO(packet []xdpnic.Frame) (size int, ok bool) {
	if p.rx.gso.takes == 0 || p.rx.from != nil {
		return 0, false
	}
	at, n := wire.Datagram(packet[0].Data)
	if len(packet[0].Data) < at+wire.HeaderLen || n < wire.HeaderLen || at+n > lengthOf(packet) {
		return 0, false // decode has not read this frame's header
	}
	if size = wire.HeaderLen + int(p.rx.pkt.Length); p.rx.pkt.Kind == wire.KindSealed {
		v := p.vis.find(p.rx.pkt.VI)
		if v == nil || v.conn.gso.peerFrame == 0 {
			return 0, false
		}
		size = v.conn.gso.peerFrame
	}
	return size, size < n
}

// lengthOf returns the bytes of a frame in all of its chunks.
func lengthOf(frame []xdpnic.Frame) (n int) {
	for i := range frame {
		n += len(frame[i].Data)
	}
	return n
}

// receiveGSO processes a packet whose frames have size bytes. A frame that is not what a sender of this connection may
// send ends it: the rest is dropped.
func (p *port) receiveGSO(packet []xdpnic.Frame, size int, now int64) {
	g := &p.rx.gso
	for i := range packet {
		g.hold(packet[i].Addr)
	}
	p.stats.GSOReceived++
	vi, key, marked := p.rx.pkt.VI, p.rx.pkt.Key, p.rx.pkt.Marked
	at, left := wire.Datagram(packet[0].Data)
	g.inner = true
	for k := 0; left > 0; {
		n := min(size, left)
		left -= n
		g.pieces = g.pieces[:0]
		for n > 0 {
			b := packet[k].Data[at:]
			b = b[:min(n, len(b))]
			if len(b) > 0 {
				g.pieces = append(g.pieces, xdpnic.Frame{Addr: packet[k].Addr + uint64(at), Data: b, More: true})
			}
			n -= len(b)
			if at += len(b); at == len(packet[k].Data) {
				k, at = k+1, 0
			}
		}
		g.pieces[len(g.pieces)-1].More = false
		p.stats.GSOReceivedFrames++
		err := p.rx.decodeInner(g.pieces, marked)
		if err == nil && (p.rx.pkt.VI != vi || p.rx.pkt.Key != key) {
			err = wire.ErrLength
		}
		v := p.vis.find(vi)
		if err != nil || v == nil {
			p.stats.Malformed++
			break
		}
		p.receiveFor(v, g.pieces, now)
	}
	g.inner = false
	p.recycleKept(packet)
}
