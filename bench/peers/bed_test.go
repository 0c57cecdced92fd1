package peers

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/nstest"
)

var record = flag.Bool("record", false, "write what the programs print to testdata")

func startBed(t *testing.T) *Bed {
	t.Helper()
	nstest.Require(t)
	bed, err := Start(1500)
	nstest.Must(t, err)
	t.Cleanup(bed.Close)
	return bed
}

// The real programs: each has the figures that its row promises. Those that sleep run at
// the same time.
func TestPrograms(t *testing.T) {
	if missing := Missing(); len(missing) > 0 {
		nstest.LacksProgram(t, "not installed: %s", names(missing))
	}
	for i, r := range Rows() {
		if testing.Short() && i%4 > 0 {
			continue // the others differ in their programs, which are not ours
		}
		t.Run(r.Name, func(t *testing.T) {
			if !r.polls {
				t.Parallel()
			}
			bed, sizes := startBed(t), []int{64}
			if *record {
				sizes = append(sizes, 65536)
			}
			for _, bytes := range sizes {
				if bytes > r.maxBytes && r.maxBytes > 0 {
					continue
				}
				o, _, err := bed.exchange(context.Background(), r, bytes, 50*time.Millisecond)
				nstest.Must(t, err)
				if *record {
					file := filepath.Join("testdata", fmt.Sprintf("%s-%d.txt", r.Name, bytes))
					nstest.Must(t, os.WriteFile(file, []byte(o.Stdout), 0o644))
				}
				f, err := r.parse(o.Stdout, bytes)
				if err != nil || r.Latency != (f.Mean > 0) || r.Quantiles != (f.P50 > 0) || r.Bandwidth != (f.MBps > 0 && f.Messages > 0) {
					t.Errorf("figures %+v, %v\n%s", f, err, o.Stdout)
				}
			}
		})
	}
}

// An impossible measurement returns the reason, and leaves the bed usable.
func TestMeasureFails(t *testing.T) {
	bed := startBed(t)
	ctx := context.Background()
	row := func(server, client command) Row {
		return Row{
			Name: "a-row", Program: Program{Name: "sh", Package: "dash"}, minBytes: 8, maxBytes: 100, await: tcp,
			server: func(j job) command {
				for i, a := range server.argv {
					server.argv[i] = strings.Replace(a, "PORT", j.portArg(), 1)
				}
				return server
			},
			client: func(job) command { return client },
			read:   func(out string, _ int) Figures { fail.If(unreadable(out, "figures")); return Figures{} },
		}
	}
	listener := func() command { return argv("/proc/self/exe", asListener, "tcp4", "10.77.0.2:PORT") }
	absent := row(listener(), argv("true"))
	absent.Program = Program{Name: "via-xdp-no-such-program", Package: "no-such-package"}
	for _, test := range []struct {
		row   Row
		bytes int
		want  string
	}{
		{absent, 64, "via-xdp-no-such-program is not installed (Debian's package no-such-package)"},
		{row(listener(), argv("true")), 4, "messages have at least 8 bytes"},
		{row(listener(), argv("true")), 101, "messages have at most 100 bytes"},
		{row(argv("sh", "-c", "echo libnone.so: cannot open shared object file >&2; exit 127"), argv("true")), 64,
			"server: it does not listen: libnone.so: cannot open shared object file (exit status 127)"},
		{row(listener(), argv("sh", "-c", "echo no provider >&2; exit 61")), 64, "client: no provider (exit status 61)"},
		{row(listener(), argv("via-xdp-no-such-program")), 64, "client: "},
		{row(listener(), argv("echo", "strange")), 64, "its output has no figures, and ends: strange"},
	} {
		err := nstest.Err(bed.Measure(ctx, test.row, test.bytes, time.Millisecond))
		nstest.ErrSays(t, strings.Join(test.row.client(job{}).argv, " "), err, test.want)
	}
	// Client and server are in two namespaces, on a CPU each.
	where := row(argv("/proc/self/exe", asListener, "tcp4", "10.77.0.2:PORT"),
		argv("sh", "-c", "grep -c via0 /proc/net/dev; grep -o 'Cpus_allowed_list.*' /proc/self/status; readlink /proc/self/ns/net"))
	o, _, err := bed.exchange(ctx, where, 64, time.Millisecond)
	nstest.Must(t, err)
	ours, _ := os.Readlink("/proc/self/ns/net")
	said := strings.Fields(o.Stdout)
	if len(said) != 4 || said[0] != "1" || strings.ContainsAny(said[2], ",-") || said[3] == ours {
		t.Errorf("the client says %q; the test is in %s", said, ours)
	}
}

