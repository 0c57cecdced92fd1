package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/ops/mpirun"
	"viaxdp/mvich"
	"viaxdp/mvich/pmi"
)

// A proxy needs both addresses, and an interface for one of VIA.
func TestProxyFlags(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{}, "both needed; usage: "},
		{[]string{"--listen", "tcp::0"}, "both needed"},
		{[]string{"--listen", "udp:x:0", "--to", "tcp:127.0.0.1:1"}, "--listen"},
		{[]string{"--listen", "tcp:127.0.0.1:0", "--to", "via"}, "--to"},
		{[]string{"--listen", "tcp:127.0.0.1:0", "--to", "via:10.0.0.1:1"}, "no interface"},
		{[]string{"--listen", "tcp:127.0.0.1:0", "--to", "tcp:127.0.0.1:1", "--psk", "x"}, "--psk is for an address by VIA; usage: "},
		{[]string{"--listen", "tcp:127.0.0.1:0", "--to", "via:10.0.0.1:1", "--psk", "x", "--fallback", "1"}, "by TCP nothing is encrypted; usage: "},
		{[]string{"--listen", "tcp:127.0.0.1:0", "--to", "via:10.0.0.1:1", "--psk", ""}, "--psk: vipl: ReadPSK: "},
		{[]string{"--listen", "tcp:127.0.0.1:0", "--to", "via:10.0.0.1:1", "--psk", "/dev/null"}, "--psk: vipl: ReadPSK: "},
	} {
		cmd := newProxy(environment{stdout: io.Discard, stderr: io.Discard})
		nstest.ErrSays(t, strings.Join(test.args, " "), execute(t.Context(), cmd, test.args...), test.want)
	}
}

// heard is the output of a command while it runs.
type heard struct {
	mu   sync.Mutex
	text strings.Builder
}

func (h *heard) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.text.Write(b)
}

func (h *heard) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.text.String()
}

// startProxy runs the command in a namespace until it is ended, or the test is.
func startProxy(t *testing.T, ns *nstest.NS, args ...string) (at net.Addr, says *heard, end func()) {
	t.Helper()
	says = &heard{}
	ctx, cancel := context.WithCancel(context.Background())
	listening, over := make(chan net.Addr, 1), make(chan int, 1)
	env := environment{
		args: append([]string{"proxy", "-i", ns.Name, "--silence", "30s"}, args...), stdout: io.Discard, stderr: says,
		actions: actions{listening: func(a net.Addr) { listening <- a }},
	}
	go ns.Do(func() error { over <- run(ctx, env); return nil })
	end = sync.OnceFunc(func() {
		cancel()
		if status := <-over; status != exitInterrupted {
			t.Errorf("proxy %s: status %d: %s", args, status, says)
		}
	})
	select {
	case at = <-listening:
	case status := <-over:
		t.Fatalf("proxy %s: status %d: %s", args, status, says)
	}
	t.Cleanup(end)
	return at, says, end
}

