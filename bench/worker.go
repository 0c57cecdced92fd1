package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/testbed"
)

// Serve obeys the requests on a control connection until it ends, which is no
// error, and closes it. prepare, which may be nil, changes the parameters of
// every endpoint before it is opened: a server decides itself where its
// endpoints are.
func Serve(conn net.Conn, prepare func(*Params) error) error {
	return newServer(prepare).serve(conn)
}

func newServer(prepare func(*Params) error) *server {
	return &server{prepare: prepare, locked: newThread(true), free: newThread(false)}
}

func (s *server) serve(conn net.Conn) error {
	defer s.locked.end()
	defer s.free.end()
	defer s.close()

	// The connection is read all the time: its end stops a round.
	requests := make(chan request)
	readError := make(chan error, 1)
	quit := make(chan struct{})
	go func() {
		defer close(requests)
		for dec := json.NewDecoder(conn); ; {
			var r request
			if err := dec.Decode(&r); err != nil {
				s.stop.Store(true)
				readError <- err
				return
			}
			select {
			case requests <- r:
			case <-quit:
				return
			}
		}
	}()
	defer conn.Close()
	defer close(quit)

	enc := json.NewEncoder(conn)
	for r := range requests {
		if err := enc.Encode(s.execute(r)); err != nil {
			return ended(err)
		}
	}
	return ended(<-readError)
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
	prepare  func(*Params) error
	stop     atomic.Bool
	endpoint Endpoint
	thread   *thread // where the endpoint's methods run
	locked   *thread
	free     *thread
	rtt      []int64
	refused  error // why the last endpoint could not be opened
}

func (s *server) execute(r request) (answer reply) {
	var err error
	switch r.Op {
	case opOpen:
		err = s.open(r, &answer)
		s.refused = err
	case opClose:
		err = s.close()
	case opConnect, opPing, opEcho, opSend, opReceive:
		if s.endpoint == nil {
			err = errors.New("nothing is open")
			break
		}
		s.thread.do(func() { err = s.run(r, &answer) })
	case opTask:
		answer.Output, err = s.task(r)
	default:
		err = fmt.Errorf("unknown operation %q", r.Op)
	}
	if err != nil {
		return errorReply(err)
	}
	return answer
}

func (s *server) open(r request, answer *reply) error {
	if s.endpoint != nil {
		return errors.New("another endpoint is open")
	}
	t, err := find(r.Name)
	if err != nil {
		return err
	}
	if r.Params == nil {
		return errors.New("no parameters")
	}
	p := *r.Params
	if p.MaxBytes < 0 || p.MaxBytes > MaxMessage {
		return fmt.Errorf("messages of %d bytes: the largest is %d", p.MaxBytes, MaxMessage)
	}
	if s.prepare != nil {
		if err := s.prepare(&p); err != nil {
			return err
		}
	}
	s.thread = s.locked
	if t.free {
		s.thread = s.free
	}
	s.thread.do(func() { s.endpoint, err = Open(r.Name, p, &s.stop) })
	if err != nil {
		s.endpoint = nil
		return err
	}
	h := s.endpoint.Hello()
	h.Facts.CPUs, _ = testbed.AllowedCPUs()
	answer.Hello = &h
	return nil
}

func (s *server) close() (err error) {
	if s.endpoint != nil {
		s.thread.do(func() { err = s.endpoint.Close() })
		s.endpoint = nil
	}
	return err
}

// run is one method of the endpoint, on its thread.
func (s *server) run(r request, answer *reply) error {
	if r.Op == opConnect {
		if r.Peer == nil {
			return errors.New("connect without a peer")
		}
		return s.endpoint.Connect(*r.Peer)
	}
	if r.Round == nil {
		return errors.New("no round")
	}
	round := *r.Round
	if round.Reply != 0 && !transacts(s.endpoint) {
		return errors.New("this transport makes no transactions: take a VI that sends or writes, or TCP")
	}
	var span Span
	var err error
	switch r.Op {
	case opPing:
		span, answer.RTT, err = s.ping(round)
	case opEcho:
		clock := startStopwatch()
		err = s.endpoint.Echo(round)
		span = clock.span()
	case opSend:
		span, err = s.endpoint.Send(round)
	case opReceive:
		span, err = s.endpoint.Receive(round)
	}
	answer.Span = &span
	return err
}

// transacts reports whether an endpoint's messages and echoes may differ in size.
func transacts(e Endpoint) bool {
	switch e.(type) {
	case *vi, *rdmaWrite, *tcp:
		return true
	}
	return false
}

func (s *server) ping(r Round) (Span, *Histogram, error) {
	if r.Messages > maxRound || r.Messages < 1 {
		return Span{}, nil, fmt.Errorf("%d samples: a round has 1 to %d", r.Messages, maxRound)
	}
	if s.rtt == nil {
		s.rtt = make([]int64, maxRound)
	}
	samples := s.rtt[:r.Messages]
	span, err := s.endpoint.Ping(r, samples)
	h := &Histogram{newHistogram()}
	for i := 0; i < len(samples) && err == nil; i++ {
		err = h.note(time.Duration(samples[i]))
	}
	return span, h, err
}

