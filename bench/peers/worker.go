package peers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/testbed"
)

// WorkerCommand is the argument with which a program that starts a [Bed]
// becomes a worker of it, when its main function calls [WorkerMain] then.
const WorkerCommand = "internal-peer"

// WorkerMain is the main function of a child process of [Start]: it serves its
// control connection. What it starts runs in its network namespace, on the CPU
// that it was pinned to, and dies with it.
func WorkerMain() error {
	conn, err := testbed.Control()
	if err != nil {
		return err
	}
	// Not unlocked: the thread is changed, and the process ends with it.
	runtime.LockOSThread()
	if err := mountOwnSysfs(); err != nil {
		fmt.Fprintf(os.Stderr, "%v; UCX will not find the interface\n", err)
	}
	return serve(conn)
}

// mountOwnSysfs gives the calling thread, and the processes that it will start,
// a /sys with the interfaces of this network namespace, as ip netns exec does.
// UCX looks for interfaces there; the /sys that a process inherits has those of
// the host.
func mountOwnSysfs() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount sysfs: %w", err)
	}
	return nil
}

// serve obeys the requests on a control connection until it ends, which is no
// error; it closes the connection and ends all processes. Processes belong to
// its thread.
func serve(conn net.Conn) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer conn.Close()
	// The connection is read all the time: its end stops a process.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	requests := make(chan request)
	readError := make(chan error, 1)
	go func() {
		defer close(requests)
		defer cancel()
		for dec := json.NewDecoder(conn); ; {
			var r request
			if err := dec.Decode(&r); err != nil {
				readError <- err
				return
			}
			select {
			case requests <- r:
			case <-ctx.Done():
				readError <- io.EOF
				return
			}
		}
	}()

	s := &server{}
	defer s.close()
	enc := json.NewEncoder(conn)
	for r := range requests {
		o, err := s.obey(ctx, r)
		a := reply{Output: o}
		if err != nil {
			a.Error = err.Error()
		}
		if err := enc.Encode(a); err != nil {
			return closed(err)
		}
	}
	return closed(<-readError)
}

// closed is nil if the connection was closed in order.
func closed(err error) error {
	for _, fine := range []error{io.EOF, net.ErrClosed, io.ErrClosedPipe, unix.EPIPE, unix.ECONNRESET} {
		if errors.Is(err, fine) {
			return nil
		}
	}
	return fmt.Errorf("control connection: %w", err)
}

// server is the state of a worker: at most one process that was started and
// not stopped.
type server struct {
	started *process
}

func (s *server) obey(ctx context.Context, r request) (*output, error) {
	switch r.Op {
	case opRun:
		return run(ctx, r)
	case opStart:
		return nil, s.start(ctx, r)
	case opStop:
		return s.stop()
	}
	return nil, fmt.Errorf("unknown operation %q", r.Op)
}

// run runs a program to its end.
func run(ctx context.Context, r request) (*output, error) {
	p, err := start(command{r.Argv, r.Env})
	if err != nil {
		return nil, err
	}
	timeout := time.NewTimer(r.Timeout)
	defer timeout.Stop()
	select {
	case <-p.ended:
		return p.output()
	case <-timeout.C:
		err = fmt.Errorf("%s has not ended within %v", r.Argv[0], r.Timeout)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	p.kill()
	return nil, err
}

// How long a server may take to end when it is told to, and how often is
// looked whether it listens.
const (
	stopGrace  = 5 * time.Second
	listenPoll = time.Millisecond
)

// start starts a program and returns when it listens.
func (s *server) start(ctx context.Context, r request) error {
	switch {
	case s.started != nil:
		return errors.New("another process was started")
	case r.Listen == nil:
		return errors.New("it is not said what to await")
	}
	p, err := start(command{r.Argv, r.Env})
	if err != nil {
		return err
	}
	if err := await(ctx, p, *r.Listen, r.Listen.listening, r.Timeout); err != nil {
		p.kill()
		return err
	}
	s.started = p
	return nil
}

// await returns when the socket is there, as listening says.
func await(ctx context.Context, p *process, s fmt.Stringer, listening func() (bool, error), timeout time.Duration) error {
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	again := time.NewTicker(listenPoll)
	defer again.Stop()
	for {
		if there, err := listening(); there || err != nil {
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
		case <-deadline.C:
			return fmt.Errorf("it does not listen at %v after %v", s, timeout)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-again.C:
		}
	}
}

// stop ends the started program, if it has not ended by itself.
func (s *server) stop() (*output, error) {
	if s.started == nil {
		return nil, errors.New("nothing was started")
	}
	p := s.started
	s.started = nil
	p.terminate(stopGrace)
	return p.output()
}

func (s *server) close() {
	if s.started != nil {
		s.started.kill()
	}
}
