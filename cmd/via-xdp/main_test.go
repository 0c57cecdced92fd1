package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"viaxdp/bench"
	"viaxdp/bench/report"
	"viaxdp/bench/suite"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/testbed"
	"viaxdp/internal/ops/inspect"
	"viaxdp/internal/ops/mpirun"
	"viaxdp/internal/ops/ping"
	"viaxdp/internal/ops/undo"
)

// The test program is its own child when it is called by a hidden command, or as a program of a test.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && slices.Contains([]string{workerCommand, guardCommand, fdstoredCommand}, os.Args[1]) {
		os.Exit(run(context.Background(), environment{
			args: os.Args[1:], stdout: os.Stdout, stderr: os.Stderr, actions: production(),
		}))
	}
	if len(os.Args) == 3 && os.Args[1] == asSharer {
		if err := share(os.Args[2]); err != nil {
			fmt.Println(err)
			os.Exit(exitFailed)
		}
		return
	}
	testscript.Main(m, map[string]func(){"via-xdp": main})
}

// recorder stands for the work behind the commands and keeps what was asked.
type recorder struct {
	demo   bench.DemoConfig
	server bench.ServerConfig
	client bench.ClientConfig
	suite  suite.Config
	report *report.Report // of the suite
	bed    testbed.Named
	calls  []string
	err    error // that every action gives
}

func (r *recorder) actions() actions {
	called := func(name string) error { r.calls = append(r.calls, name); return r.err }
	result := func() *bench.Result {
		return &bench.Result{
			Latency:   []bench.Latency{{Name: "tcp-spin", Bytes: 64, N: 1, Min: 1, P50: 2, P99: 3, P999: 4}},
			Bandwidth: []bench.Bandwidth{{Name: "tcp-spin", Bytes: 64, MBps: 5, Messages: 6}},
		}
	}
	return actions{
		demo: func(_ context.Context, c bench.DemoConfig) (*bench.Result, error) {
			r.demo = c
			return result(), called("demo")
		},
		serve: func(_ context.Context, c bench.ServerConfig) error {
			r.server = c
			c.Ready(&net.TCPAddr{IP: net.IPv4(10, 77, 0, 1), Port: c.Port})
			return called("serve")
		},
		measure: func(_ context.Context, c bench.ClientConfig) (*bench.Result, error) {
			r.client = c
			return result(), called("measure")
		},
		up:   func(n testbed.Named) error { r.bed = n; return called("up") },
		down: func(n testbed.Named) error { r.bed = n; return called("down") },
		status: func(testbed.Named) (testbed.Status, error) {
			return testbed.Status{Up: true, Hugepages: 3}, called("status")
		},
		inspect: func(name string, try bool) (inspect.Interface, error) {
			return inspect.Interface{
				Name: name, Driver: "veth", MTU: 1500, Queues: inspect.Queues{RX: 2, TX: 4},
				Modes: []inspect.Mode{{Mode: "native", Possible: true, Tried: try, Reached: try}},
			}, called("inspect")
		},
		suite: func(_ context.Context, c suite.Config) (*report.Report, error) {
			r.suite = c
			return r.report, called("suite")
		},
	}
}

// call runs a command line with a recorder behind the commands.
func call(r *recorder, args ...string) (status int, stdout, stderr string) {
	return callWith(context.Background(), r.actions(), args...)
}

// produce runs a command line as the program itself does.
func produce(ctx context.Context, args ...string) (status int, stdout, stderr string) {
	return callWith(ctx, production(), args...)
}

// produceIn is produce in a namespace.
func produceIn(t *testing.T, ns *nstest.NS, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	nstest.Must(t, ns.Do(func() error {
		status, stdout, stderr = produce(t.Context(), args...)
		return nil
	}))
	return status, stdout, stderr
}

