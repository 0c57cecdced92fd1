package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/testbed"
	"viaxdp/internal/ops/doctor"
	"viaxdp/internal/ops/status"
)

// A command with wrong arguments, or a value out of range, reports the error and does nothing.
func TestUsageErrors(t *testing.T) {
	for args, want := range map[string]string{
		"dance":                  `via-xdp has no command "dance"; via-xdp --help lists them`,
		"sta":                    `via-xdp has no command "sta"; is it soak or stat`,
		"completion dance":       `via-xdp completion has no command "dance"; via-xdp completion --help lists them`,
		"help dance":             `via-xdp has no command "dance"; via-xdp --help lists them`,
		"help gen dance":         `via-xdp gen has no command "dance"; via-xdp gen --help lists them`,
		"testbed dance":          `via-xdp testbed has no command "dance"; via-xdp testbed --help lists them`,
		"ping":                   "accepts 1 arg(s), received 0; usage: via-xdp ping HOST [flags] (--help tells more)",
		"demo now":               `"now" is too much; usage: via-xdp demo [flags] (--help tells more)`,
		"demo --dance":           "unknown flag: --dance; usage: via-xdp demo [flags] (--help tells more)",
		"stat -i eth0":           "--interval eth0: want seconds (seconds between two reports of rates); usage: via-xdp stat [INTERFACE] [flags] (--help tells more)",
		"soak --for 5":           "--for 5: want a time such as 500ms or 20s (duration); usage: via-xdp soak [flags] (--help tells more)",
		"pingpong -s big":        "--size big: want a number (message size in bytes); usage: via-xdp pingpong [flags] [SERVER] (--help tells more)",
		"info --json=maybe":      "--json maybe: want true or false (print JSON); usage: via-xdp info [INTERFACE] [flags] (--help tells more)",
		"soak --seed x":          "--seed x: want a number from 0 (of the events and faults (default: a random one, which the report shows)); usage: via-xdp soak [flags] (--help tells more)",
		"stream -D long":         "--duration long: want a number (seconds for each size); usage: via-xdp stream [flags] [SERVER] (--help tells more)",
		"ping -p -1 host":        "--port -1: want a number from 0 to 65535 (UDP port of the agent); usage: via-xdp ping HOST [flags] (--help tells more)",
		`demo --names "`:         `--names ": want names with commas between them (transports to measure); usage: via-xdp demo [flags] (--help tells more)`,
		"mpiapp dance":           `invalid argument "dance" for "via-xdp mpiapp"; usage: via-xdp mpiapp [flags] cg|stencil (--help tells more)`,
		"pingpong --silence -5s": "--silence -5s: want 10ms or more, or 0 for the default",
		"stream --silence 9ms h": "--silence 9ms: want 10ms or more, or 0 for the default",
		"demo --sizes x":         "--sizes x: want numbers with commas between them (message sizes in bytes); usage: via-xdp demo [flags] (--help tells more)",
		"tune":                   "--profile latency, --profile throughput or --undo: which one; usage: via-xdp tune [INTERFACE] [flags] (--help tells more)",
		"stat --json -":          "--json of this command is for standard output and takes no -; usage: via-xdp stat [INTERFACE] [flags] (--help tells more)",
		"proxy --listen tcp::1 --to tcp::2 --fallback 3":      "--fallback is for a --to by VIA, where no program may answer; usage: via-xdp proxy --listen tcp:HOST:PORT --to via:HOST:PORT [flags] (--help tells more)",
		"proxy --listen tcp::1 --to via:h:2 --fallback 70000": "--fallback 70000: want a TCP port",
		"proxy --listen tcp::1 --to tcp::2 --silence 1ms":     "--silence 1ms: want 10ms or more, or 0 for the default",
		"proxy --to via:1": "--listen and --to are both needed; usage: via-xdp proxy --listen tcp:HOST:PORT --to via:HOST:PORT [flags] (--help tells more)",

		"demo --turns 0":                   "--turns 0: want 1 or more",
		"demo --duration 0s":               "--duration 0s: want a time above 0, such as 500ms",
		"demo --mtu 0":                     "--mtu 0: want 576 to 65535",
		"demo --mode fast --turns -1":      "--turns -1: want 1 or more; --mode fast: want auto, zero-copy, native or generic",
		"bench --turns 0 pingpong":         "--turns 0: want 1 or more",
		"bench doc --duration -1s":         "--duration -1s: want a time above 0, such as 500ms",
		"bench --mtu 70000":                "--mtu 70000: want 576 to 65535",
		"bench --mode fast":                "--mode fast: want auto, zero-copy, native or generic",
		"bench compare --fail -1 a b":      "--fail -1: want percent, 0 or more",
		"pingpong --queue -1":              "--queue -1: want 0 or more",
		"pingpong --mode fast":             "--mode fast: want auto, zero-copy, native or generic",
		"pingpong -p 70000":                "-p 70000: want 0 to 65535",
		"stream -p 0 host":                 "-p 0: want 1 to 65535",
		"stream -n -1 host":                "-n -1: want 0 or more",
		"trace -n 0 -s -1":                 "-n 0: want 1 or more; -s -1: want 0 to 1048576",
		"trace --mtu 1":                    "--mtu 1: want 576 to 65535",
		"tune --undo --profile latency":    "--undo puts back all that tune has changed: no --profile",
		"doctor --undo --only link":        "--undo puts back all that --fix has changed: no --only",
		"doctor --list --fix":              "--list and --fix: one of them",
		"doctor --list --undo":             "--list and --undo: one of them",
		"pingpong --json x":                "--json is of the client, and without a SERVER this is the server",
		"stream -i eth1 --svg x":           "--svg is of the client, and without a SERVER this is the server",
		"pingpong -H":                      "--histogram is of the client, and without a SERVER this is the server",
		"stream --keep host":               "--keep is of the server, and with a SERVER this is the client",
		"pingpong -a -s 4096 host":         "-a and -s: one of them",
		"stream --all --size 64 host":      "-a and -s: one of them",
		"stream -n 100 -D 5 host":          "-n and -D: one of them",
		"stat -c 2":                        "-c is the number of reports: give the seconds between them with -i",
		"testbed up --mtu 1":               "--mtu 1: want 576 to 65535",
		"testbed up --queues 0":            "--queues 0: want 1 to 4096",
		"testbed up --hugepages -1":        "--hugepages -1: want 0 or more",
		"mpirun --mtu 0 true":              "--mtu 0: want 576 to 65535",
		"mpibench --max 0 bw":              "--max 0: want 1 to 1073741824",
		"mpibench --max 2000000000 bw":     "--max 2000000000: want 1 to 1073741824",
		"mpibench --step 1 --window -1 bw": "--step 1: want 2 to 1073741824; --window -1: want 0 to 65536",
		"mpiapp --size 0 cg":               "--size 0: want 1 to 32768",
		"mpiapp --steps -1 cg":             "--steps -1: want 1 or more",

		"proxy --listen tcp::1 --to via::2 --fallback x": "--fallback x: want a TCP port",
		"proxy --listen tcp::1 --to via::2 --fallback 0": "--fallback 0: want a TCP port",
	} {
		r := &recorder{}
		status, out, errs := call(r, strings.Fields(args)...)
		nstest.ErrorIf(t, status != exitFailed || out != "" || errs != "via-xdp: "+want+"\n" || len(r.calls) > 0,
			"%s: status %d, %v, %s%s", args, status, r.calls, out, errs)
	}
}

