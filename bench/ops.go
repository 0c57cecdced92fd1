package bench

import (
	"context"
	"fmt"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Operations that move no data: a VI NIC's objects are made and unmade,
// connections come and go. Each is timed singly, from the call until its return,
// by a program that does nothing else.
type Operations struct {
	Sizes []int // bytes of memory that is registered; none: tags, completion queues and VIs
	Count int   // of each operation; of large memory fewer, see LargeMemory
}

// LargeMemory is the size in bytes from which on an operation is done less
// often, by as much as the memory is larger, but at least once.
const LargeMemory = 16 << 20

// MaxOperationBytes is the size of the largest memory that is registered.
const MaxOperationBytes = 64 << 20

// maxOperations bounds how often an operation is done.
const maxOperations = 1 << 20

func (o Operations) validate() error {
	for _, bytes := range o.Sizes {
		if bytes < 1 || bytes > MaxOperationBytes {
			return fmt.Errorf("memory of %d bytes: 1 to %d", bytes, MaxOperationBytes)
		}
	}
	return checkCount(o.Count)
}

func checkCount(n int) error {
	if n < 1 || n > maxOperations {
		return fmt.Errorf("%d operations: 1 to %d", n, maxOperations)
	}
	return nil
}

// of is how often an operation on memory of a size is done.
func (o Operations) of(bytes int) int {
	if bytes <= LargeMemory {
		return o.Count
	}
	return max(1, int(int64(o.Count)*LargeMemory/int64(bytes)))
}

// Names of operations.
const (
	OpCreatePtag  = "create protection tag"
	OpDestroyPtag = "destroy protection tag"
	OpCreateCQ    = "create CQ"
	OpDestroyCQ   = "destroy CQ"
	OpCreateVI    = "create VI"
	OpDestroyVI   = "destroy VI"
	OpConnect     = "connect"
	OpDisconnect  = "disconnect"

	OpAllocMem      = "allocate and register in the arena"
	OpFreeMem       = "deregister and free in the arena"
	OpRegisterMem   = "register the program's memory"
	OpDeregisterMem = "deregister the program's memory"
)

// OperationTimes are those of one operation.
type OperationTimes struct {
	Name  string
	Bytes int                     // of memory; 0: it is about none
	Times *hdrhistogram.Histogram // nanoseconds
}

// OperationsResult is what operations took.
type OperationsResult struct {
	Times      []OperationTimes
	Conditions Conditions
	Disturbed  []string // why the figures are doubtful; empty: they are not
}

// operated is the output of a task.
type operated struct {
	Operations []operation
	Facts      Facts
	Span       Span
}

type operation struct {
	Name  string
	Bytes int
	Times []byte
}

func (o *operated) result() (*OperationsResult, error) {
	r := &OperationsResult{Conditions: HostConditions(), Disturbed: disturbances(o.Span, o.Span, false)}
	r.Conditions.learn(o.Facts)
	if len(o.Facts.CPUs) == 1 {
		r.Conditions.PinnedCPUs = o.Facts.CPUs
	}
	for _, op := range o.Operations {
		h, err := decodeHistogram(op.Times)
		if err != nil {
			return nil, err
		}
		r.Times = append(r.Times, OperationTimes{op.Name, op.Bytes, h})
	}
	return r, nil
}

// Operate measures operations that need no peer, on a NIC of its own of one
// worker.
func Operate(ctx context.Context, w *Worker, o Operations, opening func(func() error) error) (*OperationsResult, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	req, err := taskRequestOf(taskOperate, o)
	if err != nil {
		return nil, err
	}
	p := w.at(true)
	req.Params = &p
	var answer reply
	call := func() (err error) { answer, err = w.callWithin(ctx, req); return err }
	if opening != nil {
		err = opening(call)
	} else {
		err = call()
	}
	if err != nil {
		return nil, err
	}
	out, err := outputOf[operated](answer)
	if err != nil {
		return nil, err
	}
	return out.result()
}

// Connections measures how long the client's VI takes to be connected with a
// peer that waits, and to be disconnected, so many times. The session is one of
// VIs.
func (s *Session) Connections(ctx context.Context, count int) (*OperationsResult, error) {
	if err := checkCount(count); err != nil {
		return nil, err
	}
	input := connectInput{Count: count, Server: s.hello[1].Addr}
	out, _, err := bothTasks[operated, struct{}](ctx, s.client, taskConnect, s.server, taskAccept, input)
	if err != nil {
		return nil, err
	}
	r, err := out.result()
	if err == nil {
		r.Conditions = s.Conditions()
	}
	return r, err
}

// callWithin is call, given up when ctx ends.
func (w *Worker) callWithin(ctx context.Context, req request) (reply, error) {
	type answer struct {
		r   reply
		err error
	}
	done := make(chan answer, 1)
	go func() {
		r, err := w.call(req)
		done <- answer{r, err}
	}()
	select {
	case a := <-done:
		return a.r, a.err
	case <-ctx.Done():
		return reply{}, context.Cause(ctx)
	}
}