// Two proxies with the same key forward. If only one has a key, or the keys differ, the program's
// connection is reset, the server sees none, and both proxies report the reason and their own
// setting.
func TestProxyKeys(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	nstest.Must(t, err)
	defer server.Close()
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, "hello")
			c.Close()
		}
	}()
	a, b := nstest.Pair(t, nstest.Options{})
	dir := t.TempDir()
	one, other := filepath.Join(dir, "one"), filepath.Join(dir, "other")
	err = errors.Join(os.WriteFile(one, bytes.Repeat([]byte{1}, 32), 0o600), os.WriteFile(other, bytes.Repeat([]byte{2}, 32), 0o600))
	nstest.Must(t, err)
	with := func(key string) []string {
		if key == "" {
			return nil
		}
		return []string{"--psk", key}
	}
	has := func(key string) string {
		if key == "" {
			return "(this side has no --psk)"
		}
		return "(this side has --psk " + key + ")"
	}
	for _, c := range []struct{ name, near, far, why string }{
		{"the same", one, one, ""},
		{"different", one, other, "pre-shared keys differ"},
		{"client only", one, "", "no pre-shared key there"},
		{"server only", "", one, "a pre-shared key is required"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, farSays, endFar := startProxy(t, b, append(with(c.far), "--listen", "via::7000", "--to", "tcp:"+server.Addr().String())...)
			near, nearSays, endNear := startProxy(t, a, append(with(c.near), "--listen", "tcp:127.0.0.1:0", "--to", "via:"+b.IPv4.String()+":7000")...)
			var got []byte
			err := a.Do(func() error {
				client, err := net.DialTimeout("tcp", near.String(), await.WaitLimit)
				if err != nil {
					return err
				}
				defer client.Close()
				client.SetDeadline(time.Now().Add(await.WaitLimit))
				got, err = io.ReadAll(client)
				return err
			})
			if c.why == "" {
				nstest.ErrorIf(t, string(got) != "hello" || err != nil, "%q, %v", got, err)
			} else {
				nstest.ErrorIf(t, len(got) > 0 || !errors.Is(err, syscall.ECONNRESET), "%q, %v", got, err)
				for who, said := range map[string]*heard{has(c.near): nearSays, has(c.far): farSays} {
					await.Until(t, "the proxy says what it has: "+who, func() bool { return strings.Contains(said.String(), who) })
				}
			}
			endNear()
			endFar()
			for side, said := range map[string]*heard{"near": nearSays, "far": farSays} {
				text := said.String()
				if want := min(len(c.why), 1); strings.Count(text, "pre-shared keys do not match") != want || !strings.Contains(text, c.why) {
					t.Errorf("the %s one says %s", side, text)
				}
			}
		})
	}
}

// A proxy that may use one CPU has a processor for TCP beside the one on which it sleeps for frames.
func TestProxyProcs(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	a, _ := nstest.Pair(t, nstest.Options{})
	_, _, end := startProxy(t, a, "--listen", "tcp:127.0.0.1:0", "--to", "via:"+a.IPv4.String()+":7000")
	if got := runtime.GOMAXPROCS(0); got != leastProcs {
		t.Errorf("%d processors, want %d", got, leastProcs)
	}
	end()
}

// -np is mpirun's flag, and no more when the program's arguments begin.
func TestMpirunArgs(t *testing.T) {
	for in, want := range map[string]string{
		"mpirun -np 4 prog -np 5":         "mpirun --np 4 prog -np 5",
		"mpirun --bind -np 4 prog":        "mpirun --bind --np 4 prog",
		"mpirun --mtu 9000 -np 4 -- prog": "mpirun --mtu 9000 --np 4 -- prog",
		"mpirun --loss 1 -np 4 prog":      "mpirun --loss 1 --np 4 prog",
		"mpirun -n 4 -- -np 5":            "mpirun -n 4 -- -np 5",
		"mpirun -np":                      "mpirun --np",
		"mpirun --np=2 prog":              "mpirun --np=2 prog",
		"mpibench -np 4":                  "mpibench -np 4",
		"":                                "",
	} {
		nstest.Equal(t, in, strings.Join(mpirunArgs(strings.Fields(in)), " "), want)
	}
}

// The command starts the given program, and ends with the status of the rank that ended
// the job. The settings of this host's agent are not for those of the job.
func TestMpirun(t *testing.T) {
	var got mpirun.Job
	var end error
	start := func(args ...string) int {
		env := environment{stdout: io.Discard, stderr: io.Discard}
		cmd := newMpirun(env, func(_ context.Context, j mpirun.Job) error { got = j; return end })
		if err := execute(t.Context(), cmd, args...); err != nil {
			return statusOf(t.Context(), err)
		}
		return exitFine
	}
	if status := start("--loss", "0.5", "prog"); status != exitFine || !got.Lossy || got.Loss != 0.005 || got.Ranks != 2 {
		t.Errorf("status %d, %+v", status, got)
	}
	nstest.Same(t, "agent", got.Agent, []string{"agent", "--config", os.DevNull, "--no-fdstored"})
	nstest.Equal(t, "everything is to be lost: status", start("--loss", "100", "prog"), exitFailed)
	if status := start("--np", "3", "--bind", "--prefix", "--mtu", "9000", "prog", "-x", "--np", "7"); status != exitFine {
		t.Fatalf("status %d", status)
	}
	if got.Lossy || got.Ranks != 3 || !got.Bind || !got.Prefix || got.MTU != 9000 || !slices.Equal(got.Program, []string{"prog", "-x", "--np", "7"}) {
		t.Errorf("%+v", got)
	}
	end = &mpirun.RankError{Rank: 1, Status: 139, Err: errors.New("signal")}
	if status := start("prog"); status != 139 || got.Ranks != 2 || got.MTU != 1500 {
		t.Errorf("status %d, %+v", status, got)
	}
	nstest.Equal(t, "without a program: status", start(), exitFailed)
}

