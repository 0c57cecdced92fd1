// Package cprogram runs separate programs, such as those in C, in two joined namespaces. It is for tests of the libraries that
// these programs are linked with.
package cprogram

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"viaxdp/internal/agent/agentclient"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
)

// Bed is two namespaces, and the environment of programs in them.
type Bed struct {
	A, B *nstest.NS
	Env  []string
	As   *syscall.Credential // user of the programs; nil: this process's
	Most time.Duration       // after which a program is killed
}

// Silence is the time after which a peer is taken for dead. It is long, as a test machine may be busy.
const Silence = 30 * time.Second

// New makes a bed. Programs have arenas of 16 MB: tests open hundreds, and each is zeroed.
func New(t testing.TB, o nstest.Options, env ...string) *Bed {
	t.Helper()
	a, b := nstest.Pair(t, o)
	silence := fmt.Sprintf("VIA_SILENCE=%d", Silence.Milliseconds())
	own := append(os.Environ(), "VIA_ARENA=16777216", silence)
	return &Bed{A: a, B: b, Env: append(own, env...), Most: Limit}
}

// With is the same with more environment.
func (b *Bed) With(env ...string) *Bed {
	c := *b
	c.Env = append(slices.Clone(b.Env), env...)
	return &c
}

// Process runs in a namespace.
type Process struct {
	*exec.Cmd
	Out bytes.Buffer // standard output and standard error
}

// Limit is the time that programs of New have.
const Limit = 4 * time.Minute

func (b *Bed) command(t testing.TB, args []string) *Process {
	ctx, cancel := context.WithTimeout(t.Context(), b.Most)
	t.Cleanup(cancel)
	p := &Process{Cmd: exec.CommandContext(ctx, args[0], args[1:]...)}
	p.Env, p.Stderr = b.Env, &p.Out
	if b.As != nil {
		p.Dir, p.SysProcAttr = "/", &syscall.SysProcAttr{Credential: b.As}
	}
	return p
}

// Start starts a program.
func (b *Bed) Start(t testing.TB, n *nstest.NS, args ...string) *Process {
	t.Helper()
	p := b.command(t, args)
	p.Stdout = &p.Out
	nstest.Must(t, n.Do(p.Start))
	return p
}

// Piped starts a program whose standard output is read while it runs.
func (b *Bed) Piped(t testing.TB, n *nstest.NS, args ...string) (*Process, *bufio.Reader) {
	t.Helper()
	p := b.command(t, args)
	out, err := p.StdoutPipe()
	nstest.Must(t, err)
	nstest.Must(t, n.Do(p.Start))
	return p, bufio.NewReader(out)
}

// Finish waits for it; it must end well. It returns what it printed.
func (p *Process) Finish(t testing.TB) string {
	t.Helper()
	if err := p.Wait(); err != nil {
		t.Errorf("%s: %v\n%s", strings.Join(p.Args, " "), err, &p.Out)
	}
	return p.Out.String()
}

// End asks it to end, and finishes it.
func (p *Process) End(t testing.TB) string {
	t.Helper()
	nstest.Check(t, p.Process.Signal(syscall.SIGTERM))
	return p.Finish(t)
}

// SharedDir is a directory that programs of all users may read; t.TempDir is root's alone.
func SharedDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cprogram")
	nstest.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	nstest.Must(t, os.Chmod(dir, 0o755))
	return dir
}

// Agents starts an agent in each namespace, by the program via-xdp. It returns the beds of unprivileged users of the two agents,
// which end with the test, or after most.
func (b *Bed) Agents(t testing.TB, program string, most time.Duration) (here, there *Bed) {
	t.Helper()
	dir := SharedDir(t)
	settings := filepath.Join(dir, "agent.toml")
	nstest.Must(t, os.WriteFile(settings, []byte("mode = \"0666\"\nlinger = \"0s\"\n[interface.via0]\n"), 0o644))
	agent := func(n *nstest.NS, name string) *Bed {
		socket := filepath.Join(dir, name, "agent.sock")
		// t.Context ends before it is stopped.
		ctx, cancel := context.WithTimeout(context.Background(), most)
		t.Cleanup(cancel)
		p := &Process{Cmd: exec.CommandContext(ctx, program, "agent", "--config", settings, "--socket", socket, "--no-fdstored")}
		p.Stdout, p.Stderr = &p.Out, &p.Out
		nstest.Must(t, n.Do(p.Start))
		t.Cleanup(func() { p.End(t) })
		var err error
		if !await.Comes(func() bool { _, err = agentclient.Probe(socket); return err == nil }) {
			t.Fatalf("%v\n%s", err, &p.Out)
		}
		users := b.With("VIA_AGENT="+socket, "VIA_RUNTIME_DIR=none", "VIA_VERBOSE=1")
		const nobody = 65534
		users.As = &syscall.Credential{Uid: nobody, Gid: nobody}
		return users
	}
	return agent(b.A, "here"), agent(b.B, "there")
}
