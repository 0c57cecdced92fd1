package bench

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/bench/floor"
	"viaxdp/internal/lab/nstest"
)

// programsInC are those, where there is a compiler.
func programsInC() []string {
	if _, err := floor.Program(); errors.Is(err, floor.ErrNoCompiler) {
		return nil
	}
	return ProgramsInC()
}

func needCompiler(t *testing.T) {
	t.Helper()
	if programsInC() == nil {
		nstest.Lacks(t, "%v", floor.ErrNoCompiler)
	}
}

// The programs in C and in Go interoperate in both roles, and every byte arrives.
func TestFloorInBothLanguages(t *testing.T) {
	needCompiler(t)
	for _, c := range []struct{ client, server string }{
		{"raw-afxdp", "raw-afxdp-c"}, {"raw-afxdp-c", "raw-afxdp"}, {"raw-afxdp-copy-c", "raw-afxdp-wait"},
	} {
		t.Run(c.client+" "+c.server, func(t *testing.T) {
			client, server := pair(t, 1500, false, "generic")
			if err := connectedAs(c.client, c.server, client, server, exchange(testSizes, 7)); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Each program in C is named after one in Go.
func TestProgramsInC(t *testing.T) {
	if len(ProgramsInC()) != 2 {
		t.Errorf("%q", ProgramsInC())
	}
	for _, name := range ProgramsInC() {
		inGo, ok := strings.CutSuffix(name, "-c")
		if !ok || !slices.Contains(Names(), inGo) || slices.Contains(Names(), name) || Summary(name) == "" || !UsesXDP(name) {
			t.Errorf("%s", name)
		}
	}
}

// A check finds bytes that the other side has not filled in, in a message of several
// frames and in copying mode.
func TestProgramInCChecks(t *testing.T) {
	needCompiler(t)
	unfilled(t, "raw-afxdp", "raw-afxdp-c", true, false)
	unfilled(t, "raw-afxdp", "raw-afxdp-copy-c", true, false)
	unfilled(t, "raw-afxdp-c", "raw-afxdp", false, true)
	unfilled(t, "raw-afxdp-c", "raw-afxdp", true, false) // and Go checks what C does not fill in
}

// A side whose peer does nothing ends on request, and after its time limit.
func TestProgramInCWaits(t *testing.T) {
	needCompiler(t)
	for _, want := range []error{ErrStopped, ErrStalled} {
		client, server := pair(t, 1500, false, "generic")
		server.stop = new(atomic.Bool)
		if want == ErrStalled {
			server.params.WaitLimit = 10 * time.Millisecond
		}
		over := make(chan struct{})
		err := connected("raw-afxdp-c", client, server, func(client bool, e Endpoint) error {
			if client {
				<-over
				return nil
			}
			defer close(over)
			server.stop.Store(want == ErrStopped)
			if err := e.Echo(Round{ID: 1, Bytes: 64, Messages: 1}); !errors.Is(err, want) {
				return fmt.Errorf("got %w", err)
			}
			return nil
		})
		if err != nil {
			t.Errorf("%v: %v", want, err)
		}
	}
}

// A process killed in a round causes an error that says so; the queue is free
// afterwards.
func TestProgramInCKilled(t *testing.T) {
	needCompiler(t)
	client, server := pair(t, 1500, false, "generic")
	over := make(chan struct{})
	err := connected("raw-afxdp-c", client, server, func(client bool, e Endpoint) error {
		if client {
			<-over
			return nil
		}
		defer close(over)
		proc := e.(*rawC).proc
		done := make(chan error, 1)
		go func() { done <- e.Echo(Round{ID: 1, Bytes: 64, Messages: 1}) }()
		if err := unix.Kill(proc.cmd.Process.Pid, unix.SIGKILL); err != nil {
			return err
		}
		if err := <-done; err == nil || !strings.Contains(err.Error(), "has ended (signal: killed)") {
			return fmt.Errorf("got %w", err)
		}
		if err := e.Echo(Round{ID: 2, Bytes: 64, Messages: 1}); err == nil {
			return errors.New("a round without the process")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := connected("raw-afxdp", client, server, exchange([]int{64}, 2)); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// A file that is not the program causes an error that describes what it did, and leaves
// nothing open.
func TestProgramInCBroken(t *testing.T) {
	for script, want := range map[string]string{
		"exit 3":                               "has ended (exit status 3)",
		"echo out of paper >&2; exit 1":        "has ended (exit status 1): out of paper",
		"read x; echo hello; read x":           `has answered "hello"`,
		"read x; echo error no umem; read x":   "the program in C: no umem",
		"read x; printf 'ok'; exit 0":          "has ended (exit status 0)",
		"read x; echo error stalled; exec cat": ErrStalled.Error(),
	} {
		path := filepath.Join(t.TempDir(), "program")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		program, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		client, _ := pair(t, 1500, false, "generic")
		err = client.do(func() error {
			r, err := openRawC(client.params, program, false, nil)
			if err == nil {
				return r.Close()
			}
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %s", script, err, want)
			}
			// The interface and its queue are free again.
			other, err := Open("raw-afxdp", client.params, nil)
			if err != nil {
				return err
			}
			return errors.Join(other.Close(), errWanted)
		})
		if !errors.Is(err, errWanted) {
			t.Errorf("%s: %v", script, err)
		}
		program.Close()
	}
}

var errWanted = errors.New("as wanted")

// A round with missing figures is an error.
func TestProgramInCNonsense(t *testing.T) {
	path := filepath.Join(t.TempDir(), "program")
	script := "#!/bin/sh\nread x; echo ok\nread x; echo ok\nread x; echo ok 0 1 2\nread x; echo ok fast\n"
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	proc, err := startRawC(f, null, null, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer proc.close()
	r := &rawC{proc: proc}
	for range 4 {
		if _, err := r.round("send", Round{ID: 1, Bytes: 1, Messages: 1}); err == nil || !strings.Contains(err.Error(), "has answered") {
			t.Errorf("got %v", err)
		}
	}
}

// Unavailable reports beforehand where the programs cannot be measured.
func TestUnavailable(t *testing.T) {
	for _, name := range slices.Concat(Names(), Layers()) {
		if err := Unavailable(name, 65535); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := Unavailable("carrier-pigeon", 1500); err == nil {
		t.Error("an unknown transport is there")
	}
	if err := Unavailable("raw-afxdp-c", 9000); err == nil || !strings.Contains(err.Error(), "MTU 9000") {
		t.Errorf("MTU 9000: %v", err)
	}
	if err := Unavailable("raw-afxdp-copy-c", 1500); (err == nil) != (programsInC() != nil) {
		t.Errorf("MTU 1500: %v", err)
	}
	// Without a compiler, in a process that has not looked for one yet.
	cmd := exec.Command("/proc/self/exe", asCutOff)
	cmd.Env = []string{"PATH=" + t.TempDir()}
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "no C compiler is installed") {
		t.Errorf("without a compiler: %v, %s", err, out)
	}
}

// cutOffMain opens what needs a compiler.
func cutOffMain() error {
	if err := Unavailable("raw-afxdp-c", 1500); err == nil {
		return errors.New("it is available")
	}
	_, err := openProgramInC(inChunk)(opening{})
	return err
}

// Opening an endpoint with longer frames fails.
func TestProgramInCLongFrames(t *testing.T) {
	needCompiler(t)
	client, _ := pair(t, 9000, false, "generic")
	err := client.do(func() error {
		_, err := Open("raw-afxdp-c", client.params, nil)
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "none that are chained") {
		t.Errorf("got %v", err)
	}
}
