package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"

	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/testbed"
	"viaxdp/vipl"
)

// Operations that move no data: creating and destroying a NIC's objects, connecting and
// disconnecting. Each is timed by itself, from the call until its return, in a program that
// does nothing else.
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
	OpConnectTCP  = "connect of TCP"
	OpCloseTCP    = "close of TCP"

	OpAllocMem      = "allocate and register in the arena"
	OpFreeMem       = "deregister and free in the arena"
	OpRegisterMem   = "register the program's memory"
	OpDeregisterMem = "deregister the program's memory"
)

// OperationTimes are those of one operation.
type OperationTimes struct {
	Name  string
	Bytes int       // of memory; 0: it is about none
	Times Histogram // nanoseconds
}

// OperationsResult is what operations took.
type OperationsResult struct {
	Times      []OperationTimes
	Conditions Conditions
	Disturbed  []string // why the figures are doubtful; empty: they are not
}

// operated is the output of a task.
type operated struct {
	Times []OperationTimes
	Facts Facts
	Span  Span
}

func (o *operated) result(c Conditions) *OperationsResult {
	return &OperationsResult{Times: o.Times, Conditions: c, Disturbed: disturbances(o.Span, o.Span, false)}
}

// Operate measures operations that need no peer, on a NIC of its own of the client.
func (b *Bed) Operate(ctx context.Context, o Operations) (r *OperationsResult, err error) {
	err = b.do(ctx, false, func() { r = operateOn(ctx, b.client, o) })
	return r, err
}

func operateOn(ctx context.Context, w *Worker, o Operations) *OperationsResult {
	fail.If(o.validate())
	out := outputOf[operated](apart(ctx, true, []*Worker{w}, func(int) (string, any) { return "operate", o })[0])
	return out.result(conditionsOf("", out.Facts))
}

// Connections measures how long the client's VI takes to be connected with a
// peer that waits, and to be disconnected, count times; and the same of package
// net's TCP connections. The session is one of VIs.
func (s *Session) Connections(ctx context.Context, count int) (_ *OperationsResult, err error) {
	defer fail.Catch(&err)
	fail.If(checkCount(count))
	input := connectInput{Count: count, Server: s.hello[1].Addr}
	out, _ := both[operated, struct{}](ctx, s.client, "connect-often", s.server, "accept-often", input)
	return out.result(s.Conditions()), nil
}

// timings gathers the times of operations.
type timings struct {
	ctx   context.Context // of the task
	clock stopwatch
	list  []OperationTimes
}

func newTimings(ctx context.Context) *timings { return &timings{ctx: ctx, clock: startStopwatch()} }

// pairs does and undoes something count times. do may begin again, and then sets its start.
func (t *timings) pairs(count, bytes int, doing, undoing string, do func(start *time.Time) (undo func() error)) {
	did, undid := Histogram{newHistogram()}, Histogram{newHistogram()}
	t.list = append(t.list, OperationTimes{doing, bytes, did}, OperationTimes{undoing, bytes, undid})
	for range count {
		fail.If(context.Cause(t.ctx))
		start := time.Now()
		undo := do(&start)
		fail.If(did.note(time.Since(start)))
		start = time.Now()
		fail.If(undo())
		fail.If(undid.note(time.Since(start)))
	}
}

func (t *timings) output() operated { return operated{Times: t.list, Span: t.clock.span()} }

// operationCQ is the number of entries of a completion queue that is created.
const operationCQ = 256

// operate is a task: operations that need no peer, on a NIC of its own.
func operate(j *job, o Operations) (out operated, err error) {
	defer fail.Catch(&err)
	fail.If(errors.Join(o.validate(), testbed.Require(testbed.Sockets, testbed.Programs)))
	// A block of the arena is a power of two long and lies at a multiple of it, behind the
	// chunks.
	largest := slices.Max(append(o.Sizes, 1))
	nic, err := openNIC(j.params, vipl.WithArena(max(vipl.DefaultArena, 2*largest)))
	if vipl.Unavailable(err) {
		err = testbed.CannotRun(err)
	}
	fail.If(err)
	defer fail.Closing(&err, nic.Close)
	tag := fail.Must(nic.CreatePtag())
	t := newTimings(j.ctx)
	if len(o.Sizes) == 0 {
		t.pairs(o.Count, 0, OpCreatePtag, OpDestroyPtag, func(*time.Time) func() error { return fail.Must(nic.CreatePtag()).Destroy })
		t.pairs(o.Count, 0, OpCreateCQ, OpDestroyCQ, func(*time.Time) func() error { return fail.Must(nic.CreateCQ(operationCQ)).Destroy })
		t.pairs(o.Count, 0, OpCreateVI, OpDestroyVI, func(*time.Time) func() error { return fail.Must(nic.CreateVI(operationVI(tag), nil, nil)).Destroy })
	}
	attributes := vipl.MemAttributes{Ptag: tag}
	for _, bytes := range o.Sizes {
		t.pairs(o.of(bytes), bytes, OpAllocMem, OpFreeMem, func(*time.Time) func() error { return fail.Must(nic.AllocMem(bytes, attributes)).Deregister })
		own := make([]byte, bytes)
		for i := range own { // touch the pages
			own[i] = 1
		}
		t.pairs(o.of(bytes), bytes, OpRegisterMem, OpDeregisterMem, func(*time.Time) func() error { return fail.Must(nic.RegisterMem(own, attributes)).Deregister })
	}
	out = t.output()
	out.Facts = factsOf(nic)
	return out, nil
}

