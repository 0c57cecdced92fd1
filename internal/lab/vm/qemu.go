package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/fail"
)

// qemu is an emulator that was found or fetched.
type qemu struct {
	path string
	args []string // where its data are
	env  []string // where its libraries are
}

// findQEMU takes the machine's emulator if it has the NIC, and else fetches
// Debian's into the cache, with the libraries that the machine lacks.
func findQEMU(ctx context.Context, cache string, n nicForm) *qemu {
	if path, err := exec.LookPath("qemu-system-x86_64"); err == nil {
		if q := (&qemu{path: path}); q.has(ctx, n.device) {
			return q
		}
	}
	suite := debianRelease()
	suites := []string{suite}
	if n.backports {
		suite += "-backports"
		suites = append(suites, suite)
	}
	root := filepath.Join(cache, "qemu-"+suite)
	q := unpackedQEMU(root)
	if q.has(ctx, n.device) {
		return q
	}
	a := &apt{dir: filepath.Join(cache, "apt-"+suite), suites: suites}
	a.fetch(ctx, root, append(closure, "-t", suite), "qemu-system-x86", "qemu-system-data", "seabios")
	if !q.has(ctx, n.device) {
		fail.With("QEMU of %s has no %s: install one that has (for igb: 8.0 or newer)", suite, n.device)
	}
	return q
}

// unpackedQEMU is Debian's package, not installed.
func unpackedQEMU(root string) *qemu {
	const triple = "x86_64-linux-gnu"
	lib := filepath.Join(root, "usr/lib", triple)
	return &qemu{
		path: filepath.Join(root, "usr/bin/qemu-system-x86_64"),
		args: []string{"-L", filepath.Join(root, "usr/share/qemu"), "-L", filepath.Join(root, "usr/share/seabios")},
		env: []string{
			"LD_LIBRARY_PATH=" + lib + ":" + filepath.Join(root, "lib", triple),
			"QEMU_MODULE_DIR=" + filepath.Join(lib, "qemu"),
		},
	}
}

// has reports whether the emulator runs and knows a device.
func (q *qemu) has(ctx context.Context, device string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	// Do not list all devices: that loads all modules, including those of another QEMU on
	// the machine.
	cmd := exec.CommandContext(ctx, q.path, slices.Concat(q.args, []string{"-M", "none", "-accel", "tcg", "-device", device + ",help"})...)
	cmd.Env = append(os.Environ(), q.env...)
	out, err := cmd.Output()
	return err == nil && bytes.HasPrefix(out, []byte(device+" options"))
}

// debianRelease is the code name of the machine's Debian, whose packages fit
// its C library.
func debianRelease() string {
	about := make(map[string]string)
	for line := range strings.Lines(string(fail.Must(os.ReadFile("/etc/os-release")))) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		about[key] = strings.Trim(value, `"`)
	}
	codename := about["VERSION_CODENAME"]
	if about["ID"] != "debian" || codename == "" {
		fail.With("QEMU is fetched on Debian only: install qemu-system-x86_64 and run again")
	}
	return codename
}

// guest is a virtual machine to run.
type guest struct {
	form    nicForm
	kernel  string // path of the image
	initrd  string // path
	dir     string // for the serial ports' files
	queues  int
	memory  int // MB
	timeout time.Duration
}

