package bpf

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
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

// String returns "native" or "generic".
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

// String returns ID, name if known, and mode.
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

// Error returns the interface, its program, and the remedy.
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
	if errors.As(lookErr, new(netlink.LinkNotFoundError)) || errors.Is(lookErr, unix.ENODEV) {
		// The kernel returns EINVAL for this as for many other errors.
		return nil, attachError(op, unix.ENODEV, mode, 0)
	}
	if lookErr != nil { // for lack of a descriptor, as err perhaps
		return nil, &Error{Op: op, Err: err}
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

// Error is a failed call into the kernel.
type Error struct {
	Op   string // the operation that failed
	Err  error  // the cause; matches the errno with [errors.Is]
	Hint string // the likely reason and remedy; may be empty
}

// Error returns operation, cause and remedy.
func (e *Error) Error() string {
	s := "bpf: " + e.Op + ": " + e.Err.Error()
	if e.Hint != "" {
		s += ": " + e.Hint
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// loadError explains why a program or map could not be made.
func loadError(op string, err error) error {
	e := &Error{Op: op, Err: err}
	switch {
	case errors.Is(err, unix.EPERM):
		e.Err, e.Hint = unix.EPERM, privilegeHint(missingCapabilities())
	case errors.Is(err, unix.ENOSYS):
		e.Err, e.Hint = unix.ENOSYS, "the kernel is built without CONFIG_BPF_SYSCALL"
	case errors.Is(err, unix.ENOMEM):
		e.Hint = "the memory limit of the control group leaves no room for the maps: raise it, or ask for fewer VIs"
	case errors.Is(features.HaveMapType(ebpf.XSKMap), ebpf.ErrNotSupported):
		e.Hint = "the kernel is built without CONFIG_XDP_SOCKETS"
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EACCES), errors.Is(err, ebpf.ErrNotSupported):
		e.Hint = "Linux 5.18 or newer is needed"
	}
	return e
}

// attachError explains why a program could not be attached to an interface with
// the given MTU.
func attachError(op string, err error, mode Mode, mtu int) error {
	e := &Error{Op: op, Err: err}
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return e
	}
	e.Err = errno // without the library's text around it
	switch errno {
	case unix.EPERM:
		e.Hint = privilegeHint(missingCapabilities())
	case unix.ENODEV:
		e.Hint = "there is no interface with that index in this network namespace"
	case unix.EBUSY, unix.EEXIST:
		e.Hint = "another XDP program was there a moment ago, or a bond above the interface has one"
	}
	if mode != Native {
		return e
	}
	switch errno {
	case unix.EOPNOTSUPP:
		e.Hint = "the driver has no native XDP, or not with multi-buffer frames: use generic mode"
	case unix.EINVAL, unix.ERANGE:
		e.Hint = fmt.Sprintf("the driver's native mode may not support the MTU of %d (on veth: the peer's) or LRO: "+
			"lower the MTU, switch LRO off, or use generic mode", mtu)
	case unix.ENOSPC, unix.ENOMEM:
		e.Hint = "the driver's native mode needs more queues (on veth: as many receive queues as the peer has transmit queues): " +
			"add queues with ethtool -L, or use generic mode"
	case unix.ENOTCONN:
		e.Hint = "the other end of the veth pair no longer exists"
	}
	return e
}

func privilegeHint(missing []string) string {
	if len(missing) == 0 {
		return "CAP_BPF and CAP_NET_ADMIN are held, so either they apply only in a user namespace (of a container?), " +
			"or a security module or lockdown refuses, or (before Linux 5.11) RLIMIT_MEMLOCK is too low"
	}
	return fmt.Sprintf("%s missing: run as root, or setcap cap_bpf,cap_net_admin,cap_net_raw+ep the program",
		strings.Join(missing, " and "))
}

// missingCapabilities names those of CAP_BPF and CAP_NET_ADMIN that the calling
// thread lacks. CAP_SYS_ADMIN includes both (capabilities(7)).
func missingCapabilities() []string {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return nil
	}
	has := func(capability int) bool {
		return sets[capability/32].Effective&(1<<(capability%32)) != 0
	}
	if has(unix.CAP_SYS_ADMIN) {
		return nil
	}
	var missing []string
	if !has(unix.CAP_BPF) {
		missing = append(missing, "CAP_BPF")
	}
	if !has(unix.CAP_NET_ADMIN) {
		missing = append(missing, "CAP_NET_ADMIN")
	}
	return missing
}
