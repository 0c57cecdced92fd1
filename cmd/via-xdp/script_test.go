package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/agentclient"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/pairtest"
	"viaxdp/vipl"
)

// Scripts of testdata/script: the program as a user types it. Two NICs talk beside them, in
// namespaces a and b, in which "in a COMMAND" runs a command; idle, and served and peer, which
// are joined, are of each script alone. "start a NAME COMMAND" goes on with the script, has the
// output in NAME.out and the process in $NAME; "end NAME STATUS" ends it, and "ended NAME STATUS" waits for its end.
// "terminal KEYS OUT COMMAND" runs a command on a terminal. "await FILE" waits for a file to be there, or "await FILE PATTERN"
// for something in it.
func TestScripts(t *testing.T) {
	nstest.Require(t)
	runtimeDir := filepath.Join(t.TempDir(), "proc")
	t.Setenv("VIA_RUNTIME_DIR", runtimeDir)
	a, b := pairtest.Connected(t, nstest.Options{}, vipl.ReliableDelivery)
	talking, stop := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(talking)
		for {
			select {
			case <-stop:
				return
			default:
				a.Send(t, b, []byte("there"))
				b.Send(t, a, []byte("and back"))
				time.Sleep(time.Millisecond) // the scripts run beside it
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-talking
	})
	t.Run("script", func(t *testing.T) {
		testscript.Run(t, testscript.Params{
			Dir: "testdata/script",
			Setup: func(e *testscript.Env) error {
				va, err := a.VI.Query()
				if err != nil {
					return err
				}
				tb := e.T().(testing.TB)
				idle, _ := nstest.Pair(tb, nstest.Options{}) // an interface that no program has open
				served, peer := nstest.Pair(tb, nstest.Options{})
				e.Values[placesKey{}] = places{"a": a.NS, "b": b.NS, "idle": idle, "served": served, "peer": peer}
				inside := func(n *nstest.NS) string { return strings.Join(n.Inside(tb), " ") }
				e.Vars = append(e.Vars, "IN_SERVED="+inside(served), "IN_PEER="+inside(peer), "NIC="+served.Name, "GORACE="+os.Getenv("GORACE"),
					"VIA_RUNTIME_DIR="+runtimeDir, "VIA_STATE_DIR="+filepath.Join(e.WorkDir, "state"),
					"A="+a.NS.IPv4.String(), "IDLE="+idle.IPv4.String(), "PEER_OF_IDLE=10.99.0.2", "SERVED="+served.IPv4.String(),
					"VI_A="+fmt.Sprintf("%08x", va.Number), fmt.Sprint("PID=", os.Getpid()))
				return nil
			},
			Condition: func(name string) (bool, error) {
				if name == "ci" {
					return os.Getenv("CI") == "true", nil
				}
				return false, fmt.Errorf("condition %q", name)
			},
			Cmds: map[string]func(*testscript.TestScript, bool, []string){
				"start":    startCommand,
				"terminal": terminalCommand,
				"end":      endCommand,
				"ended":    endedCommand,
				"await":    awaitFile,
				"in": func(ts *testscript.TestScript, neg bool, args []string) {
					if len(args) < 2 || placesOf(ts)[args[0]] == nil {
						ts.Fatalf("in PLACE COMMAND")
					}
					err := placesOf(ts)[args[0]].Do(func() error { return ts.Exec(args[1], args[2:]...) })
					if (err != nil) != neg {
						ts.Fatalf("%v: %v", args, err)
					}
				},
			},
		})
	})
}

// places are the namespaces of a script, by name.
type places map[string]*nstest.NS

type placesKey struct{}

func placesOf(ts *testscript.TestScript) places { return ts.Value(placesKey{}).(places) }

// TestUnprivileged runs the next test as a user without any rights.
func TestUnprivileged(t *testing.T) {
	out, err := nstest.AsNobody(t, "TestAsNobody").CombinedOutput()
	nstest.FatalIf(t, err != nil || !bytes.Contains(out, []byte("PASS: TestAsNobody")), "%v\n%s", err, out)
}

