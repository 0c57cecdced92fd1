package agentd_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/safchain/ethtool"
	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/agentd"
	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
	"viaxdp/vipl/vipltest"
	"viaxdp/xdpnic"
)

// The environment of a program that runs rules of the suite.
const (
	socketsEnv = "AGENTD_TEST_SOCKETS" // of the two agents
	queueEnv   = "AGENTD_TEST_QUEUE"
)

// dataGroups are the groups of rules about data.
const dataGroups = "^(send-receive|rdma-write|rdma-read|cq)$"

// program returns a command that runs a test of this binary as a user.
func program(t testing.TB, uid uint32, test, sub string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := nstest.AsNobody(t, test)
	cmd.Args[2] = "-test.run=^" + test + "$"
	if sub != "" {
		cmd.Args[2] += "/" + sub
	}
	asUser(cmd, uid)
	cmd.Env = append(os.Environ(), env...)
	return cmd
}

// TestProgramOfSuite is a program of TestThreePrograms.
func TestProgramOfSuite(t *testing.T) {
	sockets, ok := os.LookupEnv(socketsEnv)
	if !ok {
		t.Skip("a program of TestThreePrograms")
	}
	queue, err := strconv.Atoi(os.Getenv(queueEnv))
	nstest.Must(t, err)
	if os.Geteuid() != 0 {
		// It may open no AF_XDP socket, nor anything else that takes privilege.
		t.Setenv("VIA_AGENT", "none")
		var n *vipl.NIC
		await.Until(t, "the control port of lo is free", func() bool { // the other programs try it, too
			n, err = vipl.OpenNIC("lo")
			return !errors.Is(err, unix.EADDRINUSE)
		})
		if err == nil || !kagent.Unavailable(err) {
			t.Errorf("without an agent: %v, %v; want an error for lack of privilege", n, err)
		}
	}
	vipltest.Run(t, vipltest.Config{Open: func(t testing.TB) (a, b *vipl.NIC) {
		var nics []*vipl.NIC
		for socket := range strings.SplitSeq(sockets, ",") {
			var n *vipl.NIC
			late := false
			await.Until(t, "the agent opens a queue", func() bool {
				n, err = vipl.OpenNIC("via0", vipl.WithAgent(socket), vipl.WithQueue(queue),
					vipl.WithMode(xdpnic.ModeNative, true), vipl.WithArena(48<<20),
					vipl.WithSilence(5*time.Second)) // four programs on few cores wait for each other
				// If all CPUs are busy, attaching a program, under one lock for all, may take the kernel longer
				// than the client waits for the agent. The queue is then in use until that ends.
				late = late || errors.Is(err, os.ErrDeadlineExceeded)
				return err == nil || !late || !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, kagent.ErrQueueInUse)
			})
			nstest.Must(t, err)
			t.Cleanup(func() {
				if err := n.Close(); err != nil {
					t.Error(err)
				}
			})
			nics = append(nics, n)
		}
		return nics[0], nics[1]
	}})
}

// Three programs, of two ordinary users and of root, have a queue each of a NIC with four, and all rules about data
// hold for each of them.
func TestThreePrograms(t *testing.T) {
	a, b := pair(t, nstest.Options{Queues: 4}, agentConfig{})
	var wg sync.WaitGroup
	for queue, uid := range []uint32{60001, 60001, 60002, 0} {
		cmd := program(t, uid, "TestProgramOfSuite", dataGroups,
			socketsEnv+"="+a.socket+","+b.socket, fmt.Sprintf("%s=%d", queueEnv, queue))
		wg.Go(func() {
			out, err := cmd.CombinedOutput()
			passed := strings.Count(string(out), "--- PASS: TestProgramOfSuite/")
			if err != nil || passed < 50 || !strings.Contains(string(out), "\nPASS") {
				t.Errorf("program on queue %d of user %d: %v, %d rules hold\n%s", queue, uid, err, passed, failures(string(out)))
			}
		})
	}
	wg.Wait()
}

