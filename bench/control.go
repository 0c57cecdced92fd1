package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"

	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/testbed"
)

// A Worker is the coordinator's end of the control connection to a process
// that measures.
type Worker struct {
	name   string
	conn   net.Conn
	enc    *json.Encoder
	dec    *json.Decoder
	params Params
	over   *Params      // of transports with an XDP program, where they differ
	ended  func() error // how the process behind the connection ended; may be nil
	guard  []string     // with which this program becomes a guard while workers map memory on hugepages; none: no guard
}

// NewWorker takes over a connection whose other end is served by [Serve]. The
// name is for error messages, p says where its endpoints are.
func NewWorker(name string, conn net.Conn, p Params) *Worker {
	return &Worker{name: name, conn: conn, enc: json.NewEncoder(conn), dec: json.NewDecoder(conn), params: p}
}

// call makes one request. It may be abandoned by closing the connection.
func (w *Worker) call(req request) (json.RawMessage, error) {
	var r reply
	err := w.enc.Encode(req)
	if err == nil {
		err = w.dec.Decode(&r)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: control connection: %w", w.name, w.explain(err))
	case r.Missing != nil:
		if r.Error != "" {
			r.Missing.Err = errors.New(r.Error)
		}
		return nil, fmt.Errorf("%s: %w", w.name, r.Missing)
	case r.Error != "":
		return nil, fmt.Errorf("%s: %s: %s", w.name, req.Op, r.Error)
	}
	return r.Output, nil
}

// at says where a worker's endpoints are: those with an XDP program, or the
// others.
func (w *Worker) at(xdp bool) Params {
	if xdp && w.over != nil {
		return *w.over
	}
	return w.params
}

// explain returns why the connection ended, as far as this side knows.
func (w *Worker) explain(err error) error {
	if w.ended != nil {
		if why := w.ended(); why != nil {
			return why
		}
	}
	if errors.Is(err, io.EOF) {
		return errors.New("the other side has closed it")
	}
	if _, syntax := errors.AsType[*json.SyntaxError](err); syntax {
		return fmt.Errorf("what answers is no via-xdp: %w", err)
	}
	return err
}

// each makes a request of each worker at the same time, and returns the outputs. It fails with the first failure, or
// when ctx ends: the connections are of no use afterwards.
func each(ctx context.Context, workers []*Worker, requests []request) []json.RawMessage {
	outputs, errs := make([]json.RawMessage, len(workers)), make(chan error, len(workers))
	for i, w := range workers {
		go func() {
			var err error
			outputs[i], err = w.call(requests[i])
			errs <- err
		}()
	}
	for range workers {
		select {
		case err := <-errs:
			fail.If(err)
		case <-ctx.Done():
			fail.If(context.Cause(ctx))
		}
	}
	return outputs
}

// both makes a request with the same input of a client and a server, and returns the output of each.
func both[A, B any](ctx context.Context, client *Worker, a string, server *Worker, b string, input any) (A, B) {
	out := each(ctx, []*Worker{client, server}, []request{requestOf(a, input), requestOf(b, input)})
	return outputOf[A](out[0]), outputOf[B](out[1])
}

func requestOf(op string, input any) request {
	return request{Op: op, Input: fail.Must(json.Marshal(input))}
}

// outputOf decodes an output.
func outputOf[Out any](output json.RawMessage) (out Out) {
	fail.Wrap(json.Unmarshal(output, &out), "output of a worker")
	return out
}

// Control connections carry JSON, one object a line: requests of the
// coordinator, one reply of the worker to each.
//
//	coordinator                                       worker
//	{"op":"open","transport":"tcp-spin","params":...} {"output":{"addr":...}}
//	{"op":"connect","input":{"addr":...}}             {"output":{}}
//	{"op":"ping","input":{"bytes":64,...}}            {"output":{"span":...}}
//	{"op":"close"}                                    {}
type request struct {
	Op        string          `json:"op"`
	Transport string          `json:"transport,omitempty"` // to open
	Params    *Params         `json:"params,omitempty"`    // to open it, or of a task that runs alone
	Input     json.RawMessage `json:"input,omitempty"`     // of a task
}

// Operations of a worker. Beside open and close they are tasks; these are methods of an [endpoint].
const (
	opOpen    = "open"
	opConnect = "connect"
	opPing    = "ping"
	opEcho    = "echo"
	opSend    = "send"
	opReceive = "receive"
	opClose   = "close"
)

type reply struct {
	Error   string                `json:"error,omitempty"`
	Missing *testbed.MissingError `json:"missing,omitempty"` // the machine cannot do it, because of Error if it has one
	Output  json.RawMessage       `json:"output,omitempty"`
}

func errorReply(err error) reply {
	m, ok := errors.AsType[*testbed.MissingError](err)
	if !ok {
		return reply{Error: err.Error()}
	}
	r := reply{Missing: &testbed.MissingError{What: m.What, Remedy: m.Remedy}}
	if m.Err != nil {
		r.Error = m.Err.Error()
	}
	return r
}
