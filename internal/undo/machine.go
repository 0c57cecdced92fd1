package undo

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/thread"
)

// Machine is the machine that the program runs on; interfaces are those of the
// calling thread's network namespace.
type Machine struct{}

// Where is the thread's namespace and the index of an interface in it.
func (Machine) Where(name string) (netns uint64, ifindex int, err error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return 0, 0, err
	}
	netns, err = inode("/proc/thread-self/ns/net")
	return netns, l.Attrs().Index, err
}

func inode(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return st.Ino, nil
}

// Enter calls f in the interface's namespace, on another thread if that is not
// the caller's. A namespace that has neither a name nor a process in it is taken
// for gone; so is an interface with another index.
func (m Machine) Enter(c Change, f func() error) error {
	if c.Interface == "" {
		return f()
	}
	inside := func() error {
		if _, i, err := m.Where(c.Interface); err != nil || i != c.Ifindex {
			return ErrGone
		}
		return f()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if here, err := inode("/proc/thread-self/ns/net"); err != nil || here == c.Netns {
		return errors.Join(err, inside())
	}
	path := findNamespace(c.Netns)
	if path == "" {
		return ErrGone
	}
	ns, err := os.Open(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	return thread.In(int(ns.Fd()), inside)
}

// findNamespace looks for a network namespace among those with a name and those
// of processes.
func findNamespace(want uint64) string {
	for _, pattern := range []string{"/run/netns/*", "/proc/[0-9]*/ns/net"} {
		paths, _ := filepath.Glob(pattern)
		for _, p := range paths {
			if ino, err := inode(p); err == nil && ino == want {
				return p
			}
		}
	}
	return ""
}

// Get reads a setting.
func (m Machine) Get(s Setting) (string, error) {
	switch s.Kind {
	case File:
		if err := allowed(s.Name); err != nil {
			return "", err
		}
		return readFile(s.Name)
	case NetFile:
		path, err := NetPath(s.Interface, s.Name)
		if err != nil {
			return "", err
		}
		return readFile(path)
	case Link:
		l, err := netlink.LinkByName(s.Interface)
		if err != nil {
			return "", err
		}
		if l.Attrs().RawFlags&unix.IFF_UP != 0 {
			return "up", nil
		}
		return "down", nil
	}
	e, err := ethtool.NewEthtool()
	if err != nil {
		return "", err
	}
	defer e.Close()
	switch s.Kind {
	case Feature:
		all, err := e.Features(s.Interface)
		if err != nil {
			return "", err
		}
		on, ok := all[s.Name]
		if !ok {
			return "", fmt.Errorf("the kernel knows no feature %q", s.Name)
		}
		return onOff(on), nil
	case Coalesce:
		c, err := e.GetCoalesce(s.Interface)
		if err != nil {
			return "", err
		}
		return getField(coalesceField(&c, s.Name), strings.HasPrefix(s.Name, "adaptive"), s)
	case Ring:
		r, err := e.GetRing(s.Interface)
		if err != nil {
			return "", err
		}
		return getField(ringField(&r, s.Name), false, s)
	}
	return "", fmt.Errorf("unknown kind of setting %q", s.Kind)
}

// Set changes a setting.
func (m Machine) Set(s Setting, value string) error {
	switch s.Kind {
	case File:
		if err := allowed(s.Name); err != nil {
			return err
		}
		return writeFile(s.Name, value)
	case NetFile:
		if !slices.Contains(netFiles, s.Name) {
			return fmt.Errorf("%q is no setting of an interface that is changed here: want one of %q", s.Name, netFiles)
		}
		path, err := NetPath(s.Interface, s.Name)
		if err != nil {
			return err
		}
		return writeFile(path, value)
	case Link:
		l, err := netlink.LinkByName(s.Interface)
		if err != nil {
			return err
		}
		if value == "up" {
			return netlink.LinkSetUp(l)
		}
		return netlink.LinkSetDown(l)
	}
	e, err := ethtool.NewEthtool()
	if err != nil {
		return err
	}
	defer e.Close()
	switch s.Kind {
	case Feature:
		if err := e.Change(s.Interface, map[string]bool{s.Name: value == "on"}); err != nil {
			return err
		}
		if now, err := m.Get(s); err != nil || now != value {
			return errors.Join(err, fmt.Errorf("the driver keeps it %s", now))
		}
		return nil
	case Coalesce:
		c, err := e.GetCoalesce(s.Interface)
		if err == nil {
			err = setField(coalesceField(&c, s.Name), value, s)
		}
		if err == nil {
			_, err = e.SetCoalesce(s.Interface, c)
		}
		return err
	case Ring:
		r, err := e.GetRing(s.Interface)
		if err == nil {
			err = setField(ringField(&r, s.Name), value, s)
		}
		if err == nil {
			_, err = e.SetRing(s.Interface, r)
		}
		return err
	}
	return fmt.Errorf("unknown kind of setting %q", s.Kind)
}

func coalesceField(c *ethtool.Coalesce, name string) *uint32 {
	switch name {
	case "rx-usecs":
		return &c.RxCoalesceUsecs
	case "tx-usecs":
		return &c.TxCoalesceUsecs
	case "adaptive-rx":
		return &c.UseAdaptiveRxCoalesce
	case "adaptive-tx":
		return &c.UseAdaptiveTxCoalesce
	}
	return nil
}

func ringField(r *ethtool.Ring, name string) *uint32 {
	switch name {
	case "rx":
		return &r.RxPending
	case "tx":
		return &r.TxPending
	}
	return nil
}

func getField(field *uint32, boolean bool, s Setting) (string, error) {
	switch {
	case field == nil:
		return "", fmt.Errorf("unknown setting %s", s)
	case boolean:
		return onOff(*field != 0), nil
	}
	return strconv.Itoa(int(*field)), nil
}

func setField(field *uint32, value string, s Setting) error {
	if field == nil {
		return fmt.Errorf("unknown setting %s", s)
	}
	switch value {
	case "on":
		*field = 1
	case "off":
		*field = 0
	default:
		n, err := strconv.ParseUint(value, 10, 32)
		if err != nil {
			return err
		}
		*field = uint32(n)
	}
	return nil
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// NetPath is the path of an interface's file in sysfs. Sysfs shows the
// interfaces of the namespace that it was mounted in, which need not be the
// thread's: an error then.
func NetPath(name, file string) (string, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return "", err
	}
	dir := "/sys/class/net/" + name
	index, err1 := readFile(dir + "/ifindex")
	mac, err2 := readFile(dir + "/address")
	if err1 != nil || err2 != nil || index != strconv.Itoa(l.Attrs().Index) || mac != l.Attrs().HardwareAddr.String() {
		return "", fmt.Errorf("%s is of another network namespace: run it by ip netns exec", dir)
	}
	return filepath.Join(dir, filepath.Base(file)), nil
}

// The files that doctor and tune change: of the host, as patterns, and of an
// interface.
var (
	hostFiles = []string{
		"/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
		"/sys/kernel/mm/transparent_hugepage/enabled",
		"/sys/devices/system/node/node*/hugepages/hugepages-2048kB/nr_hugepages",
		"/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
		"/sys/devices/system/cpu/cpu*/cpuidle/state*/disable",
	}
	netFiles = []string{"gro_flush_timeout", "napi_defer_hard_irqs", "threaded"}
)

// allowed keeps a damaged list from naming just any file.
func allowed(path string) error {
	for _, pattern := range hostFiles {
		if ok, _ := filepath.Match(pattern, path); ok {
			return nil
		}
	}
	return fmt.Errorf("%q is no setting that is changed here: want one of %q", path, hostFiles)
}

// readFile reads the value of a file: the word in brackets where the kernel
// lists what there is, as in "always [madvise] never".
func readFile(path string) (string, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s: %w", path, ErrGone)
	}
	if err != nil {
		return "", err
	}
	s := strings.TrimSpace(string(b))
	if _, chosen, ok := strings.Cut(s, "["); ok {
		if word, _, ok := strings.Cut(chosen, "]"); ok {
			return word, nil
		}
	}
	return s, nil
}

func writeFile(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
