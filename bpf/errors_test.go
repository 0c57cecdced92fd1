package bpf

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"viaxdp/internal/base/thread"
	"viaxdp/internal/lab/nstest"
)

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
