package vipl

import "viaxdp/wire"

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