// operationVI are the attributes of a VI that is created.
func operationVI(tag *vipl.Ptag) vipl.VIAttributes {
	return vipl.VIAttributes{Level: vipl.ReliableDelivery, MaxTransferSize: MaxMessage, Ptag: tag}
}

// opsEnd names the end that is connected with for the time that it takes.
const opsEnd = "via-xdp bench connections"

// connectInput is the input of both sides.
type connectInput struct {
	Count  int
	Server netip.Addr
}

// newConnector makes a VI on the NIC of the endpoint, whose connection stays beside it. end
// gives it back.
func newConnector(j *job, in connectInput) (e *vi, v *vipl.VI, end func() error) {
	fail.If(checkCount(in.Count))
	e, ok := j.endpoint.(*vi)
	if !ok {
		fail.With("this transport has no connections to count: take a VI that sends and receives")
	}
	v = fail.Must(e.nic.CreateVI(operationVI(e.ptag), nil, nil))
	return e, v, func() error { return errors.Join(v.Disconnect(), v.Destroy()) }
}

// connectOften is a task: the client's side, which keeps the times.
func connectOften(j *job, in connectInput) (_ operated, err error) {
	e, v, end := newConnector(j, in)
	defer fail.Closing(&err, end)
	t := newTimings(j.ctx)
	t.pairs(in.Count, 0, OpConnect, OpDisconnect, func(start *time.Time) func() error {
		// Requests are refused until the server waits; only the accepted one counts.
		*start = requestConnection(j.ctx, v, e.params.Local, in.Server, opsEnd)
		return v.Disconnect
	})
	n := fail.Must(openNetwork(j.params, false))
	at := netip.AddrPortFrom(in.Server, opsPort)
	first := n.reach(j.ctx, at, waitLimit)
	defer fail.Closing(&err, first.Close)
	t.pairs(in.Count, 0, OpConnectTCP, OpCloseTCP, func(*time.Time) func() error {
		return fail.Must(n.dial(j.ctx, "tcp", at.String())).Close
	})
	return t.output(), nil
}

// opsPort is the server's TCP port. Both sides are in namespaces of their own.
const opsPort = 4794

// acceptTCP takes TCP connections until the client has closed the first of them.
func acceptTCP(ctx context.Context, host netip.Addr) {
	n := fail.Must(openNetwork(Params{}, false))
	l := n.listenWithin(ctx, netip.AddrPortFrom(host, opsPort), waitLimit)
	defer l.Close()
	first := fail.Must(l.Accept())
	defer first.Close()
	others := make(chan error, 1)
	go func() {
		for {
			c, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				err = nil
			}
			if c == nil {
				others <- err
				return
			}
			_ = c.Close()
		}
	}()
	fail.If(first.SetDeadline(time.Now().Add(waitLimit)))
	if _, err := first.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		fail.If(err)
	}
	fail.If(l.Close())
	fail.If(<-others)
}

// acceptOften is a task: the server's side.
func acceptOften(j *job, in connectInput) (_ struct{}, err error) {
	e, v, end := newConnector(j, in)
	defer fail.Closing(&err, end)
	// Of receives that never get a message: they come back when a connection has ended.
	receives := newRing(e.nic, e.ptag, 1, 1)
	// The peer ends each connection, which is not worth logging.
	e.nic.ErrorCallback(func(vipl.ErrorDescriptor) {})
	defer e.nic.ErrorCallback(nil)
	for range in.Count {
		fail.If(receives.add(v.PostRecv, nil))
		acceptConnection(j.ctx, e.nic, v, e.params.Local, opsEnd)
		for {
			_, err := v.RecvWait(maxSleep)
			switch {
			case err == nil:
				fail.With("a message came over a connection that carries none")
			case errors.Is(err, vipl.ErrTimeout):
				fail.If(context.Cause(j.ctx))
				continue
			case !errors.Is(err, vipl.ErrDescriptor):
				fail.If(err)
			}
			break
		}
		receives.done++
		fail.If(v.Disconnect())
	}
	acceptTCP(j.ctx, in.Server)
	return struct{}{}, nil
}
