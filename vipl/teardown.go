package vipl

import "viaxdp/internal/base/wire"

// The end of a connection by an error, and the flushing of its queues.

// abandon stops the flow of frames and releases the connection's resources. A second call does nothing.
func (p *port) abandon(c *conn) {
	if !c.open {
		return
	}
	c.open = false
	c.part = 0
	c.vi.recv.rewindHead()
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
		p.release(c, c.sender.Tag(seq))
	}
	p.cancel(c.vi, p.now())
	for tag, ok := c.receiver.Drain(); ok; tag, ok = c.receiver.Drain() {
		p.recycle(p.reorder.take(tag, p.late[:]))
	}
	p.nic.Refill()
}

// broken describes how a connection broke.
type broken struct {
	cause  error
	silent bool // the peer is silent: the oldest send under way fails with a transport error
	told   bool // the peer reported it, at frame seq
	seq    uint32
	part   int    // messages of that frame that arrived before the error, if it has several
	status Status // status of the next descriptor, unless 0
}

// teardown ends a connection by an error. The VI goes to Error and everything posted completes as flushed, except
// as b says. If the program does not have the connection yet, this happens when it gets it; if it never does, its
// receives stay posted.
func (p *port) teardown(c *conn, b broken) {
	if !c.open {
		return
	}
	v := c.vi
	if c.part == wire.KindWrite {
		v.report(ErrorRDMAWriteAbort, StatusOpRDMAWrite, b.cause)
	}
	if c.byRef {
		p.flush() // the kernel should read memory sent by reference now, as far as it can, and not after the program has it back
	}
	p.abandon(c)
	c.finishClose(p)
	if v.state == ConnectPending {
		c.earlyErr = b.cause // what is posted waits for the outcome of the connect, see ended
		return
	}
	lost := v.state == Connected
	if lost {
		v.state = Error
		v.cause, v.lost = b.cause, b.cause
	}
	p.flushQueue(v, &v.send, b)
	if lost { // else Disconnect has flushed the receives; those posted since are for the next connection
		p.flushQueue(v, &v.recv, broken{})
		v.report(ErrorConnLost, 0, b.cause)
	}
}

// flushQueue completes everything on q. Sends whose memory is still read complete when that ends.
func (p *port) flushQueue(v *VI, q *workQueue, b broken) {
	for i := q.completed.Load(); i != q.tail.Load(); i++ {
		e := q.at(i)
		if e.over {
			continue // flushed by the end of an earlier connection
		}
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
			s = 0 // it arrived before the one that failed
			b.part--
		case b.status != 0:
			s, b.status = b.status, 0
		}
		e.status, e.over = s, true
	}
	q.current = q.tail.Load()
	p.settleQueue(q)
}
