package testbed

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"
)

// A MissingError says that this machine, or this process, lacks something
// without which the work cannot be done at all.
type MissingError struct {
	What   string // the capability or kernel option by name; empty: see Err
	Remedy string // what to do about it
	Err    error  // what the kernel said; may be nil
}

// Error is one line: what is missing and the remedy.
func (e *MissingError) Error() string {
	if e.What == "" {
		return "cannot run here: " + e.Err.Error()
	}
	s := "cannot run here: " + e.What + " is missing"
	if strings.Contains(e.What, ", ") {
		s = "cannot run here: " + e.What + " are missing"
	}
	if e.Err != nil {
		s += " (" + e.Err.Error() + ")"
	}
	return s + "; " + e.Remedy
}

// Unwrap returns the kernel's error.
func (e *MissingError) Unwrap() error { return e.Err }

// CannotRun marks an error that names by itself what is missing.
func CannotRun(err error) error { return &MissingError{Err: err} }

// A Need is one thing that [Require] can test for.
type Need int

// What a command may need.
const (
	Namespaces Need = iota // to make network namespaces and veth pairs
	Sockets                // to open AF_XDP sockets
	Programs               // to load and attach XDP programs
)

// capability numbers of linux/capability.h with the names people know.
var capabilityNames = map[int]string{
	unix.CAP_NET_ADMIN: "CAP_NET_ADMIN",
	unix.CAP_NET_RAW:   "CAP_NET_RAW",
	unix.CAP_SYS_ADMIN: "CAP_SYS_ADMIN",
	unix.CAP_BPF:       "CAP_BPF",
}

// Require tests for each need and returns a [*MissingError] that names all
// missing capabilities, or the first missing kernel option, with the remedy.
func Require(needs ...Need) error {
	has, err := effectiveCapabilities()
	if err != nil {
		return err
	}
	if missing := missingCapabilities(has, needs); len(missing) > 0 {
		return &MissingError{
			What:   strings.Join(missing, ", "),
			Remedy: "run it as root (sudo), or give the container these capabilities",
		}
	}
	for _, n := range needs {
		if err := requireKernel(n); err != nil {
			return err
		}
	}
	return nil
}

func missingCapabilities(has uint64, needs []Need) (missing []string) {
	need := func(c int) {
		if name := capabilityNames[c]; has&(1<<c) == 0 && !slices.Contains(missing, name) {
			missing = append(missing, name)
		}
	}
	for _, n := range needs {
		switch n {
		case Namespaces:
			need(unix.CAP_SYS_ADMIN)
			need(unix.CAP_NET_ADMIN)
		case Sockets:
			need(unix.CAP_NET_RAW)
		case Programs:
			need(unix.CAP_NET_ADMIN)
			// CAP_SYS_ADMIN stands for CAP_BPF, capabilities(7).
			if has&(1<<unix.CAP_SYS_ADMIN) == 0 {
				need(unix.CAP_BPF)
			}
		}
	}
	return missing
}

func requireKernel(n Need) error {
	switch n {
	case Sockets:
		fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return explain(err, "AF_XDP socket")
		}
		return unix.Close(fd)
	case Programs:
		if err := features.HaveProgramType(ebpf.XDP); err != nil {
			return explain(err, "XDP program")
		}
		if err := features.HaveMapType(ebpf.XSKMap); err != nil {
			return explain(err, "XSKMAP")
		}
	}
	return nil
}

// refusals are those of the kernel that mean that it was built without an option, by what was to be made; "": by
// anything. module is the one that has it.
var refusals = []struct {
	err                   error
	doing, option, module string
}{
	{unix.EAFNOSUPPORT, "", "CONFIG_XDP_SOCKETS", ""},
	{ebpf.ErrNotSupported, "XSKMAP", "CONFIG_XDP_SOCKETS", ""},
	{unix.ENOSYS, "XSKMAP", "CONFIG_XDP_SOCKETS", ""},
	{ebpf.ErrNotSupported, "", "CONFIG_BPF_SYSCALL", ""},
	{unix.ENOSYS, "", "CONFIG_BPF_SYSCALL", ""},
	{unix.EOPNOTSUPP, "veth pair", "CONFIG_VETH", "veth"},
	{unix.EOPNOTSUPP, "bridge", "CONFIG_BRIDGE", "bridge"},
	{unix.EINVAL, "network namespace", "CONFIG_NET_NS", ""},
}

// explain turns the kernel's refusal to make something into a MissingError
// where the refusal means that the machine cannot do it, and returns any other
// error with its context; nil without an error.
func explain(err error, doing string) error {
	if err == nil {
		return nil
	}
	for _, r := range refusals {
		if !errors.Is(err, r.err) || r.doing != "" && r.doing != doing {
			continue
		}
		m := &MissingError{What: "kernel option " + r.option, Err: err, Remedy: "use a kernel that is built with it"}
		if r.module != "" {
			m.Remedy += " (or load the module: modprobe " + r.module + ")"
		}
		return m
	}
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return &MissingError{
			What: "permission for " + doing, Err: err,
			Remedy: "run it as root, outside of a sandbox that filters this system call",
		}
	}
	return fmt.Errorf("%s: %w", doing, err)
}

func effectiveCapabilities() (uint64, error) {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData // version 3 fills two, capget(2)
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return 0, fmt.Errorf("capget: %w", err)
	}
	return uint64(data[1].Effective)<<32 | uint64(data[0].Effective), nil
}
