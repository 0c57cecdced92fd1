package bench

import (
	"time"

	"viaxdp/vipl"
)

// rdmaRead is a VI that reads messages from memory of the peer. The peer's
// program takes no part; it polls, so that its provider serves the reads
// without being woken, until a word says that the round is over.
//
// A round trip is one read: a request and the data. A stream goes from the
// sender as ever, but it is the receiver that asks, with up to readDepth reads
// under way.
type rdmaRead struct{ vi }

// readDepth is the number of reads that a connection has under way at most.
const readDepth = 16

func openRDMARead(o opening) (Endpoint, error) {
	v := &rdmaRead{vi{params: o.Params, options: o.VI, level: vipl.ReliableDelivery, read: true, watch: watchdog{stop: o.stop}}}
	return endpointOr(v, v.open())
}

// Ping, see Endpoint.
func (v *rdmaRead) Ping(r Round, rtt []int64) (Span, error) {
	if err := v.enter(r, 0, 0, 0); err != nil {
		return Span{}, err
	}
	clock := startStopwatch()
	last := time.Since(clock.wall)
	for i := range r.Lead + r.Messages {
		if err := v.readNext(i); err != nil {
			return Span{}, err
		}
		if err := v.drain(); err != nil {
			return Span{}, err
		}
		now := time.Since(clock.wall)
		if i >= r.Lead {
			rtt[i-r.Lead] = int64(now - last)
		}
		last = now
	}
	return clock.span(), v.finish()
}

// Echo, see Endpoint.
func (v *rdmaRead) Echo(r Round) error {
	_, err := v.serve(r)
	return err
}

// Send, see Endpoint.
func (v *rdmaRead) Send(r Round) (Span, error) { return v.serve(r) }

// Receive, see Endpoint.
func (v *rdmaRead) Receive(r Round) (Span, error) {
	if err := v.enter(r, 0, 0, 0); err != nil {
		return Span{}, err
	}
	depth := min(readDepth, r.places())
	clock := startStopwatch()
	for i := range r.Messages {
		for v.sends.out() >= depth {
			if err := v.sent(); err != nil {
				return Span{}, err
			}
		}
		if err := v.readNext(i); err != nil {
			return Span{}, err
		}
	}
	if err := v.drain(); err != nil {
		return Span{}, err
	}
	return clock.span(), v.finish()
}

// serve is the side that is read: it says that its messages are there, and
// polls until the peer has read them.
func (v *rdmaRead) serve(r Round) (Span, error) {
	if err := v.admit(r); err != nil {
		return Span{}, err
	}
	if r.Check {
		for i := range r.places() {
			copy(v.out.Bytes()[r.place(i):], content(i, 0, r.Bytes))
		}
	}
	if err := v.enter(r, 0, 0, 1); err != nil {
		return Span{}, err
	}
	clock := startStopwatch()
	if _, err := v.told(wordDone); err != nil {
		return Span{}, err
	}
	return clock.span(), v.drain()
}

// readNext posts the read of message i, from its place at the peer to the same
// place here, which no read under way uses.
func (v *rdmaRead) readNext(i int) error {
	d, err := v.free()
	if err != nil {
		return err
	}
	at := v.round.place(i)
	if v.round.Check {
		clear(v.in.Bytes()[at : at+v.round.Bytes])
	}
	if v.pieces == nil {
		d.SetRDMARead(v.remoteAt(at), v.in.Segment(at, v.round.Bytes))
	} else {
		d.SetRDMARead(v.remoteAt(at), v.cut(v.in, at, v.round.Bytes)...)
	}
	return v.post()
}

// finish tells the peer that everything is read.
func (v *rdmaRead) finish() error {
	if err := v.word(wordDone | v.round.Messages); err != nil {
		return err
	}
	return v.drain()
}

// verifyRead checks what a read has brought: the message that belongs there.
func (v *vi) verifyRead(d *vipl.Descriptor) error {
	at := int(d.Segment(1).Data - v.in.Addr())
	return verify(at/slot(v.round.Bytes), 0, v.in.Bytes()[at:at+v.round.Bytes])
}
