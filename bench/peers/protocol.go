package peers

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// The control connection carries JSON, one object a line: a request of the
// coordinator, one reply of the worker to each.
//
//	coordinator                                    worker
//	{"op":"start","argv":[...],"listen":{...}}     {}
//	{"op":"run","argv":[...],"timeout":9000000000} {"output":{"stdout":"..."}}
//	{"op":"stop"}                                  {"output":{...}}
type request struct {
	Op      string        `json:"op"`
	Argv    []string      `json:"argv,omitempty"`
	Env     []string      `json:"env,omitempty"`     // KEY=value, beside what every process gets
	Timeout time.Duration `json:"timeout,omitempty"` // in ns; the process is killed then
	Listen  *socket       `json:"listen,omitempty"`  // of start: what to await
}

// Operations of a worker.
const (
	opRun   = "run"   // a process, until it ends
	opStart = "start" // a process, until it listens
	opStop  = "stop"  // end the process that was started
)

// socket is what a server listens on.
type socket struct {
	Network network `json:"network"`
	Port    int     `json:"port"`
}

// String says where.
func (s socket) String() string { return fmt.Sprintf("port %d of %s", s.Port, s.Network) }

type network string

const (
	tcp network = "tcp"
	udp network = "udp"
)

type reply struct {
	Error  string  `json:"error,omitempty"`
	Output *output `json:"output,omitempty"`
}

// output is what is left of a process that has ended.
type output struct {
	Stdout string `json:"stdout"`
	Stderr string `json:"stderr"`
	Exit   int    `json:"exit"`             // status; -1: a signal
	Signal string `json:"signal,omitempty"` // that ended it

	CPU      time.Duration `json:"cpu"`      // user and system time, in ns
	Switches int           `json:"switches"` // times that it had to leave a CPU that it would have used
}

// failure says how a process failed, in one line; nil: it did not.
func (o *output) failure() error {
	how := ""
	switch {
	case o.Signal != "":
		how = o.Signal
	case o.Exit != 0:
		how = fmt.Sprintf("exit status %d", o.Exit)
	default:
		return nil
	}
	if why := o.complaint(); why != "" {
		how = why + " (" + how + ")"
	}
	return errors.New(how)
}

// complaint is the last that a process has said on standard error, or a
// complaint on standard output; empty: it has said nothing of the kind.
func (o *output) complaint() string {
	if last := lastLine(o.Stderr); last != "" {
		return last
	}
	return complaintIn(o.Stdout)
}

// foundNothing says that a program has measured, and has found no valid observation.
// o may be nil, as that of a process that was killed.
func (o *output) foundNothing() bool {
	return o != nil && (saysNothingFound(o.Stdout) || saysNothingFound(o.Stderr))
}

// A worker is the coordinator's end of a control connection.
type worker struct {
	name string
	conn net.Conn
	enc  *json.Encoder
	dec  *json.Decoder
}

func newWorker(name string, conn net.Conn) *worker {
	return &worker{name: name, conn: conn, enc: json.NewEncoder(conn), dec: json.NewDecoder(conn)}
}

// processError is what a worker says of a process; the worker itself is fine.
type processError string

func (e processError) Error() string { return string(e) }

// call makes one request. An error that is no processError means that the
// worker is of no use any more.
func (w *worker) call(r request) (*output, error) {
	var a reply
	err := w.enc.Encode(r)
	if err == nil {
		err = w.dec.Decode(&a)
	}
	switch {
	case errors.Is(err, io.EOF):
		return nil, fmt.Errorf("%s: the worker has closed its control connection", w.name)
	case err != nil:
		return nil, fmt.Errorf("%s: control connection: %w", w.name, err)
	case a.Error != "":
		return nil, processError(a.Error)
	case a.Output == nil && r.Op != opStart:
		return nil, fmt.Errorf("%s: a reply to %q without output", w.name, r.Op)
	}
	return a.Output, nil
}