func callWith(ctx context.Context, a actions, args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	args = append([]string{}, args...) // for nil cobra takes this program's arguments
	status = run(ctx, environment{args: args, stdout: &out, stderr: &errs, actions: a})
	return status, out.String(), errs.String()
}

// execute runs one command, without what run does around it.
func execute(ctx context.Context, cmd *cobra.Command, args ...string) error {
	cmd.SetArgs(append([]string{}, args...)) // for nil cobra takes this program's arguments
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	return cmd.ExecuteContext(ctx)
}

// viaXDP is a process with that command line. As via-xdp this program is via-xdp: TestMain.
func viaXDP(t *testing.T, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Args = append([]string{"via-xdp"}, args...)
	return cmd
}

func TestExitStatus(t *testing.T) {
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	for _, c := range []struct {
		ctx    context.Context
		err    error
		status int
		stderr string
	}{
		{context.Background(), nil, exitFine, ""},
		{context.Background(), errors.New("a frame\nwas lost"), exitFailed, "via-xdp: a frame; was lost\n"},
		{context.Background(), errors.New("server: open: \x1b]0;mine\a"), exitFailed, "via-xdp: server: open: ?]0;mine?\n"},
		{
			context.Background(), &testbed.MissingError{What: "CAP_BPF", Remedy: "use sudo"}, exitCannotRun,
			"via-xdp: cannot run here: CAP_BPF is missing; use sudo\n",
		},
		{
			context.Background(), fmt.Errorf("AF_XDP socket: %w", unix.EMFILE), exitFailed,
			"via-xdp: AF_XDP socket: too many open files (raise the limit of this process: ulimit -n)\n",
		},
		{cancelled, context.Canceled, exitInterrupted, "via-xdp: interrupted\n"},
		{cancelled, errors.New("something else"), exitFailed, "via-xdp: something else\n"},
	} {
		status, out, errs := callWith(c.ctx, (&recorder{err: c.err}).actions(), "demo")
		nstest.ErrorIf(t, status != c.status || errs != c.stderr,
			"%v: status %d, %q; want %d, %q", c.err, status, errs, c.status, c.stderr)
		nstest.ErrorIf(t, (out != "") != (c.err == nil), "%v: printed %q", c.err, out)
	}
}

func TestBadCommandLines(t *testing.T) {
	for _, args := range [][]string{
		{"dance"}, {"demo", "extra"}, {"demo", "--no-such-flag"}, {"demo", "--sizes", "x"},
		{"bench", "no-such-group"}, {"bench", "--turns", "x"}, {"bench", "list", "x"}, {"bench", "compare", "one.json"},
		{"bench", "compare", "/no/such/file", "/no/such/file"}, {"bench", "doc", "no-such-group"},
		{"bench", "doc", "--from", "x.json", "pingpong"}, {"bench", "doc", "--from", "/no/such/file"},
		{"pingpong", "a", "b"}, {"stream", "-D", "0", "host"}, {"stream", "--name", "tcp-spin", "-e", "host"},
		{"testbed", "sideways"}, {"info", "a", "b"}, {"version", "x"},
		{"doctor", "--fix", "--undo"}, {"doctor", "--only", "nothing"}, {"doctor", "no-such-nic"}, {"tune"}, {"tune", "--profile", "speed"},
		{"res", "all"}, {"stat", "-i", "-1"}, {"stat", "-c", "-1"}, {"top", "-i", "0"}, {"capture"}, {"capture", "-w", "x", "-s", "1"},
		{"capture", "-w", "x", "--vi", "zz"}, {"ping"}, {"ping", "-c", "0", "127.0.0.1"}, {"cleanup", "x"}, {"gen", "man"}, {"gen", "doc"},
		{"stat", "-i", "nan"}, {"stat", "-i", "1e10"}, {"top", "-i", "inf"}, {"ping", "-i", "nan", "127.0.0.1"}, {"ping", "-W", "0s", "127.0.0.1"},
		{"ping", "-p", "0", "127.0.0.1"}, {"stream", "-D", "nan", "host"}, {"stream", "-D", "1e10", "host"}, {"soak", "--gigabytes", "nan"},
		{"soak", "--gigabytes", "inf"}, {"bench", "compare", "--fail", "nan", "a", "b"}, {"capture", "-w", "x", "--duration", "-1s"},
		{"tune", "--undo", "--dry-run"}, {"tune", "--undo", "lo"}, {"doctor", "--undo", "lo"}, {"demo", "--json", "."},
		{"demo", "--json", "/proc/self/status/x"},
		{"trace", "x"}, {"trace", "-n", "0"}, {"trace", "--level", "some"}, {"trace", "--mode", "fast"},
	} {
		r := &recorder{}
		status, out, errs := call(r, args...)
		nstest.ErrorIf(t, status != exitFailed || out != "" || strings.Count(errs, "\n") != 1,
			"%v: status %d, printed %q, %q", args, status, out, errs)
		nstest.ErrorIf(t, len(r.calls) > 0, "%v: called %v", args, r.calls)
	}
}

