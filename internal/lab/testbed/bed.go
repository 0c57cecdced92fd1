package testbed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"viaxdp/internal/base/thread"
	"viaxdp/internal/lab/veth"
)

// A Pair is a veth pair to be made, and an End one interface of it.
type (
	Pair = veth.Pair
	End  = veth.End
)

// Limits of a veth interface.
const (
	MinMTU    = veth.MinMTU
	MaxMTU    = veth.MaxMTU
	MaxQueues = veth.MaxQueues
)

// join makes a pair of two namespaces and brings it up.
func join(ns [2]netns.NsHandle, p Pair) ([2]End, error) {
	if err := p.Check(); err != nil {
		return [2]End{}, err
	}
	ends, err := veth.Join(ns, p)
	if err != nil {
		return ends, explain(err, "veth pair")
	}
	return ends, nil
}

// group is network namespaces of this process, without a name, and the processes in them. The
// namespaces outlive those, and are gone with this process.
type group struct {
	holder *holder
	spaces []netns.NsHandle
	sides  []*Side // the processes that end by their control connections
	sysfs  bool    // processes have a /sys that shows their namespace's interfaces
	once   sync.Once
}

func newGroup(n int) (*group, error) {
	g := &group{holder: newHolder()}
	for range n {
		ns, err := veth.NewNamespace()
		if err != nil {
			g.end(0)
			return nil, explain(err, "network namespace")
		}
		g.spaces = append(g.spaces, ns)
	}
	return g, nil
}

// two are the first namespaces.
func (g *group) two() [2]netns.NsHandle { return [2]netns.NsHandle(g.spaces) }

// Do runs f on a thread of its own that lives in a namespace. Sockets that f opens stay there.
func (g *group) Do(i int, f func() error) error { return thread.In(int(g.spaces[i]), f) }

// start starts a process in a namespace, on one CPU, or with -1 on any. It is the leader of a
// process group: Ctrl-C on the terminal reaches the parent only, which then ends its children in
// order. It gets SIGKILL when this process ends or the group does, whatever else becomes of it.
func (g *group) start(i, cpu int, cmd *exec.Cmd) (err error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	g.holder.do(func() {
		if err = netns.Set(g.spaces[i]); err == nil && g.sysfs {
			err = ownSysfs()
		}
		if err == nil {
			err = g.holder.place(cpu)
		}
		if err == nil {
			err = cmd.Start()
		}
	})
	return err
}

// Spawn starts this program with args in a namespace, as a [Process].
func (g *group) Spawn(i int, args []string, stderr io.Writer) (*Process, error) {
	p, err := newProcess(args, stderr, func(cmd *exec.Cmd) error { return g.start(i, -1, cmd) })
	if err != nil {
		return nil, fmt.Errorf("process in namespace %d: %w", i, err)
	}
	return p, nil
}

// children starts this program with args once in each namespace for which there is a CPU.
func (g *group) children(args []string, cpus []int, stderr io.Writer) error {
	stderr = shared(stderr)
	for i, cpu := range cpus {
		s, err := newSide(args, stderr, func(cmd *exec.Cmd) error { return g.start(i, cpu, cmd) })
		if err != nil {
			return fmt.Errorf("child process %d: %w", i, err)
		}
		g.sides = append(g.sides, s)
	}
	return nil
}

// end ends the processes, the children first by closing their control connections, and by force
// what is still there after a grace. The second time it does nothing.
func (g *group) end(grace time.Duration) {
	g.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), grace)
		defer cancel()
		for _, s := range g.sides {
			s.Control.Close()
		}
		for _, s := range g.sides {
			s.end(ctx)
		}
		g.holder.end()
		for _, ns := range g.spaces {
			ns.Close()
		}
	})
}

// A place is where an interface is.
type place struct {
	ns   netns.NsHandle
	name string
}

// readyTime is how long the kernel may take to have interfaces ready.
const readyTime = 20 * time.Second

