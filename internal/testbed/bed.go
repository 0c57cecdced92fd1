package testbed

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netns"
)

// Config of an unnamed bed.
type Config struct {
	Args   []string  // arguments with which this program becomes a child
	Pairs  []Pair    // veth pairs between the two children
	CPUs   [2]int    // CPU on which each child runs all its threads; -1: anywhere
	Stderr io.Writer // the children's standard error, one write at a time; nil: discarded
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

// A Side is one child process with its namespace.
type Side struct {
	Pid     int
	Control net.Conn // ends when the child does
	Ends    []End    // its interfaces, in the order of Config.Pairs

	child *child
}

// Bed is two child processes in network namespaces of their own, joined by
// veth pairs. Methods are for one goroutine, Kill and Close for any.
type Bed struct {
	sides  [2]*Side
	cpus   [2]int
	keeper *keeper
	once   sync.Once
}

// Start makes a bed. On an error nothing is left of it.
func Start(cfg Config) (_ *Bed, err error) {
	b := &Bed{cpus: cfg.CPUs, keeper: newKeeper()}
	cfg.Stderr = shared(cfg.Stderr)
	defer func() {
		if err != nil {
			b.Kill()
		}
	}()
	for i := range b.sides {
		b.keeper.do(func() {
			if err = b.keeper.place(cfg.CPUs[i]); err != nil {
				return
			}
			var c *child
			if c, err = spawn(cfg.Args, cfg.Stderr, true); err == nil {
				b.sides[i] = &Side{Pid: c.cmd.Process.Pid, Control: c.control, child: c}
			}
		})
		if err != nil {
			return nil, fmt.Errorf("child process %d: %w", i, err)
		}
	}
	var ns [2]netns.NsHandle
	for i, s := range b.sides {
		if ns[i], err = netns.GetFromPid(s.Pid); err != nil {
			return nil, fmt.Errorf("namespace of child process %d: %w", i, errors.Join(err, s.ended()))
		}
		// A namespace lives as long as a descriptor of it is open.
		defer ns[i].Close()
	}
	for _, p := range cfg.Pairs {
		ends, err := join(ns, p)
		if err != nil {
			return nil, fmt.Errorf("pair %s: %w", p.Names[0], err)
		}
		for i, s := range b.sides {
			s.Ends = append(s.Ends, ends[i])
		}
	}
	return b, nil
}

// Side returns side 0 or 1.
func (b *Bed) Side(i int) *Side { return b.sides[i] }

// StartProcess starts a process in a side's namespace, on that side's CPU. It is the
// leader of a process group, and gets SIGKILL when this process ends or the Bed is
// closed, whatever else becomes of it.
func (b *Bed) StartProcess(i int, cmd *exec.Cmd) error {
	ns, err := netns.GetFromPid(b.sides[i].Pid)
	if err != nil {
		return err
	}
	defer ns.Close()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	b.keeper.do(func() {
		if err = netns.Set(ns); err != nil {
			return
		}
		if err = b.keeper.place(b.cpus[i]); err == nil {
			err = cmd.Start()
		}
	})
	return err
}

// ended says how the child ended, or nil if it runs.
func (s *Side) ended() error {
	select {
	case <-s.child.exited:
		if s.child.err != nil {
			return fmt.Errorf("the process ended: %w", s.child.err)
		}
		return errors.New("the process ended")
	default:
		return nil
	}
}

// Err says how the side's process ended; it waits a moment for a process whose
// control connection has just broken. It returns nil if the process runs.
func (s *Side) Err() error {
	select {
	case <-s.child.exited:
	case <-time.After(500 * time.Millisecond):
	}
	return s.ended()
}

// Ended says which child has ended by itself and how, if one does so within a
// time; nil: both run.
func (b *Bed) Ended(within time.Duration) error {
	select {
	case <-b.sides[0].child.exited:
	case <-b.sides[1].child.exited:
	case <-time.After(within):
	}
	for i, s := range b.sides {
		if err := s.ended(); err != nil {
			return fmt.Errorf("side %d: %w", i, err)
		}
	}
	return nil
}

// closeGrace is how long Close waits for children to end by themselves, which
// they do when their control connection ends.
const closeGrace = 20 * time.Second

// Close ends the children, first by closing their control connections, and
// returns when they are gone. The kernel then takes down their namespaces and
// pairs, a few milliseconds later. Calls after the first do nothing.
func (b *Bed) Close() error { return b.CloseWithin(closeGrace) }

// CloseWithin is Close with another time that the children have.
func (b *Bed) CloseWithin(grace time.Duration) error {
	b.once.Do(func() {
		endSides(b.sides[:], grace)
		b.keeper.end()
	})
	return nil
}

// endSides ends children by closing their control connections, and by force those that
// are still there after a grace.
func endSides(sides []*Side, grace time.Duration) {
	deadline := make(chan struct{}) // of all
	defer time.AfterFunc(grace, func() { close(deadline) }).Stop()
	for _, s := range sides {
		s.Control.Close()
	}
	for _, s := range sides {
		select {
		case <-s.child.exited:
		case <-deadline:
		}
		s.child.kill()
	}
}

// Kill is Close without the grace.
func (b *Bed) Kill() {
	b.once.Do(func() {
		for _, s := range b.sides {
			if s != nil {
				s.child.kill()
			}
		}
		b.keeper.end()
	})
}
