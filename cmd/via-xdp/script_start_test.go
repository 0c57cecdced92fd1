package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

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

// terminalCommand is "terminal KEYS OUT COMMAND": the command runs on a terminal, on which the text of file KEYS is typed.
// OUT is the file for what it shows. testscript's own ttyin closes its end of the terminal when the command has ended,
// and loses what it has not read by then.
func terminalCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("terminal KEYS OUT COMMAND")
	}
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	ts.Check(err)
	defer screen.Close()
	number, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	ts.Check(err)
	ts.Check(unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0))
	tty, err := os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	ts.Check(err)
	cmd := commandOf(ts, args[2:])
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = cmd.Start()
	tty.Close()
	ts.Check(err)
	defer time.AfterFunc(scriptLimit, func() { _ = cmd.Process.Kill() }).Stop()
	_, err = screen.WriteString(ts.ReadFile(args[0]))
	ts.Check(err)
	shown, err := io.ReadAll(screen)
	if !errors.Is(err, unix.EIO) { // no process has the terminal open any more
		ts.Fatalf("%v: the terminal: %v", args, err)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), shown, 0o600))
	if err := cmd.Wait(); err != nil {
		ts.Fatalf("%v: %v: %s", args, err, shown)
	}
}

// running has for each process that scripts have started a function that waits for its
// end and gives its exit status.
var running sync.Map

func endCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("end NAME STATUS")
	}
	pid, err := strconv.Atoi(ts.Getenv(args[0]))
	ts.Check(err)
	_ = unix.Kill(pid, unix.SIGTERM)
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
