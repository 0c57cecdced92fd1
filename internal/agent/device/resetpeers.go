package device

import (
	"maps"
	"net/netip"
	"slices"

	"viaxdp/internal/base/wire"
)

// VIs is how many VI numbers the handle has.
func (l *Local) VIs() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.vis)
}

// HasVI tells whether a VI number is the handle's.
func (l *Local) HasVI(num uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.vis[num]
	return ok
}

// PeerReset is the connection of a program that has died: what the peer must be told
// to believe it.
type PeerReset struct {
	From, To netip.Addr // this side, the peer
	VI       uint32     // the peer's
	Key      uint64     // of frames to the peer
	Seq      uint32     // the peer's first sequence number
}

// Connected notes whom ResetPeers is to tell of the program's death, until the VI leaves
// the VI table. It is kept in the descriptor store for a later agent.
func (l *Local) Connected(num uint32, g PeerReset) {
	l.mu.Lock()
	defer l.mu.Unlock()
	peer, ok := l.vis[num]
	if l.closed || !ok {
		return
	}
	l.peerResets[num] = g
	l.note(num, peer)
}

// ResetPeers tells the peers of all connections that Connected has named, whose program
// has died, that there is nobody any more.
func (l *Local) ResetPeers() {
	l.mu.Lock()
	peerResets := slices.Collect(maps.Values(l.peerResets))
	clear(l.peerResets)
	l.mu.Unlock()
	for _, g := range peerResets {
		l.resetPeers(g)
	}
}

// resetPeers tells the peer of a connection whose program has died that there is nobody
// any more. The frame goes through the kernel, for the queue is gone; a NIC that
// puts it on another queue than the connection's, or a loss, leave it to the
// peer's own clock (its silence). So does a connection with a key: the frame cannot
// be sealed here, and the peer drops it.
func (l *Local) resetPeers(g PeerReset) {
	h := wire.Header{
		Kind: wire.KindError, VI: g.VI, Key: g.Key, Ack: g.Seq, Immediate: uint32(wire.ReasonClosed),
	}
	b := make([]byte, wire.HeaderLen)
	h.Put(b)
	wire.PutChecksum(b)
	_ = l.dev.tell(b, g)
}

// tell sends a frame of a data path from the control socket.
func (d *device) tell(b []byte, g PeerReset) error {
	d.mu.Lock()
	udp, router := d.udp, d.router
	d.mu.Unlock()
	if udp == nil || router.Own(g.To) {
		return nil
	}
	return udp.Send(b, g.From, netip.AddrPortFrom(g.To, d.key.port))
}
