package kagent

import (
	"context"

	"viaxdp/internal/base/wire"
)

// Listener accepts requests for one discriminator until it is closed. All methods may be called concurrently.
type Listener interface {
	// Wait returns the next request, queued ones first. At most 64 are queued. A further one replaces the
	// oldest of the host that has the most there, which is rejected.
	Wait(ctx context.Context) (Incoming, error)
	// Close ends Listen. Calls of Wait end with ErrClosed. Requests that no Wait has returned get
	// "no match".
	Close() error
}

// Incoming is a request for a connection that waits for this program's answer.
// All methods may be called concurrently. An Incoming that is neither accepted
// nor rejected ends when the requester gives up.
type Incoming interface {
	// Remote returns the requester's host and discriminator. The caller must not change the discriminator's
	// bytes.
	Remote() Address
	// Local returns the destination address and discriminator of the request. Frames of the connection must
	// have this host as their source.
	Local() Address
	// Offer returns the requester's description of its VI.
	Offer() Offer

	// Accept offers this side's VI and returns nil when the requester has confirmed it. The VI
	// must be able to receive before the call, since the first frame may arrive before the
	// confirmation; the caller then calls Established. It fails with ErrCancelled (and ErrRejected,
	// a *RejectedError, if the requester has declined this side's VI), ErrVanished,
	// ErrTimeout (the requester is notified), ErrState or ErrClosed, after which there is no
	// connection. If ctx has no deadline, 3 s of the requester's silence end the call.
	Accept(ctx context.Context, o Offer) error
	// Established reports that a valid frame of the requester's VI has arrived, which is as good
	// as its confirmation. The data path may call it: it does not wait for the network and does
	// not allocate. Only the first call after Accept has an effect.
	Established()
	// Reject refuses the request, once; the requester gets ErrRejected with that reason. It fails with
	// ErrState if the request was answered before, or with the error that has ended it.
	Reject(reason wire.CMReason) error

	// Done is closed when the exchange has ended without a connection: cancelled, vanished,
	// rejected or closed. Err then returns the cause; it is nil until then.
	Done() <-chan struct{}
	Err() error
}

// Answer is the acceptance of a request: the other side's Offer. The connection is established when
// ConfirmWith has returned nil.
type Answer struct {
	Offer
	Remote Address // the acceptor
	Local  Address // this side; frames must have Local.Host as their source

	Confirmation
}

// Confirmation ends the requester's side of an exchange. All methods may be called
// concurrently.
type Confirmation interface {
	// ConfirmWith confirms to the acceptor that this side takes frames; the caller's VI must do
	// so before. proof is the result of package secure's handshake, or nil without one. It fails
	// if the acceptor has withdrawn or the Answer was declined, and also 10 s after the Answer.
	// Confirming again does nothing.
	ConfirmWith(proof []byte) error
	// Decline cancels the connection at the acceptor. It does nothing after ConfirmWith.
	Decline(reason wire.CMReason)
}

// Confirm is ConfirmWith without a handshake.
func (a *Answer) Confirm() error { return a.ConfirmWith(nil) }
