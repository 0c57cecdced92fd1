package bpf

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"
)

// Error is a failed call into the kernel.
type Error struct {
	Op   string // the operation that failed
	Err  error  // the cause; matches the errno with [errors.Is]
	Hint string // the likely reason and remedy; may be empty
}

func (e *Error) Error() string {
	s := "bpf: " + e.Op + ": " + e.Err.Error()
	if e.Hint != "" {
		s += ": " + e.Hint
	}
	return s
}

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
