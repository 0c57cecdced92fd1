package agentd_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/safchain/ethtool"
	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/agentd"
	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/nstest"
	"viaxdp/vipl"
	"viaxdp/xdpnic"
)

// The environment of a program that runs rules of the suite.
const (
	socketsEnv = "AGENTD_TEST_SOCKETS" // of the two agents
	queueEnv   = "AGENTD_TEST_QUEUE"
)

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
