package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

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

// Operate measures operations that need no peer, on a NIC of its own of one
// worker.
func Operate(ctx context.Context, w *Worker, o Operations, opening func(func() error) error) (*OperationsResult, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	req, err := w.alone(taskOperate, true, o)
	if err != nil {
		return nil, err
	}
	var answers []reply
	call := func() (err error) { answers, err = each(ctx, []*Worker{w}, []request{req}); return err }
	if err := within(opening, true, call); err != nil {
		return nil, err
	}
	out, err := outputOf[operated](answers[0])
	if err != nil {
		return nil, err
	}
	c := HostConditions()
	c.learn(out.Facts)
	if len(out.Facts.CPUs) == 1 {
		c.PinnedCPUs = out.Facts.CPUs
	}
	return out.result(c), nil
}

// Connections measures how long the client's VI takes to be connected with a
// peer that waits, and to be disconnected, count times; and the same of package
// net's TCP connections. The session is one of VIs.
func (s *Session) Connections(ctx context.Context, count int) (*OperationsResult, error) {
	if err := checkCount(count); err != nil {
		return nil, err
	}
	input := connectInput{Count: count, Server: s.hello[1].Addr}
	out, _, err := bothTasks[operated, struct{}](ctx, s.client, taskConnect, s.server, taskAccept, input)
	if err != nil {
		return nil, err
	}
	return out.result(s.Conditions()), nil
}

// timings gathers the times of operations.
type timings struct {
	stop  *atomic.Bool
	clock stopwatch
	list  []OperationTimes
}

func newTimings(stop *atomic.Bool) *timings { return &timings{stop: stop, clock: startStopwatch()} }

// pairs does and undoes something count times. do may begin again, and then sets its start.
func (t *timings) pairs(count, bytes int, doing, undoing string, do func(start *time.Time) (undo func() error, err error)) error {
	did, undid := Histogram{newHistogram()}, Histogram{newHistogram()}
	t.list = append(t.list, OperationTimes{doing, bytes, did}, OperationTimes{undoing, bytes, undid})
	for range count {
		if t.stop.Load() {
			return ErrStopped
		}
		start := time.Now()
		undo, err := do(&start)
		if err == nil {
			err = did.note(time.Since(start))
		}
		if err != nil {
			return err
		}
		start = time.Now()
		if err = undo(); err == nil {
			err = undid.note(time.Since(start))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *timings) output() operated { return operated{Times: t.list, Span: t.clock.span()} }

// operationCQ is the number of entries of a completion queue that is created.
const operationCQ = 256

// operate is a task: operations that need no peer, on a NIC of its own.
func operate(j *job, o Operations) (out operated, err error) {
	if err := errors.Join(o.validate(), testbed.Require(testbed.Sockets, testbed.Programs)); err != nil {
		return out, err
	}
	// A block of the arena is a power of two long and lies at a multiple of it, behind the
	// chunks.
	largest := slices.Max(append(o.Sizes, 1))
	nic, err := openNIC(j.params, vipl.WithArena(max(vipl.DefaultArena, 2*largest)))
	if vipl.Unavailable(err) {
		return out, testbed.CannotRun(err)
	}
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, nic.Close()) }()
	tag, err := nic.CreatePtag()
	if err != nil {
		return out, err
	}
	t := newTimings(j.stop)
	if len(o.Sizes) == 0 {
		err = t.objects(nic, tag, o.Count)
	}
	for _, bytes := range o.Sizes {
		if err == nil {
			err = t.memory(nic, tag, bytes, o.of(bytes))
		}
	}
	if err != nil {
		return out, err
	}
	out = t.output()
	out.Facts = factsOf(nic)
	out.Facts.CPUs, err = testbed.AllowedCPUs()
	return out, err
}

// undoing gives the way back of what was made without an error.
func undoing(undo func() error, err error) (func() error, error) {
	if err != nil {
		return nil, err
	}
	return undo, nil
}

// objects times tags, completion queues and VIs.
func (t *timings) objects(nic *vipl.NIC, tag *vipl.Ptag, count int) error {
	for _, o := range []struct {
		create, destroy string
		do              func() (func() error, error)
	}{
		{OpCreatePtag, OpDestroyPtag, func() (func() error, error) {
			tag, err := nic.CreatePtag()
			return undoing(func() error { return tag.Destroy() }, err)
		}},
		{OpCreateCQ, OpDestroyCQ, func() (func() error, error) {
			cq, err := nic.CreateCQ(operationCQ)
			return undoing(func() error { return cq.Destroy() }, err)
		}},
		{OpCreateVI, OpDestroyVI, func() (func() error, error) {
			v, err := nic.CreateVI(operationVI(tag), nil, nil)
			return undoing(func() error { return v.Destroy() }, err)
		}},
	} {
		if err := t.pairs(count, 0, o.create, o.destroy, func(*time.Time) (func() error, error) { return o.do() }); err != nil {
			return err
		}
	}
	return nil
}

// operationVI are the attributes of a VI that is created.
func operationVI(tag *vipl.Ptag) vipl.VIAttributes {
	return vipl.VIAttributes{Level: vipl.ReliableDelivery, MaxTransferSize: MaxMessage, Ptag: tag}
}

// memory times memory of one size: the arena's, and the program's, whose pages
// have been touched before.
func (t *timings) memory(nic *vipl.NIC, tag *vipl.Ptag, bytes, count int) error {
	attributes := vipl.MemAttributes{Ptag: tag}
	err := t.pairs(count, bytes, OpAllocMem, OpFreeMem, func(*time.Time) (func() error, error) {
		r, err := nic.AllocMem(bytes, attributes)
		return undoing(func() error { return r.Deregister() }, err)
	})
	if err != nil {
		return err
	}
	own := make([]byte, bytes)
	for i := range own {
		own[i] = 1
	}
	return t.pairs(count, bytes, OpRegisterMem, OpDeregisterMem, func(*time.Time) (func() error, error) {
		r, err := nic.RegisterMem(own, attributes)
		return undoing(func() error { return r.Deregister() }, err)
	})
}

