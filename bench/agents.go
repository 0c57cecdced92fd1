package bench

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// agents are a Kernel Agent in each namespace of a bed, a process of its own.
type agents struct {
	dir  string // of their sockets
	each [2]*agentProcess
}

// agentProcess is one of them.
type agentProcess struct {
	cmd    *exec.Cmd
	said   bytes.Buffer // read only after exited
	exited chan struct{}
}

// agentTime is how long an agent may take to serve, and to end.
const agentTime = 30 * time.Second

// withAgents calls f while the bed has its agents, which are gone afterwards: they have
// the workers' CPUs.
func (b *Bed) withAgents(f func() error) (err error) {
	if len(b.cfg.AgentArgs) == 0 {
		return errors.New("rows of NICs that an agent opens: the bed has none")
	}
	dir, err := os.MkdirTemp("", "via-xdp-bench")
	if err != nil {
		return err
	}
	all := &agents{dir: dir}
	defer func() { err = errors.Join(err, all.close()) }()
	for i, w := range []*Worker{b.client, b.server} {
		socket := filepath.Join(dir, fmt.Sprintf("agent%d.sock", i))
		if all.each[i], err = b.startAgent(i, socket); err != nil {
			return fmt.Errorf("agent of the %s: %w", w.name, err)
		}
		w.over.Agent = socket
		defer func() { w.over.Agent = "" }()
	}
	return f()
}

// startAgent starts an agent and waits until it serves.
func (b *Bed) startAgent(i int, socket string) (*agentProcess, error) {
	a := &agentProcess{exited: make(chan struct{})}
	a.cmd = &exec.Cmd{
		Path: "/proc/self/exe",
		Args: append(append([]string{os.Args[0]}, b.cfg.AgentArgs...), "--socket", socket),
	}
	a.cmd.Stdout, a.cmd.Stderr = &a.said, &a.said
	if err := b.bed.StartProcess(i, a.cmd); err != nil {
		return nil, err
	}
	go func() {
		_ = a.cmd.Wait()
		close(a.exited)
	}()
	for end := time.Now().Add(agentTime); ; {
		c, err := net.Dial("unix", socket)
		if err == nil {
			return a, c.Close()
		}
		if time.Now().After(end) {
			a.stop(unix.SIGKILL)
			return nil, fmt.Errorf("it does not serve within %v: %w: %s", agentTime, err, bytes.TrimSpace(a.said.Bytes()))
		}
		select {
		case <-a.exited:
			return nil, fmt.Errorf("it has ended: %s", bytes.TrimSpace(a.said.Bytes()))
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// stop ends the process, if it has to be, by force.
func (a *agentProcess) stop(s unix.Signal) {
	_ = a.cmd.Process.Signal(s)
	select {
	case <-a.exited:
	case <-time.After(agentTime):
		_ = a.cmd.Process.Kill()
		<-a.exited
	}
}

func (a *agents) close() error {
	for _, p := range a.each {
		if p != nil {
			p.stop(unix.SIGTERM)
		}
	}
	return os.RemoveAll(a.dir)
}
