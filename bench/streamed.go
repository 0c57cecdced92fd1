package bench

import (
	"errors"
	"time"
)

// byteStream is a connected stream of bytes, the ground of the TCP transports.
type byteStream interface {
	// write sends all of p.
	write(p []byte) error
	// read returns as soon as there are bytes, at least one.
	read(p []byte) (int, error)
	// round is called before each round.
	round() error
}

// streamed makes messages of a byte stream: equal sizes, so that nothing marks
// their bounds.
type streamed struct {
	s       byteStream
	out, in []byte
}

// readBuffer is the room for reads of a stream, where messages are small.
const readBuffer = 64 << 10

func newStreamed(s byteStream, maxBytes int) *streamed {
	return &streamed{s: s, out: make([]byte, maxBytes), in: make([]byte, max(maxBytes, readBuffer))}
}

func (t *streamed) enter(r Round) error {
	if err := r.check(); err != nil {
		return err
	}
	if r.Bytes > len(t.out) {
		return errors.New("message larger than announced")
	}
	return t.s.round()
}

func (t *streamed) ping(r Round, rtt []int64) (Span, error) {
	if err := t.enter(r); err != nil {
		return Span{}, err
	}
	clock := startStopwatch()
	last := time.Since(clock.wall)
	for i := range r.Lead + r.Messages {
		if err := t.send(r, i); err != nil {
			return Span{}, err
		}
		if err := t.receive(r, i); err != nil {
			return Span{}, err
		}
		now := time.Since(clock.wall)
		if i >= r.Lead {
			rtt[i-r.Lead] = int64(now - last)
		}
		last = now
	}
	return clock.span(), nil
}

func (t *streamed) echo(r Round) error {
	if err := t.enter(r); err != nil {
		return err
	}
	for i := range r.Lead + r.Messages {
		if err := t.receive(r, i); err != nil {
			return err
		}
		if err := t.send(r, i); err != nil {
			return err
		}
	}
	return nil
}

func (t *streamed) stream(r Round) (Span, error) {
	if err := t.enter(r); err != nil {
		return Span{}, err
	}
	// One byte says that the receiver is ready, another one that it has all.
	if err := t.full(t.in[:1]); err != nil {
		return Span{}, err
	}
	clock := startStopwatch()
	for i := range r.Messages {
		if err := t.send(r, i); err != nil {
			return Span{}, err
		}
	}
	if err := t.full(t.in[:1]); err != nil {
		return Span{}, err
	}
	return clock.span(), nil
}

func (t *streamed) sink(r Round) (Span, error) {
	if err := t.enter(r); err != nil {
		return Span{}, err
	}
	if err := t.s.write(t.out[:1]); err != nil {
		return Span{}, err
	}
	clock := startStopwatch()
	if r.Check {
		for i := range r.Messages {
			if err := t.receive(r, i); err != nil {
				return Span{}, err
			}
		}
	} else {
		// As large reads as there are bytes, like any program that expects
		// many messages.
		for rest := r.Bytes * r.Messages; rest > 0; {
			n, err := t.s.read(t.in[:min(len(t.in), rest)])
			if err != nil {
				return Span{}, err
			}
			rest -= n
		}
	}
	if err := t.s.write(t.out[:1]); err != nil {
		return Span{}, err
	}
	return clock.span(), nil
}

func (t *streamed) send(r Round, i int) error {
	p := t.out[:r.Bytes]
	if r.Check {
		copy(p, content(i, 0, r.Bytes))
	}
	return t.s.write(p)
}

func (t *streamed) receive(r Round, i int) error {
	p := t.in[:r.Bytes]
	if err := t.full(p); err != nil {
		return err
	}
	if r.Check {
		return verify(i, 0, p)
	}
	return nil
}

// full reads until p is full.
func (t *streamed) full(p []byte) error {
	for len(p) > 0 {
		n, err := t.s.read(p)
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}