// A program that reports no result is run again, on a new server, a limited number of times;
// one that fails otherwise is not.
func TestMeasureAgain(t *testing.T) {
	bed := startBed(t)
	const nothing = "sockperf: No valid observations found. Try tune parameters: --time/--mps/--reply-every"
	for _, test := range []struct {
		name, script string
		runs         int
		want         string // of the error; empty: there is none
	}{
		{"once", "exit 0", 1, ""},
		{"second", `[ $n -gt 1 ] || { echo "` + nothing + `"; exit 1; }`, 2, ""},
		{"third", `[ $n -gt 2 ] || { printf '\033[0;31m'; echo "` + nothing + `"; }`, 3, ""},
		{"says so elsewhere", `[ $n -gt 1 ] || { echo "` + nothing + `" >&2; exit 1; }`, 2, ""},
		{"never", `echo "` + nothing + `"; exit 1`, attempts, "client: " + nothing + " (exit status 1)"},
		{"fails", "echo no provider; exit 1", 1, "client: exit status 1"},
	} {
		ran := filepath.Join(t.TempDir(), "ran")
		_, err := bed.Measure(context.Background(), Row{
			Name: test.name, Program: Program{Name: "sh"}, await: tcp,
			server: func(j job) command {
				return argv("/proc/self/exe", asListener, "tcp4", fmt.Sprintf("10.77.0.2:%d", j.port))
			},
			client: func(j job) command {
				return argv("sh", "-c", fmt.Sprintf("echo %d >>%s; n=$(wc -l <%[2]s); %s", j.port, ran, test.script))
			},
			read: func(out string, _ int) Figures {
				if saysNothingFound(out) {
					fail.If(unreadable(out, "figures"))
				}
				return Figures{N: 1, Mean: 1}
			},
		}, 64, time.Millisecond)
		if (err == nil) != (test.want == "") || err != nil && err.Error() != test.want {
			t.Errorf("%s: error %v, want %q", test.name, err, test.want)
		}
		text, _ := os.ReadFile(ran)
		ports := strings.Fields(string(text))
		if len(ports) != test.runs || len(slices.Compact(ports)) != test.runs {
			t.Errorf("%s: ran with ports %s, want %d of them", test.name, text, test.runs)
		}
	}
}

// The end of ctx ends a measurement and all its processes.
func TestMeasureInterrupted(t *testing.T) {
	bed := startBed(t)
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	pids := make(chan [2]int, 1)
	go func() {
		pids <- [2]int{awaitPid(t, dir+"/server"), awaitPid(t, dir+"/client")}
		cancel()
	}()
	writePid := func(name string) string {
		return fmt.Sprintf("echo $$ >%s/%s.new; mv %[1]s/%[2]s.new %[1]s/%[2]s; ", dir, name)
	}
	_, err := bed.Measure(ctx, Row{
		Name: "endless", Program: Program{Name: "sh"}, await: tcp,
		server: func(j job) command {
			return argv("sh", "-c", writePid("server")+fmt.Sprintf("exec %s %s tcp4 10.77.0.2:%d", os.Args[0], asListener, j.port))
		},
		client: func(job) command { return argv("sh", "-c", writePid("client")+"exec sleep 100") },
	}, 64, time.Millisecond)
	nstest.WantErr(t, "interrupted", err, context.Canceled)
	for _, pid := range <-pids {
		nstest.WantErr(t, fmt.Sprint("process ", pid), unix.Kill(pid, 0), unix.ESRCH)
	}
}

func TestStartNeeds(t *testing.T) {
	if os.Geteuid() == 0 {
		out, err := nstest.AsNobody(t, "TestStartNeeds").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: TestStartNeeds") {
			t.Errorf("as nobody: %v\n%s", err, out)
		}
		return
	}
	nstest.ErrSays(t, "as nobody", nstest.Err(Start(1500)), "CAP_NET_ADMIN")
}

