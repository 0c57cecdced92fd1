package kagent

import (
	"context"

	"viaxdp/internal/base/wire"
)

// Listener takes requests for one discriminator until it is closed. All
// methods may be called concurrently.
type Listener interface {
	// Wait returns the next request, those first that came before the call. At
	// most 64 wait; a further one takes the place of the oldest of the host that has the
	// most there, which is rejected.
	Wait(ctx context.Context) (Incoming, error)
	// Close ends Listen. Calls of Wait end with ErrClosed, and requests that
	// nobody has taken get "no match".
	Close() error
}

// Incoming is a request for a connection that waits for this program's answer.
// All methods may be called concurrently. An Incoming that is neither accepted
// nor rejected ends when the requester gives up.
type Incoming interface {
	// Remote is the requester: host and discriminator. The caller must not change
	// the discriminator's bytes.
	Remote() Address
	// Local is the address and discriminator that the request came to. Frames of
	// the connection must have this host as their source.
	Local() Address
	// Offer is what the requester tells about its VI.
	Offer() Offer

	// Accept offers this side's VI and returns nil when the requester has
	// confirmed it. The VI must be able to receive before the call, since the
	// first frame may come before the confirmation; the caller then says so by
	// Established. It fails with ErrCancelled, ErrVanished, ErrTimeout (the
	// requester is then told), ErrState or ErrClosed, after which there is no
	// connection. ctx without a deadline: the requester's silence of 3 s ends it.
	Accept(ctx context.Context, o Offer) error
	// Established says that a valid frame of the requester's VI has come in, which
	// is as good as its confirmation. It is for the data path: it does not wait
	// for the network and does not allocate. Only the first call after Accept
	// does anything.
	Established()
	// Reject refuses the request, once; the requester gets ErrRejected with that
	// reason. It fails with ErrState when the request was answered before, or with
	// the error that has ended it.
	Reject(reason wire.CMReason) error

	// Done is closed when the exchange has ended without a connection: cancelled,
	// vanished, rejected or closed. Err then says how; it is nil until then.
	Done() <-chan struct{}
	Err() error
}

// Answer is the acceptance of a request: the other side's Offer. The
// connection stands when ConfirmWith has returned nil.
type Answer struct {
	Offer
	Remote Address // the acceptor
	Local  Address // this side; frames must have Local.Host as their source

	Confirmation
}

// Confirmation ends the requester's side of an exchange. All methods may be called
// concurrently.
type Confirmation interface {
	// ConfirmWith tells the acceptor that this side takes frames; the caller's VI must
	// do so before. proof is what the handshake of package secure gave for it, nil where there
	// was none. It fails when the acceptor has withdrawn or the Answer was
	// declined, and also 10 s after the Answer. Confirming again does nothing.
	ConfirmWith(proof []byte) error
	// Decline tells the acceptor that there will be no connection. It does nothing
	// after ConfirmWith.
	Decline(reason wire.CMReason)
}

// Confirm is ConfirmWith where there was no handshake.
func (a *Answer) Confirm() error { return a.ConfirmWith(nil) }
