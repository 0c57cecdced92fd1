package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/cprogram"
	"viaxdp/internal/lab/nstest"
)

// TestAgent runs several programs in C at a time, of a user without privilege, on one
// NIC: between two hosts, each on a queue of its own, and between two processes of
// one host.
func TestAgent(t *testing.T) {
	t.Parallel()
	lib := library(t)
	b := newBedOf(t, nstest.Options{MTU: 1500, Queues: 2}, "VIA_MODE=native") // in generic mode there is but one
	dir := cprogram.SharedDir(t)
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

	here, there := b.Agents(t, command, 4*cprogram.Limit) // they serve programs one after the other
	address := b.A.IPv4.String()
	said := func(t *testing.T, p *cprogram.Process, says string) {
		t.Helper()
		if out := p.Finish(t); !strings.Contains(out, says) {
			t.Errorf("it said %q", out)
		}
	}

	t.Run("two on a NIC", func(t *testing.T) {
		// What a veth interface sends on a queue arrives on the same one of its peer.
		first, second := "VIA_QUEUE=0", "VIA_QUEUE=1"
		s1 := here.With(first).Start(t, b.A, pingpong, "server", "via0", "300")
		s2 := here.With(second).Start(t, b.A, window, "server", "via0", "1000")
		c1 := there.With(first).Start(t, b.B, pingpong, "client", "via0", address, "300")
		c2 := there.With(second).Start(t, b.B, window, "client", "via0", address, "1000")
		said(t, c1, "32768")
		said(t, c2, "16384")
		s1.Finish(t)
		s2.Finish(t)
	})
	t.Run("two on a host", func(t *testing.T) {
		s := here.Start(t, b.A, pingpong, "server", "via0", "300")
		said(t, here.Start(t, b.A, pingpong, "client", "via0", address, "300"), "32768")
		s.Finish(t)
	})
	t.Run("programs of root on one queue", func(t *testing.T) {
		state := filepath.Join(dir, "state")
		auto := b.With("VIA_AGENT=auto", "VIA_QUEUE=0", "VIA_STATE_DIR="+state, "PATH="+dir, "VIA_RUNTIME_DIR=none", "VIA_VERBOSE=1")
		s := auto.Start(t, b.A, pingpong, "server", "via0", "300")
		said(t, auto.Start(t, b.A, pingpong, "client", "via0", address, "300"), "32768")
		s.Finish(t)
		await.Until(t, "the agent leaves", func() bool { _, err := os.Stat(state); return os.IsNotExist(err) })
	})
	t.Run("no agent", func(t *testing.T) {
		p := here.With("VIA_AGENT=none", "VIA_VERBOSE=1").Start(t, b.A, pingpong, "server", "via0")
		if err := p.Wait(); err == nil || !strings.Contains(p.Out.String(), "VipOpenNic: ") {
			t.Errorf("a user without privilege and without an agent: %v\n%s", err, &p.Out)
		}
	})
}