// A CPU that this process may not use is refused before anything is done.
func TestNoSuchCPU(t *testing.T) {
	cpus, err := testbed.AllowedCPUs()
	nstest.Must(t, err)
	first, last := strconv.Itoa(cpus[0]), cpus[len(cpus)-1]
	for _, cpu := range []string{"-1", strconv.Itoa(last + 1), "99999"} {
		r := &recorder{}
		status, _, errs := call(r, "pingpong", "--cpu", cpu)
		if status != exitFailed || len(r.calls) > 0 || !strings.Contains(errs, "--cpu: there is no CPU "+cpu+" for this process: it may use "+first) {
			t.Errorf("--cpu %s: status %d, %v, %s", cpu, status, r.calls, errs)
		}
	}
}

// An unset variable is no interface, no host and no group; it does not mean all of them.
func TestEmptyArgument(t *testing.T) {
	for _, command := range []string{"info", "doctor", "stat", "capture -w x", "ping", "pingpong", "stream", "report -o x", "tune --profile latency", "bench", "gen man"} {
		r := &recorder{}
		status, out, errs := call(r, append(strings.Fields(command), "")...)
		if status != exitFailed || out != "" || len(r.calls) > 0 || !strings.Contains(errs, "an argument is empty: a variable that is not set, perhaps; usage: ") {
			t.Errorf("%s: status %d, %v, %s%s", command, status, r.calls, out, errs)
		}
	}
}

// A failed write of output is a failure, also of commands that print line by line.
func TestFullOutput(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	t.Setenv("VIA_STATE_DIR", t.TempDir())
	t.Setenv("VIA_RUNTIME_DIR", t.TempDir())
	for _, args := range []string{"info eth7", "info --json eth7", "testbed status", "cleanup -n", "doctor --list", "bench list", "version", "help", "demo"} {
		var errs bytes.Buffer
		status := run(t.Context(), environment{args: strings.Fields(args), stdout: full, stderr: &errs, actions: (&recorder{}).actions()})
		if status != exitFailed || !strings.Contains(errs.String(), "no space left on device") || strings.Count(errs.String(), "\n") != 1 {
			t.Errorf("%s: status %d, %s", args, status, &errs)
		}
	}
}

