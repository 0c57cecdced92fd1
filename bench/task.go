package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
)

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
	taskLoad: {run: taskOf(sendLoad)}, taskLoadEcho: {run: taskOf(echoLoad)},
	taskRequest: {run: taskOf(makeRequests)}, taskAnswer: {run: taskOf(answerRequests)},
	taskConnect: {run: taskOf(connectOften)}, taskAccept: {run: taskOf(acceptOften)},
	taskOperate: {run: taskOf(operate), alone: true}, taskRepeats: {run: taskOf(tellRepeats)},
	taskHTTPGet: {run: taskOf(getHTTP), alone: true}, taskHTTPServe: {run: taskOf(serveHTTP), alone: true},
	taskIncastSend: {run: taskOf(sendIncast), alone: true}, taskIncastTake: {run: taskOf(takeIncast), alone: true},
}

// Names of tasks.
const (
	taskLoad     = "load"
	taskLoadEcho = "load-echo"
	taskRequest  = "request"
	taskAnswer   = "answer"
	taskConnect  = "connect-often"
	taskAccept   = "accept-often"
	taskOperate  = "operate"
	taskRepeats  = "repeats"

	taskHTTPGet   = "http-get"
	taskHTTPServe = "http-serve"

	taskIncastSend = "incast-send"
	taskIncastTake = "incast-take"
)

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
func taskRequestOf(name string, input any) (request, error) {
	b, err := json.Marshal(input)
	return request{Op: opTask, Name: name, Input: b}, err
}

// outputOf decodes what a task has answered.
func outputOf[Out any](r reply) (out Out, err error) {
	if err := json.Unmarshal(r.Output, &out); err != nil {
		return out, fmt.Errorf("output of a task: %w", err)
	}
	return out, nil
}

// bothTasks has two tasks done that work together with the same input, and
// returns the output of each.
func bothTasks[A, B any](ctx context.Context, client *Worker, a string, server *Worker, b string, input any) (outA A, outB B, err error) {
	ra, err := taskRequestOf(a, input)
	if err != nil {
		return outA, outB, err
	}
	rb := ra
	rb.Name = b
	x, y, err := both(ctx, client, ra, server, rb)
	if err != nil {
		return outA, outB, err
	}
	if outA, err = outputOf[A](x); err == nil {
		outB, err = outputOf[B](y)
	}
	return outA, outB, err
}