// boot runs the guest until it turns itself off. The results are then in
// g.results(). QEMU dies with this process, however that ends.
func (q *qemu) boot(ctx context.Context, g guest) error {
	ctx, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	args := slices.Concat(q.args, g.args())
	cmd := exec.CommandContext(ctx, q.path, args...)
	cmd.Env = append(os.Environ(), q.env...)
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stderr, &stderr
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// The signal comes when the thread ends that started the process.
	runtime.LockOSThread()
	if g.taps() { // the thread gets into another namespace, and ends with us
		if err := fail.Try(func() { makeTaps(g.queues) }); err != nil {
			return fmt.Errorf("taps for %d queues: %w", g.queues, err)
		}
	} else {
		defer runtime.UnlockOSThread()
	}
	err := cmd.Run()
	if g.taps() {
		if err := os.WriteFile(g.wire(), []byte(countTaps()), 0o644); err != nil {
			return err
		}
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("the guest was still running after %v; its console is in %s; QEMU says: %q", g.timeout, g.console(), bytes.TrimSpace(stderr.Bytes()))
	}
	if err != nil {
		return fmt.Errorf("qemu: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return nil
}

func (g *guest) console() string { return filepath.Join(g.dir, "console.log") }
func (g *guest) wire() string    { return filepath.Join(g.dir, "wire.log") } // what the taps have counted
func (g *guest) results() string { return filepath.Join(g.dir, "results.json") }

// cpu is an emulated processor without what makes software emulation slow and no test needs: string instructions that the
// kernel takes for fast (each byte is a round of a loop: pages are cleared three times faster without), a fifth level of page
// tables, and protection of user memory, which every copy from and to a program switches.
const cpu = "max,-erms,-fsrm,-la57,-smap"

// headerAtZeros makes a kernel command line under which virtio_net sends all zero-copy frames. The driver, if it is a module, gives the
// device a wrong address for the header of such a frame: that of a variable of its own (xsk_hdr in the sources of 6.18), converted
// as if modules lay in the kernel's direct mapping. With a random layout of the kernel the address may be behind the end of memory. QEMU
// then reads through its only bounce buffer, and if both NICs send at once it gives one of them up ("virtio: bogus
// descriptor or out of resources"). Without a random layout the address is little above 1 GB. That part of the memory is
// reserved, so that it reads as zeros, which is a header without any offload.
const headerAtZeros = "nokaslr memmap=64M$1G"

// args are QEMU's arguments. They request software emulation explicitly: an existing
// /dev/kvm may not be able to run a guest.
func (g *guest) args() []string {
	args := []string{
		"-M", g.form.machine, "-accel", "tcg,thread=multi", "-cpu", cpu, "-smp", fmt.Sprint(max(g.queues, 2)), "-m", fmt.Sprint(g.memory),
		"-nodefaults", "-nographic", "-no-reboot",
		"-serial", "file:" + g.console(), "-serial", "file:" + g.results(),
		"-kernel", g.kernel, "-initrd", g.initrd, "-append", "console=ttyS0 quiet panic=-1 " + headerAtZeros,
	}
	for i := range 2 {
		args = append(args, g.nic(i)...)
	}
	return args
}

// taps reports whether the NICs are taps of the host: QEMU's hub has one queue.
// igb, whose queues are the NIC's own, does without.
func (g *guest) taps() bool { return g.queues > 1 && g.form.queues == 0 }

// nic is one NIC, joined with the other by a hub inside of QEMU or a bridge of
// the namespace that QEMU is in.
func (g *guest) nic(i int) []string {
	net := fmt.Sprintf("hubport,id=n%d,hubid=1", i)
	if g.taps() {
		net = fmt.Sprintf("tap,id=n%d,ifname=%s,script=no,downscript=no,vhost=off,queues=%d", i, tapName(i), g.queues)
	}
	device := fmt.Sprintf("%s,netdev=n%d,mac=52:54:00:00:00:%02x", g.form.device, i, i+1)
	if g.form.options != "" {
		device += "," + g.form.options
	}
	if g.taps() {
		// A vector for each queue and direction, the configuration, the control.
		device += fmt.Sprintf(",mq=on,rss=on,hash=on,vectors=%d", 2*g.queues+2)
	}
	args := []string{"-netdev", net}
	if g.form.rootPort {
		args = append(args, "-device", fmt.Sprintf("pcie-root-port,id=rp%d,chassis=%d", i, i+1))
		device += fmt.Sprintf(",bus=rp%d", i)
	}
	return append(args, "-device", device)
}

func tapName(i int) string { return fmt.Sprintf("tap%d", i) }

// makeTaps takes the calling thread, which must be locked and never be
// unlocked, into a network namespace of its own, with two taps of several queues
// on a bridge. They are gone with the thread and what it has started.
func makeTaps(queues int) {
	fail.Wrap(unix.Unshare(unix.CLONE_NEWNET), "network namespace (needs root)")
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "wire"}}
	fail.Wrap(netlink.LinkAdd(bridge), "bridge")
	for i := range 2 {
		tap := &netlink.Tuntap{
			LinkAttrs: netlink.LinkAttrs{Name: tapName(i)}, Mode: netlink.TUNTAP_MODE_TAP,
			Flags: netlink.TUNTAP_MULTI_QUEUE_DEFAULTS | netlink.TUNTAP_VNET_HDR, Queues: queues,
		}
		fail.During(tap.Name, func() { fail.If(netlink.LinkAdd(tap)) })
		for _, f := range tap.Fds {
			f.Close() // the tap stays, QEMU attaches its own queues
		}
		fail.If(netlink.LinkSetMaster(tap, bridge))
		fail.If(netlink.LinkSetUp(tap))
	}
	fail.If(netlink.LinkSetUp(bridge))
}

// countTaps is what the kernel has counted of the taps: from and to the guest.
func countTaps() string {
	var b strings.Builder
	for i := range 2 {
		l, err := netlink.LinkByName(tapName(i))
		if err != nil {
			fmt.Fprintln(&b, tapName(i), err)
			continue
		}
		counts, _ := json.Marshal(l.Attrs().Statistics)
		fmt.Fprintf(&b, "%s: %s\n", tapName(i), counts)
	}
	return b.String()
}
