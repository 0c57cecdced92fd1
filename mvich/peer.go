package mvich

import (
	"viaxdp/vipl"
)

// condition of the connection with a peer.
//
//	                                               BYE, the world's end, or
//	          call, or the peer's call             broken after Finalize
//	apart ---------> admitting, joined ---------------------------> left
//	                      |  broken, nobody there
//	                      +-------------------------------> dead
type condition uint8

const (
	apart condition = iota
	admitting
	joined
	left // it has said good-bye, or is not needed any more
	dead
)

// peer is another rank as this one sees it. The world's mutex guards it.
type peer struct {
	rank  int
	host  netAddress
	state condition
	cause error // why it is gone
	told  *peer // the first whose death it has told of
	link  *link // when admitting or joined

	calling  bool // a goroutine tries to connect
	expected bool // and one will, if it does not call before and is still waited for
	probes   int  // calls of Probe that wait for it
	iprobes  int  // calls of Iprobe in vain, before it is called
	looks    vigil
	canRead  bool // RDMA reads work, both ways
	canWrite bool // it takes RDMA writes

	// Credits; credit.go says how they are used.
	credits int  // receives that it has posted for us (remote_credit)
	acksDue int  // receives that we have posted and not told it of (credit_update)
	granted int  // receives that we have told it of, and it has not used
	full    bool // it asks for envelopes only

	// What waits to be sent, by class.
	control fifo[packet]
	sends   fifo[*Request] // messages of which nothing has been sent
	streams fifo[*Request] // R3: data to send
	moves   fifo[*Request] // RDMA to post
	moving  int            // RDMA operations posted and not complete

	unexpected int  // bytes of its messages that nobody has asked for
	envelopes  int  // of those without data
	late       int  // of those with data that came when there were too many bytes
	dirty      bool // in World.dirty
}

// packet is a control packet that waits to be sent.
type packet struct {
	header header
	offer  offer // of kindReady and kindRequest
}

// idle says that nothing waits to be sent.
func (p *peer) idle() bool {
	return p.control.len()+p.sends.len()+p.streams.len()+p.moves.len()+p.moving == 0
}

// gone says that nothing will come from it or go to it any more.
func (p *peer) gone() bool { return p.state == left || p.state == dead }

// lost is the error of operations that involve a peer that is gone.
func (p *peer) lost() error { return &RankError{Rank: p.rank, Err: p.cause} }

// link is a VI and what is posted on it. A peer may have had several, of which
// the last one counts.
type link struct {
	peer  *peer
	vi    *vipl.VI
	recvs fifo[*vbuf]
	sends fifo[*vbuf]
	heard bool // a packet has come
	held  []heldRequest
}

// heldRequest is a request that completes with err when its link is dismantled.
type heldRequest struct {
	request *Request
	err     error
}

// newLink makes a VI for p.
func (w *World) newLink(p *peer) (*link, error) {
	vi, err := w.nic.CreateVI(vipl.VIAttributes{
		Level: vipl.ReliableDelivery, Ptag: w.tag, EnableRDMARead: w.set.read, EnableRDMAWrite: w.set.write,
	}, w.cq, w.cq)
	if err != nil {
		return nil, err
	}
	l := &link{peer: p, vi: vi}
	vi.SetValue(l)
	return l, nil
}

// stock posts receives until there are as many as there should be.
func (w *World) stock(l *link) error {
	for l.recvs.len() < w.set.credits {
		v, err := w.pool.get()
		if err != nil {
			return err
		}
		if err := w.postRecv(l, v); err != nil {
			w.pool.put(v)
			return err
		}
	}
	return nil
}

func (w *World) postRecv(l *link, v *vbuf) error {
	v.desc.Control = 0
	v.desc.SetSegments(v.place)
	if err := l.vi.PostRecv(v.desc, v.home); err != nil {
		return err
	}
	l.recvs.push(v)
	return nil
}

// post puts v, whose descriptor is ready, on the send queue.
func (w *World) post(l *link, v *vbuf) error {
	if err := l.vi.PostSend(v.desc, v.home); err != nil {
		w.pool.put(v)
		return err
	}
	l.sends.push(v)
	return nil
}

// retire ends a link and its VI. It takes a moment, and so does it beside.
func (w *World) retire(l *link) {
	w.tasks.Go(func() {
		l.vi.Disconnect()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.dismantle(l)
	})
}

// dismantle takes back the buffers of a link whose VI is disconnected, and
// destroys the VI.
func (w *World) dismantle(l *link) {
	for d, _ := l.vi.SendDone(); d != nil; d, _ = l.vi.SendDone() {
		w.pool.put(l.sends.pop())
	}
	for d, _ := l.vi.RecvDone(); d != nil; d, _ = l.vi.RecvDone() {
		w.pool.put(l.recvs.pop())
	}
	l.vi.Destroy()
	for _, h := range l.held {
		w.complete(h.request, h.err)
	}
	l.held = nil
}
