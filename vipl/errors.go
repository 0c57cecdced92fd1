package vipl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"viaxdp/kagent"
	"viaxdp/memreg"
	"viaxdp/wire"
)

// Return is a VIPL return code. It is an error; errors.Is(err, vipl.ErrTimeout)
// works on everything that this package returns.
type Return int

// The return codes, with VIPL's values.
const (
	ErrNotDone                 Return = 1  // no completion yet
	ErrInvalidParameter        Return = 2  // an argument is wrong
	ErrResource                Return = 3  // out of something, or still in use
	ErrTimeout                 Return = 4  // the time is over
	ErrRejected                Return = 5  // the other side refused the connection
	ErrInvalidReliabilityLevel Return = 6  // not a level, or not the peer's
	ErrInvalidMTU              Return = 7  // MaxTransferSize too large, or not the peer's
	ErrInvalidQoS              Return = 8  // quality of service is undefined: must be 0, and the peer's
	ErrInvalidPtag             Return = 9  // protection tag wrong, destroyed, or of another NIC
	ErrInvalidRDMARead         Return = 10 // RDMA read not possible at this level
	ErrDescriptor              Return = 11 // the descriptor completed in error, or the queue is empty
	ErrInvalidState            Return = 12 // the VI is not in a state that allows it
	ErrNameService             Return = 13 // the name service failed
	ErrNoMatch                 Return = 14 // nobody waits on that discriminator
	ErrNotReachable            Return = 15 // no way to the host
	ErrNotSupported            Return = 16 // this provider does not offer it
)

var returnTexts = [...]string{
	"success", "not done", "invalid parameter", "out of resources or in use", "timed out",
	"connection rejected", "invalid reliability level", "invalid maximum transfer size",
	"invalid quality of service", "invalid protection tag", "invalid RDMA read attribute",
	"descriptor error", "invalid VI state", "name service error",
	"nobody waits on that discriminator", "host not reachable", "not supported",
}

// Error gives the meaning of the code.
func (r Return) Error() string {
	if r >= 0 && int(r) < len(returnTexts) {
		return "vipl: " + returnTexts[r]
	}
	return fmt.Sprintf("vipl: return code %d", int(r))
}

// OpError is an error of the control path: which operation, on which VI (0:
// none), the VIPL code, and the cause.
type OpError struct {
	Op     string
	VI     uint32
	Return Return
	Err    error // may be nil
}

// Error tells operation, VI and cause.
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

// Unwrap gives the VIPL code and the cause.
func (e *OpError) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Return}
	}
	return []error{e.Return, e.Err}
}

// errClosed is the cause where a NIC was closed under a call.
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

// memoryError gives the code for an error of package memreg.
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

// agentError gives the code for an error of the Kernel Agent.
func agentError(op string, vi *VI, err error) error {
	code := ErrResource
	switch {
	case errors.Is(err, kagent.ErrNoMatch):
		code = ErrNoMatch
	case errors.Is(err, kagent.ErrRejected):
		if code = rejectedCode(err); forSecurity(err) {
			err = fmt.Errorf("%w: %w", ErrSecurity, err)
		}
	case errors.Is(err, kagent.ErrUnreachable):
		code = ErrNotReachable
	case errors.Is(err, kagent.ErrTimeout), errors.Is(err, kagent.ErrCancelled), errors.Is(err, kagent.ErrVanished),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		code = ErrTimeout
	case errors.Is(err, kagent.ErrListening):
		code = ErrInvalidState
	case errors.Is(err, kagent.ErrClosed), errors.Is(err, kagent.ErrState):
		code = ErrInvalidParameter
	}
	return opError(op, vi, code, err)
}

// mismatchReason tells the other side what v.match found.
func mismatchReason(err error) wire.CMReason {
	switch {
	case errors.Is(err, ErrInvalidReliabilityLevel):
		return wire.CMReasonLevel
	case errors.Is(err, ErrInvalidMTU):
		return wire.CMReasonTransfer
	}
	return wire.CMReasonQoS
}

// forSecurity says that a refusal is one for the pre-shared keys.
func forSecurity(err error) bool {
	var r *kagent.RejectedError
	return errors.As(err, &r) &&
		(r.Reason == wire.CMReasonNoKey || r.Reason == wire.CMReasonPlain || r.Reason == wire.CMReasonKey)
}

// rejectedCode is the code for a refusal with that reason.
func rejectedCode(err error) Return {
	var r *kagent.RejectedError
	if errors.As(err, &r) {
		switch r.Reason {
		case wire.CMReasonLevel:
			return ErrInvalidReliabilityLevel
		case wire.CMReasonTransfer:
			return ErrInvalidMTU
		case wire.CMReasonQoS:
			return ErrInvalidQoS
		}
	}
	return ErrRejected
}
