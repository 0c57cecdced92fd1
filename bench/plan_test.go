package bench

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/testbed"
)

// workers serves two workers in this process, with endpoints on the loopback.
func workers(t *testing.T) (client, server *Worker, end func()) {
	t.Helper()
	var conns []net.Conn
	served := make(chan error, 2)
	worker := func(name string) *Worker {
		ours, theirs := net.Pipe()
		conns = append(conns, ours)
		go func() { served <- Serve(theirs, nil) }()
		return NewWorker(name, ours, Params{Local: netip.MustParseAddr("127.0.0.1")})
	}
	client, server = worker("client"), worker("server")
	return client, server, func() {
		for _, c := range conns {
			c.Close()
		}
		for range conns {
			if err := <-served; err != nil {
				t.Errorf("a worker ended with %v", err)
			}
		}
	}
}

func TestRun(t *testing.T) {
	defer goleak.VerifyNone(t)
	client, server, end := workers(t)
	defer end()
	var steps []Step
	opened := 0
	r, err := Run(context.Background(), Plan{
		Rows: RowsOf([]string{"tcp-block", "udp-net"}), Sizes: []int{64, 5000}, Turns: 2, Duration: 5 * time.Millisecond,
		Latency: true, Bandwidth: true, Check: true, Histogram: true,
		Progress: func(s Step) { steps = append(steps, s) },
		Opening:  func(open func() error) error { opened++; return open() },
	}, client, server)
	nstest.Must(t, err)
	// Turn by turn, name by name.
	var order []string
	for _, s := range steps {
		order = append(order, s.Name)
	}
	want := "tcp-block tcp-block udp-net udp-net tcp-block tcp-block udp-net udp-net"
	if got := strings.Join(order, " "); got != want {
		t.Errorf("order %s, want %s", got, want)
	}
	if opened != 0 {
		t.Errorf("%d openings with hugepages, of transports that have none", opened)
	}
	if len(r.Latency) != 4 || len(r.Bandwidth) != 4 || len(r.Histograms) != 4 {
		t.Fatalf("%d, %d and %d rows", len(r.Latency), len(r.Bandwidth), len(r.Histograms))
	}
	for _, l := range r.Latency {
		if l.N < 2 || l.Min <= 0 || l.P50 < l.Min || l.P99 < l.P50 || l.P999 < l.P99 {
			t.Errorf("latency %+v", l)
		}
		if n := r.Histograms[Case{l.Name, l.Bytes}].TotalCount(); n != l.N {
			t.Errorf("%s, %d bytes: histogram of %d, %d samples", l.Name, l.Bytes, n, l.N)
		}
	}
	for _, b := range r.Bandwidth {
		if b.MBps <= 0 || b.Messages <= 0 || b.CPUTx <= 0 {
			t.Errorf("bandwidth %+v", b)
		}
	}
	if r.Conditions.Polling != "wait" || r.Conditions.Kernel == "" || r.Conditions.Version == "" {
		t.Errorf("conditions %+v", r.Conditions)
	}
}

// With a number of messages exactly that many count. With a least number a measurement
// goes on until they are done.
func TestRunMessages(t *testing.T) {
	client, server, end := workers(t)
	defer end()
	for _, c := range []struct {
		messages, least int
		lo, hi          int64
	}{{1234, 0, 1234, 1234}, {0, 2000, 2000, 10000}} {
		r, err := Run(context.Background(), Plan{
			Rows: RowsOf([]string{"tcp-block"}), Sizes: []int{1}, Messages: c.messages, Least: c.least, Duration: time.Microsecond, Latency: true, Bandwidth: true,
		}, client, server)
		nstest.Must(t, err)
		if n := r.Latency[0].N; n < c.lo || n > c.hi {
			t.Errorf("%+v: %d samples", c, n)
		}
	}
}

