package vipl

import (
	"context"
	"errors"
	"time"

	"viaxdp/kagent"
	"viaxdp/secure"
	"viaxdp/wire"
)

// The server: it waits or listens for requests, and accepts or rejects them.

// Conn is a request for a connection that waits for an answer. All methods may
// be called concurrently.
type Conn struct {
	nic *Nic
	in  *kagent.Incoming
}

// ConnectWait is VipConnectWait: waits at most timeout (negative: for ever) for
// a request to local: to its discriminator, byte for byte, and to its host, if it
// names one. A requester whose discriminator nobody waits on, nor has waited on in
// the last 100 ms, gets ErrNoMatch. Several goroutines may wait.
//
// ErrTimeout; ErrInvalidParameter for a discriminator that is too long and when
// the NIC is closed; ErrResource when the interface is gone, also meanwhile.
func (n *Nic) ConnectWait(local NetAddress, timeout time.Duration) (*Conn, error) {
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

// Listener takes requests to an address from Listen to Close, also while nobody is
// in Wait. (A program that calls ConnectWait in a loop has 100 ms from one call to
// the next; later, requests are refused.) All methods may be called concurrently.
type Listener struct {
	nic *Nic
	l   *kagent.Listener
}

// Listen takes requests to local from now on; which ones those are is as with
// ConnectWait.
//
// ErrInvalidState when somebody listens there already, in this program or, with an
// agent, in another one; ErrInvalidParameter for a discriminator that is too long
// and when the NIC is closed.
func (n *Nic) Listen(local NetAddress) (*Listener, error) {
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

// Wait returns the next request. ErrTimeout, with ctx's error, when ctx ends before
// one has come; ErrInvalidParameter when the listener or the NIC is closed, also
// meanwhile.
func (l *Listener) Wait(ctx context.Context) (*Conn, error) {
	in, err := l.l.Wait(ctx)
	if err != nil {
		return nil, agentError("Listener.Wait", nil, overtime(ctx, err))
	}
	return &Conn{l.nic, in}, nil
}

// Close ends the listener: requests that nobody has taken are answered with
// ErrNoMatch. A second Close does nothing.
func (l *Listener) Close() error {
	if err := l.l.Close(); err != nil {
		return agentError("Listener.Close", nil, err)
	}
	return nil
}

// Remote is the requester's address.
func (c *Conn) Remote() NetAddress {
	a := c.in.Remote()
	return NetAddress{a.Host, a.Disc}
}

// RemoteAttributes are the requester's VI's.
func (c *Conn) RemoteAttributes() RemoteAttributes { return remoteAttributes(c.in.Offer()) }

// Reject is VipConnectReject: the requester gets ErrRejected. ErrInvalidParameter
// when the request was answered before, ErrTimeout when the requester gave up.
func (c *Conn) Reject() error {
	if err := c.in.Reject(wire.CMReasonProgram); err != nil {
		return agentError("ConnectReject", nil, err)
	}
	return nil
}

// acceptTime bounds how long the requester's confirmation may take.
const acceptTime = 5 * time.Second

// Accept is VipConnectAccept: connects v, which is Idle, with the requester.
// Level, MaxTransferSize and QoS must be the requester's: otherwise it fails
// with ErrInvalidReliabilityLevel, ErrInvalidMTU or ErrInvalidQoS, the
// requester hears nothing, and another VI may be tried.
//
// ErrInvalidState when v is not Idle, ErrTimeout when the requester gave up or
// does not answer. ErrRejected, with ErrSecurity, when the pre-shared keys do not
// go together: the requester is told so, and the request is over.
func (c *Conn) Accept(v *VI) error {
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
	ctx, cancel := within(acceptTime)
	defer cancel()
	path, ours, err := v.prepare(ctx, op, c.in.Local().Host, c.in.Remote().Host)
	if err == nil {
		err = v.accept(ctx, op, c.in, offered, ours, path)
	}
	v.ended(err)
	return err
}

// accept connects v with the requester, of whose handshake offered is the
// beginning.
func (v *VI) accept(ctx context.Context, op string, in *kagent.Incoming, offered *secure.Offered, ours kagent.Offer, path kagent.Path) error {
	session, err := v.acceptSecurely(op, offered, in, &ours)
	if err != nil {
		return err
	}
	conn, err := v.establish(op, ours, in.Offer(), path, session, in.Established)
	if err != nil {
		return err
	}
	if err := in.Accept(ctx, ours); err != nil && v.undo(conn, false) {
		return agentError(op, v, err)
	}
	return nil
}
