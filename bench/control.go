package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"

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
}

// NewWorker takes over a connection whose other end is served by [Serve]. The
// name is for error messages, p says where its endpoints are.
func NewWorker(name string, conn net.Conn, p Params) *Worker {
	return &Worker{name: name, conn: conn, enc: json.NewEncoder(conn), dec: json.NewDecoder(conn), params: p}
}

// call makes one request. It may be abandoned by closing the connection.
func (w *Worker) call(req request) (reply, error) {
	var r reply
	err := w.enc.Encode(req)
	if err == nil {
		err = w.dec.Decode(&r)
	}
	if err != nil {
		return r, fmt.Errorf("%s: control connection: %w", w.name, w.explain(err))
	}
	switch {
	case r.Missing != nil:
		return r, fmt.Errorf("%s: %w", w.name, r.Missing.err())
	case r.Error != "" && req.Op == opTask:
		return r, fmt.Errorf("%s: %s: %s", w.name, req.Name, r.Error)
	case r.Error != "":
		return r, fmt.Errorf("%s: %s: %s", w.name, req.Op, r.Error)
	}
	return r, nil
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
	var syntax *json.SyntaxError
	switch {
	case errors.Is(err, io.EOF):
		return errors.New("the other side has closed it")
	case errors.As(err, &syntax):
		return fmt.Errorf("what answers is no via-xdp: %w", err)
	}
	return err
}

// both makes a request of each worker at the same time. The first failure
// ends it, as does ctx: the connections are of no use afterwards.
func both(ctx context.Context, a *Worker, ra request, b *Worker, rb request) (reply, reply, error) {
	r, err := each(ctx, []*Worker{a, b}, []request{ra, rb})
	return r[0], r[1], err
}

// each is both for any number of workers.
func each(ctx context.Context, workers []*Worker, requests []request) ([]reply, error) {
	type answer struct {
		i   int
		r   reply
		err error
	}
	answers := make(chan answer, len(workers))
	for i, w := range workers {
		go func() {
			r, err := w.call(requests[i])
			answers <- answer{i, r, err}
		}()
	}
	replies := make([]reply, len(workers))
	for range replies {
		select {
		case x := <-answers:
			if x.err != nil {
				return replies, x.err
			}
			replies[x.i] = x.r
		case <-ctx.Done():
			return replies, context.Cause(ctx)
		}
	}
	return replies, nil
}

// Control connections carry JSON, one object a line: requests of the
// coordinator, one reply of the worker to each.
//
//	coordinator                          worker
//	{"op":"open","name":"tcp-spin",...}  {"hello":{...}}
//	{"op":"connect","peer":{...}}        {}
//	{"op":"ping","round":{...}}          {"span":{...},"rtt":"..."}
//	{"op":"task","name":"load",...}      {"output":{...}}
//	{"op":"close"}                       {}
type request struct {
	Op     string          `json:"op"`
	Name   string          `json:"name,omitempty"` // of a transport or a task
	Params *Params         `json:"params,omitempty"`
	Peer   *Hello          `json:"peer,omitempty"`
	Round  *Round          `json:"round,omitempty"`
	Input  json.RawMessage `json:"input,omitempty"` // of a task
}

// Operations of a worker.
const (
	opOpen    = "open"
	opConnect = "connect"
	opPing    = "ping"
	opEcho    = "echo"
	opSend    = "send"
	opReceive = "receive"
	opTask    = "task"
	opClose   = "close"
)

type reply struct {
	Error   string       `json:"error,omitempty"`
	Missing *missingPart `json:"missing,omitempty"` // the machine cannot do it
	Hello   *Hello       `json:"hello,omitempty"`
	Span    *Span        `json:"span,omitempty"`
	RTT     *Histogram   `json:"rtt,omitempty"` // of round trips in ns

	Output json.RawMessage `json:"output,omitempty"` // of a task
}

// missingPart carries a testbed.MissingError.
type missingPart struct {
	What   string `json:"what,omitempty"`
	Remedy string `json:"remedy,omitempty"`
	Cause  string `json:"cause,omitempty"`
}

func (m *missingPart) err() error {
	e := &testbed.MissingError{What: m.What, Remedy: m.Remedy}
	if m.Cause != "" {
		e.Err = errors.New(m.Cause)
	}
	return e
}

func errorReply(err error) reply {
	r := reply{Error: err.Error()}
	var m *testbed.MissingError
	if errors.As(err, &m) {
		r.Missing = &missingPart{What: m.What, Remedy: m.Remedy}
		if m.Err != nil {
			r.Missing.Cause = m.Err.Error()
		}
	}
	return r
}
