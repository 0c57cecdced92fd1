package vianet

import (
	"errors"

	"viaxdp/vipl"
)

// The session protocol of a connection. progress takes what has come (arrived, take), then sends what is due (push):
// control messages first, then the transfer, data, and the fin. Everything happens under the lock of the connection.

// controlBuffers is the number of receives that are set aside for messages other than data; the table in the
// package's comment adds them up.
const controlBuffers = 17

// dataBuffers is the number of data messages that the peer may have on their way or unread.
func (c *Conn) dataBuffers() int { return c.pool.half - controlBuffers }

// progress takes what has come and sends what is due.
func (c *Conn) progress() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.progressLocked()
}

// progressLocked is progress under mu. Nothing can be sent before begin, even if the peer's hello has arrived. When
// the connection is down, all buffers come back.
func (c *Conn) progressLocked() {
	if c.begun || c.down {
		c.arrived()
		c.push()
	}
}

// arrived takes all messages that have come. Under mu.
func (c *Conn) arrived() {
	for {
		d, err := c.vi.RecvDone()
		if d == nil {
			return
		}
		if err != nil {
			c.lost()
			continue
		}
		i := c.pool.index(d)
		var h header
		var payload []byte
		if d.Status()&vipl.StatusOpMask == vipl.StatusOpRemoteRDMAWrite {
			h, err = parseImmediate(d.ImmediateData, d.Length) // the buffer has an old message
		} else {
			h, payload, err = parse(c.pool.message(i)[:d.Length])
		}
		if err == nil && !c.down {
			err = c.take(&h, payload, i)
		}
		if err != nil {
			if errors.Is(err, errVersion) && !c.down && !c.spoke {
				c.due.hello = true
				c.pushControl() // the peer says the same then
			}
			c.fail(resetError(err))
			continue
		}
		if h.kind != kindData && !(h.kind == kindFilled && h.id == ringID) {
			c.repost(i)
		}
	}
}

// lost notes that the VI's connection has broken, or the peer has ended it. What came before is still delivered.
func (c *Conn) lost() {
	if c.down || c.losing {
		return
	}
	c.losing = true
	c.arrived()
	var cause error
	if s, err := c.vi.Query(); err == nil {
		cause = s.Cause
	}
	said := c.unheard || c.due.finAcked // a peer that closes sends stop, unless it has read up to the fin of this side
	if c.departed = said && !c.down && errors.Is(cause, vipl.ErrPeerClosed); c.departed {
		cause = peerClosed{cause}
	}
	c.fail(resetError(cause))
}

// repost gives a receive back to the VI.
func (c *Conn) repost(i int) {
	if !c.down && c.pool.postReceive(i) != nil {
		c.lost()
	}
}

// take acts on a message in buffer i. An error ends the connection.
func (c *Conn) take(h *header, payload []byte, i int) error {
	if c.greeted == (h.kind == kindHello) {
		return errOrder
	}
	if h.kind == kindHello {
		c.greeted = true
		c.longest, c.window, c.credits = min(int(h.length), c.pool.room()), int(h.credits), int(h.credits)
		c.due.hello = c.due.hello || !c.spoke
		close(c.ready)
		return nil
	}
	if h.credits > 0 {
		if c.credits += int(h.credits); c.credits > c.window {
			return errCredits
		}
		raise(c.writable)
	}
	switch h.kind {
	case kindData:
		return c.takeData(h, payload, i)
	case kindAnnounce, kindAsk:
		return c.takeTransfer(h)
	case kindFilled:
		if h.id == ringID {
			return c.takeInRing(h, i)
		}
		return c.takeFilled(h)
	case kindWithdraw:
		return c.takeWithdraw(h)
	case kindRoom:
		if h.id == ringID {
			return c.takeRing(h)
		}
		return c.takeRoom(h)
	case kindTaken:
		return c.takeTaken(h)
	case kindFin:
		return c.takeFin()
	case kindFinAck:
		return c.takeFinAck()
	case kindStop:
		return c.takeStop()
	}
	return nil // credit
}

func (c *Conn) takeFin() error {
	if c.fin || c.in.open {
		return errOrder
	}
	c.fin, c.due.finack = true, true
	raise(c.readable)
	return nil
}

func (c *Conn) takeFinAck() error {
	if !c.due.finSent || c.due.finAcked {
		return errOrder
	}
	c.due.finAcked = true
	raise(c.checkEnd)
	return nil
}

// takeStop handles a stop message: the peer reads no more. What it sends still arrives.
func (c *Conn) takeStop() error {
	if c.unheard {
		return errOrder
	}
	c.unheard = true
	raise(c.writable)
	raise(c.checkEnd)
	return nil
}

