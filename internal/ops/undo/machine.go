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

	"viaxdp/internal/base/thread"
)

// Machine is the machine that the program runs on; interfaces are those of the
// calling thread's network namespace.
type Machine struct{}

// Where finds an interface in the thread's network namespace.
func (Machine) Where(name string) (Place, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return Place{}, err
	}
	_, ino, err := inode(ownNetns)
	return Place{Netns: ino, Cookie: netnsCookie(), Ifindex: l.Attrs().Index}, err
}

const ownNetns = "/proc/thread-self/ns/net"

func inode(path string) (dev, ino uint64, err error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return st.Dev, st.Ino, nil
}

// netnsCookie is that of the thread's network namespace; 0 before Linux 5.14.
func netnsCookie() uint64 {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0
	}
	return cookie
}

// Enter calls f in the interface's namespace, on another thread if that is not the caller's. f gets the setting by the
// name that the interface has now. A namespace without a name and without a process counts as gone. So does one that
// matches only by its inode's number, and an interface whose index is not there. A failure to look for them is another
// error: it may pass, and the setting is still to be restored.
func (m Machine) Enter(c Change, f func(Setting) error) error {
	if c.Interface == "" {
		return f(c.Setting)
	}
	inside := func() error {
		l, err := netlink.LinkByIndex(c.Ifindex)
		if _, none := errors.AsType[netlink.LinkNotFoundError](err); none {
			return ErrGone
		}
		if err != nil {
			return err
		}
		s, own := c.Setting, netnsCookie()
		s.Interface = l.Attrs().Name
		// Without cookies only the name tells the namespace from a later one of the same inode.
		if !sameNetns(own, c.Cookie) || (own == 0 || c.Cookie == 0) && s.Interface != c.Interface {
			return ErrGone
		}
		return f(s)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	dev, here, err := inode(ownNetns)
	if err != nil {
		return err
	}
	if here == c.Netns {
		return inside()
	}
	path, err := findNamespace(dev, c.Netns)
	if err != nil {
		return err
	}
	ns, err := os.Open(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	return thread.In(int(ns.Fd()), inside)
}

// findNamespace looks for a network namespace among those with a name and those
// of processes, or returns ErrGone. All namespaces are of one device.
func findNamespace(dev, want uint64) (string, error) {
	for _, in := range []struct{ dir, file string }{{"/run/netns", ""}, {"/proc", "ns/net"}} {
		entries, err := os.ReadDir(in.dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		for _, e := range entries {
			p := filepath.Join(in.dir, e.Name(), in.file)
			if d, ino, err := inode(p); err == nil && d == dev && ino == want {
				return p, nil
			}
		}
	}
	return "", ErrGone
}

// Get reads a setting.
func (m Machine) Get(s Setting) (value string, err error) {
	switch s.Kind {
	case File, NetFile:
		path, err := s.path()
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
	err = s.ethtool(func(e *ethtool.Ethtool, field *uint32, _ func() error) error {
		if s.Kind != Feature {
			if value = strconv.Itoa(int(*field)); strings.HasPrefix(s.Name, "adaptive") {
				value = onOff(*field != 0)
			}
			return nil
		}
		all, err := e.Features(s.Interface)
		on, ok := all[s.Name]
		if err == nil && !ok {
			err = fmt.Errorf("the kernel knows no feature %q", s.Name)
		}
		value = onOff(on)
		return err
	})
	if err != nil {
		return "", err
	}
	return value, nil
}

// Set changes a setting.
func (m Machine) Set(s Setting, value string) error {
	switch s.Kind {
	case File, NetFile:
		if s.Kind == NetFile && !slices.Contains(NetFiles, s.Name) {
			return fmt.Errorf("%q is no setting of an interface that is changed here: want one of %q", s.Name, NetFiles)
		}
		path, err := s.path()
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
	return s.ethtool(func(e *ethtool.Ethtool, field *uint32, put func() error) error {
		if s.Kind != Feature {
			if err := parseField(value, field); err != nil {
				return err
			}
			return put()
		}
		if err := e.Change(s.Interface, map[string]bool{s.Name: value == "on"}); err != nil {
			return err
		}
		if now, err := m.Get(s); err != nil || now != value {
			return errors.Join(err, fmt.Errorf("the driver keeps it %s", now))
		}
		return nil
	})
}

// path is that of a setting's file.
func (s Setting) path() (string, error) {
	if s.Kind == NetFile {
		return NetPath(s.Interface, s.Name)
	}
	return s.Name, allowed(s.Name)
}

// ethtool calls f with what the driver has now: unless it is a feature, the number that is the setting, and
// what makes the driver take the number's new value.
func (s Setting) ethtool(f func(e *ethtool.Ethtool, field *uint32, put func() error) error) error {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return err
	}
	defer e.Close()
	var field *uint32
	var put func() error
	switch s.Kind {
	case Feature:
		return f(e, nil, nil)
	case Coalesce:
		c, err := e.GetCoalesce(s.Interface)
		if err != nil {
			return err
		}
		field = map[string]*uint32{
			"rx-usecs": &c.RxCoalesceUsecs, "tx-usecs": &c.TxCoalesceUsecs,
			"adaptive-rx": &c.UseAdaptiveRxCoalesce, "adaptive-tx": &c.UseAdaptiveTxCoalesce,
		}[s.Name]
		put = func() error { _, err := e.SetCoalesce(s.Interface, c); return s.absent(err) }
	case Ring:
		r, err := e.GetRing(s.Interface)
		if err != nil {
			return err
		}
		field = map[string]*uint32{"rx": &r.RxPending, "tx": &r.TxPending}[s.Name]
		put = func() error { _, err := e.SetRing(s.Interface, r); return err }
	default:
		return fmt.Errorf("unknown kind of setting %q", s.Kind)
	}
	if field == nil {
		return fmt.Errorf("unknown setting %s", s)
	}
	return f(e, field, put)
}

// absent returns ErrAbsent if a driver refuses tx-usecs because rx-usecs is that of both directions, as e1000e does, and igb and
// igc with EINVAL while the directions share interrupts.
func (s Setting) absent(err error) error {
	if s.Name == "tx-usecs" && (errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)) {
		return ErrAbsent
	}
	return err
}

// parseField sets a number to a value: "on" is 1, "off" 0.
func parseField(value string, field *uint32) error {
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
	if strings.Trim(mac, "0:.") == "" {
		mac = "" // none, as of the loopback
	}
	if err1 != nil || err2 != nil || index != strconv.Itoa(l.Attrs().Index) || mac != l.Attrs().HardwareAddr.String() {
		return "", fmt.Errorf("%s is of another network namespace: run it by ip netns exec", dir)
	}
	return filepath.Join(dir, filepath.Base(file)), nil
}

// hostFiles are the files of the host that doctor and tune change, as patterns.
var hostFiles = []string{
	"/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
	"/sys/kernel/mm/transparent_hugepage/enabled",
	"/sys/devices/system/node/node*/hugepages/hugepages-2048kB/nr_hugepages",
	"/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
	"/sys/devices/system/cpu/cpu*/cpuidle/state*/disable",
}

// NetFiles are the files of /sys/class/net/INTERFACE that they change.
var NetFiles = []string{"gro_flush_timeout", "napi_defer_hard_irqs", "threaded"}

// allowed rejects other files, in case a list is damaged.
func allowed(path string) error {
	for _, pattern := range hostFiles {
		if ok, _ := filepath.Match(pattern, path); ok {
			return nil
		}
	}
	return fmt.Errorf("%q is no setting that is changed here: want one of %q", path, hostFiles)
}

// readFile reads the value of a file as it is written: the word in brackets where the kernel lists what there is, as in
// "always [madvise] never"; without the surplus pages in nr_hugepages, which reads as the total and sets the others.
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
	if dir, name := filepath.Split(path); name == "nr_hugepages" {
		surplus, err := readFile(dir + "surplus_hugepages")
		if err != nil {
			return "", err
		}
		all, err1 := strconv.Atoi(s)
		more, err2 := strconv.Atoi(surplus)
		return strconv.Itoa(all - more), errors.Join(err1, err2)
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
