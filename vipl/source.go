package vipl

// Connections whose interface does not let their frames go any more. They name its
// address as where they come from, and the peer takes them from nowhere else: so a
// connection ends when the interface has not its address any more, or has another
// hardware address, by which the network would not find it; and when the MTU is less
// than its longest frames need. The agent says how the interface is (linkChanged).
//
// What is as before within a grace has done no harm: an address that is set
// anew, by removing and adding it, an interface that is restarted, an MTU that is
// tried. Renaming an interface changes nothing that frames have in them.

import (
	"net/netip"
	"time"

	"viaxdp/kagent"
	"viaxdp/wire"
)

// graceMost is how long what frames need may be away at most; less where silence is short.
const graceMost = 500 * time.Millisecond

func (p *port) grace() int64 { return min(int64(graceMost), p.silence/4) }

// source is where the frames of a connection come from, and what they need of it.
type source struct {
	addr      netip.Addr
	elsewhere bool // it is not the interface's, and so nothing that it can lose
	mac       [6]byte
	wired     bool  // hardware address and MTU matter: frames leave the host
	longest   int   // bytes of the longest IP packet
	since     int64 // when it was found missing, or 0
}

func sourceOf(path *kagent.Path, longest int) source {
	return source{addr: path.Src, elsewhere: path.Elsewhere, mac: path.SrcMAC, wired: !path.Loopback, longest: longest}
}

// at says whether the interface has its addresses, and fits whether the MTU is enough.
func (s *source) at(l *kagent.Link) bool {
	return (s.elsewhere || l.Has(s.addr)) && (!s.wired || l.MAC == s.mac)
}

func (s *source) fits(l *kagent.Link) bool { return !s.wired || s.longest <= l.MTU }

// lost says whether something has been missing for the grace.
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

// lookSource looks whether what a connection's frames need is still there. Under the lock.
func (p *port) lookSource(c *conn, now int64) {
	s := &c.source
	switch {
	case p.link.Name == "" || s.at(&p.link) && s.fits(&p.link):
		s.since = 0
	case s.since == 0:
		s.since = now
		p.timers.schedule(c, now+p.grace())
	}
}

// loseSource ends a connection of which lost is true.
func (p *port) loseSource(c *conn, now int64) {
	cause := errMoved
	if c.source.at(&p.link) {
		cause = errTooSmall
		p.stats.PathsLost++
	} else {
		p.stats.SourcesLost++
	}
	p.tellBroken(c, wire.ReasonClosed, now) // the peer takes frames from where it knows us, and this one is short
	p.breakDown(c, broken{cause: cause, silent: c.sender != nil})
}
