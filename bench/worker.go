package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/testbed"
)

// Serve obeys the requests on a control connection until it ends, which is no
// error, and closes it.
func Serve(conn net.Conn) error { return (&server{}).serve(conn) }

func (s *server) serve(conn net.Conn) error {
	ctx, stop := context.WithCancelCause(context.Background())
	s.ctx, s.samples = ctx, make([]int64, maxRound)
	defer s.close()

	// The connection is read all the time: its end stops a round.
	requests := make(chan request)
	var end error // of the connection, when requests is closed
	go func() {
		defer close(requests)
		for dec := json.NewDecoder(conn); ; {
			var r request
			if end = dec.Decode(&r); end != nil {
				stop(ErrStopped)
				return
			}
			select {
			case requests <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	defer conn.Close()
	defer stop(ErrStopped)

	enc := json.NewEncoder(conn)
	for r := range requests {
		s.asked = true
		if err := enc.Encode(s.execute(r)); err != nil {
			return ended(err)
		}
	}
	return ended(end)
}

// ended is nil if the connection was closed in order.
func ended(err error) error {
	for _, closed := range []error{io.EOF, net.ErrClosed, io.ErrClosedPipe, unix.EPIPE, unix.ECONNRESET} {
		if errors.Is(err, closed) {
			return nil
		}
	}
	return fmt.Errorf("control connection: %w", err)
}

// server is the state of a worker: at most one endpoint.
type server struct {
	prepare  func(*Params)   // changes the parameters of every endpoint before it is opened; may be nil
	ctx      context.Context // ends with the control connection
	endpoint endpoint
	free     bool    // tasks of this endpoint run on any thread, others are locked to one
	samples  []int64 // room for those of a round
	refused  error   // why the last endpoint could not be opened
	asked    bool    // there was a request
}

func (s *server) execute(r request) reply {
	var output json.RawMessage
	var err error
	switch r.Op {
	case opOpen:
		output, err = s.open(r)
		s.refused = err
	case opClose:
		err = s.close()
	default:
		output, err = s.task(r)
	}
	if err != nil {
		return errorReply(err)
	}
	return reply{Output: output}
}

// open opens the endpoint, and returns its Hello.
func (s *server) open(r request) (_ json.RawMessage, err error) {
	defer fail.Catch(&err)
	if s.endpoint != nil {
		fail.With("another endpoint is open")
	}
	t := fail.Must(find(r.Transport))
	p := s.paramsOf(r)
	if p.MaxBytes < 0 || p.MaxBytes > MaxMessage {
		fail.With("messages of %d bytes: the largest is %d", p.MaxBytes, MaxMessage)
	}
	s.free = t.free
	var e endpoint
	s.do(func() { e, err = openEndpoint(s.ctx, r.Transport, p) })
	fail.If(err)
	s.endpoint = e
	h := e.Hello()
	h.Facts.CPUs, _ = testbed.AllowedCPUs()
	return json.Marshal(h)
}

// paramsOf are the parameters of a request as this side wants them.
func (s *server) paramsOf(r request) Params {
	if r.Params == nil {
		fail.With("no parameters")
	}
	if s.prepare != nil {
		s.prepare(r.Params)
	}
	return *r.Params
}

func (s *server) close() (err error) {
	if s.endpoint != nil {
		s.do(func() { err = s.endpoint.Close() })
		s.endpoint = nil
	}
	return err
}

// exchanged is what one side has found in a round.
type exchanged struct {
	Span Span       `json:"span"`
	RTT  *Histogram `json:"rtt,omitempty"` // of Ping: round trips in ns
}

// roundTask is a task that is a method of the endpoint with a round.
func roundTask(method func(*job, Round) exchanged) task {
	return task{run: taskOf(func(j *job, r Round) (exchanged, error) {
		if r.Reply != 0 && !transacts(j.endpoint) {
			fail.With("this transport makes no transactions: take a VI that sends or writes, or TCP")
		}
		return method(j, r), nil
	})}
}

func ping(j *job, r Round) exchanged {
	if r.Messages > maxRound || r.Messages < 1 {
		fail.With("%d samples: a round has 1 to %d", r.Messages, maxRound)
	}
	samples := j.samples[:r.Messages]
	x := exchanged{j.endpoint.Ping(r, samples), &Histogram{newHistogram()}}
	for _, rtt := range samples {
		fail.If(x.RTT.note(time.Duration(rtt)))
	}
	return x
}

func echo(j *job, r Round) exchanged {
	clock := startStopwatch()
	j.endpoint.Echo(r)
	return exchanged{Span: clock.span()}
}

func send(j *job, r Round) exchanged    { return exchanged{Span: j.endpoint.Send(r)} }
func receive(j *job, r Round) exchanged { return exchanged{Span: j.endpoint.Receive(r)} }

// transacts reports whether an endpoint's messages and echoes may differ in size.
func transacts(e endpoint) bool {
	switch e.(type) {
	case *vi, *rdmaWrite, *tcp:
		return true
	}
	return false
}

// task does what a task does: as the open endpoint's tasks run or, without one, locked to a
// thread unless it is free.
func (s *server) task(r request) (_ json.RawMessage, err error) {
	defer fail.Catch(&err)
	t, ok := tasks[r.Op]
	if !ok {
		fail.With("unknown operation %q", r.Op)
	}
	j := job{ctx: s.ctx, endpoint: s.endpoint, samples: s.samples}
	switch {
	case !t.alone && s.endpoint == nil:
		fail.With("nothing is open")
	case t.alone && s.endpoint != nil:
		fail.With("an endpoint is open")
	case t.alone:
		j.params, s.free = s.paramsOf(r), t.free
	}
	var output any
	s.do(func() { output, err = t.run(&j, r.Input) })
	fail.If(err)
	return json.Marshal(output)
}

// WorkerMain is the main function of a child process of [Demo]: it serves its
// control connection. The process was pinned to a CPU before it started; the
// scheduler gets a second processor nevertheless, so that background goroutines
// run on another thread than one that polls.
func WorkerMain() error {
	conn, err := testbed.Control()
	if err != nil {
		return err
	}
	runtime.GOMAXPROCS(workerProcs)
	return Serve(conn)
}

// workerProcs is GOMAXPROCS of a worker.
const workerProcs = 2

// A task is what a worker does when it is asked for it by name, with an input and an output in JSON.
type task struct {
	alone bool // without an endpoint
	free  bool // alone, on a goroutine that the Go scheduler places, as those that use net.Conn are
	run   func(*job, json.RawMessage) (output any, err error)
}

// job is what a task works with.
type job struct {
	ctx      context.Context // ends with the control connection, because of ErrStopped
	endpoint endpoint        // nil for a task that runs alone
	params   Params          // for a task that runs alone: where this side is
	samples  []int64         // room for those of a round
}

// tasks are all of them, by name. Where two work together, the client does the
// first one of a line and the server the other.
var tasks = map[string]task{
	opConnect: {run: taskOf(func(j *job, peer Hello) (none struct{}, _ error) { j.endpoint.Connect(peer); return none, nil })},
	opPing:    roundTask(ping), opEcho: roundTask(echo),
	opSend: roundTask(send), opReceive: roundTask(receive),
	"load": {run: taskOf(sendLoad)}, "load-echo": {run: taskOf(echoLoad)},
	"connect-often": {run: taskOf(connectOften)}, "accept-often": {run: taskOf(acceptOften)},
	"operate": {run: taskOf(operate), alone: true}, "repeats": {run: taskOf(tellRepeats)},
	"http-get": {run: taskOf(getHTTP), alone: true, free: true}, "http-serve": {run: taskOf(serveHTTP), alone: true, free: true},
	"incast-send": {run: taskOf(sendIncast), alone: true, free: true}, "incast-take": {run: taskOf(takeIncast), alone: true, free: true},
	"share-send": {run: taskOf(shareSend), alone: true}, "share-take": {run: taskOf(shareTake), alone: true},
}

// taskOf makes a task of a function, which may fail by package fail, by decoding its
// input.
func taskOf[In, Out any](f func(*job, In) (Out, error)) func(*job, json.RawMessage) (any, error) {
	return func(j *job, input json.RawMessage) (_ any, err error) {
		defer fail.Catch(&err)
		var in In
		fail.Wrap(json.Unmarshal(input, &in), "input")
		return f(j, in)
	}
}

// apart has several workers do a task each without an endpoint, at the same time, where those with an XDP program
// are, or the others.
func apart(ctx context.Context, xdp bool, workers []*Worker, task func(i int) (name string, input any)) []json.RawMessage {
	requests := make([]request, len(workers))
	for i, w := range workers {
		p := w.at(xdp)
		requests[i] = requestOf(task(i))
		requests[i].Params = &p
	}
	return opened(ctx, xdp, workers, requests)
}

// apart has the client and the server of a bed do a task each with the same input.
func (b *Bed) apart(ctx context.Context, xdp bool, client, server string, input any) (outputs []json.RawMessage) {
	fail.If(b.do(ctx, false, func() {
		outputs = apart(ctx, xdp, []*Worker{b.client, b.server}, func(i int) (string, any) { return []string{client, server}[i], input })
	}))
	return outputs
}

// do runs f locked to a thread, unless the open endpoint is free.
func (s *server) do(f func()) {
	if !s.free {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	f()
}
