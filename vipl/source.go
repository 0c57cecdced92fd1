package vipl

// Connections whose own address goes away. Their frames name it as where they come
// from, and the peer takes them from nowhere else: so a connection ends when the
// interface has not its address any more, or has another hardware address, by which
// the network would not find it. The agent says how the interface is (linkChanged).
//
// An address that comes back within a grace has done no harm: one that is set
// anew, by removing and adding it, or an interface that is restarted. Renaming an
// interface changes nothing that frames have in them.

import (
	"net/netip"
	"time"

	"viaxdp/kagent"
)

// graceMost is how long an address may be away at most; less where silence is short.
const graceMost = 500 * time.Millisecond

func (p *port) grace() int64 { return min(int64(graceMost), p.silence/4) }

// source is where the frames of a connection come from.
type source struct {
	addr      netip.Addr
	elsewhere bool // it is not the interface's, and so nothing that it can lose
	mac       [6]byte
	wired     bool  // the hardware address matters: frames leave the host
	since     int64 // when it was found missing, or 0
}

func sourceOf(path *kagent.Path) source {
	return source{addr: path.Src, elsewhere: path.Elsewhere, mac: path.SrcMAC, wired: !path.Loopback}
}

// at says whether the interface has it.
func (s *source) at(l *kagent.Link) bool {
	return (s.elsewhere || l.Has(s.addr)) && (!s.wired || l.MAC == s.mac)
}

// lost says whether it has been missing for the grace.
func (s *source) lost(now, grace int64) bool { return s.since != 0 && now-s.since >= grace }

// linkChanged takes note of the interface as it is now.
func (p *port) linkChanged(l kagent.Link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.link = l
	p.gone = p.gone || l.Gone
	now := p.now()
	for _, v := range p.vis {
		if v != nil && v.conn.open {
			p.lookSource(v.conn, now)
		}
	}
	p.finish(now, false) // whoever sleeps learns of the new timers; and p.gone
}

// lookSource looks whether a connection's address is still there. Under the lock.
func (p *port) lookSource(c *conn, now int64) {
	s := &c.source
	switch {
	case p.link.Name == "" || s.at(&p.link):
		s.since = 0
	case s.since == 0:
		s.since = now
		p.timers.schedule(c, now+p.grace())
	}
}
