package main

import (
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

// startCommand is "start PLACE NAME COMMAND", which runs until "end NAME STATUS", or
// the script's end.
func startCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 || placesOf(ts)[args[0]] == nil {
		ts.Fatalf("start PLACE NAME COMMAND")
	}
	name := args[1]
	path, err := exec.LookPath(args[2])
	for dir := range strings.SplitSeq(ts.Getenv("PATH"), ":") {
		if _, serr := os.Stat(dir + "/" + args[2]); serr == nil {
			path, err = dir+"/"+args[2], nil
			break
		}
	}
	ts.Check(err)
	out, err := os.Create(ts.MkAbs(name + ".out"))
	ts.Check(err)
	defer out.Close()
	cmd := exec.Command(path, args[3:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = ts.MkAbs("."), out, out
	for _, v := range []string{"PATH", "HOME", "VIA_AGENT", "VIA_RUNTIME_DIR", "VIA_STATE_DIR", "GOCOVERDIR", "GORACE"} {
		if s := ts.Getenv(v); s != "" {
			cmd.Env = append(cmd.Env, v+"="+s)
		}
	}
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
