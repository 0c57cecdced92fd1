package bpf

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/base/thread"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
)

var modes = []Mode{Native, Generic}

// within runs f in the namespace and fails the test with f's error.
func within(t testing.TB, ns *nstest.NS, f func() error) {
	t.Helper()
	nstest.Must(t, ns.Do(f))
}

// expectAttached checks the name of the interface's program; "" is none.
func expectAttached(ns *nstest.NS, name string, mode Mode) error {
	a, ok, err := AttachedTo(ns.Index)
	switch {
	case err != nil:
		return err
	case name == "" && ok:
		return fmt.Errorf("attached: %s, want none", a)
	case name != "" && (!ok || a.Name != name || a.Mode != mode || a.ID == 0):
		return fmt.Errorf("attached: %s (%t), want %q in %s mode", a, ok, name, mode)
	}
	return nil
}

func TestAttachDetach(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			a, _ := nstest.Pair(t, nstest.Options{})
			d := loadTestDemux(t)
			within(t, a, func() error {
				for range 2 {
					if err := d.Attach(a.Index, mode); err != nil {
						return err
					}
					if err := expectAttached(a, "via_demux", mode); err != nil {
						return err
					}
					if err := d.Attach(a.Index, mode); err == nil {
						return errors.New("second Attach: no error")
					}
					if err := d.Detach(); err != nil {
						return err
					}
					if err := expectAttached(a, "", mode); err != nil {
						return err
					}
				}
				return d.Detach()
			})
		})
	}
}

// The garbage collector leaves the link alone as long as the Demux is there.
func TestAttachSurvivesGC(t *testing.T) {
	a, _ := nstest.Pair(t, nstest.Options{})
	d := loadTestDemux(t)
	within(t, a, func() error {
		if err := d.Attach(a.Index, Generic); err != nil {
			return err
		}
		for range 3 {
			runtime.GC()
		}
		return expectAttached(a, "via_demux", Generic)
	})
}

// Close removes link, program and maps from the kernel.
func TestNothingLeftAfterClose(t *testing.T) {
	a, _ := nstest.Pair(t, nstest.Options{})
	d, err := LoadDemux(Config{})
	nstest.Must(t, err)
	nstest.Must(t, d.Register(0, rawSocket(t)))
	nstest.Must(t, d.EnterVI(viIPv4, VIEntry{Key: key4, Peer: hostA}))
	info, err := d.Program.Info()
	nstest.Must(t, err)
	program, _ := info.ID()
	maps, _ := info.MapIDs()
	nstest.FatalIf(t, len(maps) < 3, "maps of the program: %d", maps)
	within(t, a, func() error {
		if err := d.Attach(a.Index, Generic); err != nil {
			return err
		}
		if err := d.Close(); err != nil {
			return err
		}
		return expectAttached(a, "", Generic)
	})
	gone := func() bool {
		if p, err := ebpf.NewProgramFromID(program); err == nil {
			p.Close()
			return false
		}
		for _, id := range maps {
			if m, err := ebpf.NewMapFromID(id); err == nil {
				m.Close()
				return false
			}
		}
		return true
	}
	// The kernel frees them after a grace period.
	await.Until(t, fmt.Sprintf("program %d and maps %d are gone", program, maps), gone)
}

// Close succeeds if the interface was removed before.
func TestInterfaceGone(t *testing.T) {
	a, _ := nstest.Pair(t, nstest.Options{})
	d := loadTestDemux(t)
	within(t, a, func() error { return d.Attach(a.Index, Native) })
	a.Remove(t)
	nstest.Check(t, d.Detach())
}

