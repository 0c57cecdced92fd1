package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Mode is the place in the receive path where the program runs.
type Mode int

const (
	// Native is in the driver, before the kernel makes a socket buffer.
	Native Mode = iota
	// Generic is after the driver; every interface has it. All frames arrive on
	// queue 0 there, except from drivers that record the queue.
	Generic
)

// PageMTU is the largest MTU of a veth for a native program that does not take
// multi-buffer frames: the frame must fit a page of 4 KB (veth_xdp_set,
// drivers/net/veth.c). The limit of other drivers differs by some bytes.
const PageMTU = 3506

func (m Mode) String() string {
	if m < Native || m > Generic {
		return fmt.Sprintf("Mode(%d)", int(m))
	}
	return [...]string{Native: "native", Generic: "generic"}[m]
}

// Attached is the XDP program of an interface.
type Attached struct {
	ID   uint32 // the kernel's ID of the program
	Name string // empty if unknown; reading it takes CAP_SYS_ADMIN
	Mode Mode   // Native also for a program that is offloaded to the NIC
}

func (a Attached) String() string {
	if a.Name == "" {
		return fmt.Sprintf("program %d (%s mode)", a.ID, a.Mode)
	}
	return fmt.Sprintf("program %d %q (%s mode)", a.ID, a.Name, a.Mode)
}

// IsDemux reports whether a program is a demux program of any process. It
// compares the name and returns false if the name is unknown.
func IsDemux(a Attached) bool { return a.Name == demuxProgViaDemux }

// AttachedTo returns the XDP program of an interface in the calling thread's
// network namespace; ok is false if it has none. It needs no privilege.
func AttachedTo(ifindex int) (a Attached, ok bool, err error) {
	l, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return a, false, fmt.Errorf("bpf: interface %d: %w", ifindex, err)
	}
	a, ok = attachedTo(l)
	return a, ok, nil
}

func attachedTo(l netlink.Link) (a Attached, ok bool) {
	x := l.Attrs().Xdp
	if x == nil || !x.Attached {
		return a, false
	}
	a.ID = x.ProgId
	if x.AttachMode == nl.XDP_ATTACHED_SKB {
		a.Mode = Generic
	}
	p, err := ebpf.NewProgramFromID(ebpf.ProgramID(x.ProgId))
	if err != nil {
		return a, true
	}
	defer p.Close()
	if info, err := p.Info(); err == nil {
		a.Name = info.Name
	}
	return a, true
}

// BusyError is returned if an interface already has an XDP program of another
// owner. It matches EBUSY with [errors.Is].
type BusyError struct {
	Ifindex   int
	Interface string
	Program   Attached
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("bpf: interface %s (%d) already has XDP %s: stop its owner, or use another interface",
		e.Interface, e.Ifindex, e.Program)
}

// Unwrap returns EBUSY.
func (e *BusyError) Unwrap() error { return unix.EBUSY }

// attach makes the bpf_link. The kernel refuses to replace another program by a
// link in any mode (dev_xdp_attach in net/core/dev.c). A check beforehand is
// therefore not needed, and there is no race.
func attach(p *ebpf.Program, ifindex int, mode Mode) (link.Link, error) {
	var flags link.XDPAttachFlags
	switch mode {
	case Native:
		flags = link.XDPDriverMode
	case Generic:
		flags = link.XDPGenericMode
	default:
		return nil, fmt.Errorf("bpf: mode is %s, want native or generic", mode)
	}
	l, err := link.AttachXDP(link.XDPOptions{Program: p, Interface: ifindex, Flags: flags})
	if err == nil {
		return l, nil
	}
	op := fmt.Sprintf("attach to interface %d in %s mode", ifindex, mode)
	nic, lookErr := netlink.LinkByIndex(ifindex)
	if lookErr != nil {
		// The kernel returns EINVAL for this as for many other errors.
		return nil, attachError(op, unix.ENODEV, mode, 0)
	}
	name := nic.Attrs().Name
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST) {
		if other, ok := attachedTo(nic); ok {
			return nil, &BusyError{Ifindex: ifindex, Interface: name, Program: other}
		}
	}
	op = fmt.Sprintf("attach to interface %s (%d) in %s mode", name, ifindex, mode)
	return nil, attachError(op, err, mode, nic.Attrs().MTU)
}
