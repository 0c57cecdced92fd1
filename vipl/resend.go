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
	p.sendGSO() // the frame may wait there
	tag := c.sender.Tag(seq)
	var result resendResult
	if isLong(tag) {
		result = p.resendLong(c, p.long.kept.at(tag), more)
	} else {
		result = p.resendShort(c, tag>>tagShift, tag&tagMask, more)
	}
	switch result {
	case resent:
		c.sender.Resent(now, seq)
		c.gso.resent(seq)
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
	if !p.send(c, addr, int(size), true, false) {
		return portFull
	}
	c.resentLoop = c.loop
	return resent
}
