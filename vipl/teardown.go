package vipl

import (
	"errors"

	"viaxdp/internal/base/wire"
)

// ErrPeerClosed is the Cause of a VI in Error whose peer has disconnected it.
var ErrPeerClosed = errors.New("the peer disconnected")

// Causes of a broken connection.
var (
	errPeerSilent = errors.New("the peer went silent")
	// Connection management uses UDP through the kernel, so it can work while this path does not.
	errPeerUnheard = errors.New("no frame of the peer has arrived since the connection was made: frames are lost on the path, or arrive " +
		"on another queue than this NIC's (the demux counter queue): see Info().Notes, and open both NICs on the queues that meet")
	errUnheard    = errors.New("the peer received nothing from this side for its silence time and ended the connection: frames to it are lost on the path")
	errNoWay      = errors.New("the peer is alive but frames do not reach it: check for a smaller MTU on the path")
	errTooSmall   = errors.New("the interface's MTU is now smaller than the connection's frames need: connect again")
	errPeerBroke  = errors.New("the peer broke the connection")
	errRecvEmpty  = errors.New("a message arrived and no receive was posted")
	errFrameLost  = errors.New("a frame of the message was lost")
	errGone       = errors.New("the interface was removed")
	errMoved      = errors.New("the interface no longer has the local address of the connection: connect again")
	errTooLong    = errors.New("a message was longer than its receive descriptor")
	errPastRegion = errors.New("a message reached past the end of the region that its receive descriptor names")
	errProtocol   = errors.New("protocol error: the peer's frames do not form messages")
	errDescriptor = errors.New("a posted descriptor was invalid")
)

// refusal is why this side breaks a connection. The peer gets the answers to its earlier reads first.
type refusal struct {
	cause     error       // not nil: the connection ends, and later frames of the peer are ignored
	reason    wire.Reason // why this side refused a message of the peer, else 0
	seq       uint32      // number of a frame of that message
	part      int         // index of the refused message in its frame
	unpacking bool        // a frame is being delivered and more of its messages follow
}

// refuse breaks a reliable connection because of an error on this side. A reason other than ReasonClosed names
// the error in the last frame, which then counts as not arrived. So does a frame some of whose messages were
// not delivered.
func (p *port) refuse(c *conn, reason wire.Reason, cause error, now int64) {
	p.refuseAt(c, reason, c.receiver.Next()-1, cause, now)
}

// refuseAt is refuse for the request in frame seq. Earlier requests of the peer that are being answered are
// answered completely; later frames are ignored.
func (p *port) refuseAt(c *conn, reason wire.Reason, seq uint32, cause error, now int64) {
	if reason != wire.ReasonClosed || c.refusal.unpacking {
		c.refusal.reason, c.refusal.seq = reason, seq
	}
	c.refusal.cause = cause
	if reason == wire.ReasonClosed || reason == wire.ReasonProtocol || !c.answering() {
		p.teardownRefused(c, now)
	}
}

// teardownRefused ends the connection as refuseAt decided.
func (p *port) teardownRefused(c *conn, now int64) {
	p.sendReset(c, wire.ReasonClosed, now)
	p.teardown(c, broken{cause: c.refusal.cause})
}

// unpack records that the first n messages of a frame are delivered, and whether more of it follow.
func (r *refusal) unpack(n int, more bool) { r.part, r.unpacking = n, more }

// abandon stops the flow of frames and releases the connection's resources. A second call does nothing.
func (p *port) abandon(c *conn) {
	if !c.open {
		return
	}
	c.open = false
	c.part = 0
	c.vi.recv.rewindHead()
	p.countConn(-1)
	c.rdma.dropAnswers()
	p.timers.remove(c)
	p.settle(c)
	p.unloop(c)
	p.dropGSO(c)
	if c.sender == nil {
		return
	}
	for seq := c.sender.Unacked(); seq != c.sender.Next(); seq++ {
		p.release(c, c.sender.Tag(seq))
	}
	p.cancel(c.vi, p.now())
	for tag, ok := c.receiver.Drain(); ok; tag, ok = c.receiver.Drain() {
		p.recycleKept(p.rx.reorder.take(tag&^innerTag, p.rx.late[:]))
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

// teardown ends a connection by an error. The VI goes to Error and everything posted completes as flushed,
// except as b specifies. If the program does not have the connection yet, this happens when it gets it; if it
// never does, its receives stay posted.
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
