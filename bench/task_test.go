package bench

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/nstest"
)

// A task gets its input, and its output comes back; an error names the worker.
func TestTask(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
	type sum struct{ A, B int }
	add := func(alone bool) task {
		return task{alone: alone, run: taskOf(func(j *job, in sum) (int, error) {
			if in.A < 0 {
				return 0, errors.New("it is negative")
			}
			if alone != (j.endpoint == nil) || alone != j.params.Local.IsValid() || j.ctx == nil {
				return 0, errors.New("it was given the wrong things")
			}
			return in.A + in.B, nil
		})}
	}
	tasks["test-add"], tasks["test-add-alone"] = add(false), add(true)
	t.Cleanup(func() {
		delete(tasks, "test-add")
		delete(tasks, "test-add-alone")
	})
	client, server := workers(t) // which end before the tasks are deleted
	ctx := t.Context()

	req := requestOf("test-add-alone", sum{1, 2})
	p := client.at(false)
	req.Params = &p
	output, err := client.call(req)
	nstest.Must(t, err)
	nstest.Equal(t, "alone", string(output), "3")
	refused := func(change func(*request), want string) {
		t.Helper()
		r := req
		change(&r)
		nstest.ErrSays(t, r.Op, nstest.Err(client.call(r)), want)
	}
	refused(func(r *request) { r.Op = "test-dance" }, `unknown operation "test-dance"`)
	refused(func(r *request) { r.Op = "test-add" }, "nothing is open")
	refused(func(r *request) { r.Params = nil }, "no parameters")
	refused(func(r *request) { r.Input = json.RawMessage(`"x"`) }, "input")
	refused(func(r *request) { r.Input = json.RawMessage(`{"A":-1}`) }, "client: test-add-alone: it is negative")

	s, err := openSession(ctx, client, server, Row{Name: "tcp-spin"}, 64)
	nstest.Must(t, err)
	nstest.Check(t, fail.Try(func() {
		a, b := both[int, int](ctx, client, "test-add", server, "test-add", sum{3, 4})
		nstest.ErrorIf(t, a != 7 || b != 7, "both: got %d, %d", a, b)
	}))
	refused(func(*request) {}, "an endpoint is open")
	nstest.Check(t, s.Close(ctx))
}

// A worker validates requests before it serves them, as the client may be any host.
func TestTaskInput(t *testing.T) {
	client := onLoopback(t, "tcp-spin", 64).client
	good := Load{Bytes: 64, Rate: 1000, Duration: time.Second}
	long, large, often := good, good, good
	long.Duration, large.Bytes, often.Rate = time.Hour, 1<<30, 1e12
	for _, c := range []struct {
		name  string
		input any
		want  string
	}{
		{"load", loadRound{Load: long}, "lasts"},
		{"load-echo", loadRound{Load: large}, "messages of"},
		{"load", loadRound{Load: often}, "a second"},
		{"connect-often", connectInput{Count: -1}, "operations"},
		{"accept-often", connectInput{Count: maxOperations + 1}, "operations"},
	} {
		req := requestOf(c.name, c.input)
		nstest.ErrSays(t, c.name, nstest.Err(client.call(req)), c.want)
	}
	for _, r := range []request{
		requestOf(opPing, Round{Bytes: 64, Reply: 64, Messages: maxRound + 1}),
		requestOf(opPing, Round{Bytes: MaxMessage + 1, Messages: 1}),
		requestOf(opPing, Round{Bytes: 64, Reply: MaxMessage + 1, Messages: 1}),
		requestOf(opEcho, Round{Bytes: 64, Reply: 64, Messages: -1}),
	} {
		if _, err := client.call(r); err == nil || !strings.Contains(err.Error(), "out of range") && !strings.Contains(err.Error(), "a round has") {
			t.Errorf("%s, %s: got %v", r.Op, r.Input, err)
		}
	}
	nstest.ErrSays(t, "1 TiB", nstest.Err(operate(&job{}, Operations{Sizes: []int{1 << 40}, Count: 1})), "memory of")
}

// onBed is a place for the tests that need the kernel.
func onBed(t *testing.T) *Bed {
	t.Helper()
	nstest.Require(t)
	b, err := StartBed(t.Context(), BedConfig{Mode: "generic", WorkerArgs: []string{asWorker, tokenOf(t)}})
	nstest.Must(t, err)
	t.Cleanup(func() { nstest.Check(t, b.Close()) })
	return b
}

// within runs f with a session, which it closes in the end.
func (b *Bed) within(t *testing.T, name string, maxBytes int, f func(*Session) error) {
	t.Helper()
	if err := b.Session(t.Context(), Row{Name: name}, maxBytes, f); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}
