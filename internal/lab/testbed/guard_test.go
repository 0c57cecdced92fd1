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

// guardOn runs the guard's loop over an in-memory allowance.
func guardOn(t *testing.T, pages *int, fail error) (say func(string) string, end func() error) {
	t.Helper()
	ours, theirs := net.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- guard(theirs, func(n int) (func() error, error) {
			if fail != nil {
				return nil, fail
			}
			*pages += n
			return func() error { *pages -= n; return nil }, nil
		})
	}()
	lines := bufio.NewScanner(ours)
	say = func(line string) string {
		fmt.Fprintln(ours, line)
		lines.Scan()
		return lines.Text()
	}
	end = func() error {
		ours.Close()
		return <-done
	}
	return say, end
}

func TestGuardRaisesAndRestores(t *testing.T) {
	pages := 5
	say, end := guardOn(t, &pages, nil)
	for _, step := range []struct {
		line, answer string
		pages        int
	}{
		{"raise 10", "ok", 15},
		{"raise 7", "ok", 22},
		{"restore", "ok", 5},
		{"restore", "ok", 5},
		{"raise x", `strconv.Atoi: parsing "x": invalid syntax`, 5},
		{"nonsense", `unknown word "nonsense"`, 5},
		{"raise 3", "ok", 8},
	} {
		if got := say(step.line); got != step.answer || pages != step.pages {
			t.Errorf("%s: answer %q, %d pages; want %q, %d", step.line, got, pages, step.answer, step.pages)
		}
	}
	// The end of the connection is the death of the parent.
	if err := end(); err != nil || pages != 5 {
		t.Errorf("afterwards %d pages, %v", pages, err)
	}
}

func TestGuardPassesErrorsOn(t *testing.T) {
	pages := 0
	say, end := guardOn(t, &pages, errors.New("no\nhugepages"))
	if got := say("raise 1"); got != "no; hugepages" {
		t.Errorf("got %q", got)
	}
	if err := end(); err != nil {
		t.Error(err)
	}
}

// What could not be taken back is tried again.
func TestGuardRestoresAgain(t *testing.T) {
	ours, theirs := net.Pipe()
	done := make(chan error, 1)
	pages, failures := 0, 2
	go func() {
		done <- guard(theirs, func(n int) (func() error, error) {
			pages += n
			return func() error {
				if n == 5 && failures > 0 {
					failures--
					return errors.New("locked")
				}
				pages -= n
				return nil
			}, nil
		})
	}()
	lines := bufio.NewScanner(ours)
	for _, step := range [][2]string{{"raise 3", "ok"}, {"raise 5", "ok"}, {"restore", "locked"}, {"restore", "locked"}} {
		fmt.Fprintln(ours, step[0])
		if lines.Scan(); lines.Text() != step[1] {
			t.Errorf("%s: answer %q, want %q", step[0], lines.Text(), step[1])
		}
	}
	ours.Close()
	if err := <-done; err != nil || pages != 0 {
		t.Errorf("afterwards %d pages, %v", pages, err)
	}
}

// A guard process that is killed while pages are raised leaves its work to its
// parent.
func TestKilledGuard(t *testing.T) {
	nstest.Require(t)
	before := allowance(t)
	g, err := StartGuard([]string{asGuard})
	must(t, err)
	must(t, g.Raise(2))
	if now := allowance(t); now < 2 {
		t.Errorf("the allowance is %d after raising it by 2", now)
	}
	must(t, unix.Kill(g.child.cmd.Process.Pid, unix.SIGKILL))
	<-g.child.exited
	if err := g.Close(); err == nil {
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
		if !errors.Is(err, c.err) {
			t.Errorf("%v has lost %v", err, c.err)
		}
		if m != nil && (!strings.Contains(m.Error(), c.want) || m.Remedy == "" || strings.Contains(m.Error(), "\n")) {
			t.Errorf("%v while making a %s: %q", c.err, c.doing, m.Error())
		}
	}
	if got := CannotRun(unix.EPERM).Error(); got != "cannot run here: operation not permitted" {
		t.Errorf("got %q", got)
	}
}

func TestRanges(t *testing.T) {
	for _, c := range []struct {
		numbers []int
		want    string
	}{{nil, ""}, {[]int{0}, "0"}, {[]int{0, 1, 2, 3}, "0-3"}, {[]int{1, 3, 4, 8}, "1,3-4,8"}} {
		if got := ranges(c.numbers); got != c.want {
			t.Errorf("%v: %q, want %q", c.numbers, got, c.want)
		}
	}
}
