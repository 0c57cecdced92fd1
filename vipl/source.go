package vipl

// Connections whose interface no longer lets their frames through. Frames carry the interface's address as their
// source, and the peer accepts them from no other address. So a connection ends if the interface loses that
// address, or gets another hardware address, under which the network would not find it, or if the MTU becomes
// smaller than its longest frames. The agent reports the interface's state (linkChanged).
//
// A change that is undone within the grace period does no harm: an address that is removed and added again, an
// interface that is restarted, an MTU that is tried. Frames do not carry the interface's name, so renaming it
// changes nothing.

import (
	"errors"
	"net/netip"
	"time"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/wire"
	"viaxdp/xdpnic"
)

// graceMost is the longest grace period; it is shorter if the silence time is short.
const graceMost = 500 * time.Millisecond

// iface is what the engine knows of the interface.
type iface struct {
	link    kagent.Link // as the agent last reported it; Name is empty before that
	gone    bool        // it was removed
	removed bool        // gone has been handled: every connection has ended
}

// failed records an error of the doorbell.
func (i *iface) failed(err error) { i.gone = i.gone || errors.Is(err, xdpnic.ErrGone) }

func (p *port) grace() int64 { return min(int64(graceMost), p.silence/4) }

// source is the address from which a connection's frames are sent, and what they need of the interface.
type source struct {
	addr      netip.Addr
	elsewhere bool // the address is not the interface's, so the interface cannot lose it
	mac       [6]byte
	wired     bool  // hardware address and MTU matter: frames leave the host
	longest   int   // bytes of the longest IP packet
	since     int64 // when something was found missing; 0: nothing is
}

func sourceOf(path *kagent.Path, longest int) source {
	return source{addr: path.Src, elsewhere: path.Elsewhere, mac: path.SrcMAC, wired: !path.Loopback, longest: longest}
}

// at reports whether the interface has the addresses, and fits whether its MTU is large enough.
func (s *source) at(l *kagent.Link) bool {
	return (s.elsewhere || l.Has(s.addr)) && (!s.wired || l.MAC == s.mac)
}

func (s *source) fits(l *kagent.Link) bool { return !s.wired || s.longest <= l.MTU }

// lost reports whether something has been missing for the grace period.
func (s *source) lost(now, grace int64) bool { return s.since != 0 && now-s.since >= grace }

// linkChanged records the interface's new state.
func (p *port) linkChanged(l kagent.Link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.iface.link = l
	p.iface.gone = p.iface.gone || l.Gone
	now := p.now()
	for _, v := range p.vis.connected {
		if v != nil && v.conn.open {
			p.checkSource(v.conn, now)
		}
	}
	p.finish(now, false) // a sleeper must take the new timers and iface.gone into account
}

// removed reports whether the interface was removed.
func (p *port) removed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.iface.gone
}

// checkSource checks whether the interface still has what the connection's frames need. Under the lock.
func (p *port) checkSource(c *conn, now int64) {
	s := &c.source
	switch {
	case p.iface.link.Name == "" || s.at(&p.iface.link) && s.fits(&p.iface.link):
		s.since = 0
	case s.since == 0:
		s.since = now
		p.timers.schedule(c, now+p.grace())
	}
}

// loseSource ends a connection for which lost is true.
func (p *port) loseSource(c *conn, now int64) {
	cause := errMoved
	if c.source.at(&p.iface.link) {
		cause = errTooSmall
		p.stats.PathsLost++
	} else {
		p.stats.SourcesLost++
	}
	p.sendReset(c, wire.ReasonClosed, now) // the peer accepts frames from our known address only; this one is short enough for any MTU
	p.teardown(c, broken{cause: cause, silent: c.sender != nil})
}

// onRemove ends every connection, because the interface was removed.
func (p *port) onRemove() {
	p.iface.removed = true
	for _, n := range p.nics {
		n.report(ErrorDescriptor{Resource: ResourceNIC, Code: ErrorCatastrophic, Err: errGone})
	}
	for _, v := range p.vis.connected {
		if v != nil {
			p.teardown(v.conn, broken{cause: errGone})
		}
	}
}
