package vipl

import "slices"

// readyList has the connections that may be able to send. Invariant: a connection is in conns or stuck exactly if
// its inReady is set.
type readyList struct {
	conns []*conn
	stuck []*conn // set aside for this turn, see stuckAlone
}

// reserve makes room for n connections.
func (r *readyList) reserve(n int) {
	r.conns = slices.Grow(r.conns, max(0, n-len(r.conns)))
	r.stuck = slices.Grow(r.stuck, max(0, n-len(r.stuck)))
}

// enqueue has c's sends examined before the turn ends.
func (p *port) enqueue(c *conn) {
	if !c.inReady {
		c.inReady = true
		p.ready.conns = append(p.ready.conns, c)
	}
}

// pumpReady sends what the connections can send now.
func (p *port) pumpReady(now int64) {
	r := &p.ready
	for len(r.conns) > 0 {
		p.doorbell.hurry() // other connections have frames to send
		c := r.conns[len(r.conns)-1]
		r.conns = r.conns[:len(r.conns)-1]
		c.inReady = false
		if !p.pump(c, now) {
			if p.stuckAlone(c) {
				continue
			}
			// There is no chunk: the other connections wait for the next turn. Lost frames do not wait: they have
			// their chunks, and until they arrive no other chunks are freed.
			for _, other := range r.conns {
				if other.open && other.sender != nil {
					p.resendLost(other, now)
				}
			}
			break
		}
	}
	r.conns = append(r.conns, r.stuck...)
	r.stuck = r.stuck[:0]
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
