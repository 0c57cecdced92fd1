//go:build linux

// Command guest is the first process, and the only one, that the virtual machine
// starts: it makes the machine as the plan wants it, runs the plan's steps,
// reports each over the second serial port and turns the machine off.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"viaxdp/internal/base/thread"
	"viaxdp/internal/lab/veth"
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
	p, err := readPlan()
	if err == nil {
		err = prepare(p)
	}
	if err != nil {
		out.send(plan.Event{Status: -1, Error: err.Error()})
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
	home, err := netns.Get()
	if err != nil {
		return err
	}
	var peer netns.NsHandle
	thread.Run(func() { peer, err = netns.NewNamed(filepath.Base(plan.Peer)) })
	if err != nil {
		return fmt.Errorf("namespace: %w", err)
	}
	for i := range plan.NICs {
		if err := await(home, plan.NIC(i), "not there", func(netlink.Link) bool { return true }); err != nil {
			return err
		}
		if p.Queues > 0 {
			if err := setQueues(plan.NIC(i), p.Queues); err != nil {
				return err
			}
		}
	}
	err = veth.OnLink(home, plan.NIC(1), func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetNsFd(l, int(peer)) })
	if err != nil {
		return fmt.Errorf("%s to namespace: %w", plan.NIC(1), err)
	}
	for i, ns := range []netns.NsHandle{home, peer} {
		v4, v6 := netip.MustParsePrefix(fmt.Sprintf(plan.IPv4+"/24", i+1)), netip.MustParsePrefix(fmt.Sprintf(plan.IPv6+"/64", i+1))
		if _, err := veth.Up(ns, plan.NIC(i), v4, v6); err != nil {
			return fmt.Errorf("%s: %w", plan.NIC(i), err)
		}
		running := func(l netlink.Link) bool { return l.Attrs().RawFlags&unix.IFF_RUNNING != 0 }
		if err := await(ns, plan.NIC(i), "without a link", running); err != nil {
			return err
		}
	}
	return nil
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

// waitLimit is how long drivers may take, by a processor that is emulated on a
// machine with much else to do.
const waitLimit = time.Minute

// await waits until an interface is as wanted: drivers look for their devices, and for a link, beside us.
func await(ns netns.NsHandle, name, what string, ok func(netlink.Link) bool) error {
	for end := time.Now().Add(waitLimit); ; time.Sleep(10 * time.Millisecond) {
		fine := false
		err := veth.OnLink(ns, name, func(_ *netlink.Handle, l netlink.Link) error {
			fine = ok(l)
			return nil
		})
		switch {
		case err == nil && fine:
			return nil
		case time.Now().After(end):
			return errors.Join(fmt.Errorf("interface %s is %s after %v", name, what, waitLimit), err)
		}
	}
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
