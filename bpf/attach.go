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

// Mode is where in the receive path the program runs.
type Mode int

const (
	// Native is in the driver, before the kernel makes a socket buffer.
	Native Mode = iota
	// Generic is behind the driver; every interface has it. All frames come in
	// on queue 0 there, but for drivers that record the queue.
	Generic
)

// PageMTU is the largest MTU of a veth for a native program that does not take
// multi-buffer frames: what a page of 4 KB leaves (veth_xdp_set,
// drivers/net/veth.c). Other drivers differ by some bytes.
const PageMTU = 3506

func (m Mode) String() string {
	switch m {
	case Native:
		return "native"
	case Generic:
		return "generic"
	}
	return fmt.Sprintf("Mode(%d)", int(m))
}

// Attached is the XDP program of an interface.
type Attached struct {
	ID   uint32 // the kernel's number of the program
	Name string // empty: not known, which takes CAP_SYS_ADMIN
	Mode Mode   // Native also stands for a program in the NIC itself
}

func (a Attached) String() string {
	if a.Name == "" {
		return fmt.Sprintf("program %d (%s mode)", a.ID, a.Mode)
	}
	return fmt.Sprintf("program %d %q (%s mode)", a.ID, a.Name, a.Mode)
}

// IsDemux tells whether a program is a demux program, of whatever process: by
// its name, so far as that can be seen.
func IsDemux(a Attached) bool { return a.Name == demuxProgViaDemux }

// AttachedTo asks what XDP program an interface of the calling thread's network
// namespace has; ok is false if it has none. It needs no privilege.
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

// BusyError says that an interface has an XDP program of somebody else. It
// matches EBUSY with [errors.Is].
type BusyError struct {
	Ifindex   int
	Interface string
	Program   Attached
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("bpf: interface %s (%d) already has XDP %s: stop its owner, or take another interface",
		e.Interface, e.Ifindex, e.Program)
}

// Unwrap gives EBUSY.
func (e *BusyError) Unwrap() error { return unix.EBUSY }

// attach makes the bpf_link. The kernel refuses to put one in the place of
// another program, in whatever mode (dev_xdp_attach in net/core/dev.c), so
// that there is no need to look first, nor time for a race.
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
		// The kernel says EINVAL for it, as for much else.
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
