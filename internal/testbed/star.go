package testbed

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// MaxStar is the most namespaces of a Star: as many hosts as XDPNet4 has.
const MaxStar = 250

// Star is network namespaces without a name, each with an interface, that reach
// each other: two by a veth pair, more by a bridge in a namespace of its own.
// They last as long as the Star, and the processes that were started in them.
// Methods are for one goroutine, Close for any.
//
//	via0 ---- via0          via0   via0   via0
//	  0         1             |      |      |
//	                        ==+======+======+== bridge
type Star struct {
	keeper *keeper
	spaces []netns.NsHandle // the hub, if there is one, is the last
	Ends   []End            // one of each namespace
	sieve  sieve            // of a lossy one
	sides  []*Side          // of Children
}

// StarInterface is the name of the interface in each namespace of a Star.
const StarInterface = "via0"

// NewStar makes n namespaces, 1 to MaxStar, joined with an MTU. Without the
// privilege for it the error is a *MissingError. On an error nothing is left.
func NewStar(n, mtu int) (*Star, error) { return newStar(n, mtu, n != 2) }

func newStar(n, mtu int, hub bool) (_ *Star, err error) {
	if n < 1 || n > MaxStar {
		return nil, fmt.Errorf("%d namespaces: 1 to %d can be joined", n, MaxStar)
	}
	pair := Pair{Names: [2]string{StarInterface, StarInterface}, Net4: XDPNet4, Net6: XDPNet6, MTU: mtu}
	if err := pair.check(); err != nil {
		return nil, err
	}
	if err := Require(Namespaces); err != nil {
		return nil, err
	}
	s := &Star{keeper: newKeeper()}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	spaces := n
	if hub {
		spaces++
	}
	for range spaces {
		var ns netns.NsHandle
		s.keeper.do(func() {
			if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
				err = explain(err, "network namespace")
				return
			}
			ns, err = netns.Get()
		})
		if err != nil {
			return nil, err
		}
		s.spaces = append(s.spaces, ns)
	}
	if !hub {
		ends, err := join([2]netns.NsHandle{s.spaces[0], s.spaces[1]}, pair)
		s.Ends = ends[:]
		if err != nil {
			return nil, err
		}
	} else if err := s.bridge(n, mtu); err != nil {
		return nil, err
	}
	return s, s.ready()
}

