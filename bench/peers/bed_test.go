package peers

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/nstest"
)

var record = flag.Bool("record", false, "write what the programs print to testdata")

func startBed(t *testing.T) *Bed {
	t.Helper()
	nstest.Require(t)
	bed, err := Start(Config{WorkerArgs: []string{WorkerCommand}, Stderr: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { bed.Close() })
	return bed
}

// requirePrograms ends a test when the programs are not installed: with a skip,
// or with a failure when VIA_PEERS=require.
func requirePrograms(t *testing.T) {
	t.Helper()
	missing := Missing()
	switch {
	case len(missing) == 0:
	case os.Getenv("VIA_PEERS") == "require":
		t.Fatalf("not installed: %s", names(missing))
	default: // nobody is to install them for go test ./...; .ci/run does, and requires them
		t.Skipf("not installed: %s", names(missing))
	}
}

// The real programs, one after the other on one bed: each has the figures that
// its row promises.
func TestPrograms(t *testing.T) {
	requirePrograms(t)
	bed := startBed(t)
	for i, r := range Rows() {
		if testing.Short() && i%4 > 0 {
			continue // the others differ in their programs, which are not ours
		}
		sizes := []int{64}
		if *record {
			sizes = append(sizes, 65536)
		}
		for _, bytes := range sizes {
			o, _, err := bed.run(context.Background(), r, bytes, 50*time.Millisecond)
			if bytes > r.maxBytes && r.maxBytes > 0 {
				continue
			}
			if err != nil {
				t.Error(err)
				continue
			}
			if *record {
				file := filepath.Join("testdata", fmt.Sprintf("%s-%d.txt", r.Name, bytes))
				if err := os.WriteFile(file, []byte(o.Stdout), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			f, err := r.parse(o.Stdout, bytes)
			if err != nil {
				t.Errorf("%s: %v\n%s", r.Name, err, o.Stdout)
				continue
			}
			t.Logf("%s, %d bytes: %+v", r.Name, bytes, f)
			if r.Latency != (f.Mean > 0) || r.Quantiles != (f.P50 > 0) || r.Bandwidth != (f.MBps > 0 && f.Messages > 0) {
				t.Errorf("%s: figures %+v", r.Name, f)
			}
		}
	}
}

// What cannot be measured says why, and leaves the bed fine.
func TestMeasureRowError(t *testing.T) {
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
			parse:  func(out string, _ int) (Figures, error) { return Figures{}, unreadable(out, "figures") },
		}
	}
	listener := func() command { return argv("/proc/self/exe", asListener, "tcp4", "10.78.0.2:PORT") }
	absent := row(listener(), argv("true"))
	absent.Program = Program{Name: "via-xdp-no-such-program", Package: "no-such-package"}
	for _, test := range []struct {
		row   Row
		bytes int
		want  string
	}{
		{absent, 64, "a-row: via-xdp-no-such-program is not installed (Debian's package no-such-package)"},
		{row(listener(), argv("true")), 4, "messages have at least 8 bytes"},
		{row(listener(), argv("true")), 101, "messages have at most 100 bytes"},
		{row(argv("sh", "-c", "echo libnone.so: cannot open shared object file >&2; exit 127"), argv("true")), 64,
			"server: it does not listen: libnone.so: cannot open shared object file (exit status 127)"},
		{row(listener(), argv("sh", "-c", "echo no provider >&2; exit 61")), 64, "client: no provider (exit status 61)"},
		{row(listener(), argv("via-xdp-no-such-program")), 64, "client: "},
		{row(listener(), argv("echo", "strange")), 64, "its output has no figures, and ends: strange"},
	} {
		f, err := bed.Measure(ctx, test.row, test.bytes, time.Millisecond)
		var re *RowError
		if !errors.As(err, &re) || re.Row != "a-row" || !strings.Contains(err.Error(), test.want) {
			t.Errorf("want %q: got %+v, %v", test.want, f, err)
		}
	}
	// Client and server are in two namespaces, on the CPUs of their workers.
	where := row(argv("/proc/self/exe", asListener, "tcp4", "10.78.0.2:PORT"),
		argv("sh", "-c", "grep -c tcp0 /proc/net/dev; grep -o 'Cpus_allowed_list.*' /proc/self/status; readlink /proc/self/ns/net"))
	o, _, err := bed.run(ctx, where, 64, time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	ours, _ := os.Readlink("/proc/self/ns/net")
	said := strings.Fields(o.Stdout)
	if len(said) != 4 || said[0] != "1" || strings.ContainsAny(said[2], ",-") || said[3] == ours {
		t.Errorf("the client says %q; the test is in %s", said, ours)
	}
}

// A program that has found nothing is run again, on a server of its own, but not for
// ever; one that fails otherwise is not.
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
		{"third", `[ $n -gt 2 ] || echo "` + nothing + `"`, 3, ""},
		{"never", `echo "` + nothing + `"; exit 1`, attempts, "never: client: " + nothing + " (exit status 1)"},
		{"fails", "echo no provider; exit 1", 1, "fails: client: exit status 1"},
	} {
		ran := filepath.Join(t.TempDir(), "ran")
		_, err := bed.Measure(context.Background(), Row{
			Name: test.name, Program: Program{Name: "sh"}, await: tcp,
			server: func(j job) command {
				return argv("/proc/self/exe", asListener, "tcp4", fmt.Sprintf("10.78.0.2:%d", j.port))
			},
			client: func(j job) command {
				return argv("sh", "-c", fmt.Sprintf("echo %d >>%s; n=$(wc -l <%[2]s); %s", j.port, ran, test.script))
			},
			parse: func(out string, _ int) (f Figures, err error) {
				if saysNothingFound(out) {
					err = unreadable(out, "figures")
				}
				return f, err
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
			return argv("sh", "-c", writePid("server")+fmt.Sprintf("exec %s %s tcp4 10.78.0.2:%d", os.Args[0], asListener, j.port))
		},
		client: func(job) command { return argv("sh", "-c", writePid("client")+"exec sleep 100") },
	}, 64, time.Millisecond)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	for _, pid := range <-pids {
		gone := false // these are not our children, to be waited for
		for deadline := time.Now().Add(time.Minute); !gone && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			gone = errors.Is(unix.Kill(pid, 0), unix.ESRCH)
		}
		if !gone {
			t.Errorf("process %d is still there", pid)
		}
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
	if _, err := Start(Config{WorkerArgs: []string{WorkerCommand}}); err == nil || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
		t.Errorf("got %v", err)
	}
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
	if got := disturbances(put, put); len(got) != 2 {
		t.Errorf("got %v", got)
	}
}