func TestDemoFlags(t *testing.T) {
	r := &recorder{}
	if status, _, errs := call(r, "demo"); status != 0 {
		t.Fatal(errs)
	}
	d := r.demo
	nstest.Same(t, "Rows", d.Plan.Rows, bench.RowsOf(bench.Names()))
	nstest.Same(t, "Sizes", d.Plan.Sizes, []int{64, 1024, 4096, 65536})
	if d.MTU != 1500 || d.Mode != "generic" || !d.Hugepages || d.Plan.Turns != 3 || !d.Plan.Latency || !d.Plan.Bandwidth {
		t.Errorf("defaults: %+v", d)
	}
	// All names, sizes and turns, latency and bandwidth.
	if whole := time.Duration(len(d.Plan.Rows)*len(d.Plan.Sizes)*d.Plan.Turns*2) * d.Plan.Duration; whole > 33*time.Second {
		t.Errorf("the demonstration measures for %v", whole)
	}
	call(r, "demo", "--names", "tcp-spin,raw-afxdp", "--sizes", "1,2", "--duration", "5ms", "--turns", "1",
		"--mtu", "9000", "--mode", "native", "--hugepages=false", "--check")
	want := bench.DemoConfig{
		Plan: bench.Plan{
			Rows: bench.RowsOf([]string{"tcp-spin", "raw-afxdp"}), Sizes: []int{1, 2}, Turns: 1, Duration: 5 * time.Millisecond,
			Latency: true, Bandwidth: true, Check: true,
		},
		BedConfig: bench.BedConfig{MTU: 9000, Mode: "native", WorkerArgs: []string{workerCommand}, GuardArgs: []string{guardCommand}},
	}
	if diff := cmp.Diff(want, r.demo, cmpopts.IgnoreFields(bench.Plan{}, "Progress"),
		cmpopts.IgnoreFields(bench.BedConfig{}, "Stderr")); diff != "" {
		t.Error(diff)
	}
}

