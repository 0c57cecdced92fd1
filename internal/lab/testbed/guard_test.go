package testbed

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
)

// A guard raises by what its first line says, and takes it back when the connection, and so its parent, has ended,
// if necessary at the second try. It reports an error in one line.
func TestGuard(t *testing.T) {
	for _, c := range []struct {
		line, answer string
		fail         error
		failures     int
		raised       int
	}{
		{"10", "ok", nil, 0, 15},
		{"10", "ok", nil, 2, 15},
		{"x", `strconv.Atoi: parsing "x": invalid syntax`, nil, 0, 5},
		{"1", "no; hugepages", errors.New("no\nhugepages"), 0, 5},
	} {
		pages := 5
		ours, theirs := net.Pipe()
		done := make(chan error, 1)
		go func() {
			done <- guard(theirs, func(n int) (func() error, error) {
				if c.fail != nil {
					return nil, c.fail
				}
				pages += n
				return func() error {
					if c.failures > 0 {
						c.failures--
						return errors.New("locked")
					}
					pages -= n
					return nil
				}, nil
			})
		}()
		fmt.Fprintln(ours, c.line)
		lines := bufio.NewScanner(ours)
		if lines.Scan(); lines.Text() != c.answer || pages != c.raised {
			t.Errorf("%s: answer %q, %d pages; want %q, %d", c.line, lines.Text(), pages, c.answer, c.raised)
		}
		ours.Close()
		if err := <-done; err != nil || pages != 5 {
			t.Errorf("%s: afterwards %d pages, %v", c.line, pages, err)
		}
	}
}

// A guard process that is killed while pages are raised leaves its work to its
// parent.
func TestKilledGuard(t *testing.T) {
	nstest.Require(t)
	before := allowance(t)
	g := NewGuard([]string{asGuard})
	must(t, g.Raise(2))
	nstest.ErrorIf(t, g.Raise(2) == nil, "raised twice")
	if now := allowance(t); now < 2 {
		t.Errorf("the allowance is %d after raising it by 2", now)
	}
	must(t, unix.Kill(g.child.cmd.Process.Pid, unix.SIGKILL))
	<-g.child.exited
	if err := g.Restore(); err == nil {
		t.Error("the death of the guard went unnoticed")
	}
	allowanceIs(t, before)
}

func TestMissingCapabilities(t *testing.T) {
	bits := func(caps ...int) (b uint64) {
		for _, c := range caps {
			b |= 1 << c
		}
		return b
	}
	for _, c := range []struct {
		has   uint64
		needs []Need
		want  []string
	}{
		{bits(unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN), []Need{Namespaces, Programs}, nil},
		{0, []Need{Namespaces, Sockets, Programs}, []string{"CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_BPF"}},
		{bits(unix.CAP_NET_ADMIN, unix.CAP_BPF), []Need{Programs}, nil},
		{bits(unix.CAP_NET_ADMIN), []Need{Programs}, []string{"CAP_BPF"}},
		{bits(unix.CAP_SYS_ADMIN), []Need{Programs}, []string{"CAP_NET_ADMIN"}},
		{bits(unix.CAP_NET_ADMIN), []Need{Sockets}, []string{"CAP_NET_RAW"}},
		{0, nil, nil},
	} {
		if got := missingCapabilities(c.has, c.needs); !slices.Equal(got, c.want) {
			t.Errorf("%#x for %v lacks %v, want %v", c.has, c.needs, got, c.want)
		}
	}
}

// Refusals that mean that the machine cannot do it name what is missing and
// the remedy in one line; others are passed on.
func TestExplain(t *testing.T) {
	for _, c := range []struct {
		err   error
		doing string
		want  string // "": not a MissingError
	}{
		{unix.EAFNOSUPPORT, "AF_XDP socket", "CONFIG_XDP_SOCKETS"},
		{fmt.Errorf("probe: %w", ebpf.ErrNotSupported), "XSKMAP", "CONFIG_XDP_SOCKETS"},
		{unix.ENOSYS, "XDP program", "CONFIG_BPF_SYSCALL"},
		{unix.EOPNOTSUPP, "veth pair", "CONFIG_VETH"},
		{unix.EOPNOTSUPP, "bridge", "CONFIG_BRIDGE"},
		{unix.EOPNOTSUPP, "network namespace", ""},
		{unix.EINVAL, "network namespace", "CONFIG_NET_NS"},
		{unix.EPERM, "network namespace", "permission for network namespace"},
		{unix.ENOMEM, "veth pair", ""},
		{unix.EINVAL, "veth pair", ""},
	} {
		err := explain(c.err, c.doing)
		var m *MissingError
		if got := errors.As(err, &m); got != (c.want != "") {
			t.Errorf("%v while making a %s: %v", c.err, c.doing, err)
			continue
		}
		nstest.ErrorIf(t, !errors.Is(err, c.err), "%v has lost %v", err, c.err)
		if m != nil && (!strings.Contains(m.Error(), c.want) || m.Remedy == "" || strings.Contains(m.Error(), "\n")) {
			t.Errorf("%v while making a %s: %q", c.err, c.doing, m.Error())
		}
	}
	if got := CannotRun(unix.EPERM).Error(); got != "cannot run here: operation not permitted" {
		t.Errorf("got %q", got)
	}
}
