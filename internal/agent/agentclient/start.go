package agentclient

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/base/fds"
	"viaxdp/internal/base/rundir"
	"viaxdp/internal/base/thread"
)

// Auto, as the value of [Environment] or of vipl.WithAgent, has programs of root use an agent that the first of them starts, one
// for each network namespace. The agent ends after the last program.
const Auto = "auto"

// command is the program with the agent.
const command = "via-xdp"

// untilIdle is how long an agent that Start has started stays after its last program.
const untilIdle = 5 * time.Second

// ErrStarts is [Find]'s error if there is no agent, and the program would start one.
var ErrStarts = errors.New("there is none: the first program starts one")

// started returns the socket of the agent of the calling thread's network namespace: DefaultSocket, if that agent is in this
// namespace, else where Start starts one. No agent need be there.
func started(ctx context.Context) (socket string) {
	ctx, cancel := context.WithTimeout(ctx, helloTime)
	defer cancel()
	c, _, welcome, err := dial(ctx, DefaultSocket)
	if err == nil {
		_ = c.Close()
		if ns, err := thread.Netns(); err == nil && ns == welcome.Netns {
			return DefaultSocket
		}
	}
	return cmp.Or(startSocket(), DefaultSocket)
}

// startSocket returns where Start starts an agent; empty for users other than root.
func startSocket() string {
	dir, err := rundir.State()
	ns, nsErr := thread.Netns()
	if os.Geteuid() != 0 || err != nil || nsErr != nil {
		return ""
	}
	return filepath.Join(dir, fmt.Sprintf("netns-%d.sock", ns[1]))
}

// Start returns the socket of an agent in the calling thread's network namespace. It starts one if there is none. The agent is
// no child of this process, and stays while programs use it. Programs that call Start at the same time get the same agent.
func Start(ctx context.Context) (socket string, err error) {
	runtime.LockOSThread() // for the thread's namespace
	defer runtime.UnlockOSThread()
	socket = started(ctx)
	if err := start(ctx, socket); err != nil {
		return "", fmt.Errorf("%s=%s: %w", Environment, Auto, err)
	}
	return socket, nil
}

// startTries is the number of attempts to start an agent. An earlier one may be about to end, and then still has the lock.
const startTries = 10

func start(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	for tries := 1; ; tries++ {
		_, err := Probe(socket)
		if err == nil || socket != startSocket() || !Absent(err) && !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, io.EOF) {
			return err
		}
		if Absent(err) { // else it has just ended
			err = runCommand(ctx, socket)
		}
		if err == nil || tries == startTries || errors.Is(err, exec.ErrNotFound) {
			return err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// runCommand starts an agent, and returns when it serves.
func runCommand(ctx context.Context, socket string) error {
	path, err := exec.LookPath(command)
	if self, serr := os.Executable(); serr == nil && filepath.Base(self) == command {
		path, err = self, nil
	}
	if err != nil {
		return fmt.Errorf("%w: this command is the agent: install it (go install viaxdp/cmd/via-xdp, in the sources), or start an agent by hand", err)
	}
	cmd := exec.CommandContext(ctx, path, "agent", "--background", "--until-idle", untilIdle.String(), "--socket", socket)
	cmd.Dir = "/"
	var told bytes.Buffer
	cmd.Stderr = &told
	// The program may have waited for its children, and for this one, too.
	if err = cmd.Run(); errors.Is(err, unix.ECHILD) {
		_, err = Probe(socket)
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", path, err, strings.TrimSpace(told.String()))
	}
	return nil
}

// namespaceToStartIn returns the calling thread's network namespace if a session at socket is to start the next agent there;
// nil: it is not, or the namespace cannot be opened.
func namespaceToStartIn(socket string) *os.File {
	if socket != startSocket() {
		return nil
	}
	f, _ := os.Open("/proc/thread-self/ns/net")
	return f
}

// startAgent starts the next agent, which continues with what the last one kept. If it cannot, comeBack looks for one that
// another program has started, and tries again.
func (s *session) startAgent() {
	_ = fds.With(s.netns, func(fd int) error {
		return thread.In(fd, func() error { return start(s.ctx, s.socket) })
	})
}
