package testbed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/base/thread"
)

// controlFD is where a child finds its control connection: the first file
// after the three standard ones.
const controlFD = 3

// Control returns the child's end of its control connection. Only a [Side]'s
// process may call it, once.
func Control() (net.Conn, error) {
	const only = "this command is for via-xdp's own child processes"
	f := os.NewFile(controlFD, "control")
	if f == nil {
		return nil, errors.New("no control connection: " + only)
	}
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("no control connection (%w): %s", err, only)
	}
	return c, nil
}

// A Side is a child process: this program, executed again in a namespace.
type Side struct {
	Pid     int
	Control net.Conn // ends when the child does
	Ends    []End    // its interfaces, in the order of Config.Pairs; none of a process that Spawn started

	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has been waited for
	err    error         // valid after exited: how it ended
}

// newSide makes a child of this program with args and a control connection, which
// start starts. It is the running program itself, also after its file was replaced
// or removed (go run).
func newSide(args []string, stderr io.Writer, start func(*exec.Cmd) error) (*Side, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "control"), os.NewFile(uintptr(fds[1]), "control")
	defer ours.Close()
	defer theirs.Close()
	control, err := net.FileConn(ours)
	if err != nil {
		return nil, fmt.Errorf("control connection: %w", err)
	}
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: append([]string{os.Args[0]}, args...), Env: Environment(), Stderr: stderr, ExtraFiles: []*os.File{theirs},
	}
	if err := start(cmd); err != nil {
		control.Close()
		return nil, err
	}
	s := &Side{Pid: cmd.Process.Pid, Control: control, cmd: cmd, exited: make(chan struct{})}
	go func() {
		s.err = cmd.Wait()
		close(s.exited)
	}()
	return s, nil
}

// Environment returns the environment for a child in another network namespace: this process's, without a socket in VIA_AGENT.
// The agent there cannot open the interfaces of other namespaces.
func Environment() []string {
	if set := os.Getenv("VIA_AGENT"); set == "auto" || set == "none" {
		return os.Environ()
	}
	return append(os.Environ(), "VIA_AGENT=")
}

// Signal sends a signal to the process.
func (s *Side) Signal(sig unix.Signal) error { return s.cmd.Process.Signal(sig) }

// Err says how the side's process ended; it waits a moment for a process whose
// control connection has just broken. It returns nil if the process runs.
func (s *Side) Err() error {
	select {
	case <-s.exited:
	case <-time.After(500 * time.Millisecond):
	}
	return s.ended()
}

// ended says how the process ended, or nil if it runs.
func (s *Side) ended() error {
	select {
	case <-s.exited:
		if s.err != nil {
			return fmt.Errorf("the process ended: %w", s.err)
		}
		return errors.New("the process ended")
	default:
		return nil
	}
}

// end returns when the process is gone, by force when ctx ends.
func (s *Side) end(ctx context.Context) {
	select {
	case <-s.exited:
	case <-ctx.Done():
		s.cmd.Process.Kill()
		<-s.exited
	}
}

// closeGrace is how long Close waits for children to end by themselves, which
// they do when their control connection ends.
const closeGrace = 20 * time.Second

// Close ends the process by closing its control connection, or after a grace of 20 s
// by force, and returns how it ended: nil with status 0.
func (s *Side) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeGrace)
	defer cancel()
	s.Control.Close()
	s.end(ctx)
	return s.err
}

// oneWriter lets several children share a writer for their standard error. A goroutine
// for each child copies to it.
type oneWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (o *oneWriter) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.w.Write(b)
}

// shared is a writer for the standard error of several children. A file needs no lock.
func shared(w io.Writer) io.Writer {
	if _, file := w.(*os.File); w == nil || file {
		return w
	}
	return &oneWriter{w: w}
}

// holder is a thread that starts children and lives as long as they do:
// PR_SET_PDEATHSIG signals the death of the thread that forked, prctl(2).
type holder struct {
	work chan func()
	done chan struct{}
	free unix.CPUSet // where its thread may run before place; for that thread
}

func newHolder() *holder {
	k := &holder{work: make(chan func()), done: make(chan struct{})}
	thread.Go(k.run) // its CPU affinity changes
	return k
}

func (k *holder) run() {
	defer close(k.done)
	_ = unix.SchedGetaffinity(0, &k.free) // place would fail with an empty one
	for f := range k.work {
		f()
	}
}

// do runs f on the holder's thread.
func (k *holder) do(f func()) {
	ran := make(chan struct{})
	k.work <- func() { defer close(ran); f() }
	<-ran
}

// place restricts what the thread starts from now on to one CPU; -1 allows any. A child
// inherits that across exec for all its threads. Call it only in functions of do.
func (k *holder) place(cpu int) error {
	if cpu >= 0 {
		return pin(0, cpu)
	}
	if err := unix.SchedSetaffinity(0, &k.free); err != nil {
		return fmt.Errorf("run on any CPU: %w", err)
	}
	return nil
}

// end ends the thread, and with it any child that is left.
func (k *holder) end() {
	close(k.work)
	<-k.done
}

// pin moves a thread to one CPU; thread 0 is the calling one.
func pin(thread, cpu int) error {
	var set unix.CPUSet
	if cpu >= 0 { // CPUSet does not check
		set.Set(cpu)
	}
	switch err := unix.SchedSetaffinity(thread, &set); {
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("there is no CPU %d for this process: it may use %s", cpu, allowedList())
	case err != nil:
		return fmt.Errorf("pin to CPU %d: %w", cpu, err)
	}
	return nil
}

// allowedList is the CPUs that the calling thread may use, as the kernel writes them: 0-3,8.
func allowedList() string {
	status, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return err.Error()
	}
	_, list, _ := strings.Cut(string(status), "Cpus_allowed_list:")
	list, _, _ = strings.Cut(list, "\n")
	return strings.TrimSpace(list)
}

// AllowedCPUs lists the CPUs that this process may use, in order.
func AllowedCPUs() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("sched_getaffinity: %w", err)
	}
	var cpus []int
	for i := 0; len(cpus) < set.Count(); i++ {
		if set.IsSet(i) {
			cpus = append(cpus, i)
		}
	}
	return cpus, nil
}

// PinProcess moves all threads of this process to one CPU; threads to come
// inherit it.
func PinProcess(cpu int) error {
	// A second pass catches threads that were started during the first one by
	// threads not yet moved.
	for range 2 {
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		for _, t := range tasks {
			tid, err := strconv.Atoi(t.Name())
			if err != nil {
				continue
			}
			if err := pin(tid, cpu); err != nil && !errors.Is(err, unix.ESRCH) { // it has ended
				return err
			}
		}
	}
	return nil
}
