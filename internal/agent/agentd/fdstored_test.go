package agentd_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/fdstore"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
)

// The death of a descriptor store affects no program: its agent starts another one, from which the next agent
// takes over the programs.
func TestKillFDStored(t *testing.T) {
	a, b := pair(t, nstest.Options{}, agentConfig{})
	s := &stream{from: newEnd(t, a.nic()), to: newEnd(t, b.nic())}
	connect(t, s.from, s.to, "kept")
	some := func() {
		t.Helper()
		for range 200 {
			nstest.Must(t, s.step())
		}
	}
	some()
	for round := range 2 {
		first := a.fdstored()
		nstest.Must(t, unix.Kill(first, unix.SIGKILL))
		await.Until(t, "another descriptor store has everything", func() bool {
			return a.log.count("another one has all of it now") == round+1
		})
		if k := a.fdstored(); k == 0 || k == first {
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

// fdstored returns the process of the descriptor store that the agent has started; 0: none.
func (a *agent) fdstored() int {
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

// An invalid entry of the descriptor store costs no program its queue.
func TestBadRecordsKept(t *testing.T) {
	ns, _ := nstest.Pair(t, nstest.Options{})
	g := startAgent(t, ns, agentConfig{})
	opened, err := g.raw(t).hello().ask(agentproto.Request{ID: 2, Op: agentproto.OpOpen, Open: &agentproto.Open{Interface: "via0", ArenaBytes: 8 << 20}})
	nstest.Must(t, err)
	g.kill()
	k, err := fdstore.Start(g.socket+".fds", nil, "/bin/false")
	nstest.Must(t, err)
	entries, err := k.List()
	nstest.Must(t, err)
	for i := range entries {
		kind, place, _ := strings.Cut(entries[i].Key, "/")
		entries[i].Close()
		if kind != "nic" {
			continue
		}
		for _, key := range []string{"lease/" + place + "/7", "vi/" + place + "/none", "vi/" + place + "/00000001", "listen/" + place + "/x", "odd/" + place} {
			nstest.Must(t, k.Put(key, []byte("?")))
		}
	}
	nstest.Must(t, k.Close())
	g.start()
	r := g.raw(t).hello()
	if _, err := r.ask(agentproto.Request{ID: 2, Op: agentproto.OpResume, Token: opened.Opened.Token}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.ask(agentproto.Request{ID: 3, Op: agentproto.OpNewVI}); err != nil {
		t.Error(err)
	}
}
