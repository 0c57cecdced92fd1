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

// Control returns the child's end of its control connection. Only a process
// that [Start] or [Star.Children] made may call it, once.
func Control() (net.Conn, error) {
	f := os.NewFile(controlFD, "control")
	if f == nil {
		return nil, fmt.Errorf("no control connection: this command is for via-xdp's own child processes")
	}
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("no control connection (%w): this command is for via-xdp's own child processes", err)
	}
	return c, nil
}

// started is a process that was started.
type started struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has been waited for
	err    error         // valid after exited: how it ended
}

// again is a command that runs this program with args: the running program itself, also after its file
// was replaced or removed (go run).
func again(args []string, stderr io.Writer) *exec.Cmd {
	return &exec.Cmd{Path: "/proc/self/exe", Args: append([]string{os.Args[0]}, args...), Stderr: stderr}
}

// watch begins to wait for a command that was started.
func (p *started) watch(cmd *exec.Cmd) (pid int) {
	p.cmd, p.exited = cmd, make(chan struct{})
	go func() {
		p.err = cmd.Wait()
		close(p.exited)
	}()
	return cmd.Process.Pid
}

// end returns when the process is gone, by force when ctx ends.
func (p *started) end(ctx context.Context) {
	select {
	case <-p.exited:
	case <-ctx.Done():
		p.cmd.Process.Kill()
		<-p.exited
	}
}

func (p *started) endWithin(grace time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	p.end(ctx)
}

// ended says how the process ended, or nil if it runs.
func (p *started) ended() error {
	select {
	case <-p.exited:
		if p.err != nil {
			return fmt.Errorf("the process ended: %w", p.err)
		}
		return errors.New("the process ended")
	default:
		return nil
	}
}

// A Side is one child process with its namespace.
type Side struct {
	started
	Pid     int
	Control net.Conn // ends when the child does
	Ends    []End    // its interfaces, in the order of Config.Pairs
}

// Err says how the side's process ended; it waits a moment for a process whose
// control connection has just broken. It returns nil if the process runs.
func (s *Side) Err() error {
	select {
	case <-s.exited:
	case <-time.After(500 * time.Millisecond):
	}
	return s.ended()
}

// newSide makes a child of this program with args and a control connection, which
// start starts.
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
	cmd := again(args, stderr)
	cmd.ExtraFiles = []*os.File{theirs}
	if err := start(cmd); err != nil {
		control.Close()
		return nil, err
	}
	s := &Side{Control: control}
	s.Pid = s.watch(cmd)
	return s, nil
}

// oneWriter lets several goroutines share a writer: each child has one that
// copies its standard error, unless that is a file.
type oneWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (o *oneWriter) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.w.Write(b)
}

// shared is a writer for the standard error of several children.
func shared(w io.Writer) io.Writer {
	if _, file := w.(*os.File); w == nil || file {
		return w
	}
	return &oneWriter{w: w}
}

// holder is a thread that starts children and lives as long as they do:
// PR_SET_PDEATHSIG tells of the death of the thread that forked, prctl(2).
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

// place has what the thread starts from now on run on one CPU, with -1 on any: a
// child inherits it, across exec, for all its threads. For functions of do.
func (k *holder) place(cpu int) error {
	if cpu >= 0 {
		return PinThread(cpu)
	}
	if err := unix.SchedSetaffinity(0, &k.free); err != nil {
		return fmt.Errorf("run on any CPU: %w", err)
	}
	return nil
}

// end lets the thread go, and with it any child that is left.
func (k *holder) end() {
	close(k.work)
	<-k.done
}

// PinThread moves the calling thread, which its goroutine has locked, to one CPU.
func PinThread(cpu int) error {
	set, err := only(cpu)
	if err != nil {
		return err
	}
	return refused(cpu, unix.SchedSetaffinity(0, set))
}

// only is the set of one CPU.
func only(cpu int) (*unix.CPUSet, error) {
	var set unix.CPUSet
	if cpu >= 0 { // CPUSet does not look
		set.Set(cpu)
	}
	if set.Count() == 0 {
		return nil, refused(cpu, unix.EINVAL)
	}
	return &set, nil
}

// refused explains why a process was not moved to a CPU.
func refused(cpu int, err error) error {
	if errors.Is(err, unix.EINVAL) {
		if cpus, aerr := AllowedCPUs(); aerr == nil {
			return fmt.Errorf("there is no CPU %d for this process: it may use %s", cpu, ranges(cpus))
		}
	}
	if err != nil {
		return fmt.Errorf("pin to CPU %d: %w", cpu, err)
	}
	return nil
}

// ranges are numbers in order as people write them: 0-3,8.
func ranges(numbers []int) string {
	var b strings.Builder
	for i := 0; i < len(numbers); i++ {
		first := i
		for i+1 < len(numbers) && numbers[i+1] == numbers[i]+1 {
			i++
		}
		if first > 0 {
			b.WriteByte(',')
		}
		fmt.Fprint(&b, numbers[first])
		if i > first {
			fmt.Fprintf(&b, "-%d", numbers[i])
		}
	}
	return b.String()
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
	set, err := only(cpu)
	if err != nil {
		return err
	}
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
			if err := unix.SchedSetaffinity(tid, set); err != nil && !errors.Is(err, unix.ESRCH) {
				return refused(cpu, err)
			}
		}
	}
	return nil
}
