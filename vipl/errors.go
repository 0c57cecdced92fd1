package vipl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/wire"
	"viaxdp/memreg"
)

// Return is a VIPL return code. It is an error; errors.Is(err, vipl.ErrTimeout) works on every error of this
// package.
type Return int

// The return codes, with VIPL's values.
const (
	ErrNotDone                 Return = 1  // no completion yet
	ErrInvalidParameter        Return = 2  // an argument is wrong
	ErrResource                Return = 3  // a resource is exhausted or still in use
	ErrTimeout                 Return = 4  // the time limit has passed
	ErrRejected                Return = 5  // the peer refused the connection
	ErrInvalidReliabilityLevel Return = 6  // not a level, or not the peer's
	ErrInvalidMTU              Return = 7  // MaxTransferSize too large, or not the peer's
	ErrInvalidQoS              Return = 8  // quality of service is undefined: must be 0
	ErrInvalidPtag             Return = 9  // the protection tag is wrong, destroyed, or of another NIC
	ErrInvalidRDMARead         Return = 10 // RDMA read is not possible at this level
	ErrDescriptor              Return = 11 // the descriptor completed in error, or the queue is empty
	ErrInvalidState            Return = 12 // the operation is not allowed in the VI's state
	ErrNameService             Return = 13 // the name service failed
	ErrNoMatch                 Return = 14 // no program waits for that discriminator
	ErrNotReachable            Return = 15 // no path to the host
	ErrNotSupported            Return = 16 // this provider does not support it
)

var returnTexts = [...]string{
	"success", "not done", "invalid parameter", "out of resources or in use", "timed out",
	"connection rejected", "invalid reliability level", "invalid maximum transfer size",
	"invalid quality of service", "invalid protection tag", "invalid RDMA read attribute",
	"descriptor error", "invalid VI state", "name service error",
	"no program waits on that discriminator", "host not reachable", "not supported",
}

// Error returns the meaning of the code.
func (r Return) Error() string {
	if r >= 0 && int(r) < len(returnTexts) {
		return "vipl: " + returnTexts[r]
	}
	return fmt.Sprintf("vipl: return code %d", int(r))
}

// OpError is an error of the control path: the operation, the VI (0: none), the VIPL code, and the cause.
type OpError struct {
	Op     string
	VI     uint32
	Return Return
	Err    error // may be nil
}

// Error returns operation, VI, code and cause as text.
func (e *OpError) Error() string {
	s := "vipl: " + e.Op
	if e.VI != 0 {
		s += fmt.Sprintf(" (VI %#x)", e.VI)
	}
	s += ": " + e.Return.Error()[len("vipl: "):]
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the VIPL code and the cause.
func (e *OpError) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Return}
	}
	return []error{e.Return, e.Err}
}

// errClosed is the cause if the NIC was closed before or during a call.
var errClosed = fmt.Errorf("the NIC handle is %w", fs.ErrClosed)

func closedError(op string) error {
	return &OpError{Op: op, Return: ErrInvalidParameter, Err: errClosed}
}

func opError(op string, vi *VI, code Return, err error) error {
	e := &OpError{Op: op, Return: code, Err: err}
	if vi != nil {
		e.VI = vi.num
	}
	return e
}

// memoryError maps an error of package memreg to a VIPL code.
func memoryError(op string, err error) error {
	code := ErrInvalidParameter
	switch {
	case errors.Is(err, memreg.ErrPtag):
		code = ErrInvalidPtag
	case errors.Is(err, memreg.ErrBusy), errors.Is(err, memreg.ErrLimit):
		code = ErrResource
	}
	return &OpError{Op: op, Return: code, Err: err}
}

// agentError maps an error of the Kernel Agent to a VIPL code.
func agentError(op string, vi *VI, err error) error {
	code := ErrResource
	switch {
	case errors.Is(err, kagent.ErrNoMatch):
		code = ErrNoMatch
	case errors.Is(err, kagent.ErrRejected):
		code, err = refused(err)
	case errors.Is(err, kagent.ErrUnreachable):
		code = ErrNotReachable
	case errors.Is(err, kagent.ErrTimeout), errors.Is(err, kagent.ErrCancelled), errors.Is(err, kagent.ErrVanished),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		code = ErrTimeout
	case errors.Is(err, kagent.ErrListening) && strings.HasPrefix(op, "Listen"):
		code = ErrInvalidState
	case errors.Is(err, kagent.ErrClosed), errors.Is(err, kagent.ErrState):
		code = ErrInvalidParameter
	}
	return opError(op, vi, code, err)
}

// mismatchReason returns the reason with which the peer is refused after v.match failed.
func mismatchReason(err error) wire.CMReason {
	switch {
	case errors.Is(err, ErrInvalidReliabilityLevel):
		return wire.CMReasonLevel
	case errors.Is(err, ErrInvalidMTU):
		return wire.CMReasonTransfer
	}
	return wire.CMReasonQoS
}

// refused returns the VIPL code for err, a peer's refusal, and the error to report. If the pre-shared keys were the reason, that
// error is also ErrSecurity.
func refused(err error) (Return, error) {
	if r, ok := errors.AsType[*kagent.RejectedError](err); ok {
		switch r.Reason {
		case wire.CMReasonLevel:
			return ErrInvalidReliabilityLevel, err
		case wire.CMReasonTransfer:
			return ErrInvalidMTU, err
		case wire.CMReasonQoS:
			return ErrInvalidQoS, err
		case wire.CMReasonNoKey, wire.CMReasonPlain, wire.CMReasonKey:
			err = fmt.Errorf("%w: %w", ErrSecurity, err)
		}
	}
	return ErrRejected, err
}
