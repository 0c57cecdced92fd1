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

	"viaxdp/internal/lab/fail"
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
	var out *results
	if err := fail.Try(func() { mounts(); out = openResults() }); err != nil {
		fmt.Println("guest:", err)
		return
	}
	start := time.Now()
	var p plan.Plan
	err := fail.Try(func() {
		fail.If(json.Unmarshal(fail.Must(os.ReadFile(plan.Path)), &p))
		prepare(p)
	})
	if err != nil {
		out.send(plan.Event{Status: -1, Error: err.Error()})
		return
	}
	out.send(plan.Event{Step: "boot", Seconds: uptime()})
	runSteps(p, out)
	out.send(plan.Event{Done: true, Seconds: time.Since(start).Seconds()})
}

// results is the serial port to the host.
type results struct{ f *os.File }

func openResults() *results {
	f := fail.Must(os.OpenFile(plan.Results, os.O_RDWR|unix.O_NOCTTY, 0))
	// As a terminal it would echo and translate.
	t := fail.Must(unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS))
	t.Iflag, t.Oflag, t.Lflag = 0, 0, 0
	fail.If(unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, t))
	return &results{f}
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
func mounts() {
	for _, m := range []struct{ kind, on string }{
		{"devtmpfs", "/dev"}, {"proc", "/proc"}, {"sysfs", "/sys"}, {"bpf", "/sys/fs/bpf"},
		{"tmpfs", "/tmp"}, {"tmpfs", "/run"}, {"tmpfs", "/dev/shm"},
	} {
		fail.If(os.MkdirAll(m.on, 0o755))
		// The kernel may have mounted /dev.
		if err := unix.Mount(m.kind, m.on, m.kind, 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			fail.With("mount %s: %w", m.on, err)
		}
	}
	fail.If(os.MkdirAll("/run/netns", 0o755))
}

// prepare loads the modules and sets up the NICs: the first one here, the
// second in the peer's namespace.
func prepare(p plan.Plan) {
	for _, path := range p.Modules {
		f := fail.Must(os.Open(path))
		if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
			fail.With("module %s: %w", filepath.Base(path), err)
		}
		f.Close()
	}
	home := fail.Must(netns.Get())
	peer, err := veth.NewNamed(filepath.Base(plan.Peer))
	fail.Wrap(err, "namespace")
	for i, ns := range []netns.NsHandle{home, peer} {
		name := plan.NIC(i)
		fail.During(name, func() {
			await(home, name, "not there", func(netlink.Link) bool { return true })
			if p.Queues > 0 {
				setQueues(name, p.Queues)
			}
			if ns != home {
				fail.If(veth.OnLink(home, name, func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetNsFd(l, int(ns)) }))
			}
			v4, v6 := netip.MustParsePrefix(fmt.Sprintf(plan.IPv4+"/24", i+1)), netip.MustParsePrefix(fmt.Sprintf(plan.IPv6+"/64", i+1))
			_ = fail.Must(veth.Up(ns, name, v4, v6))
			await(ns, name, "without a link", func(l netlink.Link) bool { return l.Attrs().RawFlags&unix.IFF_RUNNING != 0 })
		})
	}
}

// waitLimit is how long drivers may take, by a processor that is emulated on a
// machine with much else to do.
const waitLimit = time.Minute

// await waits until an interface is as wanted: drivers look for their devices, and for a link, beside us.
func await(ns netns.NsHandle, name, what string, ok func(netlink.Link) bool) {
	for end := time.Now().Add(waitLimit); ; time.Sleep(10 * time.Millisecond) {
		fine := false
		err := veth.OnLink(ns, name, func(_ *netlink.Handle, l netlink.Link) error {
			fine = ok(l)
			return nil
		})
		switch {
		case err == nil && fine:
			return
		case time.Now().After(end):
			fail.If(errors.Join(fmt.Errorf("it is %s after %v", what, waitLimit), err))
		}
	}
}

// setQueues turns queue pairs on.
func setQueues(name string, n int) {
	e := fail.Must(ethtool.NewEthtool())
	defer e.Close()
	c, err := e.GetChannels(name)
	most := c.MaxCombined
	if err == nil && c.CombinedCount != uint32(n) {
		c.CombinedCount = uint32(n)
		_, err = e.SetChannels(name, c)
	}
	fail.Wrap(err, "%d queues (of %d)", n, most)
}