// opsDiscriminator names the end that is connected with for the time that it
// takes.
var opsDiscriminator = []byte("via-xdp bench connections")

// connectInput is the input of both sides.
type connectInput struct {
	Count  int
	Server netip.Addr
}

// newConnector makes a VI on the NIC of the endpoint, whose connection stays beside it. end
// gives it back.
func newConnector(j *job, in connectInput) (e *vi, v *vipl.VI, end func() error, err error) {
	if err := checkCount(in.Count); err != nil {
		return nil, nil, nil, err
	}
	e, ok := j.endpoint.(*vi)
	if !ok {
		return nil, nil, nil, errors.New("this transport has no connections to count: take a VI that sends and receives")
	}
	v, err = e.nic.CreateVI(operationVI(e.ptag), nil, nil)
	return e, v, func() error { return errors.Join(v.Disconnect(), v.Destroy()) }, err
}

func opsAddress(host netip.Addr) vipl.NetAddress {
	return vipl.NetAddress{Host: host, Discriminator: opsDiscriminator}
}

// connectOften is a task: the client's side, which keeps the times.
func connectOften(j *job, in connectInput) (out operated, err error) {
	e, v, end, err := newConnector(j, in)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, end()) }()
	t := newTimings(j.stop)
	err = t.pairs(in.Count, 0, OpConnect, OpDisconnect, func(start *time.Time) (func() error, error) {
		// Requests are refused until the server waits; only the accepted one counts.
		for deadline := start.Add(waitLimit); ; time.Sleep(connectPause) {
			*start = time.Now()
			_, err := v.ConnectRequest(opsAddress(e.params.Local), opsAddress(in.Server), waitLimit)
			switch {
			case err == nil:
				return v.Disconnect, nil
			case j.stop.Load():
				return nil, ErrStopped
			case !errors.Is(err, vipl.ErrNoMatch) || start.After(deadline):
				return nil, err
			}
		}
	})
	if err == nil {
		err = t.connectTCP(j, in)
	}
	return t.output(), err
}

// opsPort is the server's TCP port. Both sides are in namespaces of their own.
const opsPort = 4794

// connectTCP is the client's side of acceptTCP.
func (t *timings) connectTCP(j *job, in connectInput) error {
	n, err := openNetwork(j.params, false)
	if err != nil {
		return err
	}
	at := netip.AddrPortFrom(in.Server, opsPort)
	first, err := n.reach(at, waitLimit, j.stop)
	if err != nil {
		return err
	}
	return errors.Join(t.pairs(in.Count, 0, OpConnectTCP, OpCloseTCP, func(*time.Time) (func() error, error) {
		c, err := n.dial(context.Background(), "tcp", at.String())
		return undoing(func() error { return c.Close() }, err)
	}), first.Close())
}

// acceptTCP takes TCP connections until the client has closed the first of them.
func acceptTCP(host netip.Addr) error {
	n, err := openNetwork(Params{}, false)
	if err != nil {
		return err
	}
	l, err := n.listenWithin(netip.AddrPortFrom(host, opsPort), waitLimit)
	if err != nil {
		return err
	}
	first, err := l.Accept()
	if err != nil {
		return errors.Join(err, l.Close())
	}
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
	err = first.SetDeadline(time.Now().Add(waitLimit))
	if err == nil {
		if _, err = first.Read(make([]byte, 1)); errors.Is(err, io.EOF) {
			err = nil
		}
	}
	return errors.Join(err, first.Close(), l.Close(), <-others)
}

// acceptOften is a task: the server's side.
func acceptOften(j *job, in connectInput) (out struct{}, err error) {
	e, v, end, err := newConnector(j, in)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, end()) }()
	// Of receives that never get a message: they come back when a connection has ended.
	receives, err := newRing(e.nic, e.ptag, 1, 1)
	if err != nil {
		return out, err
	}
	// The peer ends each connection, which is not worth logging.
	e.nic.ErrorCallback(func(vipl.ErrorDescriptor) {})
	defer e.nic.ErrorCallback(nil)
	for range in.Count {
		conn, err := acceptUntil(j, e)
		if err == nil {
			err = receives.add(v.PostRecv, nil)
		}
		if err == nil {
			err = conn.Accept(v)
		}
		for err == nil {
			if _, err = v.RecvWait(maxSleep); errors.Is(err, vipl.ErrTimeout) && !j.stop.Load() {
				err = nil
			} else if err == nil {
				err = errors.New("a message came over a connection that carries none")
			}
		}
		switch {
		case errors.Is(err, vipl.ErrTimeout):
			return out, ErrStopped
		case !errors.Is(err, vipl.ErrDescriptor):
			return out, err
		}
		receives.done++
		if err := v.Disconnect(); err != nil {
			return out, err
		}
	}
	return out, acceptTCP(in.Server)
}

// acceptUntil awaits the next request.
func acceptUntil(j *job, e *vi) (*vipl.Conn, error) {
	for deadline := time.Now().Add(waitLimit); ; {
		in, err := e.nic.ConnectWait(opsAddress(e.params.Local), maxSleep)
		switch {
		case err == nil:
			return in, nil
		case j.stop.Load():
			return nil, ErrStopped
		case !errors.Is(err, vipl.ErrTimeout) || time.Now().After(deadline):
			return nil, err
		}
	}
}
