//go:build linux

// Command guest is the first and only process that the lane's virtual machine
// starts: it makes the machine as the plan wants it, runs the plan's steps,
// reports each over the second serial port and turns the machine off.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/vm/plan"
)

func main() {
	// Whatever happens, the machine ends: the host waits for it.
	defer off()
	defer func() {
		if p := recover(); p != nil {
			fmt.Println("guest:", p)
		}
	}()
	if err := mounts(); err != nil {
		fmt.Println("guest:", err)
		return
	}
	out, err := openResults()
	if err != nil {
		fmt.Println("guest:", err)
		return
	}
	start := time.Now()
	fail := func(err error) {
		out.send(plan.Event{Status: -1, Error: err.Error()})
	}
	p, err := readPlan()
	if err == nil {
		err = prepare(p)
	}
	if err != nil {
		fail(err)
		return
	}
	out.send(plan.Event{Step: "boot", Seconds: uptime()})
	runSteps(p, out)
	out.send(plan.Event{Done: true, Seconds: time.Since(start).Seconds()})
}

func readPlan() (p plan.Plan, err error) {
	b, err := os.ReadFile(plan.Path)
	if err != nil {
		return p, err
	}
	return p, json.Unmarshal(b, &p)
}

// results is the serial port to the host.
type results struct{ f *os.File }

func openResults() (*results, error) {
	f, err := os.OpenFile(plan.Results, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	// As a terminal it would echo and translate.
	t, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err == nil {
		t.Iflag, t.Oflag, t.Lflag = 0, 0, 0
		err = unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, t)
	}
	return &results{f}, err
}

// send writes an event and waits until it is out.
func (r *results) send(e plan.Event) {
	b, err := json.Marshal(e)
	if err == nil {
		_, err = r.f.Write(append(b, '\n'))
	}
	if err == nil {
		err = unix.IoctlSetInt(int(r.f.Fd()), unix.TCSBRK, 1) // tcdrain(3)
	}
	if err != nil {
		fmt.Println("guest: results:", err)
	}
}

func uptime() float64 {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano()).Seconds()
}

// off ends the machine.
func off() {
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Println("guest: power off:", err)
	}
}

// mounts makes the file systems that programs expect.
func mounts() error {
	for _, m := range []struct{ kind, on string }{
		{"devtmpfs", "/dev"}, {"proc", "/proc"}, {"sysfs", "/sys"}, {"bpf", "/sys/fs/bpf"},
		{"tmpfs", "/tmp"}, {"tmpfs", "/run"}, {"tmpfs", "/dev/shm"},
	} {
		if err := os.MkdirAll(m.on, 0o755); err != nil {
			return err
		}
		// The kernel may have mounted /dev.
		if err := unix.Mount(m.kind, m.on, m.kind, 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s: %w", m.on, err)
		}
	}
	return os.MkdirAll("/run/netns", 0o755)
}

// prepare loads the modules and sets up the NICs: the first one here, the
// second in the peer's namespace.
func prepare(p plan.Plan) error {
	for _, path := range p.Modules {
		if err := load(path); err != nil {
			return err
		}
	}
	for i := range p.NICs {
		if err := await(fmt.Sprintf("eth%d", i)); err != nil {
			return err
		}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := up("lo", 0); err != nil {
		return err
	}
	for i := range p.NICs {
		if p.Queues > 0 {
			if err := setQueues(fmt.Sprintf("eth%d", i), p.Queues); err != nil {
				return err
			}
		}
	}
	if p.NICs < 2 {
		return up("eth0", 1)
	}
	home, err := netns.Get()
	if err != nil {
		return err
	}
	defer home.Close()
	peer, err := netns.NewNamed(filepath.Base(plan.Peer))
	if err != nil {
		return fmt.Errorf("namespace: %w", err)
	}
	defer peer.Close()
	if err := netns.Set(home); err != nil {
		return err
	}
	second, err := netlink.LinkByName("eth1")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetNsFd(second, int(peer)); err != nil {
		return fmt.Errorf("eth1 to namespace: %w", err)
	}
	if err := up("eth0", 1); err != nil {
		return err
	}
	if err := netns.Set(peer); err != nil {
		return err
	}
	return errors.Join(up("lo", 0), up("eth1", 2), netns.Set(home))
}

func load(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("module %s: %w", filepath.Base(path), err)
	}
	return nil
}

// patience is how long drivers may take, by a processor that is emulated on a
// machine with much else to do.
const waitLimit = time.Minute

// await waits for an interface: drivers look for their devices beside us.
func await(name string) error {
	for end := time.Now().Add(waitLimit); ; time.Sleep(10 * time.Millisecond) {
		if _, err := netlink.LinkByName(name); err == nil {
			return nil
		}
		if time.Now().After(end) {
			links, _ := netlink.LinkList()
			var names []string
			for _, l := range links {
				names = append(names, l.Attrs().Name)
			}
			return fmt.Errorf("no interface %s after %v, but %s", name, waitLimit, strings.Join(names, ", "))
		}
	}
}

// up takes an interface up, with the addresses of NIC n if it is one, and waits
// for the link.
func up(name string, n int) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if n > 0 {
		for _, a := range []struct {
			form string
			bits int
		}{{plan.IPv4, 24}, {plan.IPv6, 64}} {
			ip := net.ParseIP(fmt.Sprintf(a.form, n))
			size := 128
			if v4 := ip.To4(); v4 != nil {
				ip, size = v4, 32
			}
			addr := &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(a.bits, size)}, Flags: unix.IFA_F_NODAD}
			if err := netlink.AddrAdd(l, addr); err != nil {
				return fmt.Errorf("%s: address %s: %w", name, ip, err)
			}
		}
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return fmt.Errorf("%s up: %w", name, err)
	}
	for end := time.Now().Add(waitLimit); n > 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if l, err := netlink.LinkByName(name); err == nil && l.Attrs().RawFlags&unix.IFF_RUNNING != 0 {
			break
		}
	}
	return nil
}

// setQueues turns queue pairs on.
func setQueues(name string, n int) error {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return err
	}
	defer e.Close()
	c, err := e.GetChannels(name)
	if err != nil {
		return fmt.Errorf("%s: queues: %w", name, err)
	}
	if c.CombinedCount == uint32(n) {
		return nil
	}
	c.CombinedCount = uint32(n)
	if _, err := e.SetChannels(name, c); err != nil {
		return fmt.Errorf("%s: %d queues (of %d): %w", name, n, c.MaxCombined, err)
	}
	return nil
}
