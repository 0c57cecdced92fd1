package agentd_test

import (
	"errors"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/agentd"
	"viaxdp/internal/agent/agentproto"
	"viaxdp/internal/agent/kagent"
	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
	"viaxdp/xdpnic"
)

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
	ns, _ := nstest.Pair(t, nstest.Options{})
	g := startAgent(t, ns, agentConfig{Access: agentd.Grant{Groups: []uint32{60100}}})
	for _, c := range []struct {
		uid, gid int
		groups   []uint32
		in       bool
	}{
		{uid: 0, gid: 0, in: true}, {uid: 60001, gid: 60001}, {uid: 60001, gid: 0}, {uid: 60001, gid: 60100, in: true},
		{uid: 60001, gid: 60001, groups: []uint32{4, 60100}, in: true}, {uid: 60001, gid: 60001, groups: []uint32{60101}},
		{uid: 60100, gid: 60001}, {uid: 60001, gid: 60001, groups: manyGroups(300, 60100), in: true},
	} {
		_, err := g.rawOf(t, c.uid, c.gid, c.groups...).ask(agentproto.Request{ID: agentproto.HelloID, Op: agentproto.OpHello, Versions: []int{agentproto.Version}})
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
	ns, _ := nstest.Pair(t, nstest.Options{})
	g := startAgent(t, ns, agentConfig{Defaults: true})
	if st, err := os.Stat(g.socket); err != nil || st.Mode().Perm() != 0o660 {
		t.Errorf("the socket: %v, %v; want 0660", st.Mode(), err)
	}
	nstest.WantErr(t, "root", g.raw(t).hello().open(0), nil)
	nstest.WantErr(t, "root, the loopback", nstest.Err(g.raw(t).hello().ask(openOf("lo", xdpnic.ModeGeneric, false))), agentproto.ErrNotServed)
	users := startAgent(t, ns, agentConfig{Defaults: true, Mode: 0o666})
	for _, name := range []string{"via0", "lo"} {
		_, err := users.rawAs(t, 60001).hello().ask(openOf(name, xdpnic.ModeGeneric, false))
		if !errors.Is(err, agentproto.ErrNotServed) || !strings.Contains(err.Error(), "-i "+name) {
			t.Errorf("a user, %s: %v, want ErrNotServed with the remedy", name, err)
		}
	}
}

// use is ask with the queue's descriptors closed, so that the queue is free when the session has ended.
func (r *raw) use(q agentproto.Request) (agentproto.Reply, error) {
	_ = r.c.SetDeadline(time.Now().Add(waitLimit))
	r.say(q)
	reply, files, err := r.r.ReadReply()
	for _, f := range files[:min(2, len(files))] {
		f.Close()
	}
	if len(files) > 2 { // the program's sign of life
		r.t.Cleanup(func() { files[2].Close() })
	}
	if err == nil && reply.Error != nil {
		err = reply.Error
	}
	return reply, err
}

func openOf(name string, mode xdpnic.Mode, require bool) agentproto.Request {
	return agentproto.Request{ID: 2, Op: agentproto.OpOpen, Open: &agentproto.Open{
		Interface: name, Queue: kagent.AnyQueue, ArenaBytes: 8 << 20, Mode: mode, RequireMode: require,
	}}
}

