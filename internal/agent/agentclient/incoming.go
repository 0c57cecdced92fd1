package agentclient

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/wire"
)

// incoming is an exchange on the acceptor's side, which the daemon manages: a kagent.Incoming.
type incoming struct {
	agentproto.Exchange
	s           *session
	agent       uint64        // number of the agent that gave the handle
	established chan struct{} // has a place for one
	done        chan struct{}

	mu   sync.Mutex
	err  error // valid when done is closed
	late error // set by the first answer, returned to later ones
}

func newIncoming(s *session, agent uint64, m *agentproto.Exchange) *incoming {
	return &incoming{Exchange: *m, s: s, agent: agent, established: make(chan struct{}, 1), done: make(chan struct{})}
}

func (in *incoming) Local() kagent.Address  { return in.Exchange.Local }
func (in *incoming) Remote() kagent.Address { return in.Exchange.Remote }
func (in *incoming) Offer() kagent.Offer    { return in.Exchange.Offer }

// end ends the exchange without a connection.
func (in *incoming) end(err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.err == nil {
		in.err = err
		close(in.done)
	}
}

func (in *incoming) Done() <-chan struct{} { return in.done }

func (in *incoming) Err() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.err
}

// Accept sends the acceptance to the daemon, and forwards a call of Established meanwhile.
func (in *incoming) Accept(ctx context.Context, o kagent.Offer) error {
	if err := in.begin(); err != nil {
		return err
	}
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-in.established:
			in.s.tellOf(in.agent, agentproto.Request{Op: agentproto.OpEstablished, Handle: in.Handle})
		case <-ended:
		}
	}()
	err := in.s.callOf(ctx, in.agent, agentproto.Request{Op: agentproto.OpAccept, Handle: in.Handle, Offer: &o})
	in.forget()
	return err
}

// Established is for the data path: it neither waits nor allocates.
func (in *incoming) Established() {
	select {
	case in.established <- struct{}{}:
	default:
	}
}

func (in *incoming) Reject(reason wire.CMReason) error {
	if err := in.begin(); err != nil {
		return err
	}
	ctx, cancel := bounded()
	defer cancel()
	err := in.s.callOf(ctx, in.agent, agentproto.Request{Op: agentproto.OpReject, Handle: in.Handle, Reason: reason})
	if err == nil {
		in.end(kagent.ErrState)
		in.forget()
	}
	return err
}

// begin returns why the request cannot be answered: it can be answered only once.
func (in *incoming) begin() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	err := cmp.Or(in.err, in.late)
	in.late = kagent.ErrState
	return err
}

// forget removes the exchange from those that the daemon may report on.
func (in *incoming) forget() {
	in.s.mu.Lock()
	if in.s.incoming[in.Handle] == in { // else the number names an exchange of the next daemon
		delete(in.s.incoming, in.Handle)
	}
	in.s.mu.Unlock()
}

// answer is an exchange on the requester's side, which the daemon manages.
type answer struct {
	s      *session
	agent  uint64 // number of the agent that gave the handle
	handle uint64

	mu       sync.Mutex
	answered bool
	err      error // of Confirm
}

func (a *answer) ConfirmWith(proof []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.answered {
		a.answered = true
		ctx, cancel := bounded()
		defer cancel()
		a.err = a.s.callOf(ctx, a.agent, agentproto.Request{Op: agentproto.OpConfirm, Handle: a.handle, Proof: proof})
	}
	return a.err
}

func (a *answer) Decline(reason wire.CMReason) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.answered {
		a.answered, a.err = true, kagent.ErrState
		a.s.tellOf(a.agent, agentproto.Request{Op: agentproto.OpDecline, Handle: a.handle, Reason: reason})
	}
}

// listener is a discriminator that the daemon has open for this program.
type listener struct {
	a     *Agent
	local kagent.Address

	// guarded by the session's mu
	handle uint64 // of this daemon; 0: not open
	closed bool
}

// lost returns why a Wait at l can never succeed, or nil. Caller holds the session's mu.
func (l *listener) lost() error {
	switch {
	case l.closed:
		return kagent.ErrClosed
	case l.handle == 0:
		return kagent.ErrListening // another program took the discriminator while no daemon ran
	}
	return nil
}

func (l *listener) isClosed() bool {
	s := l.a.share.session
	s.mu.Lock()
	defer s.mu.Unlock()
	return l.closed
}

func (l *listener) Wait(ctx context.Context) (kagent.Incoming, error) {
	return l.a.wait(ctx, &call{request: agentproto.Request{Op: agentproto.OpWait}, listener: l, again: true})
}

func (l *listener) Close() error {
	ctx, cancel := bounded()
	defer cancel()
	return l.close(ctx)
}

// close is Close with a time limit. The daemon gets the request in any case.
func (l *listener) close(ctx context.Context) error {
	s := l.a.share.session
	s.mu.Lock()
	lost := l.lost() != nil
	l.closed = true
	delete(s.listens, l)
	for id, c := range s.calls { // an agent that is away, or does not answer, would not end its Waits
		if c.listener == l {
			s.fail(id, kagent.ErrClosed)
		}
	}
	if lost {
		s.mu.Unlock()
		return nil
	}
	// In one step, so that the handle belongs to the daemon that gets the request.
	c := &call{request: agentproto.Request{Op: agentproto.OpUnlisten, Handle: l.handle}}
	conn, q, err := s.enter(ctx, c)
	s.mu.Unlock()
	if err == nil {
		err = s.awaitReleased(ctx, c, conn, q)
	}
	if errors.Is(err, kagent.ErrVanished) || errors.Is(err, kagent.ErrClosed) {
		return nil // so is the listener
	}
	return err
}
