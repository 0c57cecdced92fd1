package testbed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"viaxdp/internal/base/thread"
	"viaxdp/internal/lab/fail"
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
func join(ns [2]netns.NsHandle, p Pair) [2]End {
	fail.If(p.Check())
	ends, err := veth.Join(ns, p)
	fail.If(explain(err, "veth pair"))
	return ends
}

// group is unnamed network namespaces of this process, the links between them, and the processes
// in them. The namespaces outlive those processes, and end with this process.
type group struct {
	holder  *holder
	spaces  []netns.NsHandle
	middles []*Middle
	sides   []*Side        // the processes that end by their control connections
	closers []func() error // release what links consist of
	sysfs   bool           // processes have a /sys that shows their namespace's interfaces
	once    sync.Once
}

func newGroup() *group { return &group{holder: newHolder()} }

// grow adds namespaces to the group.
func (g *group) grow(n int) {
	for range n {
		g.spaces = append(g.spaces, newNamespace())
	}
}

func newNamespace() netns.NsHandle {
	ns, err := veth.NewNamespace()
	fail.If(explain(err, "network namespace"))
	return ns
}

// endIf ends the group if what made it has failed.
func (g *group) endIf(err *error) {
	if *err != nil {
		*err = errors.Join(*err, g.CloseWithin(0))
	}
}

// two are the first namespaces.
func (g *group) two() [2]netns.NsHandle { return [2]netns.NsHandle(g.spaces) }

// connect joins the first two namespaces by a pair, directly or through a Middle.
func (g *group) connect(p Pair, through bool) (ends [2]End) {
	if !through {
		return join(g.two(), p)
	}
	m, ends := newMiddle(g.two(), p)
	g.middles, g.closers = append(g.middles, m), append(g.closers, m.close)
	return ends
}

// Do runs f on a thread of its own that lives in a namespace. Sockets that f opens stay there.
func (g *group) Do(i int, f func() error) error { return thread.In(int(g.spaces[i]), f) }

// Start starts a process in a namespace, on one CPU, or with -1 on any. It is the leader of a
// process group: Ctrl-C on the terminal reaches the parent only, which then ends its children in
// order. It gets SIGKILL when this process ends or the namespaces are closed.
func (g *group) Start(i, cpu int, cmd *exec.Cmd) (err error) {
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

// Spawn starts this program with args in a namespace. The process ends by [Side.Close],
// and gets SIGKILL when the namespaces are closed or this process ends.
func (g *group) Spawn(i int, args []string, stderr io.Writer) (*Side, error) {
	return g.spawn(i, -1, args, stderr)
}

func (g *group) spawn(i, cpu int, args []string, stderr io.Writer) (*Side, error) {
	s, err := newSide(args, stderr, func(cmd *exec.Cmd) error { return g.Start(i, cpu, cmd) })
	if err != nil {
		return nil, fmt.Errorf("process in namespace %d: %w", i, err)
	}
	return s, nil
}

// children starts this program with args once in each namespace for which there is a CPU.
func (g *group) children(args []string, cpus []int, stderr io.Writer) {
	stderr = shared(stderr)
	for i, cpu := range cpus {
		g.sides = append(g.sides, fail.Must(g.spawn(i, cpu, args, stderr)))
	}
}

// Close ends the children, first by closing their control connections, and kills all other processes
// that were started in the namespaces. It returns when the children are gone. The kernel then takes
// down namespaces and links, a few milliseconds later. Calls after the first do nothing.
func (g *group) Close() error { return g.CloseWithin(closeGrace) }

// CloseWithin is Close with another grace for the children.
func (g *group) CloseWithin(grace time.Duration) (err error) {
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
		for _, c := range g.closers {
			err = errors.Join(err, c())
		}
		for _, ns := range g.spaces {
			ns.Close()
		}
	})
	return err
}

// A place is where an interface is.
type place struct {
	ns   netns.NsHandle
	name string
}

// readyTime is how long the kernel may take to have interfaces ready.
const readyTime = 20 * time.Second

// ready waits until interfaces are operational: the kernel activates queues some time after the
// other end came up, and silently drops frames until then.
func ready(places ...place) {
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
			fail.If(err)
		default:
			time.Sleep(time.Millisecond)
		}
	}
}

// Config of an unnamed bed.
type Config struct {
	Args   []string  // arguments with which this program becomes a child
	Pairs  []Pair    // veth pairs between the two children
	CPUs   [2]int    // CPU on which each child runs all its threads; -1: anywhere
	Stderr io.Writer // the children's standard error, one write at a time; nil: discarded

	// Through joins each pair through a [Middle] of its own.
	Through bool
}

// Bed is two child processes in network namespaces of their own, joined by
// veth pairs. Methods are for one goroutine, Close for any.
type Bed struct{ *group }

// Start makes a bed. On an error nothing is left of it.
func Start(cfg Config) (_ *Bed, err error) {
	g := newGroup()
	defer g.endIf(&err)
	defer fail.Catch(&err)
	g.grow(2)
	var ends [2][]End
	for _, p := range cfg.Pairs {
		fail.During("pair "+p.Names[0], func() {
			for i, e := range g.connect(p, cfg.Through) {
				ends[i] = append(ends[i], e)
			}
		})
	}
	g.children(cfg.Args, cfg.CPUs[:], cfg.Stderr)
	for i, s := range g.sides {
		s.Ends = ends[i]
	}
	return &Bed{g}, nil
}

// Middles are those of the pairs, in the order of Config.Pairs; none without Through. They are closed with the bed.
func (b *Bed) Middles() []*Middle { return b.middles }

// Side returns side 0 or 1.
func (b *Bed) Side(i int) *Side { return b.sides[i] }

// Ended returns which child has ended by itself and how, if one does within the given time; nil:
// both run.
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

// A Site is two namespaces joined through a [Middle], or directly. Processes inside come and go:
// one can be killed, and another started with the same addresses.
//
// Methods may be called concurrently, but for Replug and Close.
type Site struct {
	*group
	Ends   [2]End
	Middle *Middle // nil: joined directly

	pair Pair
}

// NewSite makes a site with one pair, which leads through a Middle, or else has as many queues as it says. On an
// error nothing is left of it.
func NewSite(p Pair, through bool) (_ *Site, err error) {
	s := &Site{group: newGroup(), pair: p}
	defer s.endIf(&err)
	defer fail.Catch(&err)
	s.grow(2)
	s.Ends = s.connect(p, through)
	if through {
		s.Middle = s.middles[0]
	}
	return s, nil
}

// Replug replaces a side's removed interface by a new one of the same name and addresses. mac is
// its hardware address; nil: any. The other side's interface, the faults and the counters stay.
// The site must have a Middle.
func (s *Site) Replug(side int, mac net.HardwareAddr) error {
	return fail.Try(func() { s.Ends[side] = s.Middle.replug(s.two(), s.pair, side, mac) })
}
