package vipl

import (
	"viaxdp/reliable"
	"viaxdp/wire"
)

const LeastWindow = leastWindow

// Expects is the head of the frame that would come next of the peer of v: VI, key, number, and what it would
// acknowledge. ok is false when frames do not flow.
func (v *VI) Expects() (h wire.Header, ok bool) {
	p := v.port
	p.mu.Lock()
	defer p.mu.Unlock()
	c := v.conn
	if c == nil || !c.open {
		return h, false
	}
	h.VI, h.Key, h.Seq = v.num, c.key, c.expect
	if c.receiver != nil {
		h.Seq, h.Ack = c.receiver.Next(), c.sender.Unacked()
	}
	return h, true
}

// Skip makes the connection between v and its peer, on which nothing is under way, one
// on which frames more have gone from v. False: something is under way.
func (v *VI) Skip(peer *VI, frames uint32) bool {
	from, to := v.port, peer.port
	from.mu.Lock()
	defer from.mu.Unlock()
	to.mu.Lock()
	defer to.mu.Unlock()
	s, r := v.conn.sender, peer.conn.receiver
	if !s.Idle() || r.Next() != s.Next() {
		return false
	}
	v.conn.sender = reliable.NewSender(s.Next()+frames, maxWindow)
	peer.conn.receiver = reliable.NewReceiver(r.Next()+frames, maxWindow)
	return true
}
