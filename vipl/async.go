package vipl

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// Asynchronous errors: errors outside of a call of the program. They arise on the control path or when a connection
// ends.

// ResourceCode is the kind of object that an asynchronous error is about.
type ResourceCode int

// The resources, with VIPL's values.
const (
	ResourceNIC        ResourceCode = 0
	ResourceVI         ResourceCode = 1
	ResourceCQ         ResourceCode = 2
	ResourceDescriptor ResourceCode = 3
)

// ErrorCode is the kind of an asynchronous error.
type ErrorCode int

// The asynchronous errors, with VIPL's values. If an error ends a connection, it is reported before the
// ErrorConnLost of that connection.
const (
	// ErrorPostDesc: a posted descriptor was nil, not aligned, not in registered
	// memory, or the program changed it while it was posted.
	ErrorPostDesc ErrorCode = 0
	// ErrorConnLost: a connection ended and this program did not end it.
	ErrorConnLost ErrorCode = 1
	// ErrorRecvQueueEmpty: a message arrived and no receive was posted.
	ErrorRecvQueueEmpty ErrorCode = 2
	// ErrorVIOverrun: more descriptors were posted than a work queue holds.
	ErrorVIOverrun ErrorCode = 3
	// ErrorRDMAWriteProtection: the peer wrote to memory that is not open to it.
	ErrorRDMAWriteProtection ErrorCode = 4
	// ErrorRDMAWriteData: a frame of the peer's write arrived corrupt, on an unreliable VI. On a reliable VI the
	// frame is retransmitted instead.
	ErrorRDMAWriteData ErrorCode = 5
	// ErrorRDMAWriteAbort: the peer's write ended before its last frame.
	ErrorRDMAWriteAbort ErrorCode = 6
	// ErrorRDMAReadProtection: the peer read memory that is not open to it.
	ErrorRDMAReadProtection ErrorCode = 7
	// ErrorCompletionProtection: when a descriptor completed, its memory had another protection tag than its VI,
	// because Region.SetAttributes changed it while the descriptor was posted.
	ErrorCompletionProtection ErrorCode = 8
	// ErrorRDMATransport: the peer went silent during an RDMA operation.
	ErrorRDMATransport ErrorCode = 9
	// ErrorCatastrophic: the interface was removed. Only Close remains possible.
	ErrorCatastrophic ErrorCode = 10
)

var errorCodeTexts = [...]string{
	"wrong descriptor posted", "connection lost", "receive queue empty", "work queue overrun",
	"RDMA write protection error", "RDMA write data error", "RDMA write aborted", "RDMA read protection error",
	"completion protection error", "RDMA transport error", "catastrophic error",
}

// String returns a short text for the code.
func (c ErrorCode) String() string {
	if c >= 0 && int(c) < len(errorCodeTexts) {
		return errorCodeTexts[c]
	}
	return fmt.Sprintf("error code %d", int(c))
}

// ErrorDescriptor is an asynchronous error: the object that it is about, and the cause.
type ErrorDescriptor struct {
	NIC        *NIC
	VI         *VI          // nil unless it is about a VI
	CQ         *CQ          // nil unless it is about a CQ
	Descriptor *Descriptor  // nil unless it is about a descriptor
	Op         Status       // the operation, a StatusOp value
	Resource   ResourceCode // the kind of object
	Code       ErrorCode    // what happened
	Err        error        // the cause if known, or nil
}

// maxErrors bounds the asynchronous errors that wait for a slow handler. A peer can cause errors, so further ones
// are only counted. ErrorConnLost and ErrorCatastrophic come once each and are never dropped, so that one peer
// cannot hide the end of another.
const maxErrors = 1024

// ErrorCallback is VipErrorCallback: it makes fn the handler of the NIC handle's asynchronous errors. nil restores
// the default handler, which logs at most ten errors a second and the number of those it left out.
//
// Errors are delivered one at a time, in order, on a goroutine of the library. While 1024 of them wait, further
// ones are dropped and counted (Counters.ErrorsDropped), except ErrorConnLost and ErrorCatastrophic. fn may call
// anything of this package. ErrorCallback may be called concurrently.
func (n *NIC) ErrorCallback(fn func(ErrorDescriptor)) {
	if fn == nil {
		fn = LogErrors(nil)
	}
	n.onError.Store(&fn)
}

// LogErrors returns a handler for ErrorCallback that logs as the default one does: to log or, if log is nil, to
// what slog.Default returns at the time of the error. Orderly disconnects are logged at level Debug, everything
// else at level Warn. The handler must not be called concurrently; a NIC handle does not.
func LogErrors(log *slog.Logger) func(ErrorDescriptor) { return (&errorLog{log: log}).take }

// errorLog is the default handler. A peer can cause some errors with every frame that it sends, so the rate of
// logging is bounded.
type errorLog struct {
	log    *slog.Logger
	since  time.Time
	logged int // since the time in since
	others int // not logged since then
}

const (
	logMost  = 10
	logEvery = time.Second
)

func (l *errorLog) take(e ErrorDescriptor) {
	log := l.log
	if log == nil {
		log = slog.Default()
	}
	if !log.Enabled(context.Background(), levelOf(e)) {
		return // an error that is not shown must not use up the budget
	}
	if now := time.Now(); now.Sub(l.since) >= logEvery {
		if l.others > 0 {
			log.Warn("vipl: asynchronous errors that were not logged", "count", l.others, "nic", e.NIC.info.Interface)
		}
		*l = errorLog{log: l.log, since: now}
	}
	if l.logged == logMost {
		l.others++
		return
	}
	l.logged++
	logError(log, e)
}

func logError(log *slog.Logger, e ErrorDescriptor) {
	args := []any{"error", e.Code.String(), "nic", e.NIC.info.Interface}
	if e.VI != nil {
		args = append(args, "vi", fmt.Sprintf("%#x", e.VI.num))
	}
	if e.Err != nil {
		args = append(args, "cause", e.Err)
	}
	log.Log(context.Background(), levelOf(e), "vipl: asynchronous error", args...)
}

func levelOf(e ErrorDescriptor) slog.Level {
	if errors.Is(e.Err, ErrPeerClosed) {
		return slog.LevelDebug // an orderly disconnect
	}
	return slog.LevelWarn
}

// report passes an error to the program's handler. Under the port's lock.
func (n *NIC) report(e ErrorDescriptor) {
	last := e.Code == ErrorConnLost || e.Code == ErrorCatastrophic
	if !last && n.errors.waiting() >= maxErrors {
		n.port.stats.ErrorsDropped++
		return
	}
	e.NIC = n
	n.errors.call(func() { (*n.onError.Load())(e) })
}

// report reports an error of the VI. Under the port's lock.
func (v *VI) report(code ErrorCode, op Status, err error) {
	v.nic.report(ErrorDescriptor{VI: v, Op: op, Resource: ResourceVI, Code: code, Err: err})
}

// reportDescriptor reports an error of one of its descriptors. Under the port's lock.
func (v *VI) reportDescriptor(code ErrorCode, d *Descriptor, op Status, err error) {
	v.nic.report(ErrorDescriptor{VI: v, Descriptor: d, Op: op, Resource: ResourceDescriptor, Code: code, Err: err})
}