// Commands without privileges work for a user without rights; the others report what is missing,
// with exit status 2.
func TestAsNobody(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("TestUnprivileged runs it")
	}
	t.Chdir("/")                              // in which this user may write nothing
	t.Setenv(agentclient.Environment, "none") // the machine's agent would open NICs for this user, too
	for _, c := range []struct {
		args   string
		status int
		says   string // on either output
	}{
		{"doctor --list", exitFine, "hugepages"},
		{"doctor lo", exitCannotRun, "CAP_NET_ADMIN"},
		{"doctor --json lo", exitCannotRun, `"check": "capabilities"`},
		{"tune --profile latency --dry-run", exitFine, ""},
		{"doctor --undo", exitCannotRun, "sudo"}, // of a directory that is root's
		{"doctor --fix --only hugepages lo", exitCannotRun, "sudo"},
		{"tune --profile latency", exitCannotRun, "sudo"},
		{"proxy -i lo --listen via::1 --to tcp:127.0.0.1:1", exitCannotRun, "CAP_BPF"},
		{"testbed up", exitCannotRun, "CAP_NET_ADMIN are missing"},
		{"res", exitFine, "NIC open"},
		{"res nic", exitFine, "/proc/1/fd: permission denied"}, // in which programs of another user may be
		{"stat --json", exitFine, "[]"},
		{"top", exitCannotRun, "stat -i 1"},
		{"trace", exitCannotRun, "CAP_SYS_ADMIN"},
		{"capture -w -", exitFailed, "start one first"},
		{"ping -c 1 127.0.0.1", exitFailed, "no via-xdp program"},
		{"cleanup --dry-run", exitFine, "nothing is left"},
		{"completion bash", exitFine, "via-xdp"},
		{"report lo", exitFailed, "permission denied: name another file by -o"},
		{"bench window", exitFailed, "--out bench-results/"},
	} {
		state := filepath.Join(t.TempDir(), "state")
		switch strings.Fields(c.args)[0] {
		case "doctor":
			state = "/run/via-xdp-of-root"
		case "tune":
			state = "" // nor is there a directory of the user's
			t.Setenv("XDG_RUNTIME_DIR", "")
		}
		t.Setenv("VIA_STATE_DIR", state)
		t.Setenv("VIA_RUNTIME_DIR", filepath.Join(t.TempDir(), "proc"))
		if c.args == "res nic" {
			t.Setenv("VIA_RUNTIME_DIR", "/proc/1/fd")
		}
		status, out, errs := produce(context.Background(), strings.Fields(c.args)...)
		said := out + errs
		if sets := strings.Contains(c.args, "--fix") || strings.HasSuffix(c.args, "latency"); sets && status == exitFine && strings.Contains(said, "nothing") {
			t.Logf("%s: others have the machine in order: %s", c.args, said) // hugepages are shared by all tests
			continue
		}
		nstest.ErrorIf(t, status != c.status || !strings.Contains(said, c.says),
			"%s: status %d, want %d, and %q; said %s", c.args, status, c.status, c.says, said)
	}
}

// docs/cli.md is what the commands give.
func TestDoc(t *testing.T) {
	var b bytes.Buffer
	nstest.Must(t, writeDoc(&b, newRoot(environment{actions: production()})))
	text, err := os.ReadFile("../../docs/cli.md")
	nstest.Must(t, err)
	nstest.ErrorIf(t, b.String() != string(text), "docs/cli.md is not what the commands say: go generate ./cmd/via-xdp")
}

// shownCommands are all commands but via-xdp itself and those that help does not show.
func shownCommands() (all []*cobra.Command) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			walk(sub)
			if !sub.Hidden {
				all = append(all, sub)
			}
		}
	}
	walk(newRoot(environment{actions: production()}))
	return all
}

// Each command that reads has --json, and each command a short text and help.
func TestEveryCommand(t *testing.T) {
	without := map[string]string{ // why they have no --json
		"agent": "it serves", "proxy": "it serves", "mpirun": "its programs print", "mpibench": "it prints as MPI's benchmarks do",
		"capture": "it writes frames to a file", "report": "it writes an archive", "gen man": "it writes pages", "gen doc": "it writes a page",
		"testbed up": "it says how to go on", "testbed down": "it says nothing", "top": "it is a screen",
		"gen": "it shows its help", "testbed": "it shows its help",
	}
	for _, c := range shownCommands() {
		if c.Short == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: %q", c.CommandPath(), c.Short)
		}
		name := strings.TrimPrefix(c.CommandPath(), "via-xdp ")
		_, excused := without[name]
		delete(without, name)
		if has := c.Flags().Lookup("json") != nil; c.RunE != nil && has == excused {
			t.Errorf("%s: has --json: %v; has none with a reason: %v", name, has, excused)
		}
	}
	for name := range without {
		t.Errorf("there is no command %s", name)
	}
}

// Each command that does something is typed in a script.
func TestEveryCommandHasAScript(t *testing.T) {
	var all strings.Builder
	scripts, err := filepath.Glob("testdata/script/*.txtar")
	nstest.Must(t, err)
	for _, path := range scripts {
		text, err := os.ReadFile(path)
		nstest.Must(t, err)
		all.Write(text)
	}
	for _, c := range shownCommands() {
		if c.HasSubCommands() && c.Name() != "bench" {
			continue
		}
		if typed := regexp.MustCompile(`(?m)\b` + c.CommandPath() + `( |$)`); !typed.MatchString(all.String()) {
			t.Errorf("%s is in no script", c.CommandPath())
		}
	}
}

// scriptLimit is how long a script waits for what must happen.
const scriptLimit = time.Minute