// ready waits until interfaces are operational: the kernel brings queues into being some time after
// the other end came up, and until then it drops frames without a word.
func ready(places ...place) error {
	for end := time.Now().Add(readyTime); len(places) > 0; {
		err := veth.OnLink(places[0].ns, places[0].name, func(_ *netlink.Handle, l netlink.Link) error {
			if state := l.Attrs().OperState; state != netlink.OperUp {
				return fmt.Errorf("interface %s is %v still", l.Attrs().Name, state)
			}
			return nil
		})
		switch {
		case err == nil:
			places = places[1:]
		case time.Now().After(end):
			return err
		default:
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

// Config of an unnamed bed.
type Config struct {
	Args   []string  // arguments with which this program becomes a child
	Pairs  []Pair    // veth pairs between the two children
	CPUs   [2]int    // CPU on which each child runs all its threads; -1: anywhere
	Stderr io.Writer // the children's standard error, one write at a time; nil: discarded
}

// Bed is two child processes in network namespaces of their own, joined by
// veth pairs. Methods are for one goroutine, Kill and Close for any.
type Bed struct {
	*group
	cpus [2]int
}

// Start makes a bed. On an error nothing is left of it.
func Start(cfg Config) (*Bed, error) {
	b, _, err := start(cfg, false)
	return b, err
}

// StartThrough is [Start] with each pair joined through a [Middle] of its own,
// in the order of Config.Pairs. The middles are to be closed after the bed.
func StartThrough(cfg Config) (*Bed, []*Middle, error) { return start(cfg, true) }

func start(cfg Config, through bool) (_ *Bed, middles []*Middle, err error) {
	g, err := newGroup(2)
	if err != nil {
		return nil, nil, err
	}
	b := &Bed{group: g, cpus: cfg.CPUs}
	defer func() {
		if err != nil {
			b.Kill()
			for _, m := range middles {
				m.Close()
			}
			middles = nil
		}
	}()
	var ends [2][]End
	for _, p := range cfg.Pairs {
		var of [2]End
		if through {
			var m *Middle
			if m, of, err = newMiddle(g.two(), p); err == nil {
				middles = append(middles, m)
			}
		} else {
			of, err = join(g.two(), p)
		}
		if err != nil {
			return nil, middles, fmt.Errorf("pair %s: %w", p.Names[0], err)
		}
		for i, e := range of {
			ends[i] = append(ends[i], e)
		}
	}
	if err := b.children(cfg.Args, cfg.CPUs[:], cfg.Stderr); err != nil {
		return nil, middles, err
	}
	for i, s := range b.sides {
		s.Ends = ends[i]
	}
	return b, middles, nil
}

// Side returns side 0 or 1.
func (b *Bed) Side(i int) *Side { return b.sides[i] }

// StartProcess starts a process in a side's namespace, on that side's CPU. It is the
// leader of a process group, and gets SIGKILL when this process ends or the Bed is
// closed, whatever else becomes of it.
func (b *Bed) StartProcess(i int, cmd *exec.Cmd) error { return b.start(i, b.cpus[i], cmd) }

// Ended says which child has ended by itself and how, if one does so within a
// time; nil: both run.
func (b *Bed) Ended(within time.Duration) error {
	select {
	case <-b.sides[0].exited:
	case <-b.sides[1].exited:
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
	b.end(grace)
	return nil
}

// Kill is Close without the grace.
func (b *Bed) Kill() { b.end(0) }

// A Site is two namespaces joined through a [Middle], or directly. Processes inside come and go:
// one can be killed, and another started with the same addresses.
//
// Methods may be called concurrently, but for Replug and Close.
type Site struct {
	*group
	Ends   [2]End
	Middle *Middle // nil: joined directly

	pair   Pair
	closed bool
}

// NewSite makes a site with one pair that leads through a Middle. On an error
// nothing is left of it.
func NewSite(p Pair) (*Site, error) {
	return makeSite(p, func(s *Site) (err error) {
		s.Middle, s.Ends, err = newMiddle(s.two(), p)
		return err
	})
}

// NewDirectSite makes a site whose namespaces are joined by one pair, of as many
// queues as it says. On an error nothing is left of it.
func NewDirectSite(p Pair) (*Site, error) {
	return makeSite(p, func(s *Site) (err error) {
		s.Ends, err = join(s.two(), p)
		return err
	})
}

func makeSite(p Pair, joined func(*Site) error) (*Site, error) {
	g, err := newGroup(2)
	if err != nil {
		return nil, err
	}
	s := &Site{group: g, pair: p}
	if err := joined(s); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Replug gives a side another interface in the place of the one that was removed, of the same
// name and addresses, and with a hardware address; nil: any. The other side's stays what it is,
// and so do the faults and counters. The site is one with a Middle.
func (s *Site) Replug(side int, mac net.HardwareAddr) (err error) {
	s.Ends[side], err = s.Middle.replug(s.two(), s.pair, side, mac)
	return err
}

// Close removes the interfaces and kills the processes that Spawn started. The
// second time it does nothing.
func (s *Site) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	s.end(0)
	if s.Middle == nil {
		return nil
	}
	return s.Middle.Close()
}

// A Process runs this same program inside a site or a star. It reads orders from
// its standard input and answers on its standard output. It gets SIGKILL when the
// site or star is closed or this process ends.
type Process struct {
	started
	Pid int
	In  io.WriteCloser
	Out io.ReadCloser
}

// newProcess makes a process of this program with args, which start starts.
func newProcess(args []string, stderr io.Writer, start func(*exec.Cmd) error) (p *Process, err error) {
	cmd := again(args, stderr)
	p = &Process{}
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
	p.Pid = p.watch(cmd)
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
	p.endWithin(closeGrace)
	p.Out.Close()
	return p.err
}