// reap takes the sends that are done. Under mu.
func (c *Conn) reap() {
	for {
		d, err := c.vi.SendDone()
		if d == nil {
			return
		}
		i := c.pool.index(d)
		use := c.pool.uses[i]
		c.pool.uses[i] = sendUse{}
		c.pool.free = append(c.pool.free, i)
		if err != nil {
			c.unsent = c.unsent || use.write || use.data
			c.lost()
		}
		switch {
		case use.land != nil:
			c.landed(use.land, err == nil)
		case use.write:
			c.out.flight--
		}
		if c.slotShort || use.write {
			raise(c.writable)
		}
		if use.land == nil && c.in.slotShort {
			raise(c.readable)
		}
	}
}

// mustReap reports whether something waits for a completed send. Otherwise completions may gather.
func (c *Conn) mustReap() bool {
	return c.wanting || c.down || c.in.flight+c.out.flight > 0 || len(c.pool.free) <= c.pool.half/2
}

// push sends what is due, as far as there are buffers and credits. Under mu.
func (c *Conn) push() {
	if c.mustReap() {
		c.reap()
	}
	starved := !c.down && !c.pushes()
	want := c.in.flight > 0 || c.out.flight > 0 || !c.down && (starved || c.slotShort || c.in.slotShort)
	if want != c.wanting {
		if c.wanting = want; want {
			c.stack.sends.want(1)
		} else {
			c.stack.sends.want(-1)
		}
	}
}

// pushes sends what is due. False: no buffer is free.
func (c *Conn) pushes() bool {
	if c.due.messages == (messages{}) && !c.owesMany() && c.out.roomLen == 0 && !c.due.fin {
		return c.pushTail() && c.pushData() // as mostly
	}
	return c.pushControl() && c.pushTransfer() && c.pushTail() && c.pushData() && c.pushFin()
}

// pushControl sends the messages that need no order relative to the data.
func (c *Conn) pushControl() bool {
	d, in := &c.due, &c.in
	return c.control(&d.hello, header{kind: kindHello, id: version, length: uint32(c.pool.room())}) &&
		c.control(&d.finack, header{kind: kindFinAck}) &&
		c.control(&d.stop, header{kind: kindStop}) &&
		c.control(&d.room, header{
			kind: kindRoom, id: in.id, length: uint32(in.roomLen), handle: in.room.Handle, addr: in.room.Data,
		}) &&
		c.control(&d.taken, header{kind: kindTaken, id: d.takenID, length: d.takenLen}) &&
		c.pushRing() &&
		c.pushCredit()
}

// pushCredit gives buffers back in a message of its own if there are many, or if the peer waits for a message.
func (c *Conn) pushCredit() bool {
	due := c.greeted && (c.due.credit || c.owesMany())
	if !c.control(&due, header{kind: kindCredit}) {
		return false
	}
	c.due.credit = false
	return true
}

// owesMany reports whether so few credits are left that the peer might soon wait for those due to it.
func (c *Conn) owesMany() bool { return c.acksDue >= (c.dataBuffers()+1)/2 }

// control sends a message if it is due. False: no buffer is free.
func (c *Conn) control(due *bool, h header) bool {
	if !*due {
		return true
	}
	i, ok := c.pool.take()
	if !ok {
		return false
	}
	*due = false
	c.send(i, headerLen, h)
	return true
}

// send sends n bytes of buffer i, including the header h, with the credits that are due.
func (c *Conn) send(i, n int, h header) {
	if h.kind == kindHello {
		h.credits, c.spoke = uint16(c.dataBuffers()), true
	} else {
		h.credits = c.giveBack()
	}
	h.put(c.pool.message(i))
	data := h.kind == kindData
	if c.pool.postSend(i, n, data, c.later) != nil {
		c.unsent = c.unsent || data
		c.pool.free = append(c.pool.free, i)
		c.lost()
		return
	}
	c.restock()
	c.stack.sent()
}

// write posts buffer i as an RDMA write of up to two segments: to the ring if id is ringID, else to the room of the
// transfer. The caller restocks when it has noted the write. False: the connection broke.
func (c *Conn) write(i int, id uint32, to vipl.AddressSegment, segs ...vipl.DataSegment) bool {
	h := header{kind: kindFilled, credits: c.giveBack(), id: id}
	if c.pool.postWrite(i, to, segs, h.immediate()) != nil {
		c.pool.free = append(c.pool.free, i)
		c.lost()
		return false
	}
	c.out.flight++
	c.stack.sent()
	return true
}

// giveBack returns how many of the credits due go with the next message or RDMA write.
func (c *Conn) giveBack() (n uint16) {
	n = uint16(min(c.acksDue, 1<<16-1))
	c.acksDue -= int(n)
	return n
}

// pushFin ends the stream when the last byte is sent.
func (c *Conn) pushFin() bool {
	if !c.due.fin || !c.emptied() || c.tail.n > 0 || c.out.open {
		return true
	}
	if !c.control(&c.due.fin, header{kind: kindFin}) {
		return false
	}
	c.due.finSent = true
	return true
}
