package agentd_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/agentd"
	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/base/fds"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
	"viaxdp/xdpnic"
)

// rawAs is raw for another user.
func (a *agent) rawAs(t testing.TB, uid int) *raw {
	t.Helper()
	return a.rawOf(t, uid, uid)
}

// rawOf makes a connection of a process with these groups.
func (a *agent) rawOf(t testing.TB, uid, gid int, groups ...uint32) *raw {
	t.Helper()
	var c *raw
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := onThread(uid, gid, groups); err != nil {
			t.Error(err)
			return
		}
		c = a.raw(t)
	}()
	<-done
	if c == nil {
		t.FailNow()
	}
	return c
}

// The agent serves root and members of the group, by the kernel's credentials, whatever its socket's mode.
func TestAccess(t *testing.T) {
	g := oneAgent(t, nstest.Options{}, agentConfig{Access: agentd.Grant{Groups: []uint32{60100}}})
	for _, c := range []struct {
		uid, gid int
		groups   []uint32
		in       bool
	}{
		{uid: 0, gid: 0, in: true}, {uid: 60001, gid: 60001}, {uid: 60001, gid: 0}, {uid: 60001, gid: 60100, in: true},
		{uid: 60001, gid: 60001, groups: []uint32{4, 60100}, in: true}, {uid: 60001, gid: 60001, groups: []uint32{60101}},
		{uid: 60100, gid: 60001}, {uid: 60001, gid: 60001, groups: manyGroups(300, 60100), in: true},
	} {
		_, err := g.rawOf(t, c.uid, c.gid, c.groups...).ask(helloRequest)
		switch {
		case c.in && err != nil:
			t.Errorf("%+v: %v", c, err)
		case !c.in && (!errors.Is(err, agentproto.ErrDenied) || !errors.Is(err, fs.ErrPermission)):
			t.Errorf("%+v: %v, want ErrDenied", c, err)
		case !c.in && !strings.Contains(err.Error(), "usermod -aG 60100 USER"):
			t.Errorf("%+v: %v: it does not say how the user is let in", c, err)
		}
	}
}

func manyGroups(n int, last uint32) (all []uint32) {
	for i := range n {
		all = append(all, uint32(70000+i))
	}
	return append(all, last)
}

// Without settings only root, or the default group, may connect, and users other than root get no interface.
func TestDefaultAccess(t *testing.T) {
	g := oneAgent(t, nstest.Options{}, agentConfig{Defaults: true})
	if st, err := os.Stat(g.socket); err != nil || st.Mode().Perm() != 0o660 {
		t.Errorf("the socket: %v, %v; want 0660", st.Mode(), err)
	}
	nstest.WantErr(t, "root", g.raw(t).hello().open(0), nil)
	loopback := openOf(agentproto.Open{Interface: "lo", Mode: xdpnic.ModeGeneric})
	nstest.WantErr(t, "root, the loopback", nstest.Err(g.raw(t).hello().ask(loopback)), agentproto.ErrNotServed)
	users := startAgent(t, g.ns, agentConfig{Defaults: true, Mode: 0o666})
	for _, name := range []string{"via0", "lo"} {
		_, err := users.rawAs(t, 60001).hello().ask(openOf(agentproto.Open{Interface: name, Mode: xdpnic.ModeGeneric}))
		nstest.ErrorIf(t, !errors.Is(err, agentproto.ErrNotServed) || !strings.Contains(err.Error(), "-i "+name),
			"a user, %s: %v, want ErrNotServed with the remedy", name, err)
	}
}

// A user that is not named gets no zero-copy queue, but a lesser mode, or an error with the reason.
func TestZeroCopyIsGranted(t *testing.T) {
	t.Parallel()
	g := oneAgent(t, nstest.Options{}, agentConfig{Ifaces: map[string]agentd.Interface{
		"via0": {ZeroCopy: agentd.Grant{Users: []uint32{60002}, Groups: []uint32{60100}}},
	}})
	const withheld = "zero_copy"
	ask := func(r *raw, require bool) string {
		t.Helper()
		defer r.c.Close()
		open := agentproto.Open{Queue: kagent.AnyQueue, Mode: xdpnic.ModeZeroCopy, RequireMode: require}
		reply, err := r.hello().use(openOf(open))
		if require {
			nstest.FatalIf(t, err == nil, "zero-copy on a veth")
			return err.Error()
		}
		nstest.Must(t, err)
		if m := reply.Opened.Info.Restore().Mode; m == xdpnic.ModeZeroCopy {
			t.Errorf("%v mode", m)
		}
		nstest.Check(t, nstest.Err(r.ask(agentproto.Request{ID: 3, Op: agentproto.OpClose})))
		return reply.Opened.Info.Restore().Attempts[0].String()
	}
	for _, require := range []bool{true, false} {
		if got := ask(g.rawOf(t, 60001, 60001), require); !strings.Contains(got, withheld) || !strings.Contains(got, "could read all that the queue receives") {
			t.Errorf("not granted, required %v: %q", require, got)
		}
		for _, u := range []struct {
			id     int
			groups []uint32
		}{{0, nil}, {60002, nil}, {60001, []uint32{60100}}} {
			// Not all at once: the agent waits two seconds for the hello of each.
			if got := ask(g.rawOf(t, u.id, u.id, u.groups...), require); strings.Contains(got, withheld) { // tried without success
				t.Errorf("granted, required %v: %q", require, got)
			}
		}
	}
}

