package vipl

// Retransmissions. Frames keep their chunks, so that only acknowledgement, window and checksum are written again.

import "viaxdp/internal/base/wire"

// resendLost retransmits lost frames. False: the port is full.
func (p *port) resendLost(c *conn, now int64) bool {
	for {
		seq, ok := c.sender.NextLost()
		if !ok {
			return true
		}
		switch p.resend(c, seq, now, 0) {
		case notYet:
			return true // the sender's timer tries again; other connections need not wait
		case portFull:
			return false
		}
	}
}

// resendResult is how a retransmission went.
type resendResult int

const (
	resent   resendResult = iota
	notYet                // the last transmission has not completed yet
	portFull              // the ring is full
)

func (p *port) resend(c *conn, seq uint32, now int64, more wire.Flags) resendResult {
	more |= wire.FlagAgain
	tag := c.sender.Tag(seq)
	var result resendResult
	if isLong(tag) {
		result = p.resendLong(c, &p.long.sent[tag>>tagShift], more)
	} else {
		result = p.resendShort(c, tag>>tagShift, tag&tagMask, more)
	}
	switch result {
	case resent:
		c.sender.Resent(now, seq)
		p.timers.schedule(c, c.sender.Deadline())
		p.stats.Resent++
	case portFull:
		p.notStamped(c, now)
	}
	return result
}

func (p *port) resendShort(c *conn, addr, size uint64, more wire.Flags) resendResult {
	if c.loop && p.onLoop(c, addr) != nil {
		return notYet
	}
	if p.nic.InFlight(addr) {
		if p.flush(); p.nic.InFlight(addr) {
			return notYet
		}
	}
	p.stamp(c)
	b := p.mem[addr+uint64(c.template.Len()) : addr+size]
	wire.Restamp(b, c.header.Ack, c.header.Window, more)
	c.putChecksum(b)
	if !p.send(c, addr, int(size), true) {
		return portFull
	}
	c.resentLoop = c.loop
	return resent
}

// resendLong puts a long frame on the ring again.
func (p *port) resendLong(c *conn, f *longFrame, more wire.Flags) resendResult {
	for _, s := range f.segs[:f.own] {
		if p.nic.InFlight(s.Addr) {
			if p.flush(); p.nic.InFlight(s.Addr) {
				return notYet
			}
		}
	}
	p.stamp(c)
	l := &p.long
	l.parts = l.parts[:0]
	for _, s := range f.segs {
		l.parts = append(l.parts, p.mem[s.Addr:s.Addr+uint64(s.Len)])
	}
	b := l.parts[0][c.template.Len():]
	l.parts[0] = b
	wire.Restamp(b, c.header.Ack, c.header.Window, more)
	c.putChecksum(b, l.parts[1:]...)
	if !p.sendSegs(c, f, true) {
		return portFull
	}
	return resent
}
