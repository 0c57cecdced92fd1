package testbed

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"viaxdp/internal/thread"
)

// StartThrough is [Start] with each pair joined through a [Middle] of its own,
// in the order of Config.Pairs. The middles are to be closed after the bed.
func StartThrough(cfg Config) (_ *Bed, middles []*Middle, err error) {
	pairs := cfg.Pairs
	cfg.Pairs = nil
	bed, err := Start(cfg)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			bed.Kill()
			for _, m := range middles {
				m.Close()
			}
			middles = nil
		}
	}()
	var ns [2]netns.NsHandle
	for i, s := range bed.sides {
		if ns[i], err = netns.GetFromPid(s.Pid); err != nil {
			return nil, nil, fmt.Errorf("namespace of child process %d: %w", i, errors.Join(err, s.ended()))
		}
		defer ns[i].Close()
	}
	for _, p := range pairs {
		m, ends, err := newMiddle(ns, p)
		if err != nil {
			return nil, middles, fmt.Errorf("pair %s: %w", p.Names[0], err)
		}
		middles = append(middles, m)
		for i, s := range bed.sides {
			s.Ends = append(s.Ends, ends[i])
		}
	}
	return bed, middles, nil
}

// A Site is two namespaces joined through a [Middle], or directly. Unlike those of a [Bed]
// they belong to this process and outlive the processes inside: one can be
// killed, and another started with the same addresses.
//
// Methods may be called concurrently, but for Replug and Close.
type Site struct {
	Ends   [2]End
	Middle *Middle // nil: joined directly

	pair   Pair
	ns     [2]netns.NsHandle
	keeper *keeper
}

// NewSite makes a site with one pair that leads through a Middle. On an error
// nothing is left of it.
func NewSite(p Pair) (*Site, error) {
	return makeSite(p, func(s *Site) (err error) {
		s.Middle, s.Ends, err = newMiddle(s.ns, p)
		return err
	})
}

// NewDirectSite makes a site whose namespaces are joined by one pair, of as many
// queues as it says. On an error nothing is left of it.
func NewDirectSite(p Pair) (*Site, error) {
	return makeSite(p, func(s *Site) (err error) {
		s.Ends, err = join(s.ns, p)
		return err
	})
}

func makeSite(p Pair, joined func(*Site) error) (_ *Site, err error) {
	s := &Site{pair: p, ns: [2]netns.NsHandle{netns.None(), netns.None()}, keeper: newKeeper()}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	for i := range s.ns {
		if s.ns[i], err = newNamespace(); err != nil {
			return nil, explain(err, "network namespace")
		}
	}
	if err = joined(s); err != nil {
		return nil, err
	}
	return s, nil
}

// Do runs f on a thread of its own that lives in a side's namespace. Sockets
// that f opens stay there.
func (s *Site) Do(side int, f func() error) error { return thread.In(int(s.ns[side]), f) }

// Replug gives a side another interface in the place of the one that was removed, of the same
// name and addresses, and with a hardware address; nil: any. The other side's stays what it is,
// and so do the faults and counters. The site is one with a Middle.
func (s *Site) Replug(side int, mac net.HardwareAddr) (err error) {
	s.Ends[side], err = s.Middle.replug(s.ns, s.pair, side, mac)
	return err
}

// Close removes the interfaces and ends the processes that Spawn started. The
// second time it does nothing.
func (s *Site) Close() error {
	if s.keeper == nil {
		return nil
	}
	s.keeper.end() // PR_SET_PDEATHSIG kills what is left
	s.keeper = nil
	var errs []error
	if s.Middle != nil {
		errs = append(errs, s.Middle.Close())
	}
	for i := range s.ns {
		if s.ns[i].IsOpen() {
			errs = append(errs, s.ns[i].Close())
		}
	}
	return errors.Join(errs...)
}

// A Process runs this same program inside a site or a star. It reads orders from
// its standard input and answers on its standard output. It gets SIGKILL when the
// site or star is closed or this process ends.
type Process struct {
	Pid int
	In  io.WriteCloser
	Out io.ReadCloser

	cmd    *exec.Cmd
	exited chan struct{}
	err    error // valid after exited
}

// Spawn starts the program with args in a side's namespace.
func (s *Site) Spawn(side int, args []string, stderr io.Writer) (*Process, error) {
	p, err := newProcess(args, stderr, func(cmd *exec.Cmd) (err error) {
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
		s.keeper.do(func() {
			if err = unix.Setns(int(s.ns[side]), unix.CLONE_NEWNET); err == nil {
				err = cmd.Start()
			}
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("process in side %d: %w", side, err)
	}
	return p, nil
}

// newProcess makes a process of this program with args, which start starts.
func newProcess(args []string, stderr io.Writer, start func(*exec.Cmd) error) (p *Process, err error) {
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: append([]string{os.Args[0]}, args...), Stderr: stderr}
	p = &Process{cmd: cmd, exited: make(chan struct{})}
	if p.In, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	// Not StdoutPipe, which Wait closes under its reader.
	out, theirs, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, p.In.Close())
	}
	p.Out, cmd.Stdout = out, theirs
	err = start(cmd)
	theirs.Close()
	if err != nil {
		return nil, errors.Join(err, out.Close(), p.In.Close())
	}
	p.Pid = cmd.Process.Pid
	go func() {
		p.err = cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

// Signal sends a signal to the process.
func (p *Process) Signal(s unix.Signal) error { return p.cmd.Process.Signal(s) }

// Exited is closed when the process is gone.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Close ends the process by closing its input, or after a grace of 20 s by force,
// and says how it ended.
func (p *Process) Close() error {
	p.In.Close()
	select {
	case <-p.exited:
	case <-time.After(closeGrace):
		p.cmd.Process.Kill()
		<-p.exited
	}
	p.Out.Close()
	return p.err
}