// Commands that go on until Ctrl-C end when nothing can be shown any more.
func TestOutputEnds(t *testing.T) {
	t.Setenv("VIA_RUNTIME_DIR", t.TempDir())
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	nstest.Must(t, err)
	defer full.Close()
	screen, tty, err := newTerminal()
	nstest.Must(t, err)
	defer tty.Close()
	go func() {
		screen.Read(make([]byte, 1)) // top has begun
		screen.Close()
	}()
	for args, out := range map[string]*os.File{"stat -i 0.01": full, "top -i 0.1": tty} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		var errs bytes.Buffer
		status := run(ctx, environment{args: strings.Fields(args), stdout: out, stderr: &errs, actions: production()})
		nstest.ErrorIf(t, status != exitFailed || ctx.Err() != nil, "%s: status %d, %s, %v", args, status, &errs, ctx.Err())
		cancel()
	}
}

// A reader that leaves before the end of a result, as head does, ends the writing.
func TestReaderOfResultLeaves(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	nstest.Must(t, unix.Mkfifo(pipe, 0o600))
	written := make(chan error, 1)
	go func() {
		written <- writeFile(pipe, func(w io.Writer) error { return nstest.Err(w.Write(make([]byte, 1<<20))) })
	}()
	reader, err := os.Open(pipe)
	nstest.Must(t, errors.Join(err, nstest.Err(reader.Read(make([]byte, 1))), reader.Close()))
	select {
	case err := <-written:
		nstest.WantErr(t, "write", err, unix.EPIPE)
	case <-time.After(10 * time.Second):
		t.Fatal("it waits for a reader")
	}
}

// A report that could not be written is refused before anything is measured.
func TestNoPlaceForReport(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	nstest.Must(t, os.WriteFile(file, nil, 0o600))
	for args, flag := range map[string]string{
		"demo": "--svg", "pingpong host": "--svg", "stream host": "--svg", "bench pingpong": "--out", "bench doc": "--docs",
	} {
		for dir, why := range map[string]string{file: "is no directory", file + "/below": "not a directory"} {
			r := &recorder{}
			status, _, errs := call(r, append(strings.Fields(args), flag, dir)...)
			if status != exitFailed || len(r.calls) > 0 || !strings.Contains(errs, flag+" "+dir+": ") || !strings.Contains(errs, why) {
				t.Errorf("%s %s %s: status %d, %v, %s", args, flag, dir, status, r.calls, errs)
			}
		}
	}
	for _, args := range []string{"demo", "pingpong host", "stream host", "bench pingpong", "soak"} {
		r := &recorder{}
		status, _, errs := call(r, append(strings.Fields(args), "--json", "/no/such/dir/report.json")...)
		if status != exitFailed || len(r.calls) > 0 || !strings.Contains(errs, "--json /no/such/dir/report.json: ") {
			t.Errorf("%s: status %d, %v, %s", args, status, r.calls, errs)
		}
	}
}

// Commands that need no NIC have --json, too.
func TestListsAsJSON(t *testing.T) {
	for _, args := range []string{"version --json", "bench list --json", "doctor --list --json"} {
		status, out, errs := call(&recorder{}, strings.Fields(args)...)
		nstest.ErrorIf(t, status != exitFine || !json.Valid([]byte(out)) || errs != "",
			"%s: status %d, %s%s", args, status, out, errs)
	}
}

// top says why it shows nothing.
func TestTopOfNobody(t *testing.T) {
	c := &status.Report{Denied: 2}
	screen := topScreen(nil, notes("eth7", c, nil), time.Now(), 24, 80)
	for _, want := range []string{"2 programs of other users are not shown", "no other program has eth7 open"} {
		nstest.ErrorIf(t, !strings.Contains(screen, want), "no %q in %q", want, screen)
	}
}

// top ends at once beside a program that does not answer: a second Ctrl-C would leave the terminal as top has set it.
func TestTopOfStoppedProgram(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("VIA_RUNTIME_DIR", dir)
	stopped, err := net.Listen("unix", filepath.Join(dir, "1.sock"))
	nstest.Must(t, err)
	defer stopped.Close()
	screen, tty, err := newTerminal()
	nstest.Must(t, err)
	defer screen.Close()
	defer tty.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	began := time.Now()
	status := run(ctx, environment{args: []string{"top"}, stdout: tty, stderr: tty, actions: production()})
	took := time.Since(began)
	nstest.ErrorIf(t, status != exitFine || took > 4*time.Second, "status %d after %v", status, took)
}