// foreign is another owner's program, which passes all frames.
func foreign(t testing.TB) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "foreign", Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()},
	})
	nstest.Must(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

// Another owner's program stays, however it is attached and whichever mode this program requests. The error names
// it.
func TestForeignProgramStays(t *testing.T) {
	kinds := []struct {
		name   string
		attach func(ns *nstest.NS, p *ebpf.Program, mode Mode) error
	}{
		{"link", func(ns *nstest.NS, p *ebpf.Program, mode Mode) error {
			l, err := attach(p, ns.Index, mode)
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return err
		}},
		{"netlink", func(ns *nstest.NS, p *ebpf.Program, mode Mode) error {
			nic, err := netlink.LinkByIndex(ns.Index)
			if err != nil {
				return err
			}
			flags := map[Mode]link.XDPAttachFlags{Native: link.XDPDriverMode, Generic: link.XDPGenericMode}[mode]
			return netlink.LinkSetXdpFdWithFlags(nic, p.FD(), int(flags))
		}},
	}
	d := loadTestDemux(t)
	p := foreign(t)
	info, err := p.Info()
	nstest.Must(t, err)
	id, _ := info.ID()
	for _, kind := range kinds {
		for _, theirs := range modes {
			t.Run(kind.name+"/"+theirs.String(), func(t *testing.T) {
				a, _ := nstest.Pair(t, nstest.Options{})
				within(t, a, func() error {
					if err := kind.attach(a, p, theirs); err != nil {
						return err
					}
					for _, ours := range modes {
						checkBusy(t, d.Attach(a.Index, ours), a, uint32(id))
						if err := expectAttached(a, "foreign", theirs); err != nil {
							return err
						}
					}
					return nil
				})
			})
		}
	}
}

func checkBusy(t *testing.T, err error, ns *nstest.NS, id uint32) {
	t.Helper()
	var busy *BusyError
	if !errors.As(err, &busy) || !errors.Is(err, unix.EBUSY) {
		t.Errorf("Attach: %v, want a BusyError", err)
		return
	}
	if busy.Ifindex != ns.Index || busy.Interface != ns.Name || busy.Program.ID != id || busy.Program.Name != "foreign" {
		t.Errorf("BusyError %+v, want interface %d, program %d", *busy, ns.Index, id)
	}
	for _, part := range []string{ns.Name, fmt.Sprintf("program %d", id), `"foreign"`} {
		nstest.ErrorIf(t, !strings.Contains(err.Error(), part), "%q is not in %q", part, err)
	}
}

// If an interface does not support it, the error names the remedy.
func TestAttachErrors(t *testing.T) {
	a, _ := nstest.Pair(t, nstest.Options{MTU: 9000})
	single := loadTestRedirect(t, RedirectConfig{})
	const loopback = 1
	for _, c := range []struct {
		name    string
		ifindex int
		mode    Mode
		errno   unix.Errno
		hint    string
	}{
		{"no such interface", 4711, Generic, unix.ENODEV, "no interface with that index"},
		{"no native mode", loopback, Native, unix.EOPNOTSUPP, "use generic mode"},
		{"MTU", a.Index, Native, unix.ERANGE, "MTU of 9000"},
	} {
		within(t, a, func() error {
			err := single.Attach(c.ifindex, c.mode)
			var e *Error
			nstest.ErrorIf(t, !errors.As(err, &e) || !errors.Is(err, c.errno) || !strings.Contains(err.Error(), c.hint),
				"%s: %v; want %q and %v", c.name, err, c.hint, c.errno)
			return nil
		})
	}
	if err := single.Attach(a.Index, Mode(7)); err == nil {
		t.Error("mode 7: no error")
	}

	// The same MTU is no obstacle to a program that takes fragments.
	d := loadTestDemux(t)
	frags := loadTestRedirect(t, RedirectConfig{Frags: true})
	oneBuffer := load(t, Config{SingleBuffer: true})
	within(t, a, func() error {
		nstest.WantErr(t, "a demux program that takes none", oneBuffer.Attach(a.Index, Native), unix.ERANGE)
		if err := d.Attach(a.Index, Native); err != nil {
			return err
		}
		if err := d.Detach(); err != nil {
			return err
		}
		return frags.Attach(a.Index, Native)
	})
}

// copies duplicates a Demux's descriptors, as passing them to a process does.
func copies(t *testing.T, d *Demux) Descriptors {
	t.Helper()
	fds, ok := d.Descriptors()
	nstest.FatalIf(t, !ok, "no descriptors")
	var list []int
	for _, fd := range fds.List() {
		c, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		nstest.Must(t, err)
		list = append(list, c)
	}
	c, err := DescriptorsOf(list)
	nstest.Must(t, err)
	return c
}

// Program, table and link outlive the Demux that made them, and work for the one
// that takes over.
func TestAdoptDemux(t *testing.T) {
	a, _ := nstest.Pair(t, nstest.Options{})
	first := loadTestDemux(t)
	within(t, a, func() error { return first.Attach(a.Index, Generic) })
	fds := copies(t, first)

	// As a process that is killed: the descriptors close, nothing is undone.
	first.vis.close()
	first.closed = true
	for _, c := range []interface{ Close() error }{first.link, first.Program, first.Sockets, first.Queues, first.counters} {
		nstest.Must(t, c.Close())
	}
	d, err := AdoptDemux(fds, a.Index)
	nstest.Must(t, err)
	within(t, a, func() error { return expectAttached(a, "via_demux", Generic) })
	found := 0
	d.EachVI(func(num uint32, e VIEntry) {
		found++
		want := testTable[num]
		want.Peer = want.Peer.Unmap()
		nstest.ErrorIf(t, e != want, "VI %#x: %+v, want %+v", num, e, want)
	})
	nstest.ErrorIf(t, found != len(testTable), "%d VIs in the table, want %d", found, len(testTable))
	if s := d.Slots(); len(s) != 1 || s[0] != slotSocket {
		t.Errorf("slots %v, want %d", s, slotSocket)
	}
	if action, _ := run(t, d, good4().bytes(), 0); action != xdpRedirect {
		t.Errorf("action %d, want redirect", action)
	}
	for range 2 {
		nstest.Check(t, d.Evict(slotSocket))
	}
	if action, _ := run(t, d, good4().bytes(), 0); action != xdpDrop {
		t.Errorf("action %d with an empty slot, want drop", action)
	}
	nstest.Check(t, d.Close())
	within(t, a, func() error { return expectAttached(a, "", Generic) })
}

// Descriptors of other objects are an error, and are closed.
func TestAdoptDemuxRefuses(t *testing.T) {
	d := loadTestDemux(t)
	good := copies(t, d)
	swapped := good
	swapped.Sockets, swapped.Queues = good.Queues, good.Sockets
	file, err := unix.MemfdCreate("no program", 0)
	nstest.Must(t, err)
	wrong := copies(t, d)
	unix.Close(wrong.Program)
	wrong.Program = file
	for name, fds := range map[string]Descriptors{"maps swapped": swapped, "no program": wrong} {
		if _, err := AdoptDemux(fds, 1); err == nil {
			t.Errorf("%s: no error", name)
		}
		for _, fd := range fds.List() {
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); !errors.Is(err, unix.EBADF) {
				t.Errorf("%s: descriptor %d: %v, want it closed", name, fd, err)
			}
		}
	}
	if _, err := DescriptorsOf(make([]int, 4)); err == nil {
		t.Error("4 descriptors: no error")
	}
}

