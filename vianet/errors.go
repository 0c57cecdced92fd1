package vianet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"viaxdp/vipl"
)

// network is what an OpError calls this package's networks.
const network = "via"

// ErrReadClosed is in the error of a Write whose peer reads no more: it has called CloseRead, or Close without
// SetLinger(0). What the peer sent, or still sends after CloseRead, arrives. The error is also ECONNRESET.
var ErrReadClosed = errors.New("the peer reads no more")

// peerClosed is the cause of a connection that the peer has closed. It matches ErrReadClosed.
type peerClosed struct{ error }

func (peerClosed) Is(target error) bool { return target == ErrReadClosed }

func (e peerClosed) Unwrap() error { return e.error }

// What the peer did that ends its connection.
var (
	errOrder    = errors.New("the message comes at the wrong time")
	errCredits  = errors.New("more buffers are given back than there are")
	errOverrun  = errors.New("more data came than there was credit for")
	errTransfer = errors.New("the message is about another transfer, or says of it what cannot be")
	errSlow     = errors.New("the peer was asked to let go of memory and did not answer")
)

// resetError is the error of a connection that broke.
func resetError(cause error) error {
	if cause == nil {
		return syscall.ECONNRESET
	}
	return fmt.Errorf("%w: %w", syscall.ECONNRESET, cause)
}

// systemError maps an error of package vipl to the system error that users of package net expect.
func systemError(err error) error {
	for _, m := range []struct{ code, err error }{
		{vipl.ErrSecurity, syscall.EKEYREJECTED}, // an ErrRejected, too
		{vipl.ErrNoMatch, syscall.ECONNREFUSED},
		{vipl.ErrRejected, syscall.ECONNREFUSED},
		{vipl.ErrNotReachable, syscall.EHOSTUNREACH},
		{syscall.ENODEV, syscall.ENODEV}, // an ErrResource, too
		{vipl.ErrResource, syscall.ENOBUFS},
		{vipl.ErrTimeout, syscall.ETIMEDOUT},
	} {
		if errors.Is(err, m.code) {
			return &system{m.err, err}
		}
	}
	return err
}

// system is a system error with its cause. It forwards Timeout of the system error, so that an OpError recognizes
// a timeout.
type system struct{ err, cause error }

func (e *system) Error() string   { return e.err.Error() + ": " + e.cause.Error() }
func (e *system) Unwrap() []error { return []error{e.err, e.cause} }
func (e *system) Timeout() bool   { return isTimeout(e.err) }

func isKeyRejected(err error) bool { return errors.Is(err, syscall.EKEYREJECTED) }

func isTimeout(err error) bool {
	t, ok := err.(interface{ Timeout() bool })
	return ok && t.Timeout()
}

// opError is err as the methods of a connection return it.
func (c *Conn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: network, Source: c.local, Addr: c.remote, Err: err}
}

// contextError returns why a context ended, as an error of package net: the cause that this package set, or the
// cancellation or deadline of the program's context.
func contextError(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == errStackClosed || cause == syscall.ETIMEDOUT {
		return cause
	}
	if cause != err {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return &system{os.ErrDeadlineExceeded, err}
	}
	return err
}