// The output of a process and its exit are recorded; output beyond the limit does not stop it.
func TestRun(t *testing.T) {
	t.Setenv("UCX_TLS", "all")
	s := startBed(t)
	for script, want := range map[string]struct {
		output
		failure string
	}{
		`echo out $LC_ALL $KEY $UCX_TLS; echo err >&2; exit 3`: {output{Stdout: "out C value\n", Stderr: "err\n", Ended: "exit status 3"}, "err (exit status 3)"},
		`echo fine`:  {output{Stdout: "fine\n"}, ""},
		`kill -9 $$`: {output{Ended: "signal: killed"}, "signal: killed"},
		`head -c 3000000 /dev/zero; echo end >&2`: {output{Stdout: strings.Repeat("\x00", maxOutput), Stderr: "end\n"}, ""},
	} {
		o, err := s.run(t.Context(), 0, command{[]string{"sh", "-c", script}, []string{"KEY=value"}}, time.Minute)
		nstest.Must(t, err)
		o.CPU, o.Switches = 0, 0
		if failure := o.failure(); *o != want.output || (failure == nil) != (want.failure == "") || failure != nil && failure.Error() != want.failure {
			t.Errorf("%s: %s, %v", script, o.Ended, failure)
		}
	}
	for _, c := range []struct {
		argv []string
		want string
	}{
		{nil, "no program is named"},
		{[]string{"via-xdp-no-such-program"}, "executable file not found"},
		{[]string{"sleep", "100"}, "sleep has not ended within 10ms"},
	} {
		nstest.ErrSays(t, strings.Join(c.argv, " "), nstest.Err(s.run(t.Context(), 0, command{argv: c.argv}, 10*time.Millisecond)), c.want)
	}
}

// A server listens when serve returns, and is gone when it was ended, by force if it ignores
// SIGTERM. One that never listens is an error with the reason.
func TestServe(t *testing.T) {
	s := startBed(t)
	for i, c := range []struct{ network, host, stubborn, signal string }{
		{"tcp4", "10.77.0.2", "", "terminated"}, {"tcp6", "[::]", "", "terminated"}, {"udp4", "10.77.0.2", "", "terminated"},
		{"udp6", "[::]", "", "terminated"}, {"tcp4", "10.77.0.2", "stubborn", "killed"},
	} {
		at := socket{c.network[:3], 5000 + i}
		words := []string{"/proc/self/exe", asListener, c.network, fmt.Sprintf("%s:%d", c.host, at.port)}
		if c.stubborn != "" {
			words = append(words, c.stubborn)
		}
		p, err := s.serve(t.Context(), 1, argv(words...), at.String(), at.listening, time.Minute)
		if err != nil {
			t.Fatalf("%s: %v", c.network, err)
		}
		if c.stubborn != "" {
			defer func(d time.Duration) { stopGrace = d }(stopGrace)
			stopGrace = 50 * time.Millisecond
		}
		p.end(unix.SIGTERM)
		if o, err := p.output(); err != nil || o.Ended != "signal: "+c.signal {
			t.Errorf("%s: %+v, %v", c.network, o, err)
		}
	}
	nowhere := socket{tcp, 1}
	for script, want := range map[string]string{
		"exec sleep 100":                "does not listen at port 1 of tcp after 20ms",
		"echo no library >&2; exit 127": "does not listen: no library (exit status 127)",
		"exit 0":                        "it ended in order",
	} {
		limit := time.Minute
		if strings.Contains(script, "sleep") {
			limit = 20 * time.Millisecond
		}
		nstest.ErrSays(t, script, nstest.Err(s.serve(t.Context(), 1, argv("sh", "-c", script), nowhere.String(), nowhere.listening, limit)), want)
	}
}

// awaitPid returns the number in a file that a process writes, in its own time.
func awaitPid(t *testing.T, file string) int {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if b, err := os.ReadFile(file); err == nil {
			n, err := strconv.Atoi(strings.TrimSpace(string(b)))
			nstest.Must(t, err)
			return n
		}
	}
	t.Fatal("the process has not started")
	return 0
}

func TestDisturbances(t *testing.T) {
	calm := &output{CPU: time.Second, Switches: 499}
	short := &output{CPU: time.Millisecond, Switches: 10}
	put := &output{CPU: time.Second, Switches: 501}
	if got := disturbances(calm, short); got != nil {
		t.Errorf("calm: %v", got)
	}
	if got := disturbances(calm, put); len(got) != 1 || !strings.HasPrefix(got[0], "the server was put off its CPU") {
		t.Errorf("got %v", got)
	}
	nstest.Equal(t, "disturbances of both", len(disturbances(put, put)), 2)
}
