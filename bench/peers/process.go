package peers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// process is a program that runs.
type process struct {
	cmd            *exec.Cmd
	stdout, stderr limited
	ended          chan struct{} // closed when it has been waited for
	err            error         // of waiting, when it is no exit status; valid after ended
}

// stopGrace is how long a process may take to end after a request to stop. A variable for
// tests.
var stopGrace = 5 * time.Second

const (
	pipeGrace  = 500 * time.Millisecond // for output of a process that has ended, while a child of it holds the pipe
	listenPoll = time.Millisecond       // between two looks whether a server listens
)

// start starts a program on a side. It dies with the bed, and with this process.
func (b *Bed) start(side int, c command) (*process, error) {
	if len(c.argv) == 0 {
		return nil, errors.New("no program is named")
	}
	p := &process{ended: make(chan struct{}), cmd: exec.Command(c.argv[0], c.argv[1:]...)}
	p.cmd.Env, p.cmd.Dir, p.cmd.WaitDelay = append(environment(), c.env...), "/", pipeGrace
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	if err := b.star.Start(side, b.cpus[side], p.cmd); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.ended)
		err := p.cmd.Wait()
		if _, status := errors.AsType[*exec.ExitError](err); !status && !errors.Is(err, exec.ErrWaitDelay) {
			p.err = err
		}
	}()
	return p, nil
}

// run runs a program on a side to its end.
func (b *Bed) run(ctx context.Context, side int, c command, timeout time.Duration) (*output, error) {
	p, err := b.start(side, c)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("%s has not ended within %v", c.argv[0], timeout))
	defer cancel()
	select {
	case <-p.ended:
		return p.output()
	case <-ctx.Done():
		p.kill()
		return nil, context.Cause(ctx)
	}
}

// serve starts a program on a side, and returns when it is ready; at says where that is.
func (b *Bed) serve(ctx context.Context, side int, c command, at string, ready func(*process) (bool, error), timeout time.Duration) (*process, error) {
	p, err := b.start(side, c)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("it does not listen at %s after %v", at, timeout))
	defer cancel()
	if err := p.await(ctx, ready); err != nil {
		p.kill()
		return nil, err
	}
	return p, nil
}

// await waits until the process is ready.
func (p *process) await(ctx context.Context, ready func(*process) (bool, error)) error {
	again := time.NewTicker(listenPoll)
	defer again.Stop()
	for {
		if there, err := ready(p); there || err != nil {
			return err
		}
		select {
		case <-p.ended:
			o, err := p.output()
			if err == nil {
				err = o.failure()
			}
			if err == nil {
				err = errors.New("it ended in order")
			}
			return fmt.Errorf("it does not listen: %w", err)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-again.C:
		}
	}
}

// environment is that of every process: where programs and libraries are, and the language
// whose numbers have a point. The user's settings for UCX and other libraries would make
// figures that are not comparable.
func environment() []string {
	env := []string{"LC_ALL=C"}
	for _, key := range []string{"PATH", "LD_LIBRARY_PATH", "FI_PROVIDER_PATH"} {
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

// end is kill with a time to end in order, by a signal.
func (p *process) end(s os.Signal) {
	p.cmd.Process.Signal(s)
	select {
	case <-p.ended:
	case <-time.After(stopGrace):
		p.kill()
	}
}

// output is the result of a process that has ended.
type output struct {
	Stdout, Stderr string
	Ended          string // how, where not in order: "exit status 3", "signal: killed"

	CPU      time.Duration // user and system time
	Switches int           // times that it had to leave a CPU that it would have used
}

func (p *process) output() (*output, error) {
	if p.err != nil {
		return nil, fmt.Errorf("%s: %w", p.cmd.Args[0], p.err)
	}
	state := p.cmd.ProcessState
	o := &output{
		Stdout: p.stdout.String(), Stderr: p.stderr.String(), CPU: state.UserTime() + state.SystemTime(),
	}
	if !state.Success() {
		o.Ended = state.String()
	}
	if u, ok := state.SysUsage().(*syscall.Rusage); ok {
		o.Switches = int(u.Nivcsw)
	}
	return o, nil
}

// failure says how a process failed, in one line; nil: it did not.
func (o *output) failure() error {
	switch why := o.complaint(); {
	case o.Ended == "":
		return nil
	case why != "":
		return fmt.Errorf("%s (%s)", why, o.Ended)
	}
	return errors.New(o.Ended)
}

// complaint is the last that a process has said on standard error, or a
// complaint on standard output; empty: it has said nothing of the kind.
func (o *output) complaint() string {
	if last := lastLine(o.Stderr); last != "" {
		return last
	}
	return complaintIn(o.Stdout)
}

// foundNothing says that a program has measured, and has found no valid observation.
// o may be nil, as that of a process that was killed.
func (o *output) foundNothing() bool {
	return o != nil && (saysNothingFound(o.Stdout) || saysNothingFound(o.Stderr))
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

// socket is what a server listens on.
type socket struct {
	network string // tcp, udp
	port    int
}

const (
	tcp = "tcp"
	udp = "udp"
)

func (s socket) String() string { return fmt.Sprintf("port %d of %s", s.port, s.network) }

// listening reports whether the socket awaits messages or connections in the namespace of a process.
func (s socket) listening(p *process) (bool, error) {
	proc, err := procfs.NewFS(fmt.Sprint("/proc/", p.cmd.Process.Pid))
	if err != nil {
		return false, nil // it has just ended
	}
	//lint:ignore SA1019 netlink, which procfs recommends for many sockets, needs a kernel option (CONFIG_INET_DIAG)
	tables, state := []func() (procfs.NetTCP, error){proc.NetTCP, proc.NetTCP6}, uint64(stateListen)
	if s.network == udp {
		tables, state = []func() (procfs.NetTCP, error){
			func() (procfs.NetTCP, error) { t, err := proc.NetUDP(); return procfs.NetTCP(t), err },
			func() (procfs.NetTCP, error) { t, err := proc.NetUDP6(); return procfs.NetTCP(t), err },
		}, stateClose
	}
	for _, table := range tables {
		sockets, err := table()
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EINVAL) {
			continue // a kernel without IPv6, or the process has just ended
		}
		if err != nil {
			return false, err
		}
		for _, one := range sockets {
			if one.St == state && one.LocalPort == uint64(s.port) {
				return true, nil
			}
		}
	}
	return false, nil
}

// States of a socket in the tables, include/net/tcp_states.h: TCP_LISTEN, and
// TCP_CLOSE, which is that of a UDP socket without a peer.
const (
	stateListen = 10
	stateClose  = 7
)