// failures returns the lines of a test's output that do not report success.
func failures(out string) string {
	var lines []string
	for line := range strings.Lines(out) {
		if !strings.Contains(line, "--- PASS") && !strings.HasPrefix(line, "=== ") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// If no queue is left, the error names the holders. A program that shares one is not refused.
func TestQueuesOut(t *testing.T) {
	ns, _ := nstest.Pair(t, nstest.Options{Queues: 2})
	g := startAgent(t, ns, agentConfig{})
	first := g.nic(vipl.WithMode(xdpnic.ModeNative, true))
	second := g.nic(vipl.WithMode(xdpnic.ModeNative, true))
	if q, r := first.Info().Queue, second.Info().Queue; q == r {
		t.Errorf("both on queue %d", q)
	}
	third := g.nic(vipl.WithMode(xdpnic.ModeNative, true)) // shares, for it is of the same program
	ea, eb := newEnd(t, first), newEnd(t, third)
	connect(t, ea, eb, "shared")
	exchange(t, ea, eb, "one queue")

	out, err := program(t, 60001, "TestProgramRefused", "", socketsEnv+"="+g.socket).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// If frames come in on several queues, an ordinary user's program gets a note about the steering that it may
// not have, also if it sends on one queue only.
func TestSteeringNote(t *testing.T) {
	for _, c := range []struct {
		rx, tx, uid int
		want        bool
	}{{2, 2, 0, false}, {2, 2, 60001, true}, {2, 1, 60001, true}, {1, 1, 60001, false}} {
		ns, _ := nstest.Pair(t, nstest.Options{Queues: 2})
		if err := ns.Do(func() error {
			e, err := ethtool.NewEthtool()
			if err != nil {
				return err
			}
			defer e.Close()
			_, err = e.SetChannels(ns.Name, ethtool.Channels{RxCount: uint32(c.rx), TxCount: uint32(c.tx)})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		r := startAgent(t, ns, agentConfig{}).rawAs(t, c.uid).hello()
		reply, err := r.ask(agentproto.Request{ID: 2, Op: agentproto.OpOpen, Open: &agentproto.Open{
			Interface: ns.Name, Queue: -1, ArenaBytes: 8 << 20, Mode: xdpnic.ModeNative, Steer: kagent.SteerByRSS,
		}})
		nstest.Must(t, err)
		if notes := strings.Join(reply.Opened.Info.Info.Notes, "; "); strings.Contains(notes, "indirection table") != c.want {
			t.Errorf("%+v: notes %q", c, notes)
		}
	}
}

// TestProgramRefused is a program of TestQueuesOut.
func TestProgramRefused(t *testing.T) {
	socket, ok := os.LookupEnv(socketsEnv)
	if !ok {
		t.Skip("a program of TestQueuesOut")
	}
	_, err := vipl.OpenNIC("via0", vipl.WithAgent(socket))
	if !errors.Is(err, kagent.ErrQueueInUse) {
		t.Fatalf("%v, want ErrQueueInUse", err)
	}
	for _, part := range []string{"queue 0", "queue 1", fmt.Sprintf("process %d (", os.Getppid()), "of user 0", "end one of them"} {
		if strings.Contains(err.Error(), "this process") || strings.Count(err.Error(), "kagent: open") != 1 {
			t.Errorf("of an agent: %q", err)
		}
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
}

// leastPrivilege is an agent with the privileges of its systemd unit.
var leastPrivilege = agentConfig{
	UID: 60003, Caps: []uintptr{unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_BPF, unix.CAP_IPC_LOCK},
}

// The agent needs no more than the capabilities of its systemd unit, and does not run as root; neither do its
// programs.
func TestLeastPrivilege(t *testing.T) {
	na, nb := nstest.Pair(t, nstest.Options{})
	cfg := leastPrivilege
	a, b := startAgent(t, na, cfg), startAgent(t, nb, cfg)
	end := busy(t, a, b)
	a.kill()
	a.start()
	end()
}

// Nor does it need access to the directory of its socket if it is started by socket activation. An agent of
// root with its state elsewhere does not remove the socket.
func TestActivated(t *testing.T) {
	na, nb := nstest.Pair(t, nstest.Options{})
	cfg := leastPrivilege
	cfg.Activated = true
	a, b := startAgent(t, na, cfg), startAgent(t, nb, cfg)
	end := busy(t, a, b)
	second := agentd.Daemon{Socket: a.socket}
	var taken *agentd.BusyError
	if err := na.Do(func() error { return second.Run(t.Context()) }); !errors.As(err, &taken) {
		t.Errorf("a second agent: %v, want a BusyError", err)
	}
	a.kill()
	a.start()
	end()
}