// A user that is not named gets no zero-copy queue, but a lesser mode, or an error with the reason.
func TestZeroCopyIsGranted(t *testing.T) {
	t.Parallel()
	ns, _ := nstest.Pair(t, nstest.Options{})
	g := startAgent(t, ns, agentConfig{Ifaces: map[string]agentd.Interface{"via0": {ZeroCopy: agentd.Grant{Users: []uint32{60002}, Groups: []uint32{60100}}}}})
	const withheld = "zero_copy"
	ask := func(r *raw, require bool) string {
		t.Helper()
		defer r.c.Close()
		reply, err := r.hello().use(openOf("via0", xdpnic.ModeZeroCopy, require))
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

// programID returns the ID of the interface's XDP program; 0: there is none.
func programID(t testing.TB, ns *nstest.NS) uint32 {
	t.Helper()
	nic, err := ns.Netlink().LinkByIndex(ns.Index)
	nstest.Must(t, err)
	if x := nic.Attrs().Xdp; x != nil && x.Attached {
		return x.ProgId
	}
	return 0
}

// A user cannot have the program attached and detached in a loop: not by opening and closing, nor by failing opens,
// nor by changing modes. Root can, and takes down what lingers.
func TestLinger(t *testing.T) {
	t.Parallel()
	ns, _ := nstest.Pair(t, nstest.Options{Queues: 2})
	g := startAgent(t, ns, agentConfig{Linger: time.Hour})
	t.Cleanup(func() {
		g.stop()
		nstest.ErrorIf(t, programID(t, ns) != 0, "the agent has ended, and its program is attached")
	})
	use := func(uid int, mode xdpnic.Mode, require bool) error {
		r := g.rawAs(t, uid).hello()
		defer r.c.Close()
		_, err := r.use(openOf("via0", mode, require))
		if err == nil {
			_, err = r.ask(agentproto.Request{ID: 3, Op: agentproto.OpClose})
		}
		return err
	}
	nstest.Must(t, use(60001, xdpnic.ModeNative, true))
	first := programID(t, ns)
	nstest.FatalIf(t, first == 0, "the program is detached with the last queue")
	for range 3 {
		for _, uid := range []int{60001, 60002} {
			nstest.Check(t, use(uid, xdpnic.ModeAuto, false))
			if err := use(uid, xdpnic.ModeGeneric, true); err == nil || !strings.Contains(err.Error(), "native mode") {
				t.Errorf("another mode: %v", err)
			}
			if err := use(uid, xdpnic.ModeZeroCopy, true); err == nil {
				t.Error("zero-copy on a veth")
			}
		}
		if id := programID(t, ns); id != first {
			t.Fatalf("program %d is attached, want %d as before", id, first)
		}
	}
	nstest.WantErr(t, "root", use(0, xdpnic.ModeGeneric, true), nil)
	if id := programID(t, ns); id != 0 {
		t.Errorf("program %d is attached after root's queue", id)
	}
	// An open that fails when the program is attached leaves it there, too.
	nstest.Must(t, use(60001, xdpnic.ModeNative, true))
	nstest.ErrorIf(t, programID(t, ns) == 0, "the program is detached with the last queue")
}

// The program stays attached after a queue that the agent has taken over, too.
func TestLingerAfterRestart(t *testing.T) {
	t.Parallel()
	ns, _ := nstest.Pair(t, nstest.Options{})
	g := startAgent(t, ns, agentConfig{Linger: time.Hour})
	files := g.rawAs(t, 60001).hello().files(openOf("via0", xdpnic.ModeNative, true), 3)
	first := programID(t, ns)
	g.kill()
	g.start()
	for _, f := range files { // the program ends
		f.Close()
	}
	await.Until(t, "the queue is given back", func() bool {
		for _, n := range g.status(t).NICs {
			if len(n.Leases) > 0 {
				return false
			}
		}
		return true
	})
	if id := programID(t, ns); id != first {
		t.Errorf("program %d is attached, want %d as before", id, first)
	}
	r := g.rawAs(t, 60001).hello()
	nstest.Must(t, r.open(0))
	if id := programID(t, ns); id != first {
		t.Errorf("program %d is attached after the next open, want %d as before", id, first)
	}
}

// A lingering program is detached after its time.
func TestLingerEnds(t *testing.T) {
	ns, _ := nstest.Pair(t, nstest.Options{})
	g := startAgent(t, ns, agentConfig{Linger: 50 * time.Millisecond})
	r := g.rawAs(t, 60001).hello()
	nstest.Must(t, r.open(0))
	nstest.ErrorIf(t, programID(t, ns) == 0, "no program is attached")
	r.c.Close()
	await.Until(t, "the program is detached", func() bool { return programID(t, ns) == 0 })
	await.Until(t, "the agent has nothing open", func() bool { return len(g.status(t).NICs) == 0 })
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

// A lingering device is released when its interface is removed.
func TestLingerOfAnInterfaceThatIsGone(t *testing.T) {
	ns, _ := nstest.Pair(t, nstest.Options{})
	g := startAgent(t, ns, agentConfig{Linger: time.Hour})
	r := g.rawAs(t, 60001).hello()
	nstest.Must(t, r.open(0))
	r.c.Close()
	await.Until(t, "the queue is closed", func() bool { st := g.status(t); return len(st.NICs) == 1 && len(st.NICs[0].Leases) == 0 })
	link, err := ns.Netlink().LinkByIndex(ns.Index)
	if err == nil {
		err = ns.Netlink().LinkDel(link)
	}
	nstest.Must(t, err)
	await.Until(t, "the agent has nothing open", func() bool { return len(g.status(t).NICs) == 0 })
}

// The status lists the interfaces that the requesting user is served.
func TestServed(t *testing.T) {
	ns, _ := nstest.Pair(t, nstest.Options{})
	g := startAgent(t, ns, agentConfig{Ifaces: map[string]agentd.Interface{
		"via0": {Users: []uint32{60002}}, "all": {}, "none": {Users: []uint32{}},
	}})
	for uid, want := range map[int]string{0: "all none via0", 60001: "all", 60002: "all via0"} {
		reply, err := g.rawAs(t, uid).hello().ask(agentproto.Request{ID: 2, Op: agentproto.OpStatus})
		nstest.Must(t, err)
		if got := strings.Join(reply.Status.Served, " "); got != want || reply.Status.Serves("via0") != strings.Contains(want, "via0") {
			t.Errorf("user %d: %q, want %q", uid, got, want)
		}
	}
	// Without settings root has all but the loopback, others nothing.
	for uid, want := range map[int]bool{0: true, 60001: false} {
		reply, err := startAgent(t, ns, agentConfig{Defaults: true, Mode: 0o666, Access: agentd.Grant{Users: []uint32{60001}}}).
			rawAs(t, uid).hello().ask(agentproto.Request{ID: 2, Op: agentproto.OpStatus})
		nstest.ErrorIf(t, err != nil || reply.Status.Serves("any") != want || reply.Status.Serves("lo"), "without settings, user %d: %+v, %v", uid, reply.Status, err)
	}
	nothing := startAgent(t, ns, agentConfig{Ifaces: map[string]agentd.Interface{"via0": {Users: []uint32{60002}}}})
	reply, err := nothing.rawAs(t, 60001).hello().ask(agentproto.Request{ID: 2, Op: agentproto.OpStatus})
	nstest.ErrorIf(t, err != nil || reply.Status.Served == nil || reply.Status.Serves("via0"), "of nothing: %+v, %v", reply.Status, err)
}
