package vipl

import (
	"context"
	"errors"
	"time"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/secure"
	"viaxdp/internal/base/wire"
)

// The client side: it requests a connection.

// ConnectRequest is VipConnectRequest: it connects v, which is Idle, with the VI that the program waiting at remote
// accepts with, and returns that VI's attributes. timeout is positive, or negative for no limit. local's host may
// be zero.
//
// Errors: ErrNoMatch if no program waits for that discriminator. ErrRejected if the program there refused; with
// ErrSecurity if the pre-shared keys do not match. ErrTimeout if no answer arrives. ErrNotReachable if there is no
// path to the host. ErrResource if the interface was removed, the agent refuses (a quota), or the path's frames are too short
// for data (an MTU below about 320 bytes). ErrInvalidState if v is not Idle. ErrInvalidParameter for timeout 0, and for discriminators
// that are too long. After an error v is as it was before. The exception is a peer that sent messages or an error before it
// refused: v is then in Error, and its posted descriptors are flushed as after a broken connection.
func (v *VI) ConnectRequest(local, remote NetAddress, timeout time.Duration) (RemoteAttributes, error) {
	const op = "ConnectRequest"
	if timeout == 0 {
		return RemoteAttributes{}, opError(op, v, ErrInvalidParameter, errNoTime)
	}
	ctx, cancel := within(timeout)
	defer cancel()
	return v.connectRequest(ctx, op, local, remote)
}

// ConnectRequestContext is ConnectRequest with a context in place of a timeout. When ctx ends it returns ErrTimeout
// with ctx's error.
func (v *VI) ConnectRequestContext(ctx context.Context, local, remote NetAddress) (RemoteAttributes, error) {
	return v.connectRequest(ctx, "ConnectRequestContext", local, remote)
}

func (v *VI) connectRequest(ctx context.Context, op string, local, remote NetAddress) (theirs RemoteAttributes, err error) {
	if err := checkRequest(op, v, local, remote); err != nil {
		return theirs, err
	}
	if err := v.begin(op); err != nil {
		return theirs, err
	}
	theirs, err = v.request(ctx, op, local, remote)
	v.ended(err)
	return theirs, err
}

func (v *VI) request(ctx context.Context, op string, local, remote NetAddress) (theirs RemoteAttributes, err error) {
	path, ours, err := v.prepare(ctx, op, local.Host, remote.Host)
	if err != nil {
		return theirs, err
	}
	local.Host = path.Src
	shake, err := v.requestSecurely(op, &ours, false, local, remote)
	if err != nil {
		return theirs, err
	}
	asked := time.Now()
	answer, err := v.nic.agent.Request(ctx, local.agent(), remote.agent(), ours)
	if err != nil {
		return theirs, agentError(op, v, overtime(ctx, err))
	}
	v.pathAgain(ctx, &path, asked)
	return remoteAttributes(answer.Offer), v.confirm(op, answer, shake, ours, path)
}

// confirm connects v with the acceptor. shake is this side's handshake, or nil.
func (v *VI) confirm(op string, answer *kagent.Answer, shake *secure.Requester, ours kagent.Offer, path kagent.Path) error {
	proof, session, err := v.finishSecurely(op, shake, answer)
	if err != nil {
		return err
	}
	conn, err := v.establish(op, ours, answer.Offer, path, session, nil)
	if err != nil {
		answer.Decline(wire.CMReasonResources)
		return err
	}
	if err := answer.ConfirmWith(proof); err != nil && v.undo(conn, errors.Is(err, kagent.ErrRejected), err) {
		return agentError(op, v, err)
	}
	return nil
}
