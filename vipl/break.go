package vipl

import "viaxdp/wire"

// The end of a connection by an error, and of what is posted.

// abandon stops the flow of frames and gives back what the connection held.
// The second time it does nothing.
func (p *port) abandon(c *conn) {
	if !c.open {
		return
	}
	c.open = false
	p.active--
	p.share()
	c.answers = nil
	p.timers.remove(c)
	p.settle(c)
	p.unloop(c)
	if c.sender == nil {
		return
	}
	for seq := c.sender.Unacked(); seq != c.sender.Next(); seq++ {
		tag := c.sender.Tag(seq)
		if c.bare && isLong(tag) {
			p.voidLent(&p.chains.sent[tag>>tagShift])
		}
		p.release(tag)
	}
	for tag, ok := c.receiver.Drain(); ok; tag, ok = c.receiver.Drain() {
		p.recycle(p.held.take(tag, p.late[:]))
	}
	p.nic.Refill()
}

// voidLent takes back a frame of lent memory that is still on the ring. Its checksum
// does not cover the data: whatever the program writes there next, a peer that does not
// know of the end yet would take for the message. What remains is the one frame of which the
// NIC reads the data just then.
func (p *port) voidLent(f *longFrame) {
	if len(f.segs) > f.own {
		p.nic.Void(f.segs[0].Addr)
	}
}

// broken says how a connection broke.
type broken struct {
	cause  error
	silent bool // the oldest send that is under way failed with it
	told   bool // by the peer, about frame seq
	seq    uint32
	part   int    // messages of it that arrived, where it has several
	status Status // with which the next one completes, unless 0
}

// breakDown ends a connection by an error: the VI goes to Error and everything
// posted completes as flushed, but for what b says. Where the program does not have the
// connection yet, that happens when it gets it: if it does not, its receives stay posted.
func (p *port) breakDown(c *conn, b broken) {
	if !c.open {
		return
	}
	v := c.vi
	if c.part == wire.KindWrite {
		v.report(ErrorRDMAWriteAbort, StatusOpRDMAWrite, b.cause)
	}
	if c.lent {
		p.flush() // the kernel reads lent memory now, as far as it takes it, not when it is the program's again
	}
	p.abandon(c)
	c.finishClose(p)
	if v.state == ConnectPending {
		c.early = b.cause // what is posted waits for the connect's outcome: ended
		return
	}
	lost := v.state == Connected
	if lost {
		v.state = Error
		v.cause = b.cause
	}
	p.flushQueue(v, &v.send, b)
	if lost { // else Disconnect has flushed the receives, and those posted since are for the next connection
		p.flushQueue(v, &v.recv, broken{})
		v.report(ErrorConnLost, 0, b.cause)
	}
}

// flushQueue completes everything on q.
func (p *port) flushQueue(v *VI, q *workQueue, b broken) {
	for i := q.completed.Load(); i != q.tail.Load(); i++ {
		e := q.at(i)
		s := StatusFlushed
		switch {
		case e.status.Failed():
			s = e.status
		case q.isRecv:
		case i < q.current && v.attrs.Level != ReliableReception && e.op != StatusOpRDMARead:
			s = 0 // on the ring already
		case b.silent && e.begun:
			s, b.silent = StatusTransportError, false
			if e.op != StatusOpSend {
				v.reportDescriptor(ErrorRDMATransport, e.desc, e.op, b.cause)
			}
		case !b.told || !e.begun || int32(b.seq-e.first) < 0 || i < q.current && int32(e.last-b.seq) < 0:
		case e.packed && b.part > 0:
			s = 0 // it came before the one that failed
			b.part--
		case b.status != 0:
			s, b.status = b.status, 0
		}
		p.complete(v, q, e, s)
	}
	q.current = q.tail.Load()
}
