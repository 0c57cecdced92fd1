package bench

import (
	"encoding/json"
	"errors"

	"viaxdp/internal/testbed"
)

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
	RTT     []byte       `json:"rtt,omitempty"` // histogram of round trips in ns, HdrHistogram V2

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
