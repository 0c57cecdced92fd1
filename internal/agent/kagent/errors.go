package kagent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"viaxdp/internal/base/wire"
)

// Outcomes of connection management without a connection. Returned errors wrap one of them and
// add details.
var (
	// ErrNoMatch: the peer answered that no call waits on that discriminator.
	ErrNoMatch = errors.New("no program waits on that discriminator")
	// ErrRejected: the peer refused; the error is a *RejectedError.
	ErrRejected = errors.New("the peer rejected the request")
	// ErrUnreachable: no route, or the next host does not answer.
	ErrUnreachable = errors.New("the peer is not reachable")
	// ErrTimeout: the deadline passed first.
	ErrTimeout = errors.New("timed out")
	// ErrCancelled: the requester has withdrawn the request.
	ErrCancelled = errors.New("the requester cancelled")
	// ErrVanished: the requester has gone silent.
	ErrVanished = errors.New("the requester went silent")
	// ErrState: the call is not allowed in this state, such as accepting a request that has been rejected.
	ErrState = errors.New("the request has been answered already")
	// ErrListening: that discriminator has a listener.
	ErrListening = errors.New("the discriminator is taken by another listener")
	// ErrNoVI: every VI number is in use.
	ErrNoVI = errors.New("all VI numbers are in use")
	// ErrQueueInUse: the queue is leased in this process already.
	ErrQueueInUse = errors.New("the queue is in use")
	// ErrGone: the interface was removed. A new interface in its place must be opened separately. It is also unix.ENODEV.
	ErrGone error = goneError{}
	// ErrClosed: the agent, or the listener, is closed.
	ErrClosed = fmt.Errorf("kagent: %w", fs.ErrClosed)
)

// goneError is the type of ErrGone.
type goneError struct{}

func (goneError) Error() string { return "the interface is gone" }

func (goneError) Is(target error) bool { return target == unix.ENODEV }

// RejectedError is the refusal of a request. It wraps ErrRejected.
type RejectedError struct {
	Reason wire.CMReason
}

func (e *RejectedError) Error() string { return ErrRejected.Error() + ": " + e.Reason.String() }

// Unwrap returns ErrRejected.
func (e *RejectedError) Unwrap() error { return ErrRejected }

// OpError is an error of the agent: the operation and its object, the cause, and the remedy.
type OpError struct {
	Op   string     // "open", "request", "path", ...
	Link string     // interface
	Peer netip.Addr // zero where there is none
	Err  error
	Hint string // remedy, or empty

	CannotRun bool
}

func (e *OpError) Error() string {
	var b strings.Builder
	b.WriteString("kagent: ")
	b.WriteString(e.Op)
	if e.Link != "" {
		b.WriteString(" " + e.Link)
	}
	if e.Peer.IsValid() {
		b.WriteString(" -> " + e.Peer.String())
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	if e.Hint != "" {
		b.WriteString(" (" + e.Hint + ")")
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *OpError) Unwrap() error { return e.Err }

// Unavailable reports whether err means that this program cannot run on this machine, because it
// lacks a privilege or the kernel an option. The error's text names it.
func Unavailable(err error) bool {
	var op *OpError
	if errors.As(err, &op) && op.CannotRun {
		return true
	}
	var remote interface{ CannotRun() bool } // what another process could not do
	if errors.As(err, &remote) && remote.CannotRun() {
		return true
	}
	for _, errno := range []unix.Errno{unix.EPERM, unix.EACCES, unix.ENOSYS, unix.EAFNOSUPPORT} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// ContextError returns why ctx is done, as an error of this package.
func ContextError(ctx context.Context) error {
	if err := ctx.Err(); errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", ErrTimeout, err)
	}
	return context.Cause(ctx)
}
