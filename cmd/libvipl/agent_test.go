package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"viaxdp/internal/agent/agentclient"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
)

// TestAgent runs several programs in C at a time, of a user without privilege, on one
// NIC: between two hosts, each on a queue of its own, and between two processes of
// one host.
func TestAgent(t *testing.T) {
	t.Parallel()
	lib := library(t)
	b := newBedOf(t, nstest.Options{MTU: 1500, Queues: 2}, "VIA_MODE=native") // in generic mode there is but one
	dir, err := os.MkdirTemp("", "libvipl-agent")                             // t.TempDir is root's alone
	nstest.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	nstest.Must(t, os.Chmod(dir, 0o755))
	command := filepath.Join(dir, "via-xdp")
	if out, err := exec.Command("go", "build", "-o", command, "../via-xdp").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	program := func(name string) string {
		to := filepath.Join(dir, name)
		nstest.Must(t, os.Rename(compilers[0].compile(t, lib, name), to))
		return to
	}
	pingpong, window := program("pingpong"), program("window")

	settings := filepath.Join(dir, "agent.toml")
	nstest.Must(t, os.WriteFile(settings, []byte("mode = \"0666\"\nlinger = \"0s\"\n[interface.via0]\n"), 0o644))
	agent := func(n *nstest.NS, name string) *bed {
		socket := filepath.Join(dir, name, "agent.sock")
		// It serves programs one after the other; t.Context ends before it is stopped.
		ctx, cancel := context.WithTimeout(context.Background(), 4*programTime)
		t.Cleanup(cancel)
		p := &process{Cmd: exec.CommandContext(ctx, command, "agent", "--config", settings, "--socket", socket, "--no-fdstored")}
		p.Stdout, p.Stderr = &p.out, &p.out
		nstest.Must(t, n.Do(p.Start))
		t.Cleanup(func() {
			p.Process.Signal(syscall.SIGTERM)
			p.finish(t)
		})
		var err error
		if !await.Comes(func() bool { _, err = agentclient.Probe(socket); return err == nil }) {
			t.Fatalf("%v\n%s", err, &p.out)
		}
		users := b.with("VIA_AGENT="+socket, "VIA_RUNTIME_DIR=none", "VIA_VERBOSE=1")
		const nobody = 65534
		users.as = &syscall.Credential{Uid: nobody, Gid: nobody}
		return users
	}
	here, there := agent(b.a, "here"), agent(b.b, "there")
	address := b.a.IPv4.String()
	said := func(t *testing.T, p *process, says string) {
		t.Helper()
		if out := p.finish(t); !strings.Contains(out, says) {
			t.Errorf("it said %q", out)
		}
	}

	t.Run("two on a NIC", func(t *testing.T) {
		// What a veth interface sends on a queue arrives on the same one of its peer.
		first, second := "VIA_QUEUE=0", "VIA_QUEUE=1"
		s1 := here.with(first).start(t, b.a, pingpong, "server", "via0", "300")
		s2 := here.with(second).start(t, b.a, window, "server", "via0", "1000")
		c1 := there.with(first).start(t, b.b, pingpong, "client", "via0", address, "300")
		c2 := there.with(second).start(t, b.b, window, "client", "via0", address, "1000")
		said(t, c1, "32768")
		said(t, c2, "16384")
		s1.finish(t)
		s2.finish(t)
	})
	t.Run("two on a host", func(t *testing.T) {
		s := here.start(t, b.a, pingpong, "server", "via0", "300")
		said(t, here.start(t, b.a, pingpong, "client", "via0", address, "300"), "32768")
		s.finish(t)
	})
	t.Run("programs of root on one queue", func(t *testing.T) {
		state := filepath.Join(dir, "state")
		auto := b.with("VIA_AGENT=auto", "VIA_QUEUE=0", "VIA_STATE_DIR="+state, "PATH="+dir, "VIA_RUNTIME_DIR=none", "VIA_VERBOSE=1")
		s := auto.start(t, b.a, pingpong, "server", "via0", "300")
		said(t, auto.start(t, b.a, pingpong, "client", "via0", address, "300"), "32768")
		s.finish(t)
		await.Until(t, "the agent leaves", func() bool { _, err := os.Stat(state); return os.IsNotExist(err) })
	})
	t.Run("no agent", func(t *testing.T) {
		p := here.with("VIA_AGENT=none", "VIA_VERBOSE=1").start(t, b.a, pingpong, "server", "via0")
		if err := p.Wait(); err == nil || !strings.Contains(p.out.String(), "VipOpenNic: ") {
			t.Errorf("a user without privilege and without an agent: %v\n%s", err, &p.out)
		}
	})
}
