package vipl

// readyList has the connections that may be able to send. Invariant: a connection is in conns or stuck exactly if
// its inReady is set.
type readyList struct {
	conns []*conn
	stuck []*conn // set aside for this turn, see stuckAlone
}

// enqueue has c's sends examined before the turn ends.
func (p *port) enqueue(c *conn) {
	if !c.inReady {
		c.inReady = true
		p.ready.conns = append(p.ready.conns, c)
	}
}

// stuckAlone reports whether c, for which pump has just found no room, is blocked on a resource of its own (link
// room, chunks for a long frame) rather than on the port. It then sets c aside for this turn, since the port has
// room for others.
func (p *port) stuckAlone(c *conn) bool {
	last := len(p.ready.conns) - 1
	if last < 0 || p.ready.conns[last] != c || p.nic.TxFree() <= p.shares.spare {
		return false
	}
	p.ready.conns = p.ready.conns[:last]
	p.ready.stuck = append(p.ready.stuck, c)
	return true
}
