package testbed

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"viaxdp/internal/thread"
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

// child is a started process that runs this same program.
type child struct {
	cmd     *exec.Cmd
	control net.Conn
	exited  chan struct{} // closed when the process has been waited for
	err     error         // valid after exited: how it ended
}

// spawn starts a child. One that is bound to its parent lives in a new network
// namespace and gets SIGKILL when the calling thread ends; one that is not bound has a
// session of its own and outlives its parent. The caller has locked the thread in the
// first case.
func spawn(args []string, stderr io.Writer, bound bool) (*child, error) {
	return newChild(args, stderr, func(cmd *exec.Cmd) error {
		if !bound {
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			return cmd.Start()
		}
		// Its own process group: Ctrl-C on the terminal reaches the parent
		// only, which then ends its children in order.
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWNET,
			Pdeathsig:  syscall.SIGKILL,
			Setpgid:    true,
		}
		if err := cmd.Start(); err != nil {
			return explain(err, "network namespace")
		}
		return nil
	})
}

// newChild makes a child of /proc/self/exe with args and a control connection, which
// start starts.
func newChild(args []string, stderr io.Writer, start func(*exec.Cmd) error) (*child, error) {
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
		// The running program itself, also after its file was replaced or
		// removed (go run).
		Path:       "/proc/self/exe",
		Args:       append([]string{os.Args[0]}, args...),
		Stderr:     stderr,
		ExtraFiles: []*os.File{theirs},
	}
	if err := start(cmd); err != nil {
		control.Close()
		return nil, err
	}
	c := &child{cmd: cmd, control: control, exited: make(chan struct{})}
	go func() {
		c.err = cmd.Wait()
		close(c.exited)
	}()
	return c, nil
}

// kill ends the process at once and returns when it is gone.
func (c *child) kill() {
	c.cmd.Process.Kill()
	<-c.exited
	c.control.Close()
}

// keeper is a thread that starts children and lives as long as they do:
// PR_SET_PDEATHSIG tells of the death of the thread that forked, prctl(2).
type keeper struct {
	work chan func()
	done chan struct{}
	free unix.CPUSet // where its thread may run before place; for that thread
}

func newKeeper() *keeper {
	k := &keeper{work: make(chan func()), done: make(chan struct{})}
	thread.Go(k.run) // its CPU affinity changes
	return k
}

func (k *keeper) run() {
	defer close(k.done)
	_ = unix.SchedGetaffinity(0, &k.free) // place would fail with an empty one
	for f := range k.work {
		f()
	}
}

// do runs f on the keeper's thread.
func (k *keeper) do(f func()) {
	ran := make(chan struct{})
	k.work <- func() { defer close(ran); f() }
	<-ran
}

// place has what the thread starts from now on run on one CPU, with -1 on any: a
// child inherits it, across exec, for all its threads. For functions of do.
func (k *keeper) place(cpu int) error {
	if cpu >= 0 {
		return PinThread(cpu)
	}
	if err := unix.SchedSetaffinity(0, &k.free); err != nil {
		return fmt.Errorf("run on any CPU: %w", err)
	}
	return nil
}

// end lets the thread go, and with it any child that is left.
func (k *keeper) end() {
	close(k.work)
	<-k.done
}