// JSON on standard output is all that is there; the table goes to the other.
func TestOutput(t *testing.T) {
	r := &recorder{}
	call(r, "demo", "--names", "tcp-spin,vi-reliable-delivery", "--segmentation=false")
	if rows := r.demo.Plan.Rows; len(rows) != 2 || rows[0].VI != (bench.VIOptions{}) || !rows[1].VI.NoSegmentation {
		t.Errorf("without segmentation: %+v", rows)
	}
	_, out, errs := call(r, "demo", "--json", "-")
	var result bench.Result
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		t.Fatalf("%v: %q", err, out)
	}
	nstest.ErrorIf(t, len(result.Latency) != 1 || !strings.Contains(errs, "tcp-spin"),
		"result %+v, standard error %q", result, errs)
	dir := t.TempDir()
	file := filepath.Join(dir, "r.json")
	_, out, errs = call(r, "demo", "--json", file, "--svg", filepath.Join(dir, "plots"))
	nstest.ErrorIf(t, !strings.Contains(out, "tcp-spin") || !strings.Contains(errs, "latency.svg"),
		"printed %q, %q", out, errs)
	b, err := os.ReadFile(file)
	nstest.ErrorIf(t, err != nil || json.Unmarshal(b, &result) != nil, "%s: %v, %q", file, err, b)
	nstest.Check(t, nstest.Err(os.Stat(filepath.Join(dir, "plots", "bandwidth.svg"))))
	if status, _, _ := call(r, "demo", "--json", filepath.Join(dir, "no", "such")); status != exitFailed {
		t.Errorf("a file that cannot be made: status %d", status)
	}
	// The file does not depend on the table.
	nstest.Must(t, os.Remove(file))
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	nstest.Must(t, err)
	defer full.Close()
	status := run(t.Context(), environment{args: []string{"demo", "--json", file}, stdout: full, stderr: io.Discard, actions: r.actions()})
	nstest.ErrorIf(t, status != exitFailed || !there(file), "without room for the table: status %d, the file is there: %v", status, there(file))
}

func TestMeasureFlags(t *testing.T) {
	r := &recorder{}
	status, _, errs := call(r, "pingpong", "-s", "128", "-n", "5000", "-p", "7000", "-e", "-i", "eth1", "--mode", "native",
		"--queue", "3", "--name", "vi-unreliable", "--check", "10.0.0.1")
	if status != 0 {
		t.Fatal(errs)
	}
	want := bench.ClientConfig{
		Place:  bench.Place{Interface: "eth1", Queue: 3, Mode: "native", Hugepages: true},
		Server: "10.0.0.1", Port: 7000,
		Plan: bench.Plan{
			Rows: bench.RowsOf([]string{"vi-unreliable-wait"}), Sizes: []int{128}, Messages: 5000,
			Duration: bench.DefaultDuration, Latency: true, Check: true,
		},
	}
	ignore := cmpopts.IgnoreFields(bench.Plan{}, "Progress")
	nstest.Same(t, "client", r.client, want, ignore)
	call(r, "stream", "-a", "-D", "2.5", "host")
	p := r.client.Plan
	if p.Latency || !p.Bandwidth || p.Duration != 2500*time.Millisecond || p.Rows[0].Name != "vi-reliable-delivery" {
		t.Errorf("plan %+v", p)
	}
	if n := len(p.Sizes); n != 20 || p.Sizes[0] != 2 || p.Sizes[n-1] != bench.MaxMessage {
		t.Errorf("all sizes: %v", p.Sizes)
	}
	// Without an argument it is the server.
	_, _, errs = call(r, "stream", "-p", "7001", "-i", "eth1", "--keep")
	if r.server.Port != 7001 || r.server.Place.Interface != "eth1" || !r.server.Keep || !strings.Contains(errs, "10.77.0.1:7001") {
		t.Errorf("server %+v, said %q", r.server, errs)
	}
}

func TestTestbedCommands(t *testing.T) {
	r := &recorder{}
	status, out, errs := call(r, "testbed", "up", "--mtu", "9000", "--queues", "2", "--hugepages", "5")
	if status != 0 || !strings.HasPrefix(out, "up\n") || !strings.Contains(errs, "the bed was up already and is unchanged") {
		t.Fatalf("status %d, %q, %q", status, out, errs)
	}
	if r.bed.Pair.MTU != 9000 || r.bed.Pair.Queues != 2 || r.bed.Hugepages != 5 || r.bed.Namespaces != [2]string{"via0", "via1"} {
		t.Errorf("bed %+v", r.bed)
	}
	_, out, _ = call(r, "testbed", "status", "--json")
	var s testbed.Status
	if err := json.Unmarshal([]byte(out), &s); err != nil || !s.Up || s.Hugepages != 3 {
		t.Errorf("%v: %q", err, out)
	}
	if status, out, _ := call(r, "testbed", "down"); status != 0 || out != "" {
		t.Errorf("down: status %d, %q", status, out)
	}
	nstest.Same(t, "calls", r.calls, []string{"status", "up", "status", "status", "down"})
}

