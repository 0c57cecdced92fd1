package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"viaxdp/internal/lab/nstest"
)

// workers serves two workers in this process, with endpoints on the loopback, until the test ends.
func workers(t *testing.T) (client, server *Worker) {
	t.Helper()
	worker := func(name string) *Worker {
		ours, theirs := net.Pipe()
		served := make(chan error, 1)
		go func() { served <- Serve(theirs) }()
		t.Cleanup(func() {
			ours.Close()
			nstest.WantErr(t, name, <-served, nil)
		})
		return NewWorker(name, ours, Params{Local: netip.MustParseAddr("127.0.0.1")})
	}
	return worker("client"), worker("server")
}

// onLoopback opens a transport between two workers on the loopback.
func onLoopback(t *testing.T, name string, maxBytes int, change ...func(*Params)) *Session {
	t.Helper()
	client, server := workers(t)
	s, err := openSession(t.Context(), client, server, Row{Name: name}, maxBytes, change...)
	nstest.Must(t, err)
	return s
}

func TestRun(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
	client, server := workers(t)
	var steps []Step
	r, err := Run(context.Background(), Plan{
		Rows: RowsOf([]string{"tcp-block", "udp-block"}), Sizes: []int{64, 5000}, Turns: 2, Duration: 5 * time.Millisecond,
		Latency: true, Bandwidth: true, Check: true,
		Progress: func(s Step) { steps = append(steps, s) },
	}, client, server)
	nstest.Must(t, err)
	// Turn by turn, name by name.
	var order []string
	for _, s := range steps {
		order = append(order, s.Name)
	}
	want := "tcp-block tcp-block udp-block udp-block tcp-block tcp-block udp-block udp-block"
	nstest.Equal(t, "order", strings.Join(order, " "), want)
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
	client, server := workers(t)
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
	nstest.WantErr(t, "cancelled", err, reason)
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
	go Serve(theirs)
	local := netip.MustParseAddr("127.0.0.1")
	enc, dec := json.NewEncoder(ours), json.NewDecoder(ours)
	for _, c := range []struct {
		req  request
		want string
	}{
		{request{Op: "dance"}, "unknown operation"},
		{requestOf(opPing, Round{Bytes: 1, Messages: 1}), "nothing is open"},
		{request{Op: opOpen, Transport: "x", Params: &Params{}}, "unknown transport"},
		{request{Op: opOpen, Transport: "tcp-net"}, "no parameters"},
		{request{Op: opOpen, Transport: "tcp-net", Params: &Params{MaxBytes: MaxMessage + 1}}, "largest"},
		{request{Op: opOpen, Transport: "tcp-net", Params: &Params{MaxBytes: -1}}, "largest"},
		{request{Op: opClose}, ""},
		{request{Op: opOpen, Transport: "tcp-net", Params: &Params{Local: local, Server: true}}, ""},
		{request{Op: opOpen, Transport: "tcp-net", Params: &Params{Local: local}}, "another endpoint is open"},
		{request{Op: opConnect}, "input"},
		{request{Op: opPing}, "input"},
		{requestOf(opPing, Round{Bytes: 1, Messages: maxRound + 1}), "samples"},
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

// A wait in vain ends, on request and by itself.
func TestWatch(t *testing.T) {
	w := watchdog{}
	for range 10 * watchEvery {
		nstest.Must(t, w.idle())
	}
	w.since = time.Now().Add(-2 * waitLimit)
	nstest.WantErr(t, "after a long wait", w.blocked(), ErrStalled)
	w.progress()
	nstest.WantErr(t, "after progress", w.blocked(), nil)
}

// The rounds of a ping-pong together lead in for leadTime each, whatever the time of a message.
func TestLeadIn(t *testing.T) {
	for _, duration := range []time.Duration{70 * time.Millisecond, 10 * time.Second} {
		for _, per := range []time.Duration{20 * time.Microsecond, 200 * time.Microsecond} {
			p := &pace{duration: duration}
			var led time.Duration
			p.measure(maxRound, leads, func(it Round, count bool) Span {
				if it.Lead > 0 != count {
					t.Errorf("%d messages lead in, counted %t", it.Lead, count)
				}
				led += time.Duration(it.Lead) * per
				return Span{Wall: time.Duration(it.Lead+it.Messages) * per}
			})
			if want := max(roundPart, duration/maxRoundTime) * leadTime; led < want*3/4 || led > want*5/4 {
				t.Errorf("%v at %v each: %v, want about %v", duration, per, led, want)
			}
		}
	}
}

func TestCPUModel(t *testing.T) {
	for _, c := range []struct {
		title, info string
		model       string
		hypervisor  bool
		text        string
	}{
		{"x86 below a hypervisor", "processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC  9R14\nflags\t\t: fpu hypervisor vme\n\nprocessor\t: 1\nmodel name\t: other\n",
			"AMD EPYC 9R14", true, "2 CPUs AMD EPYC 9R14 below a hypervisor"},
		{"x86", "model name\t: Intel(R) Xeon(R) Gold 6130 CPU @ 2.10GHz\nflags\t\t: fpu nohypervisor\n",
			"Intel(R) Xeon(R) Gold 6130 CPU @ 2.10GHz", false, "2 CPUs Intel(R) Xeon(R) Gold 6130 CPU @ 2.10GHz"},
		{"arm64", "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd0c\n",
			"implementer 0x41 part 0xd0c", false, "2 CPUs implementer 0x41 part 0xd0c"},
		{"POWER", "processor\t: 0\ncpu\t\t: POWER9, altivec supported\n", "POWER9, altivec supported", false, "2 CPUs POWER9, altivec supported"},
		{"nothing", "", "", false, "2 CPUs"},
	} {
		model, hypervisor := cpuModel(c.info)
		if model != c.model || hypervisor != c.hypervisor {
			t.Errorf("%s: %q, %v", c.title, model, hypervisor)
		}
		nstest.Equal(t, c.title, (Conditions{CPUs: 2, CPUModel: model, Hypervisor: hypervisor}).CPU(), c.text)
	}
	// This machine's are among the conditions.
	info, err := os.ReadFile("/proc/cpuinfo")
	if c := HostConditions(); err != nil || c.CPUs < 1 || c.CPUModel == "" || c.Hypervisor != strings.Contains(string(info), " hypervisor") {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestDisturbances(t *testing.T) {
	quiet := Span{Wall: time.Second, CPU: time.Second}
	with := func(waited, stolen time.Duration) Span {
		s := quiet
		s.Waited, s.Stolen = waited, stolen
		return s
	}
	for _, c := range []struct {
		title          string
		client, server Span
		polls          bool
		want           string
	}{
		{"quiet", quiet, quiet, true, ""},
		{"a little", with(10*time.Millisecond, 0), with(90*time.Millisecond, 0), true, ""},
		{"once in a short one", Span{Wall: time.Millisecond, Waited: 90 * time.Microsecond}, Span{}, true, ""},
		{"client", with(130*time.Millisecond, 0), quiet, true, "client"},
		{"server", quiet, with(130*time.Millisecond, 0), true, "server"},
		{"one that sleeps", with(300*time.Millisecond, 0), quiet, false, ""},
		{"steal", with(0, 30*time.Second), quiet, false, "hypervisor"},
		{"steal on the server's host alone", quiet, with(0, 30*time.Second), false, "hypervisor"},
		{"steal on the client's host alone", with(0, 30*time.Second), Span{Wall: 1001 * time.Millisecond}, false, "hypervisor"},
		{"a tick of it", with(0, userTick), quiet, true, ""},
		{"half a percent of a machine of which this process may use few CPUs", Span{Wall: time.Second, Stolen: 320 * time.Millisecond, CPUs: 64}, quiet, true, ""},
		{"2 % of it", Span{Wall: time.Second, Stolen: 1280 * time.Millisecond, CPUs: 64}, quiet, true, "hypervisor"},
	} {
		got := strings.Join(disturbances(c.client, c.server, c.polls), "; ")
		if (got != "") != (c.want != "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q", c.title, got)
		}
	}
}

// A span holds what happened in it.
func TestStopwatch(t *testing.T) {
	clock := startStopwatch()
	for since := time.Now(); time.Since(since) < 20*time.Millisecond; {
	}
	s := clock.span()
	if s.Wall < 20*time.Millisecond || s.CPU <= 0 || s.Waited < 0 || s.Stolen < 0 || s.CPUs < runtime.NumCPU() {
		t.Errorf("20 ms at work: %+v", s)
	}
	sum := s
	sum.add(s)
	if sum.Wall != 2*s.Wall || sum.CPU != 2*s.CPU || sum.Waited != 2*s.Waited || sum.Stolen != 2*s.Stolen || sum.CPUs != s.CPUs {
		t.Errorf("twice %+v is %+v", s, sum)
	}
}

// The report has exactly these names.
func TestJSON(t *testing.T) {
	sample := &Result{
		Conditions: Conditions{
			Kernel: "6.18.0", CPUs: 2, CPUModel: "Some CPU 9000", Hypervisor: true, Interface: "via0", Mode: "generic", Features: []string{"basic", "redirect"}, MTU: 1500,
			FrameBytes: 1514, Hugepages: "hugetlb", Polling: "spin", PinnedCPUs: []int{0, 1}, Version: "v1.2.3",
		},
		Latency:   []Latency{{Name: "vi-rdma-read", Bytes: 64, N: 1000, RoundTrip: true, Min: 1, P50: 2, P99: 3, P999: 4, Max: 9, Avg: 2.5, Stdev: 0.5}},
		Bandwidth: []Bandwidth{{Name: "vi-rdma-read", Bytes: 64, MBps: 300, Peak: 400, Messages: 5e6, CPUTx: 1, CPURx: 0.5}},
	}
	var buf bytes.Buffer
	nstest.Must(t, sample.WriteJSON(&buf))
	var got map[string]any
	nstest.Must(t, json.Unmarshal(buf.Bytes(), &got))
	keys := func(v any) []string { return slices.Sorted(maps.Keys(v.(map[string]any))) }
	first := func(name string) any { return got[name].([]any)[0] }
	for _, c := range []struct {
		what string
		got  any
		want []string
	}{
		{"result", any(got), []string{"bandwidth", "conditions", "latency"}},
		{"conditions", got["conditions"], []string{
			"cpu_model", "cpus", "frame_bytes", "hugepages", "hypervisor", "interface", "kernel", "mode", "mtu", "pinned_cpus", "polling", "version", "xdp_features",
		}},
		{"latency", first("latency"), []string{"avg_us", "bytes", "max_us", "min_us", "n", "name", "p50_us", "p999_us", "p99_us", "round_trip", "stdev_us"}},
		{"bandwidth", first("bandwidth"), []string{"MBps", "bytes", "cpu_rx", "cpu_tx", "msgs_per_s", "name", "peak_MBps"}},
	} {
		nstest.Same(t, c.what, keys(c.got), c.want)
	}
	// Read back, it is the same; and empty arrays are arrays.
	var back Result
	nstest.Must(t, json.Unmarshal(buf.Bytes(), &back))
	nstest.Same(t, "read back", &back, sample)
	buf.Reset()
	nstest.Must(t, newCollector().result(nil, nil).WriteJSON(&buf))
	if !strings.Contains(buf.String(), `"latency": []`) {
		t.Errorf("an empty result: %s", buf.String())
	}
}

// Half of a round trip is reported, but all of a read.
func TestRoundTrip(t *testing.T) {
	c := newCollector()
	h := newHistogram()
	if err := h.RecordValue(1500); err != nil { // exact below 2 us
		t.Fatal(err)
	}
	for name, want := range map[string]float64{"vi-rdma-write": 0.75, "vi-rdma-read": 1.5, "tcp-spin": 0.75} {
		c.addLatency(Case{name, 8}, RoundTrip(name), &ExchangeResult{RoundTrips: h})
		r := c.result(RowsOf([]string{name}), []int{8})
		if l := r.Latency[0]; l.P50 != want || l.Min != want || l.RoundTrip != (name == "vi-rdma-read") {
			t.Errorf("%s: %+v, want %v us", name, l, want)
		}
		var buf bytes.Buffer
		nstest.Must(t, WriteHistogram(&buf, name, h))
		head := "one-way us"
		if name == "vi-rdma-read" {
			head = "round trip us"
		}
		if !strings.Contains(buf.String(), head) || !strings.Contains(buf.String(), fmt.Sprintf("%.3f ", want)) {
			t.Errorf("%s: histogram\n%s", name, &buf)
		}
	}
}

// Medians of turns, the least minimum, the sum of counts.
func TestCollector(t *testing.T) {
	c := newCollector()
	k := Case{"tcp-spin", 64}
	for _, us := range []int64{9, 2, 4} {
		h := newHistogram()
		for i := range 100 {
			if err := h.RecordValue((us + int64(i%2)) * 2000); err != nil { // a round trip of 2*us, or 2*us+2
				t.Fatal(err)
			}
		}
		spent := Span{Wall: time.Second, CPU: time.Duration(us) * time.Millisecond, Waited: 200 * time.Millisecond}
		r := &ExchangeResult{RoundTrips: h, tx: spent, all: 500}
		if us == 9 {
			r.Disturbed = disturbances(spent, Span{}, true)
		}
		c.addLatency(k, false, r)
	}
	for _, seconds := range []time.Duration{1, 4, 2} {
		c.addBandwidth(k, &ExchangeResult{
			N: 1e6, MBps: 64 / float64(seconds), Peak: 128 / float64(seconds), PerSecond: 1e6 / float64(seconds),
			tx: Span{Wall: seconds * time.Second, CPU: time.Second}, rx: Span{Wall: seconds * time.Second, CPU: seconds * time.Second},
		})
	}
	r := c.result(RowsOf([]string{"udp-spin", "tcp-spin"}), []int{64, 128})
	if len(r.Latency) != 1 || len(r.Bandwidth) != 1 {
		t.Fatalf("got %d and %d rows", len(r.Latency), len(r.Bandwidth))
	}
	l := r.Latency[0]
	near := func(got, want float64) bool { return math.Abs(got-want) <= want/500 }
	if l.Name != "tcp-spin" || l.Bytes != 64 || l.N != 300 || !near(l.Min, 2) || !near(l.P50, 4) || !near(l.P99, 5) ||
		!near(l.Max, 10) || !near(l.Avg, 4.5) || !near(l.Stdev, 0.5) {
		t.Errorf("latency: %+v", l)
	}
	if len(l.Disturbed) != 1 || !strings.Contains(l.Disturbed[0], "client") {
		t.Errorf("disturbed %q: the client waited in one turn", l.Disturbed)
	}
	b := r.Bandwidth[0]
	if b.MBps != 32 || b.Peak != 128 || b.Messages != 5e5 || b.CPUTx != 0.5 || b.CPURx != 1 {
		t.Errorf("bandwidth: %+v", b)
	}
	nstest.Equal(t, "values of the histogram", r.Histograms[k].TotalCount(), 300)
	nstest.Equal(t, "median of an even number", medians([]float64{1, 2, 3, 10}, func(v *float64) []*float64 { return []*float64{v} }), 2.5)
}