// commandOf is a command of a script, in the script's directory, with its path and environment.
func commandOf(ts *testscript.TestScript, args []string) *exec.Cmd {
	path, err := exec.LookPath(args[0])
	for dir := range strings.SplitSeq(ts.Getenv("PATH"), ":") {
		if _, serr := os.Stat(dir + "/" + args[0]); serr == nil {
			path, err = dir+"/"+args[0], nil
			break
		}
	}
	ts.Check(err)
	cmd := exec.Command(path, args[1:]...)
	cmd.Dir = ts.MkAbs(".")
	for _, v := range []string{"PATH", "HOME", "VIA_AGENT", "VIA_RUNTIME_DIR", "VIA_STATE_DIR", "GOCOVERDIR", "GORACE"} {
		if s := ts.Getenv(v); s != "" {
			cmd.Env = append(cmd.Env, v+"="+s)
		}
	}
	return cmd
}

// startCommand is "start PLACE NAME COMMAND", which runs until "end NAME STATUS", or
// the script's end.
func startCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 || placesOf(ts)[args[0]] == nil {
		ts.Fatalf("start PLACE NAME COMMAND")
	}
	name := args[1]
	out, err := os.Create(ts.MkAbs(name + ".out"))
	ts.Check(err)
	defer out.Close()
	cmd := commandOf(ts, args[2:])
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	ts.Check(placesOf(ts)[args[0]].Do(cmd.Start))
	pid := cmd.Process.Pid
	ts.Setenv(name, strconv.Itoa(pid))
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	ts.Defer(func() {
		select {
		case <-ended:
		default:
			_ = cmd.Process.Kill()
			<-ended
		}
	})
	running.Store(pid, func() int {
		select {
		case <-ended:
			return cmd.ProcessState.ExitCode()
		case <-time.After(scriptLimit):
			ts.Fatalf("%s does not end", name)
			return -1
		}
	})
}

// terminalCommand is "terminal KEYS OUT COMMAND": the command runs on a terminal, on which the text of file KEYS is typed when
// it shows a report. OUT is the file for what it shows. testscript's own ttyin closes its end of the terminal when the
// command has ended, and loses what it has not read by then.
func terminalCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("terminal KEYS OUT COMMAND")
	}
	screen, tty, err := newTerminal()
	ts.Check(err)
	defer screen.Close()
	cmd := commandOf(ts, args[2:])
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = cmd.Start()
	tty.Close()
	ts.Check(err)
	defer time.AfterFunc(scriptLimit, func() { _ = cmd.Process.Kill() }).Stop()
	end := []byte("\x1b[J") // of a report
	var shown []byte
	for part, typed := make([]byte, 4096), false; err == nil; {
		var n int
		n, err = screen.Read(part)
		if shown = append(shown, part[:n]...); !typed && bytes.Contains(shown, end) {
			typed = true
			_, err = screen.WriteString(ts.ReadFile(args[0]))
		}
	}
	if !errors.Is(err, unix.EIO) { // no process has the terminal open any more
		ts.Fatalf("%v: the terminal: %v", args, err)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), shown, 0o600))
	if err := cmd.Wait(); err != nil {
		ts.Fatalf("%v: %v: %s", args, err, shown)
	}
}

// newTerminal opens a terminal: what shows it, and what programs have.
func newTerminal() (screen, tty *os.File, err error) {
	if screen, err = os.OpenFile("/dev/ptmx", os.O_RDWR, 0); err != nil {
		return nil, nil, err
	}
	number, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		tty, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		return nil, nil, errors.Join(err, screen.Close())
	}
	return screen, tty, nil
}

// running has for each process that scripts have started a function that waits for its
// end and gives its exit status.
var running sync.Map

func endCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("end NAME STATUS")
	}
	endOf(ts, args, unix.SIGTERM)
}

// endedCommand is for a process that ends by itself.
func endedCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("ended NAME STATUS")
	}
	endOf(ts, args, 0)
}

func endOf(ts *testscript.TestScript, args []string, signal unix.Signal) {
	pid, err := strconv.Atoi(ts.Getenv(args[0]))
	ts.Check(err)
	_ = unix.Kill(pid, signal)
	wait, ok := running.LoadAndDelete(pid)
	if !ok {
		ts.Fatalf("%s was not started", args[0])
	}
	if status := wait.(func() int)(); strconv.Itoa(status) != args[1] {
		ts.Fatalf("%s ended with %d, want %s: %s", args[0], status, args[1], ts.ReadFile(args[0]+".out"))
	}
}

func awaitFile(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 1 || len(args) > 2 || neg && len(args) > 1 {
		ts.Fatalf("await FILE [PATTERN], or ! await FILE")
	}
	for end := time.Now().Add(scriptLimit); ; time.Sleep(5 * time.Millisecond) {
		text, err := os.ReadFile(ts.MkAbs(args[0]))
		if len(args) == 1 {
			_, err = os.Stat(ts.MkAbs(args[0]))
		}
		switch {
		case neg && err != nil, !neg && err == nil && (len(args) == 1 || regexp.MustCompile("(?m)"+args[1]).Match(text)):
			return
		case time.Now().After(end):
			ts.Fatalf("%v: not within %v: %s", args, scriptLimit, text)
		}
	}
}
