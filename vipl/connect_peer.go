package vipl

import (
	"context"
	"errors"
	"time"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/wire"
)

// Peer-to-peer connections: both sides request, and neither waits for requests.

// peering is a peer-to-peer connect, from its request until the program has fetched its outcome.
type peering struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when remote and err are valid
	remote RemoteAttributes
	err    error
}

var errNoPeering = errors.New("no peer-to-peer connect is under way")

// ConnectPeerRequest is VipConnectPeerRequest: it connects v, which is Idle, with the VI at remote whose program
// calls ConnectPeerRequest for local. It returns at once. v is in ConnectPending until both sides have asked;
// ConnectPeerDone or ConnectPeerWait return the outcome. Each side's local host and discriminator must equal the
// other side's remote ones, byte for byte. A zero local host stands for the NIC's own.
//
// timeout is how long the other side may take to ask; negative: for ever. Disconnect ends the attempt.
//
// Errors: ErrInvalidState if v is not Idle. ErrInvalidParameter for timeout 0, for no remote host, and for
// discriminators that are too long.
func (v *VI) ConnectPeerRequest(local, remote NetAddress, timeout time.Duration) error {
	const op = "ConnectPeerRequest"
	if timeout == 0 {
		return opError(op, v, ErrInvalidParameter, errNoTime)
	}
	if err := checkRequest(op, v, local, remote); err != nil {
		return err
	}
	if err := v.begin(op); err != nil {
		return err
	}
	ctx, cancel := within(timeout)
	p := &peering{cancel: cancel, done: make(chan struct{})}
	v.port.mu.Lock()
	v.peering = p
	v.port.mu.Unlock()
	local.Discriminator = append([]byte(nil), local.Discriminator...)
	remote.Discriminator = append([]byte(nil), remote.Discriminator...)
	go func() {
		defer close(p.done)
		defer cancel()
		for {
			p.remote, p.err = v.meet(ctx, local, remote)
			if ctx.Err() != nil || !lateMeeting(p.err) {
				break
			}
		}
		v.ended(p.err)
	}()
	return nil
}

// ConnectPeerDone is VipConnectPeerDone: it returns the outcome of ConnectPeerRequest without waiting. The outcome
// is returned once.
//
// Errors: ErrNotDone if the connect is still under way. ErrTimeout if the other side did not ask in time.
// ErrInvalidReliabilityLevel, ErrInvalidMTU or ErrInvalidQoS if the two VIs differ; both sides get it. ErrRejected
// with ErrSecurity if the pre-shared keys do not match; both sides get it. ErrNotReachable and ErrRejected as with
// ConnectRequest. After all of these but ErrNotDone v is Idle again, or in Error as after ConnectRequest.
// ErrInvalidState if no such connect is under way.
func (v *VI) ConnectPeerDone() (RemoteAttributes, error) {
	const op = "ConnectPeerDone"
	p, err := v.peeringOf(op)
	if err != nil {
		return RemoteAttributes{}, err
	}
	select {
	case <-p.done:
		return v.outcome(op, p)
	default:
		return RemoteAttributes{}, ErrNotDone
	}
}

// ConnectPeerWait is VipConnectPeerWait: like ConnectPeerDone, but it waits for the outcome.
func (v *VI) ConnectPeerWait() (RemoteAttributes, error) {
	const op = "ConnectPeerWait"
	p, err := v.peeringOf(op)
	if err != nil {
		return RemoteAttributes{}, err
	}
	<-p.done
	return v.outcome(op, p)
}

func (v *VI) peeringOf(op string) (*peering, error) {
	v.port.mu.Lock()
	p := v.peering
	v.port.mu.Unlock()
	switch {
	case v.gone.Load():
		return nil, opError(op, v, ErrInvalidParameter, errDestroyed)
	case p != nil:
		return p, nil
	case v.nic.isClosing():
		return nil, closedError(op)
	}
	return nil, opError(op, v, ErrInvalidState, errNoPeering)
}

// outcome returns the outcome of p, which is done, to the first caller.
func (v *VI) outcome(op string, p *peering) (RemoteAttributes, error) {
	v.port.mu.Lock()
	mine := v.peering == p
	if mine {
		v.peering = nil
	}
	v.port.mu.Unlock()
	switch {
	case mine:
		return p.remote, p.err
	case v.nic.isClosing():
		return RemoteAttributes{}, closedError(op)
	}
	return RemoteAttributes{}, opError(op, v, ErrInvalidState, errNoPeering)
}

// stopPeering ends a peer-to-peer connect, if one is under way, and waits for its end.
func (v *VI) stopPeering() {
	v.port.mu.Lock()
	p := v.peering
	v.peering = nil
	v.port.mu.Unlock()
	if p != nil {
		p.cancel()
		<-p.done
	}
}

// lateMeeting reports whether err means that the other side gave up just as it was found. It may ask again. If it has
// declined the connection instead, its connect is over.
func lateMeeting(err error) bool {
	return (errors.Is(err, kagent.ErrCancelled) || errors.Is(err, kagent.ErrVanished)) && !errors.Is(err, kagent.ErrRejected)
}

// meet connects v, which is in Connect Pending, with the peer that asks for it.
func (v *VI) meet(ctx context.Context, local, remote NetAddress) (theirs RemoteAttributes, err error) {
	const op = "ConnectPeerRequest"
	path, ours, err := v.prepare(ctx, op, local.Host, remote.Host)
	if err != nil {
		return theirs, err
	}
	local.Host = path.Src
	shake, err := v.requestSecurely(op, &ours, true, local, remote)
	if err != nil {
		return theirs, err
	}
	asked := time.Now()
	answer, in, err := v.nic.agent.RequestPeer(ctx, local.agent(), remote.agent(), ours)
	if err != nil {
		return theirs, agentError(op, v, err)
	}
	v.pathAgain(ctx, &path, asked)
	if answer != nil {
		return remoteAttributes(answer.Offer), v.confirm(op, answer, shake, ours, path)
	}
	if err := v.match(op, in.Offer()); err != nil {
		in.Reject(mismatchReason(err))
		return theirs, err
	}
	offered, err := v.checkSecurely(op, in, true)
	if err != nil {
		return theirs, err
	}
	if err = v.accept(ctx, op, in, offered, ours, path); err != nil {
		in.Reject(wire.CMReasonResources) // no other VI can accept this request, and the other side would wait
	}
	return remoteAttributes(in.Offer()), err
}
