package fabric

import (
	"context"
	"errors"
	"fmt"
	"time"

	"viaxdp/internal/lab/fail"
	"viaxdp/vipl"
)

const (
	// Message is the length of a stream's messages.
	Message    = 64 << 10
	leastDepth = 8 // least number of messages posted at each end; more if the receiver's window holds more
	connect    = time.Minute
)

// Stream is a pair of connected VIs of Reliable Delivery, from one host to another. The programs at its ends post
// messages and receive them.
type Stream struct {
	Received int64 // bytes of whole messages
	Err      error // why it ended

	from, to *Host
	va, vb   *vipl.VI
	src, dst *vipl.Region
	send     []*vipl.Descriptor
	recv     []*vipl.Descriptor
	free     int // descriptors of send that are not posted
	next     int // of send
	endless  bool
	queued   []transfer // transfers that are not posted whole
	waiting  []transfer // transfers that have not been received; left is the value of Received at their end
	asked    int64      // bytes of all transfers
}

// transfer is a number of bytes to send.
type transfer struct {
	left int64
	done func(now int64)
}

// NewStream connects two VIs. Nothing is sent before Start or Transfer.
func (s *Sim) NewStream(from, to *Host) (_ *Stream, err error) {
	defer fail.Catch(&err)
	depth := max(leastDepth, to.config.RxChunks*payload/Message)
	st := &Stream{from: from, to: to, free: depth}
	st.va, st.src, st.send = from.open(depth)
	st.vb, st.dst, st.recv = to.open(depth)
	for _, d := range st.recv {
		fail.If(st.receive(d))
	}
	at := vipl.NetAddress{Host: to.Addr(), Discriminator: []byte("stream")}
	l := fail.Must(to.NIC.Listen(at))
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Wait(context.Background())
		if err == nil {
			err = r.Accept(st.vb)
		}
		accepted <- err
	}()
	if _, err = st.va.ConnectRequest(vipl.NetAddress{}, at, connect); err != nil {
		return nil, errors.Join(err, l.Close(), <-accepted)
	}
	fail.If(errors.Join(<-accepted, l.Close()))
	from.turns = append(from.turns, st.post)
	to.turns = append(to.turns, st.take)
	return st, nil
}

const descLen = 128

// open makes a VI, its descriptors, and memory for a message.
func (h *Host) open(depth int) (*vipl.VI, *vipl.Region, []*vipl.Descriptor) {
	tag := h.NIC.CommonPtag()
	r := fail.Must(h.NIC.RegisterMem(make([]byte, depth*descLen+Message), vipl.MemAttributes{Ptag: tag}))
	ds := make([]*vipl.Descriptor, depth)
	for i := range ds {
		ds[i] = fail.Must(r.Descriptor(i*descLen, 1))
	}
	attrs := vipl.VIAttributes{Level: vipl.ReliableDelivery, Congestion: h.config.Congestion, Ptag: tag}
	return fail.Must(h.NIC.CreateVI(attrs, nil, nil)), r, ds
}

// Start sends without end from now on.
func (st *Stream) Start() {
	st.endless = true
	st.from.wake(st.from.sim.now)
}

// Transfer sends n bytes behind those of earlier calls, and calls done when they have been received.
func (st *Stream) Transfer(n int64, done func(now int64)) {
	st.asked += n
	st.queued = append(st.queued, transfer{n, nil})
	st.waiting = append(st.waiting, transfer{st.asked, done})
	st.from.wake(st.from.sim.now)
}

// message returns the length of the next message to send; 0: none.
func (st *Stream) message() int64 {
	if st.endless {
		return Message
	}
	if len(st.queued) == 0 {
		return 0
	}
	n := min(Message, st.queued[0].left)
	if st.queued[0].left -= n; st.queued[0].left == 0 {
		st.queued = st.queued[1:]
	}
	return n
}

// post dequeues completed sends and posts others.
func (st *Stream) post() {
	for st.free < len(st.send) {
		d, err := st.va.SendDone()
		if d == nil {
			if err != vipl.ErrNotDone {
				st.fail(err)
			}
			break
		}
		if err != nil {
			st.fail(err)
			return
		}
		st.free++
	}
	for st.free > 0 && st.Err == nil {
		n := st.message()
		if n == 0 {
			return
		}
		d := st.send[st.next]
		st.next = (st.next + 1) % len(st.send)
		d.SetSegments(st.src.Segment(len(st.send)*descLen, int(n)))
		if err := st.va.PostSend(d, st.src.Handle()); err != nil {
			st.fail(err)
			return
		}
		st.free--
	}
}

// take dequeues messages that have arrived.
func (st *Stream) take() {
	for {
		d, err := st.vb.RecvDone()
		if d == nil {
			if err != vipl.ErrNotDone {
				st.fail(err)
			}
			return
		}
		if err != nil {
			st.fail(err)
			return
		}
		st.Received += int64(d.Length)
		if err := st.receive(d); err != nil {
			st.fail(err)
			return
		}
		for len(st.waiting) > 0 && st.Received >= st.waiting[0].left {
			done := st.waiting[0].done
			st.waiting = st.waiting[1:]
			done(st.to.sim.Now())
		}
	}
}

// receive posts a receive of a message.
func (st *Stream) receive(d *vipl.Descriptor) error {
	d.SetSegments(st.dst.Segment(len(st.recv)*descLen, Message))
	return st.vb.PostRecv(d, st.dst.Handle())
}

func (st *Stream) fail(err error) {
	if st.Err == nil {
		st.Err = err
	}
}

// failed returns the error of the first stream that has failed.
func failed(streams []*Stream) error {
	for _, st := range streams {
		if st.Err != nil {
			return fmt.Errorf("a stream has ended: %w", st.Err)
		}
	}
	return nil
}