// Progress longer than the terminal's line is cut, since it could not be cleared.
func TestLongProgress(t *testing.T) {
	screen, tty, err := newTerminal()
	nstest.Must(t, err)
	defer screen.Close()
	defer tty.Close()
	nstest.Must(t, unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 40}))
	p := newProgress(tty)
	p.line("%s", strings.Repeat("ä", 100))
	p.done()
	shown := make([]byte, 4096)
	n, err := screen.Read(shown)
	nstest.Must(t, err)
	nstest.Equal(t, "characters shown", strings.Count(string(shown[:n]), "ä"), 39)
}

// Counts of one are in the singular.
func TestSingular(t *testing.T) {
	var report bytes.Buffer
	printReport(&report, &doctor.Report{Findings: []doctor.Finding{{Check: "mtu", Level: doctor.OK}}}, false, paint(&report))
	nstest.Same(t, "doctor", report.String(), "1 check found nothing (--all names it)\n")
	screen := topScreen([]status.Queue{{VIs: []status.VI{{}}}}, "", time.Now(), 24, 80)
	nstest.ErrorIf(t, !strings.Contains(screen, ", 1 queue, 1 VI   ("), "top: %q", screen)
}

// The kernel says no more of a path that is too long than that an argument is invalid.
func TestLongSocket(t *testing.T) {
	for _, c := range []struct {
		state string // directory
		bytes int
		args  string
		want  int
	}{
		{"", 103, "", exitFine}, {"", 104, "", exitFailed}, // PATH.fds
		{"", 103, "--no-fdstored", exitFine}, {"", 104, "--no-fdstored", exitFailed}, // PATH.new
		{"/s", 101, "", exitFine}, {"/s:/other", 103, "", exitFailed},
		{strings.Repeat("/dir", 25), 7, "", exitFailed}, {strings.Repeat("/dir", 25), 7, "--no-fdstored", exitFine},
	} {
		t.Setenv("RUNTIME_DIRECTORY", c.state)
		args := append([]string{"agent", "--check", "--socket", "/" + strings.Repeat("x", c.bytes-1)}, strings.Fields(c.args)...)
		status, _, errs := call(&recorder{}, args...)
		if status != c.want || status == exitFailed && !strings.Contains(errs, " bytes, where the kernel takes 107: take a shorter one") {
			t.Errorf("%+v: status %d, %s", c, status, errs)
		}
	}
}

// Settings with which the agent would not start are reported as invalid.
func TestAgentCheckStarts(t *testing.T) {
	for text, want := range map[string]string{
		"group = \"no-group-of-that-name\"": `group of the socket: there is no group "no-group-of-that-name"`,
		"group = \"0x7\"":                   `group of the socket: there is no group "0x7"`,
		"metrics = \"9793\"":                "metrics: address 9793: missing port in address",
		"metrics = \"127.0.0.1:70000\"":     "metrics: address 70000: invalid port",
	} {
		file := filepath.Join(t.TempDir(), "agent.toml")
		nstest.Must(t, os.WriteFile(file, []byte(text), 0o600))
		status, out, errs := call(&recorder{}, "agent", "--check", "--config", file)
		nstest.ErrorIf(t, status != exitFailed || out != "" || errs != "via-xdp: "+want+"\n",
			"%s: status %d, %s%s", text, status, out, errs)
	}
}

// An agent's settings are checked, and the file is named.
func TestAgentCheck(t *testing.T) {
	for args, want := range map[string]string{
		"--config ../../contrib/agent.toml": "../../contrib/agent.toml is good\n",
		"":                                  "there is no " + defaultAgentConfig + ": the defaults apply\n",
	} {
		var out bytes.Buffer
		status := run(t.Context(), environment{args: append([]string{"agent", "--check"}, strings.Fields(args)...), stdout: &out, stderr: &out})
		if status != exitFine || out.String() != want {
			t.Errorf("%s: status %d, %s", args, status, out.String())
		}
	}
}

// Under nohup the end of the terminal does not end a command, nor does Ctrl-C one that a script runs in the background.
func TestIgnoredSignals(t *testing.T) {
	for name, sig := range map[string]os.Signal{"HUP": unix.SIGHUP, "INT": unix.SIGINT} {
		cmd := exec.Command("sh", "-c", "trap '' "+name+"; exec via-xdp ping -c 2 -p 1 127.0.0.1")
		stderr, err := cmd.StderrPipe()
		nstest.Must(t, errors.Join(err, cmd.Start()))
		said := bufio.NewScanner(stderr)
		said.Scan() // the first request has no answer
		nstest.Check(t, cmd.Process.Signal(sig))
		for said.Scan() {
		}
		_ = cmd.Wait()
		nstest.Equal(t, "status after SIG"+name, cmd.ProcessState.ExitCode(), exitFailed)
	}
}