// A user cannot have the program attached and detached in a loop: not by opening and closing, nor by failing opens,
// nor by changing modes. Root can, and takes down what lingers.
func TestLinger(t *testing.T) {
	t.Parallel()
	g := oneAgent(t, nstest.Options{Queues: 2}, agentConfig{Linger: time.Hour})
	t.Cleanup(func() {
		g.stop()
		nstest.ErrorIf(t, g.ns.Program(t) != 0, "the agent has ended, and its program is attached")
	})
	use := func(uid int, mode xdpnic.Mode, require bool) error {
		r := g.rawAs(t, uid).hello()
		defer r.c.Close()
		_, files, err := r.exchange(openOf(agentproto.Open{Queue: kagent.AnyQueue, Mode: mode, RequireMode: require}))
		defer fds.CloseFiles(files...)
		if err == nil {
			_, err = r.ask(agentproto.Request{ID: 3, Op: agentproto.OpClose})
		}
		return err
	}
	nstest.Must(t, use(60001, xdpnic.ModeNative, true))
	first := g.ns.Program(t)
	nstest.FatalIf(t, first == 0, "the program is detached with the last queue")
	for range 3 {
		for _, uid := range []int{60001, 60002} {
			nstest.Check(t, use(uid, xdpnic.ModeAuto, false))
			nstest.ErrSays(t, "another mode", use(uid, xdpnic.ModeGeneric, true), "native mode")
			nstest.ErrorIf(t, use(uid, xdpnic.ModeZeroCopy, true) == nil, "zero-copy on a veth")
		}
		if id := g.ns.Program(t); id != first {
			t.Fatalf("program %d is attached, want %d as before", id, first)
		}
	}
	nstest.WantErr(t, "root", use(0, xdpnic.ModeGeneric, true), nil)
	nstest.Equal(t, "the program that is attached after root's queue", g.ns.Program(t), 0)
	// An open that fails when the program is attached leaves it there, too.
	nstest.Must(t, use(60001, xdpnic.ModeNative, true))
	nstest.ErrorIf(t, g.ns.Program(t) == 0, "the program is detached with the last queue")
}

// The program stays attached after a queue that the agent has taken over, too.
func TestLingerAfterRestart(t *testing.T) {
	t.Parallel()
	g := oneAgent(t, nstest.Options{}, agentConfig{Linger: time.Hour})
	files := g.rawAs(t, 60001).hello().files(openNative(0))
	first := g.ns.Program(t)
	g.restart()
	fds.CloseFiles(files...) // the program ends
	await.Until(t, "the queue is given back", func() bool { return len(g.status(t).NICs[0].Leases) == 0 })
	nstest.Equal(t, "the program that is attached", g.ns.Program(t), first)
	nstest.Must(t, g.rawAs(t, 60001).hello().open(0))
	nstest.Equal(t, "the program that is attached after the next open", g.ns.Program(t), first)
}

// onThread makes the calling thread, which is locked and ends, one of these groups and of this user.
func onThread(uid, gid int, groups []uint32) error {
	if err := setThreadGroups(groups); err != nil {
		return err
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid)); errno != 0 {
		return errno
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
		return errno
	}
	return nil
}

// The status lists the interfaces that the requesting user is served, and that user can open no other.
func TestServed(t *testing.T) {
	ns, _ := nstest.Pair(t, nstest.Options{})
	settings := agentConfig{Ifaces: map[string]agentd.Interface{
		"via0": {Users: []uint32{60002}, MaxVIs: 5}, "all": {}, "none": {Users: []uint32{}},
	}}
	noSettings := agentConfig{Defaults: true, Mode: 0o666}
	all := []string{"via0", "all", "none", "any", "lo"}
	for _, c := range []struct {
		cfg  agentConfig
		want map[int]string
	}{
		{settings, map[int]string{0: "via0 all none", 60001: "all", 60002: "via0 all"}},
		{noSettings, map[int]string{0: "via0 all none any", 60001: ""}}, // all but the loopback, or nothing
		{agentConfig{Ifaces: map[string]agentd.Interface{"none": {Users: []uint32{}}}}, map[int]string{60001: ""}},
	} {
		g := startAgent(t, ns, c.cfg)
		for uid, want := range c.want {
			r := g.rawAs(t, uid).hello()
			reply, err := r.ask(agentproto.Request{ID: 2, Op: agentproto.OpStatus})
			nstest.Must(t, err)
			got := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return !reply.Status.Serves(name) })
			nstest.Equal(t, fmt.Sprintf("%+v, user %d", c.cfg, uid), strings.Join(got, " "), want)
			opened, err := r.use(openOf(agentproto.Open{Mode: xdpnic.ModeGeneric}))
			switch {
			case !strings.Contains(want, "via0"):
				nstest.WantErr(t, "an interface that is not served", err, agentproto.ErrNotServed)
			case err != nil || c.cfg.Ifaces != nil && opened.Opened.Info.Info.MaxVIs != 5:
				t.Errorf("user %d: %+v, %v; want 5 VIs where they are set", uid, opened.Opened, err)
			}
			r.c.Close()
			await.Until(t, "the queue is free", func() bool { return len(g.status(t).NICs) == 0 })
		}
	}
}

// A user that locks a readable file in the socket's directory does not keep the agent from starting. A running
// agent does, and leaves its lock to the next one.
func TestLock(t *testing.T) {
	g := oneAgent(t, nstest.Options{}, agentConfig{})
	if st, err := os.Stat(g.socket + ".lock"); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("lock: %v, %v, want a file for its owner only", st, err)
	}
	second := agentd.Daemon{Socket: g.socket}
	var busy *agentd.BusyError
	if err := second.Run(t.Context()); !errors.As(err, &busy) {
		t.Errorf("a second agent: %v, want a BusyError", err)
	}
	g.kill()
	dir, err := os.Open(filepath.Dir(g.socket))
	nstest.Must(t, err)
	defer dir.Close()
	nstest.Must(t, unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB))
	g.start()
}
