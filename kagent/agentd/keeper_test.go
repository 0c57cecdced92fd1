package agentd_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"viaxdp/internal/await"
	"viaxdp/internal/nstest"
)

// A keeper that is killed harms nobody: its agent starts another one, from which the
// next agent takes programs over.
func TestKillKeeper(t *testing.T) {
	a, b := pair(t, nstest.Options{}, agentConfig{})
	s := &stream{from: newEnd(t, a.nic()), to: newEnd(t, b.nic())}
	connect(t, s.from, s.to, "kept")
	some := func() {
		t.Helper()
		for range 200 {
			if err := s.step(); err != nil {
				t.Fatal(err)
			}
		}
	}
	some()
	for round := range 2 {
		first := a.keeper()
		if err := unix.Kill(first, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		await.Until(t, "another keeper has everything", func() bool {
			return a.log.count("another one has all of it now") == round+1
		})
		if k := a.keeper(); k == 0 || k == first {
			t.Errorf("keeper %d, after %d", k, first)
		}
		some()
	}
	late := newEnd(t, s.from.nic)
	a.kill()
	some()
	a.start()
	if st := a.status(t); len(st.NICs) != 1 || len(st.NICs[0].Leases) != 1 || len(st.NICs[0].Leases[0].VIs) != 2 {
		t.Errorf("status: %+v", st.NICs)
	}
	other := newEnd(t, s.to.nic)
	connect(t, late, other, "after")
	exchange(t, late, other, "the next agent")
	some()
}

// keeper is the process of the agent's keeper, which it has started; 0: none.
func (a *agent) keeper() int {
	a.t.Helper()
	tasks, _ := filepath.Glob("/proc/" + strconv.Itoa(a.cmd.Process.Pid) + "/task/*/children")
	for _, f := range tasks {
		b, _ := os.ReadFile(f)
		for _, p := range strings.Fields(string(b)) {
			if cmd, _ := os.ReadFile("/proc/" + p + "/cmdline"); len(cmd) > 0 { // no zombie
				pid, _ := strconv.Atoi(p)
				return pid
			}
		}
	}
	return 0
}