// What a killed mpirun leaves of its agents is found by cleanup.
func TestMpirunKilled(t *testing.T) {
	nstest.Require(t)
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	t.Setenv("VIA_STATE_DIR", filepath.Join(dir, "state"))
	t.Setenv("VIA_RUNTIME_DIR", filepath.Join(dir, "proc"))
	cmd := viaXDP(t, "mpirun", "-np", "3", "--hosts", "2", "sleep", "1000")
	nstest.Must(t, cmd.Start())
	await.Until(t, "the sockets of two agents", func() bool { // whose locks came before
		sockets, _ := filepath.Glob(filepath.Join(dir, "*", "[01].sock"))
		return len(sockets) == 2
	})
	nstest.Must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	await.Until(t, "nothing is left", func() bool { // a young socket stays, and the agent ends after mpirun
		call(&recorder{}, "cleanup")
		entries, err := os.ReadDir(dir)
		return err == nil && len(entries) == 0
	})
}

// When nobody reads its output any more, mpirun ends the job and removes what it made.
func TestMpirunBrokenPipe(t *testing.T) {
	nstest.Require(t)
	r, w, err := os.Pipe()
	nstest.Must(t, err)
	r.Close()
	defer w.Close()
	cmd := viaXDP(t, "mpirun", "-np", "2", "--hosts", "1", "--prefix", "yes")
	dir := t.TempDir()
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = w, &out
	var exit *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &exit) || !exit.Exited() || !strings.Contains(out.String(), "broken pipe") {
		t.Errorf("%v, want an exit because of a broken pipe\n%s", err, &out)
	}
	left, err := os.ReadDir(dir)
	nstest.ErrorIf(t, err != nil || len(left) > 0, "it leaves %v, %v", left, err)
}

// A rank that fails has said why when it aborts the job: Hydra kills all ranks then.
func TestRankSaysWhy(t *testing.T) {
	a, _ := nstest.Pair(t, nstest.Options{})
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	nstest.Must(t, err)
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	defer ours.Close()
	cmd := viaXDP(t, "mpibench", "latency")
	cmd.Env = append(os.Environ(), "PMI_FD=3", "PMI_RANK=0", "PMI_SIZE=1", "VIA_AGENT=none", mvich.DeviceVariable+"="+a.Name)
	cmd.ExtraFiles = []*os.File{theirs}
	var said bytes.Buffer
	cmd.Stderr = &said
	nstest.Must(t, a.Do(cmd.Start))
	theirs.Close()
	_, _, err = pmi.NewServer(1).Serve(t.Context(), 0, ours)
	cmd.Process.Kill()
	cmd.Wait()
	var abort *pmi.AbortError
	nstest.ErrorIf(t, !errors.As(err, &abort) || strings.Count(said.String(), "latency with 1 ranks") != 1,
		"the job ends with %v, and the rank has said %q", err, &said)
}

// A rank that was not started by a launcher, or has no interface, says so.
func TestMpibenchAlone(t *testing.T) {
	t.Setenv("PMI_FD", "")
	t.Setenv("PMI_PORT", "")
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"latency"}, "not started by a launcher"},
		{[]string{"latency", "-i", "via9"}, "not started by a launcher"},
		{[]string{"latency", "-i", "via9", "--protocol", "post"}, `unknown protocol "post"`},
	} {
		t.Setenv(mvich.DeviceVariable, "")
		cmd := newMpibench(environment{stdout: io.Discard, stderr: io.Discard})
		nstest.ErrSays(t, strings.Join(test.args, " "), execute(t.Context(), cmd, test.args...), test.want)
	}
}
