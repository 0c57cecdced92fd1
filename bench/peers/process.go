package peers

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// process is a program that runs. It gets SIGKILL when the thread that started
// it ends, as it does with the worker's process.
type process struct {
	cmd            *exec.Cmd
	stdout, stderr limited
	ended          chan struct{} // closed when it has been waited for
	err            error         // of waiting, when it is no exit status; valid after ended
}

// pipeGrace is how long output is awaited from a process that has ended, while
// a child of it holds the pipe.
const pipeGrace = 500 * time.Millisecond

// start starts a program. The caller has locked its thread and keeps it until
// the process has ended: PR_SET_PDEATHSIG tells of the death of that thread,
// prctl(2).
func start(c command) (*process, error) {
	return startBy(c, func(cmd *exec.Cmd) error {
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		return cmd.Start()
	})
}

// startBy is start by a function that sees to the process's death itself.
func startBy(c command, begin func(*exec.Cmd) error) (*process, error) {
	if len(c.argv) == 0 {
		return nil, errors.New("no program is named")
	}
	p := &process{ended: make(chan struct{})}
	p.cmd = exec.Command(c.argv[0], c.argv[1:]...)
	p.cmd.Env = append(environment(), c.env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	p.cmd.WaitDelay = pipeGrace
	if err := begin(p.cmd); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.ended)
		err := p.cmd.Wait()
		var status *exec.ExitError
		if !errors.As(err, &status) && !errors.Is(err, exec.ErrWaitDelay) {
			p.err = err
		}
	}()
	return p, nil
}

// environment is that of every process: where programs and libraries are, and
// the language whose numbers have a point. Settings of the user's for UCX and
// the like would make figures that nobody can compare.
func environment() []string {
	env := []string{"LC_ALL=C"}
	for _, key := range []string{"PATH", "LD_LIBRARY_PATH"} {
		if v, ok := os.LookupEnv(key); ok {
			env = append(env, key+"="+v)
		}
	}
	return env
}

// kill ends the process and returns when it is gone.
func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.ended
}

// terminate is kill with a time to end in order.
func (p *process) terminate(grace time.Duration) { p.end(syscall.SIGTERM, grace) }

// end is terminate by a signal.
func (p *process) end(s os.Signal, grace time.Duration) {
	p.cmd.Process.Signal(s)
	select {
	case <-p.ended:
	case <-time.After(grace):
		p.kill()
	}
}

// output is for a process that has ended.
func (p *process) output() (*output, error) {
	if p.err != nil {
		return nil, fmt.Errorf("%s: %w", p.cmd.Args[0], p.err)
	}
	state := p.cmd.ProcessState
	o := &output{
		Stdout: p.stdout.String(), Stderr: p.stderr.String(), Exit: state.ExitCode(),
		CPU: state.UserTime() + state.SystemTime(),
	}
	if s, ok := state.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		o.Signal = s.Signal().String()
	}
	if u, ok := state.SysUsage().(*syscall.Rusage); ok {
		o.Switches = int(u.Nivcsw)
	}
	return o, nil
}

// maxOutput bounds what is kept of a process's output; these programs print a
// few thousand bytes.
const maxOutput = 1 << 20

// limited keeps the first bytes that are written to it.
type limited struct {
	mu   sync.Mutex
	kept bytes.Buffer
}

// Write never fails; what is too much is dropped.
func (l *limited) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept.Write(b[:min(len(b), maxOutput-l.kept.Len())])
	return len(b), nil
}

func (l *limited) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.kept.String()
}