// task does what a task does: on the thread of the open endpoint, or on the
// locked thread where it needs none.
func (s *server) task(r request) (output json.RawMessage, err error) {
	t, ok := tasks[r.Name]
	if !ok {
		return nil, fmt.Errorf("unknown task %q", r.Name)
	}
	j := job{stop: &s.stop, endpoint: s.endpoint}
	thread := s.thread
	switch {
	case !t.alone && s.endpoint == nil:
		return nil, errors.New("nothing is open")
	case t.alone && s.endpoint != nil:
		return nil, errors.New("an endpoint is open")
	case t.alone && r.Params == nil:
		return nil, errors.New("no parameters")
	case t.alone:
		j.params, thread = *r.Params, s.locked
		if s.prepare != nil {
			if err := s.prepare(&j.params); err != nil {
				return nil, err
			}
		}
	}
	thread.do(func() { output, err = t.run(&j, r.Input) })
	return output, err
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
	return Serve(conn, nil)
}

// workerProcs is GOMAXPROCS of a worker.
const workerProcs = 2

// A task is what a worker does beside the methods of an Endpoint: it is asked
// for by name, with an input and an output in JSON.
type task struct {
	alone bool // without an endpoint; else on the thread of the one that is open
	run   func(*job, json.RawMessage) (json.RawMessage, error)
}

// job is what a task works with.
type job struct {
	stop     *atomic.Bool // set when the control connection has ended
	endpoint Endpoint     // nil for a task that runs alone
	params   Params       // for a task that runs alone: where this side is
}

// tasks are all of them, by name. Where two work together, the client does the
// first one of a line and the server the other.
var tasks = map[string]task{
	"load": {run: taskOf(sendLoad)}, "load-echo": {run: taskOf(echoLoad)},
	"connect-often": {run: taskOf(connectOften)}, "accept-often": {run: taskOf(acceptOften)},
	"operate": {run: taskOf(operate), alone: true}, "repeats": {run: taskOf(tellRepeats)},
	"http-get": {run: taskOf(getHTTP), alone: true}, "http-serve": {run: taskOf(serveHTTP), alone: true},
	"incast-send": {run: taskOf(sendIncast), alone: true}, "incast-take": {run: taskOf(takeIncast), alone: true},
	"share-send": {run: taskOf(shareSend), alone: true}, "share-take": {run: taskOf(shareTake), alone: true},
}

// taskOf makes a task of a function by decoding its input and encoding its
// output.
func taskOf[In, Out any](f func(*job, In) (Out, error)) func(*job, json.RawMessage) (json.RawMessage, error) {
	return func(j *job, input json.RawMessage) (json.RawMessage, error) {
		var in In
		if err := json.Unmarshal(input, &in); err != nil {
			return nil, fmt.Errorf("input: %w", err)
		}
		out, err := f(j, in)
		if err != nil {
			return nil, err
		}
		return json.Marshal(out)
	}
}

// taskRequestOf asks for a task on the open endpoint.
func taskRequestOf(name string, input any) request {
	return request{Op: opTask, Name: name, Input: fail.Must(json.Marshal(input))}
}

// apart has several workers do a task each without an endpoint, at the same time, where those with an XDP program
// are, or the others.
func apart(ctx context.Context, opening func(func() error) error, xdp bool, workers []*Worker, task func(i int) (name string, input any)) (replies []reply) {
	requests := make([]request, len(workers))
	for i, w := range workers {
		p := w.at(xdp)
		requests[i] = taskRequestOf(task(i))
		requests[i].Params = &p
	}
	fail.If(within(opening, xdp, func() (err error) {
		replies, err = each(ctx, workers, requests)
		return err
	}))
	return replies
}

// outputOf decodes what a task has answered.
func outputOf[Out any](r reply) (out Out) {
	if err := json.Unmarshal(r.Output, &out); err != nil {
		fail.With("output of a task: %w", err)
	}
	return out
}

// bothTasks has two tasks done that work together with the same input, and
// returns the output of each.
func bothTasks[A, B any](ctx context.Context, client *Worker, a string, server *Worker, b string, input any) (_ A, _ B, err error) {
	defer fail.Catch(&err)
	x, y, err := both(ctx, client, taskRequestOf(a, input), server, taskRequestOf(b, input))
	fail.If(err)
	return outputOf[A](x), outputOf[B](y), nil
}

// thread runs functions one after the other on one goroutine, which may be
// locked to an operating system thread.
type thread struct{ work chan func() }

func newThread(locked bool) *thread {
	t := &thread{work: make(chan func())}
	go func() {
		if locked {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
		}
		for f := range t.work {
			f()
		}
	}()
	return t
}

func (t *thread) do(f func()) {
	done := make(chan struct{})
	t.work <- func() { defer close(done); f() }
	<-done
}

func (t *thread) end() { close(t.work) }