func TestInfo(t *testing.T) {
	r := &recorder{}
	_, out, _ := call(r, "info", "eth7")
	for _, text := range []string{"eth7", "veth", "2 RX, 4 TX", "1500", "mode native", "possible"} {
		nstest.ErrorIf(t, !strings.Contains(out, text), "no %q in %q", text, out)
	}
	if _, out, _ = call(r, "info", "-i", "eth7", "eth7"); strings.Count(out, "eth7") != 1 || !strings.Contains(out, "no MAC address") {
		t.Errorf("named twice: %q", out)
	}
	if _, out, _ = call(r, "info", "a\x1bc"); !strings.Contains(out, "a?c") || strings.Contains(out, "\x1b") {
		t.Errorf("a name with a control character: %q", out)
	}
	_, out, _ = call(r, "info", "-i", "eth7", "--try", "--json")
	var infos []described
	if err := json.Unmarshal([]byte(out), &infos); err != nil || len(infos) != 1 || !infos[0].Modes[0].Reached || infos[0].Agent != whichAgent(t.Context())("eth7") {
		t.Errorf("%v: %q", err, out)
	}
}

func TestHelpAndVersion(t *testing.T) {
	r := &recorder{}
	_, out, _ := call(r)
	for _, command := range []string{
		"demo", "pingpong", "stream", "bench", "testbed", "info", "version", "doctor", "tune", "cleanup", "res", "stat", "top",
		"capture", "ping", "trace", "gen", "completion",
	} {
		nstest.ErrorIf(t, !strings.Contains(out, "\n  "+command+" "), "the help has no %s", command)
	}
	nstest.ErrorIf(t, strings.Contains(out, "internal-"), "the help has a hidden command")
	_, out, _ = call(r, "demo", "--help")
	for _, name := range bench.Names() {
		nstest.ErrorIf(t, !strings.Contains(out, "\n  "+name+" "), "the help of demo has no %s", name)
	}
	for _, command := range []string{"pingpong", "stream"} {
		_, out, _ = call(r, command, "--help")
		nstest.ErrorIf(t, !strings.Contains(out, fmt.Sprintf("both sides alike (default %v)", bench.DefaultSilence)), "the help of %s has another silence:\n%s", command, out)
	}
	for _, args := range []string{"version", "--version"} {
		if status, out, _ := call(r, args); status != exitFine || out != "via-xdp "+bench.Version()+"\n" {
			t.Errorf("%s: status %d, %q", args, status, out)
		}
	}
}

// The program itself, from end to end, also where the environment names an agent: it has no interfaces of the demonstration.
func TestDemo(t *testing.T) {
	nstest.Require(t)
	t.Setenv("VIA_AGENT", filepath.Join(t.TempDir(), "agent.sock"))
	status, out, errs := produce(context.Background(),
		strings.Fields("demo --json - --duration 2ms --turns 1 --sizes 64 --names raw-afxdp,vi-reliable-delivery,vi-rdma-write,vi-rdma-read,tcp-net")...)
	nstest.FatalIf(t, status != exitFine, "status %d: %s", status, errs)
	var r bench.Result
	nstest.Must(t, json.Unmarshal([]byte(out), &r))
	nstest.ErrorIf(t, len(r.Latency) != 5 || len(r.Bandwidth) != 5 || r.Conditions.Mode != "generic", "got %+v", r)
	for _, text := range []string{"vi-rdma-write ", "vi-rdma-read (round trip) ", "one whole read"} {
		nstest.ErrorIf(t, !strings.Contains(errs, text), "the table has no %q:\n%s", text, errs)
	}
}

