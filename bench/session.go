package bench

import (
	"context"
	"errors"
	"math/rand/v2"
)

// A Session is a transport that is open and connected between two workers, for
// measurements that are no rounds of a [Plan]. It belongs to one goroutine,
// and is of no use after a method has failed: only Close is left, which then
// may fail, too.
//
// Between OpenSession and Close the workers serve nothing else. As with [Run],
// the end of a context does not reach a worker that measures; [Bed.Do] ends it.
type Session struct {
	name           string
	polls          bool // it never sleeps
	client, server *Worker
	hello          [2]Hello // the client's and the server's
	round          uint16
}

// OpenSession opens a transport for messages of at most maxBytes on both
// workers and connects the two ends. opening, which may be nil, is called
// around the opening of one that maps memory on hugepages. change, if any, alters
// the parameters of both sides.
func OpenSession(
	ctx context.Context, client, server *Worker, name string, maxBytes int, opening func(func() error) error,
	change ...func(*Params),
) (*Session, error) {
	t, err := find(name)
	if err != nil {
		return nil, err
	}
	// Stray messages of an earlier session are most likely of other rounds.
	s := &Session{name: name, polls: !t.sleeps, client: client, server: server, round: uint16(rand.Uint32())}
	open := func() error { return s.open(ctx, t, maxBytes, change) }
	if t.arena && opening != nil {
		err = opening(open)
	} else {
		err = open()
	}
	if err != nil {
		return nil, err
	}
	_, _, err = both(ctx,
		client, request{Op: opConnect, Peer: &s.hello[1]},
		server, request{Op: opConnect, Peer: &s.hello[0]})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Session) open(ctx context.Context, t *transport, maxBytes int, change []func(*Params)) error {
	at := func(w *Worker, server bool) request {
		p := w.at(t.xdp)
		p.Server, p.MaxBytes = server, maxBytes
		for _, f := range change {
			f(&p)
		}
		return request{Op: opOpen, Name: t.name, Params: &p}
	}
	a, b, err := both(ctx, s.client, at(s.client, false), s.server, at(s.server, true))
	if err != nil {
		return err
	}
	if a.Hello == nil || b.Hello == nil {
		return errors.New("a worker has not said where it is")
	}
	s.hello = [2]Hello{*a.Hello, *b.Hello}
	return nil
}

// Close closes the transport on both workers.
func (s *Session) Close(ctx context.Context) error {
	_, _, err := both(ctx, s.client, request{Op: opClose}, s.server, request{Op: opClose})
	return err
}

// Conditions are those of the host and of the two ends.
func (s *Session) Conditions() Conditions {
	c := HostConditions()
	c.learn(s.hello[0].Facts)
	c.pinned(s.hello[0].Facts, s.hello[1].Facts)
	c.Polling = pollingOf(RowsOf([]string{s.name}))
	return c
}

// nextRound numbers what is measured, so that stray messages are told.
func (s *Session) nextRound() uint16 {
	s.round++
	return s.round
}
