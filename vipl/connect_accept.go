package vipl

import (
	"bytes"
	"context"
	"errors"
	"time"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/secure"
	"viaxdp/internal/base/wire"
)

// The server side: it waits or listens for requests, and accepts or rejects them.

// Conn is a pending connection request. All methods may be called concurrently.
type Conn struct {
	nic *NIC
	in  kagent.Incoming
}

// ConnectWait is VipConnectWait: it waits for a request to local, at most timeout (negative: for ever). A request
// matches if its discriminator is equal byte for byte and, if local names a host, its host is equal. Requests queue
// for 100 ms after a ConnectWait has returned. A request to a discriminator for which no ConnectWait was active
// within the last 100 ms is answered with ErrNoMatch. Several goroutines may wait.
//
// Errors: ErrTimeout. ErrInvalidParameter if the discriminator is too long or the NIC is or gets closed.
// ErrResource if the interface is or gets removed, or if a program of another user of the agent listens or waits
// for the discriminator.
func (n *NIC) ConnectWait(local NetAddress, timeout time.Duration) (*Conn, error) {
	const op = "ConnectWait"
	if err := local.check(op, nil); err != nil {
		return nil, err
	}
	ctx, cancel := within(timeout)
	defer cancel()
	in, err := n.agent.Wait(ctx, local.agent())
	if errors.Is(err, kagent.ErrTimeout) || errors.Is(err, context.DeadlineExceeded) {
		return nil, ErrTimeout
	}
	if err != nil {
		return nil, agentError(op, nil, err)
	}
	return &Conn{n, in}, nil
}

// Listener queues requests to an address from Listen to Close, also while no goroutine is in Wait. A program that
// calls ConnectWait in a loop instead has 100 ms from one call to the next; later requests are refused. All methods
// may be called concurrently.
type Listener struct {
	nic *NIC
	l   kagent.Listener
}

// Listen queues requests to local from now on. Requests match as they do for ConnectWait.
//
// Errors: ErrInvalidState if a listener for local exists in this program or, with an agent, in another program, or
// if a program of another user of the agent listens or waits for the discriminator at any host. ErrInvalidParameter
// if the discriminator is too long or the NIC is closed. ErrResource if the interface was removed.
func (n *NIC) Listen(local NetAddress) (*Listener, error) {
	const op = "Listen"
	if err := local.check(op, nil); err != nil {
		return nil, err
	}
	l, err := n.agent.Listen(local.agent())
	if err != nil {
		return nil, agentError(op, nil, err)
	}
	return &Listener{n, l}, nil
}

// Wait returns the next request. Several goroutines may wait. It returns ErrTimeout, with ctx's error, if ctx ends first,
// ErrInvalidParameter if the listener or the NIC is or gets closed, and ErrResource if the interface was removed.
func (l *Listener) Wait(ctx context.Context) (*Conn, error) {
	in, err := l.l.Wait(ctx)
	if err != nil {
		return nil, agentError("Listener.Wait", nil, overtime(ctx, err))
	}
	return &Conn{l.nic, in}, nil
}

// Close ends the listener. Requests that are still queued are answered with ErrNoMatch. A second Close does
// nothing.
func (l *Listener) Close() error {
	if err := l.l.Close(); err != nil {
		return agentError("Listener.Close", nil, err)
	}
	return nil
}

// Remote returns the requester's address, a copy.
func (c *Conn) Remote() NetAddress {
	a := c.in.Remote()
	return NetAddress{a.Host, bytes.Clone(a.Disc)}
}

// RemoteAttributes returns the attributes of the requester's VI.
func (c *Conn) RemoteAttributes() RemoteAttributes { return remoteAttributes(c.in.Offer()) }

// Reject is VipConnectReject: the requester gets ErrRejected. ErrInvalidParameter if the request was answered
// before, ErrTimeout if the requester gave up.
func (c *Conn) Reject() error {
	if err := c.in.Reject(wire.CMReasonProgram); err != nil {
		return agentError("ConnectReject", nil, err)
	}
	return nil
}

// acceptTime bounds how long the requester's confirmation may take.
const acceptTime = 5 * time.Second

// Accept is VipConnectAccept: it connects v, which is Idle, with the requester. Level, MaxTransferSize and QoS must
// equal the requester's. Otherwise Accept fails with ErrInvalidReliabilityLevel, ErrInvalidMTU or ErrInvalidQoS;
// the requester is not answered, and Accept may be called with another VI.
//
// Errors: ErrInvalidState if v is not Idle. ErrInvalidParameter if v is of another NIC handle, or the request was answered
// before. ErrTimeout if the requester gave up, or has not confirmed within five seconds. ErrNotReachable and ErrResource as
// with ConnectRequest. ErrRejected if the requester cannot connect with v (its ConnectRequest returned ErrResource) and, with
// ErrSecurity, if the pre-shared keys do not match; the request is then over.
func (c *Conn) Accept(v *VI) error { return c.AcceptContext(context.Background(), v) }

// AcceptContext is Accept with a context. If ctx ends before the requester has confirmed, it returns ErrTimeout with ctx's
// error, and the request is over.
func (c *Conn) AcceptContext(ctx context.Context, v *VI) error {
	const op = "ConnectAccept"
	theirs := c.in.Offer()
	if v.nic != c.nic {
		return opError(op, v, ErrInvalidParameter, errors.New("VI of another NIC handle"))
	}
	if err := v.begin(op); err != nil {
		return err
	}
	if err := v.match(op, theirs); err != nil {
		v.ended(err)
		return err
	}
	offered, err := v.checkSecurely(op, c.in, false)
	if err != nil {
		v.ended(err)
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, acceptTime)
	defer cancel()
	path, ours, err := v.prepare(ctx, op, c.in.Local().Host, c.in.Remote().Host)
	if err == nil {
		err = v.accept(ctx, op, c.in, offered, ours, path)
	}
	v.ended(err)
	return err
}

// accept connects v with the requester. offered is the requester's part of the handshake, or nil.
func (v *VI) accept(ctx context.Context, op string, in kagent.Incoming, offered *secure.Offered, ours kagent.Offer, path kagent.Path) error {
	session, err := v.acceptSecurely(op, offered, in, &ours)
	if err != nil {
		return err
	}
	conn, err := v.establish(op, ours, in.Offer(), path, session, in.Established)
	if err != nil {
		return err
	}
	if err := in.Accept(ctx, ours); err != nil && v.undo(conn, false, err) {
		return agentError(op, v, overtime(ctx, err))
	}
	return nil
}