// ready waits until all interfaces are up, which takes the kernel a moment:
// programs that look before see none.
func (s *Star) ready() error {
	for i := range s.Ends {
		h, err := netlink.NewHandleAt(s.spaces[i], unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		for end := time.Now().Add(readyTime); ; time.Sleep(time.Millisecond) { // until the kernel's link watch has run
			l, err := h.LinkByName(StarInterface)
			if err == nil && l.Attrs().OperState == netlink.OperUp {
				break
			}
			if time.Now().After(end) {
				h.Close()
				return fmt.Errorf("namespace %d: the interface did not come up in %v: %w", i, readyTime, err)
			}
		}
		h.Close()
	}
	return nil
}

const readyTime = 20 * time.Second

// bridge joins the namespaces in the last one.
func (s *Star) bridge(n, mtu int) error {
	hub, err := netlink.NewHandleAt(s.spaces[n], unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("netlink in the hub: %w", err)
	}
	defer hub.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = "hub", mtu
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	if err := hub.LinkAdd(bridge); err != nil {
		if errors.Is(err, unix.EOPNOTSUPP) {
			err = &MissingError{What: "kernel option CONFIG_BRIDGE", Err: err,
				Remedy: "use a kernel that is built with it (or load the module: modprobe bridge)"}
		}
		return fmt.Errorf("bridge: %w", err)
	}
	if err := hub.LinkSetUp(bridge); err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	for i := range n {
		end, err := s.spoke(hub, bridge, i, mtu)
		if err != nil {
			return fmt.Errorf("namespace %d: %w", i, err)
		}
		s.Ends = append(s.Ends, end)
	}
	return nil
}

// spokeName is the hub's end of the pair with namespace i.
func spokeName(i int) string { return fmt.Sprint("spoke", i) }

// spoke joins namespace i with the hub.
func (s *Star) spoke(hub *netlink.Handle, bridge netlink.Link, i, mtu int) (End, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.MasterIndex = spokeName(i), mtu, bridge.Attrs().Index
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNamespace, veth.PeerMTU = StarInterface, netlink.NsFd(s.spaces[i]), uint32(mtu)
	if err := hub.LinkAdd(veth); err != nil {
		return End{}, explain(err, "veth pair")
	}
	if err := hub.LinkSetUp(veth); err != nil {
		return End{}, err
	}
	h, err := netlink.NewHandleAt(s.spaces[i], unix.NETLINK_ROUTE)
	if err != nil {
		return End{}, err
	}
	defer h.Close()
	return bringUp(h, StarInterface, nth(XDPNet4, i+1), nth(XDPNet6, i+1))
}

// Start starts a process in namespace i, on one CPU, or with -1 on any. It is the
// leader of a process group, and gets SIGKILL when this process ends or the Star
// is closed, whatever else becomes of it.
func (s *Star) Start(i, cpu int, cmd *exec.Cmd) (err error) {
	if i < 0 || i >= len(s.Ends) {
		return fmt.Errorf("no namespace %d of %d", i, len(s.Ends))
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	s.keeper.do(func() {
		if err = netns.Set(s.spaces[i]); err != nil {
			return
		}
		if err = ownSysfs(); err != nil {
			return
		}
		if err = s.keeper.place(cpu); err == nil {
			err = cmd.Start()
		}
	})
	return err
}

// Spawn starts this program with args in namespace i.
func (s *Star) Spawn(i int, args []string, stderr io.Writer) (*Process, error) {
	p, err := newProcess(args, stderr, func(cmd *exec.Cmd) error { return s.Start(i, -1, cmd) })
	if err != nil {
		return nil, fmt.Errorf("process in namespace %d: %w", i, err)
	}
	return p, nil
}

// Children starts this program with args once in each namespace, each on the CPU that
// cpus has for it, -1: on any; their standard error gets one write at a time, and is
// discarded with nil. They end with the Star, first by their control connections.
func (s *Star) Children(args []string, cpus []int, stderr io.Writer) ([]*Side, error) {
	stderr = shared(stderr)
	for i := range s.Ends {
		c, err := newChild(args, stderr, func(cmd *exec.Cmd) error { return s.Start(i, cpus[i], cmd) })
		if err != nil {
			return nil, fmt.Errorf("child process %d: %w", i, err)
		}
		s.sides = append(s.sides, &Side{Pid: c.cmd.Process.Pid, Control: c.control, Ends: []End{s.Ends[i]}, child: c})
	}
	return s.sides, nil
}

// Drops are the frames that the kernel has counted as dropped by the Star's
// interfaces, of the namespaces and of the hub, whichever way they went. One frame
// may be counted at both ends of a pair.
func (s *Star) Drops() (n uint64, err error) {
	for i, ns := range s.spaces {
		h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
		if err != nil {
			return 0, err
		}
		links, err := h.LinkList()
		h.Close()
		if err != nil {
			return 0, fmt.Errorf("namespace %d: %w", i, err)
		}
		for _, l := range links {
			if st := l.Attrs().Statistics; st != nil {
				n += st.RxDropped + st.TxDropped
			}
		}
	}
	return n, nil
}

// ownSysfs gives the calling thread a /sys that shows the interfaces of its network
// namespace, as some programs look there for them; nobody else sees it.
func ownSysfs() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return explain(err, "mount namespace")
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("mounts of its own: %w", err)
	}
	// Busy: it is there already, from the process before in the same namespace.
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil && err != unix.EBUSY {
		return fmt.Errorf("mount /sys: %w", err)
	}
	return nil
}

// Close lets the namespaces go. Children end in order, other processes that were
// started in them are killed.
func (s *Star) Close() { s.CloseWithin(closeGrace) }

// CloseWithin is Close with another time that the children have.
func (s *Star) CloseWithin(grace time.Duration) {
	endSides(s.sides, grace)
	s.sides = nil
	s.keeper.end()
	s.sieve.close()
	for _, ns := range s.spaces {
		ns.Close()
	}
	s.spaces = nil
}