// limited leaves the calling thread these capabilities alone, for good.
func limited(capabilities ...int) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	for _, c := range capabilities {
		sets[c/32].Effective |= 1 << (c % 32)
		sets[c/32].Permitted |= 1 << (c % 32)
	}
	return unix.Capset(&header, &sets[0])
}

// Every loader fails with the same error, which names what is missing and the remedy.
func TestLoadWithoutPrivilege(t *testing.T) {
	nstest.Require(t)
	loads := map[string]func() error{
		"demux": func() error {
			d, err := LoadDemux(Config{})
			if err == nil {
				d.Close()
			}
			return err
		},
		"redirect": func() error {
			r, err := NewRedirect(RedirectConfig{Frags: true})
			if err == nil {
				r.Close()
			}
			return err
		},
	}
	for name, load := range loads {
		for _, c := range []struct {
			capabilities []int
			want         string // "": it loads
		}{
			{nil, "CAP_BPF and CAP_NET_ADMIN missing: run as root"},
			{[]int{unix.CAP_BPF}, ": CAP_NET_ADMIN missing: run as root"},
			{[]int{unix.CAP_NET_ADMIN}, ": CAP_BPF missing: run as root"},
			{[]int{unix.CAP_BPF, unix.CAP_NET_ADMIN}, ""},
		} {
			var err error
			thread.Run(func() {
				if err = limited(c.capabilities...); err == nil {
					err = load()
				}
			})
			if c.want == "" {
				nstest.ErrorIf(t, err != nil, "%s with %d: %v", name, c.capabilities, err)
				continue
			}
			nstest.ErrorIf(t, !errors.Is(err, os.ErrPermission) || !strings.Contains(fmt.Sprint(err), c.want),
				"%s with %d: %v; want %q", name, c.capabilities, err, c.want)
			nstest.ErrorIf(t, strings.Contains(fmt.Sprint(err), "MEMLOCK"),
				"%s: %v; the limit is not the reason", name, err)
		}
	}
}

// The two capabilities suffice to attach to an interface. The name of a foreign program then stays unknown, its ID
// does not.
func TestAttachWithLeastPrivilege(t *testing.T) {
	a, _ := nstest.Pair(t, nstest.Options{})
	d, other := loadTestDemux(t), foreign(t)
	within(t, a, func() error {
		if err := limited(unix.CAP_BPF, unix.CAP_NET_ADMIN); err != nil {
			return err
		}
		if err := d.Attach(a.Index, Native); err != nil {
			return err
		}
		if err := d.Detach(); err != nil {
			return err
		}
		l, err := attach(other, a.Index, Generic)
		if err != nil {
			return err
		}
		defer l.Close()
		var busy *BusyError
		if err := d.Attach(a.Index, Generic); !errors.As(err, &busy) {
			return fmt.Errorf("foreign program there: %w", err)
		}
		if busy.Program.ID == 0 || busy.Program.Name != "" {
			return fmt.Errorf("foreign program: %s", busy.Program)
		}
		return nil
	})
}

func TestErrorText(t *testing.T) {
	err := loadError("load it", fmt.Errorf("map create: %w", unix.ENOSYS))
	const want = "bpf: load it: function not implemented: the kernel is built without CONFIG_BPF_SYSCALL"
	nstest.ErrorIf(t, err.Error() != want, "%q, want %q", err, want)
	for errno, want := range map[unix.Errno]string{
		unix.EOPNOTSUPP: "use generic mode",
		unix.EINVAL:     "MTU of 1500",
		unix.ERANGE:     "MTU of 1500",
		unix.ENOSPC:     "ethtool -L",
		unix.ENOTCONN:   "veth",
	} {
		if err := attachError("attach", errno, Native, 1500); !strings.Contains(err.Error(), want) || !errors.Is(err, errno) {
			t.Errorf("%v: %v; want %q", errno, err, want)
		}
	}
	if err := attachError("attach", unix.EINVAL, Generic, 1500); strings.Contains(err.Error(), "MTU") {
		t.Errorf("generic mode: %v", err)
	}
}