// The median of an even number of answers is that of the middle two. Why nothing came is said only if nothing came.
func TestPingSum(t *testing.T) {
	for _, c := range []struct {
		us               []int
		least, mid, most float64
	}{{nil, 0, 0, 0}, {[]int{5}, 5, 5, 5}, {[]int{9, 1}, 1, 5, 9}, {[]int{9, 1, 2}, 1, 2, 9}, {[]int{8, 1, 2, 4}, 1, 3, 8}} {
		p := pinged{Why: "no answer within 1s"}
		for _, n := range c.us {
			p.Replies = append(p.Replies, ping.Reply{RoundTrip: time.Duration(n) * time.Microsecond})
		}
		if p.sum(); p.Min != c.least || p.Median != c.mid || p.Max != c.most {
			t.Errorf("%v: least %v, median %v, most %v; want %v, %v, %v", c.us, p.Min, p.Median, p.Max, c.least, c.mid, c.most)
		}
		nstest.ErrorIf(t, (p.Why == "") != (len(c.us) > 0), "%v: why %q", c.us, p.Why)
	}
}

// leave makes what crashed programs leave: a socket, a half-written file, and a
// list of settings.
func leave(t *testing.T) (socket, half, settings string) {
	t.Helper()
	state, programs := filepath.Join(t.TempDir(), "state"), filepath.Join(t.TempDir(), "proc")
	t.Setenv("VIA_STATE_DIR", state)
	t.Setenv("VIA_RUNTIME_DIR", programs)
	for _, dir := range []string{state, programs} {
		nstest.Must(t, os.Mkdir(dir, 0o755))
	}
	socket = filepath.Join(programs, "4194000.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	nstest.Must(t, err)
	ln.SetUnlinkOnClose(false)
	ln.Close()
	half, settings = filepath.Join(state, "tune.json.new"), filepath.Join(state, "doctor.json")
	gone := `[{"kind": "file", "name": "/sys/devices/system/cpu/cpu99999/cpufreq/scaling_governor", "before": "0", "after": "1"}]`
	for path, text := range map[string]string{half: "[", settings: gone, filepath.Join(state, "notes.json.new"): "mine"} {
		nstest.Must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	old := time.Now().Add(-time.Hour)
	for _, path := range []string{half, socket} {
		nstest.Must(t, os.Chtimes(path, old, old))
	}
	return socket, half, settings
}

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func TestCleanup(t *testing.T) {
	socket, half, settings := leave(t)
	r := &recorder{} // it reports that a test bed is up
	status, out, errs := call(r, "cleanup", "--dry-run")
	if status != 0 || !there(socket) || !there(half) || !there(settings) || strings.Count(out, "would remove") != 2 {
		t.Errorf("--dry-run: status %d, %q, %q", status, out, errs)
	}
	r.calls = nil
	if status, out, errs = call(r, "cleanup"); status != 0 || there(socket) || there(half) || !there(settings) {
		t.Errorf("status %d, %q, %q", status, out, errs)
	}
	nstest.ErrorIf(t, slices.Contains(r.calls, "down"), "a bed that is up was taken down")
	if status, out, errs = call(r, "cleanup", "--all"); status != 0 || there(settings) || !slices.Contains(r.calls, "down") {
		t.Errorf("--all: status %d, %q, %q, called %v", status, out, errs, r.calls)
	}
	nstest.ErrorIf(t, !there(filepath.Join(filepath.Dir(half), "notes.json.new")),
		"a file that is not ours was removed")
}

// A user's sockets and files are removed although root has closed the directory of the bed, as with a umask of 077.
func TestCleanupBesideClosedBed(t *testing.T) {
	socket, half, _ := leave(t)
	closed := &os.PathError{Op: "open", Path: "/run/via-xdp/testbed.json", Err: unix.EACCES}
	if status, out, errs := call(&recorder{err: closed}, "cleanup"); status != 0 || there(socket) || there(half) {
		t.Errorf("status %d, %q, %q", status, out, errs)
	}
}

// A setting that both doctor and tune have changed gets its first value back, whichever was the last.
func TestCleanupOfBothLists(t *testing.T) {
	ns, _ := nstest.Pair(t, nstest.Options{})
	gro := undo.Setting{Kind: undo.Feature, Interface: ns.Name, Name: "rx-gro"}
	for _, lists := range [][2]string{{"doctor", "tune"}, {"tune", "doctor"}} {
		state := t.TempDir()
		t.Setenv("VIA_STATE_DIR", state)
		nstest.Must(t, ns.Do(func() error {
			first, err := undo.Machine{}.Get(gro)
			other := map[string]string{"on": "off", "off": "on"}[first]
			for i, value := range []string{other, first} {
				j, oerr := undo.Open(state, lists[i], undo.Machine{})
				nstest.Must(t, oerr)
				_, aerr := j.Apply([]undo.Step{{Setting: gro, Value: value}})
				at := time.Now().Add(time.Duration(i-2) * time.Second)
				err = errors.Join(err, aerr, j.Close(), os.Chtimes(filepath.Join(state, lists[i]+".json"), at, at))
			}
			if status, out, errs := call(&recorder{}, "cleanup", "--all"); status != 0 {
				t.Errorf("status %d, %q, %q", status, out, errs)
			}
			now, gerr := undo.Machine{}.Get(gro)
			nstest.Equal(t, "rx-gro after "+strings.Join(lists[:], " and "), now, first)
			return errors.Join(err, gerr)
		}))
	}
}

// A program may still be writing a half-written file.
func TestCleanupLeavesYoungFiles(t *testing.T) {
	_, half, _ := leave(t)
	nstest.Must(t, os.Chtimes(half, time.Now(), time.Now()))
	if call(&recorder{}, "cleanup"); !there(half) {
		t.Error("it was removed")
	}
}

// What a killed mpirun leaves whose agents had no socket yet is removed, but not under an mpirun that starts.
func TestCleanupOfJob(t *testing.T) {
	leave(t)
	t.Setenv("TMPDIR", t.TempDir())
	old := time.Now().Add(-time.Hour)
	for file, left := range map[string]bool{"": false, "0.sock.lock": false, "0.sock.new": false, "results": true} {
		job, err := os.MkdirTemp("", mpirun.Temporary)
		nstest.Must(t, err)
		if file != "" {
			nstest.Must(t, os.WriteFile(filepath.Join(job, file), nil, 0o600))
		}
		call(&recorder{}, "cleanup")
		nstest.ErrorIf(t, !there(job), "with %q, of a job that starts: removed", file)
		nstest.Must(t, os.Chtimes(job, old, old))
		status, out, errs := call(&recorder{}, "cleanup")
		nstest.ErrorIf(t, status != 0 || there(job) != left, "with %q: status %d, %q, %q; there: %v", file, status, out, errs, there(job))
	}
}

// A directory that others may change can name any user's socket: cleanup, which may run
// as root, leaves it.
func TestCleanupLeavesOthersSockets(t *testing.T) {
	socket, _, _ := leave(t)
	link := filepath.Join(t.TempDir(), "proc")
	nstest.Must(t, os.Symlink(filepath.Dir(socket), link))
	t.Setenv("VIA_RUNTIME_DIR", link)
	if status, _, errs := call(&recorder{}, "cleanup"); status != 0 || !there(socket) {
		t.Errorf("by a link: status %d, %q, socket there: %v", status, errs, there(socket))
	}
	t.Setenv("VIA_RUNTIME_DIR", filepath.Dir(socket))
	nstest.Must(t, os.Chmod(filepath.Dir(socket), 0o777))
	if status, _, errs := call(&recorder{}, "cleanup"); status != 0 || !there(socket) {
		t.Errorf("of everybody: status %d, %q, socket there: %v", status, errs, there(socket))
	}
}