// The end of the context ends the wait for a worker.
func TestRunCancelled(t *testing.T) {
	silent := func(name string) *Worker { // a worker that never answers
		ours, theirs := net.Pipe()
		t.Cleanup(func() { ours.Close() })
		go io.Copy(io.Discard, theirs)
		return NewWorker(name, ours, Params{})
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	reason := errors.New("enough")
	cancel(reason)
	plan := Plan{Rows: RowsOf([]string{"tcp-net"}), Sizes: []int{1}, Duration: 1, Latency: true}
	_, err := Run(ctx, plan, silent("client"), silent("server"))
	if !errors.Is(err, reason) {
		t.Errorf("got %v", err)
	}
}

func TestPlanValidate(t *testing.T) {
	good := func() Plan {
		return Plan{Rows: RowsOf([]string{"tcp-net"}), Sizes: []int{64}, Duration: time.Second, Latency: true}
	}
	if p := good(); p.Validate() != nil {
		t.Fatal(p.Validate())
	}
	for title, spoil := range map[string]func(*Plan){
		"no names":     func(p *Plan) { p.Rows = nil },
		"unknown":      func(p *Plan) { p.Rows[0].Name = "x" },
		"twice":        func(p *Plan) { p.Rows = RowsOf([]string{"tcp-net", "tcp-net"}) },
		"no sizes":     func(p *Plan) { p.Sizes = nil },
		"size 0":       func(p *Plan) { p.Sizes[0] = 0 },
		"large":        func(p *Plan) { p.Sizes[0] = MaxMessage + 1 },
		"size twice":   func(p *Plan) { p.Sizes = []int{1, 1} },
		"no kind":      func(p *Plan) { p.Latency = false },
		"no time":      func(p *Plan) { p.Duration = 0 },
		"negative":     func(p *Plan) { p.Messages = -1 },
		"turns":        func(p *Plan) { p.Turns = -1 },
		"ten twice":    func(p *Plan) { p.Sizes = []int{10, 20, 10} },
		"unknown last": func(p *Plan) { p.Rows = append(p.Rows, Row{Name: "tcp"}) },
	} {
		p := good()
		spoil(&p)
		if p.Validate() == nil {
			t.Errorf("%s: accepted", title)
		}
	}
}

// A worker reports requests that it cannot serve, and goes on.
func TestWorkerRefuses(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	go Serve(theirs, func(p *Params) error {
		if p.Queue == 7 {
			return errors.New("not this queue")
		}
		return nil
	})
	local := netip.MustParseAddr("127.0.0.1")
	enc, dec := json.NewEncoder(ours), json.NewDecoder(ours)
	for _, c := range []struct {
		req  request
		want string
	}{
		{request{Op: "dance"}, "unknown operation"},
		{request{Op: opPing, Round: &Round{Bytes: 1, Messages: 1}}, "nothing is open"},
		{request{Op: opOpen, Name: "x", Params: &Params{}}, "unknown transport"},
		{request{Op: opOpen, Name: "tcp-net"}, "no parameters"},
		{request{Op: opOpen, Name: "tcp-net", Params: &Params{MaxBytes: MaxMessage + 1}}, "largest"},
		{request{Op: opOpen, Name: "tcp-net", Params: &Params{MaxBytes: -1}}, "largest"},
		{request{Op: opOpen, Name: "tcp-net", Params: &Params{Queue: 7}}, "not this queue"},
		{request{Op: opClose}, ""},
		{request{Op: opOpen, Name: "tcp-net", Params: &Params{Local: local, Server: true}}, ""},
		{request{Op: opOpen, Name: "tcp-net", Params: &Params{Local: local}}, "another endpoint is open"},
		{request{Op: opConnect}, "without a peer"},
		{request{Op: opPing}, "no round"},
		{request{Op: opPing, Round: &Round{Bytes: 1, Messages: maxRound + 1}}, "samples"},
		{request{Op: opClose}, ""},
	} {
		nstest.Must(t, enc.Encode(c.req))
		var r reply
		nstest.Must(t, dec.Decode(&r))
		if c.want == "" && r.Error != "" || !strings.Contains(r.Error, c.want) {
			t.Errorf("%s: answer %q, want %q", c.req.Op, r.Error, c.want)
		}
	}
}

// A MissingError of a worker keeps its type across the control connection.
func TestMissingOverTheWire(t *testing.T) {
	for _, want := range []*testbed.MissingError{
		{What: "CAP_X", Remedy: "get it", Err: errors.New("no")},
		{What: "CAP_X", Remedy: "get it"},
		{Err: errors.New("no")},
	} {
		b, err := json.Marshal(errorReply(want))
		nstest.Must(t, err)
		var r reply
		nstest.Must(t, json.Unmarshal(b, &r))
		var got *testbed.MissingError
		if r.Missing == nil || !errors.As(r.Missing.err(), &got) || got.Error() != want.Error() {
			t.Errorf("%v became %+v", want, r)
		}
	}
}

// A wait in vain ends, on request and by itself.
func TestWatch(t *testing.T) {
	w := watchdog{}
	for range 10 * watchEvery {
		nstest.Must(t, w.idle())
	}
	w.since = time.Now().Add(-2 * waitLimit)
	if err := w.blocked(); !errors.Is(err, ErrStalled) {
		t.Errorf("after a long wait: %v", err)
	}
	w.progress()
	if err := w.blocked(); err != nil {
		t.Errorf("after progress: %v", err)
	}
}

// A ping-pong takes as much longer as LeadIn says, for any time of a message.
func TestLeadIn(t *testing.T) {
	for _, duration := range []time.Duration{70 * time.Millisecond, 10 * time.Second} {
		for _, per := range []time.Duration{20 * time.Microsecond, 200 * time.Microsecond} {
			p := &pace{duration: duration}
			var led time.Duration
			err := p.measure(maxRound, leads, func(it Round, count bool) (Span, error) {
				if it.Lead > 0 != count {
					t.Errorf("%d messages lead in, counted %t", it.Lead, count)
				}
				led += time.Duration(it.Lead) * per
				return Span{Wall: time.Duration(it.Lead+it.Messages) * per}, nil
			})
			if want := LeadIn(duration); err != nil || led < want*3/4 || led > want*5/4 {
				t.Errorf("%v at %v each: %v, error %v, want about %v", duration, per, led, err, want)
			}
		}
	}
}
