package testbed

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// agentTime is how long an agent may take to serve.
const agentTime = 30 * time.Second

// Agent starts this program with args, which make it a Kernel Agent, in a namespace, with --socket and the path of its socket
// behind them. It returns when the agent serves. The caller ends it by end, before the namespaces are closed.
func (g *group) Agent(i int, args []string, socket string) (end func(), err error) {
	var stderr bytes.Buffer // read only after it has exited
	agent, err := newSide(slices.Concat(args, []string{"--socket", socket}), &stderr, func(cmd *exec.Cmd) error {
		cmd.Env = append(cmd.Env, "RUNTIME_DIRECTORY=") // where agents of other beds would have locks of the same name
		return g.Start(i, -1, cmd)
	})
	if err != nil {
		return nil, err
	}
	if err := agent.awaitSocket(socket); err != nil {
		agent.Close()
		return nil, fmt.Errorf("%w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return func() {
		agent.Signal(unix.SIGTERM)
		agent.Close()
	}, nil
}

// awaitSocket waits until the process serves at a socket.
func (s *Side) awaitSocket(path string) error {
	late := time.After(agentTime)
	for {
		if c, err := net.Dial("unix", path); err == nil {
			return c.Close()
		}
		select {
		case <-s.exited:
			return errors.New("it has ended")
		case <-late:
			return fmt.Errorf("it does not serve within %v", agentTime)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
