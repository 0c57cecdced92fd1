package vipl

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// Asynchronous errors: what goes wrong outside of a call of the program. They
// come on the control path, or with the end of a connection.

// ResourceCode says what an asynchronous error is about.
type ResourceCode int

// The resources, with VIPL's values.
const (
	ResourceNic        ResourceCode = 0
	ResourceVI         ResourceCode = 1
	ResourceCQ         ResourceCode = 2
	ResourceDescriptor ResourceCode = 3
)

// ErrorCode is the kind of an asynchronous error.
type ErrorCode int

// The asynchronous errors, with VIPL's values. One that is about a connection
// comes before the ErrorConnLost of its end.
const (
	// ErrorPostDesc: a posted descriptor was nil, not aligned, not in registered
	// memory, or the program changed it while it was posted.
	ErrorPostDesc ErrorCode = 0
	// ErrorConnLost: a connection ended otherwise than by this program.
	ErrorConnLost ErrorCode = 1
	// ErrorRecvQueueEmpty: a message came and no receive was posted.
	ErrorRecvQueueEmpty ErrorCode = 2
	// ErrorVIOverrun: more descriptors were posted than a work queue holds.
	ErrorVIOverrun ErrorCode = 3
	// ErrorRDMAWriteProtection: the peer wrote to what is not open for it.
	ErrorRDMAWriteProtection ErrorCode = 4
	// ErrorRDMAWriteData: a frame of the peer's write came corrupt, on an
	// unreliable VI; on the others it comes again.
	ErrorRDMAWriteData ErrorCode = 5
	// ErrorRDMAWriteAbort: the peer's write broke off in its middle.
	ErrorRDMAWriteAbort ErrorCode = 6
	// ErrorRDMAReadProtection: the peer read what is not open for it.
	ErrorRDMAReadProtection ErrorCode = 7
	// ErrorCompletionProtection: when a descriptor completed, its memory had
	// another protection tag than its VI (Region.SetAttributes meanwhile).
	ErrorCompletionProtection ErrorCode = 8
	// ErrorRDMATransport: the peer went silent under an RDMA operation.
	ErrorRDMATransport ErrorCode = 9
	// ErrorCatastrophic: the interface is gone. Only Close is left.
	ErrorCatastrophic ErrorCode = 10
)

var errorCodeTexts = [...]string{
	"wrong descriptor posted", "connection lost", "receive queue empty", "work queue overrun",
	"RDMA write protection error", "RDMA write data error", "RDMA write aborted", "RDMA read protection error",
	"completion protection error", "RDMA transport error", "catastrophic error",
}

// String gives the code in words.
func (c ErrorCode) String() string {
	if c >= 0 && int(c) < len(errorCodeTexts) {
		return errorCodeTexts[c]
	}
	return fmt.Sprintf("error code %d", int(c))
}

// ErrorDescriptor is an asynchronous error: what it is about, and why.
type ErrorDescriptor struct {
	Nic        *Nic
	VI         *VI         // nil unless it is about a VI
	CQ         *CQ         // nil unless it is about a CQ
	Descriptor *Descriptor // nil unless it is about a descriptor
	Op         Status      // operation, a StatusOp value
	Resource   ResourceCode
	Code       ErrorCode
	Err        error // the cause as far as it is known, or nil
}

// maxErrors is how many asynchronous errors wait for a slow handler; further
// ones are counted and forgotten, since a peer can cause them. Those that end
// something, and so come once, are never forgotten: no peer hides another's end.
const maxErrors = 1024

// ErrorCallback is VipErrorCallback: from now on fn gets the NIC handle's
// asynchronous errors; nil restores the default handler, which logs at most ten a
// second, and how many it left out.
//
// Errors come one at a time, in order, on a goroutine of the library. While 1024
// of them wait, further ones are left out (Counters.ErrorsDropped), but for
// ErrorConnLost and ErrorCatastrophic. fn may call anything of this package. It may
// be called concurrently.
func (n *Nic) ErrorCallback(fn func(ErrorDescriptor)) {
	if fn == nil {
		fn = new(errorLog).take
	}
	n.onError.Store(&fn)
}

// errorLog is the default handler. Some errors a peer can cause as often as it
// sends a frame, so that there is a bound to what is logged.
type errorLog struct {
	since  time.Time
	logged int // since then
	others int // not logged
}

const (
	logMost  = 10
	logEvery = time.Second
)

func (l *errorLog) take(e ErrorDescriptor) {
	if !slog.Default().Enabled(context.Background(), levelOf(e)) {
		return // nor does it take the place of one that is to be seen
	}
	if now := time.Now(); now.Sub(l.since) >= logEvery {
		if l.others > 0 {
			slog.Warn("vipl: asynchronous errors that were not logged", "count", l.others, "nic", e.Nic.info.Interface)
		}
		*l = errorLog{since: now}
	}
	if l.logged == logMost {
		l.others++
		return
	}
	l.logged++
	logError(e)
}

func logError(e ErrorDescriptor) {
	args := []any{"error", e.Code.String(), "nic", e.Nic.info.Interface}
	if e.VI != nil {
		args = append(args, "vi", fmt.Sprintf("%#x", e.VI.num))
	}
	if e.Err != nil {
		args = append(args, "cause", e.Err)
	}
	slog.Log(context.Background(), levelOf(e), "vipl: asynchronous error", args...)
}

func levelOf(e ErrorDescriptor) slog.Level {
	if errors.Is(e.Err, ErrPeerClosed) {
		return slog.LevelDebug // an orderly end
	}
	return slog.LevelWarn
}

// report hands an error to the program's handler. Under the port's lock.
func (n *Nic) report(e ErrorDescriptor) {
	last := e.Code == ErrorConnLost || e.Code == ErrorCatastrophic
	if !last && n.errors.waiting() >= maxErrors {
		n.port.stats.ErrorsDropped++
		return
	}
	e.Nic = n
	n.errors.call(func() { (*n.onError.Load())(e) })
}

// report tells of an error of the VI. Under the port's lock.
func (v *VI) report(code ErrorCode, op Status, err error) {
	v.nic.report(ErrorDescriptor{VI: v, Op: op, Resource: ResourceVI, Code: code, Err: err})
}

// reportDescriptor tells of an error of one of its descriptors.
func (v *VI) reportDescriptor(code ErrorCode, d *Descriptor, op Status, err error) {
	v.nic.report(ErrorDescriptor{VI: v, Descriptor: d, Op: op, Resource: ResourceDescriptor, Code: code, Err: err})
}
