package undo

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
)

// Surplus pages, which come and go with the programs that use them, are no part of the setting: nr_hugepages counts them when it
// is read, and not when it is written.
func TestSurplusHugepages(t *testing.T) {
	dir := t.TempDir()
	for name, value := range map[string]string{"nr_hugepages": "75\n", "surplus_hugepages": "5\n"} {
		nstest.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(value), 0o644))
	}
	value, err := readFile(filepath.Join(dir, "nr_hugepages"))
	nstest.Must(t, err)
	nstest.Equal(t, "setting", value, "70")
}

// has checks what a setting is.
func has(t *testing.T, s Setting, want string) {
	t.Helper()
	now, err := Machine{}.Get(s)
	nstest.ErrorIf(t, now != want || err != nil, "%s is %s, want %s, %v", s, now, want, err)
}

// Settings of a real interface, put back from outside of its namespace.
func TestInterface(t *testing.T) {
	a, _ := nstest.Pair(t, nstest.Options{})
	dir := t.TempDir()
	var m Machine
	gro := Setting{Feature, a.Name, "rx-gro"}
	up := Setting{Link, a.Name, "state"}
	var before string
	err := a.Do(func() (err error) {
		if before, err = m.Get(gro); err != nil {
			return err
		}
		j, err := Open(dir, "test", m)
		if err != nil {
			return err
		}
		defer j.Close()
		other := map[string]string{"on": "off", "off": "on"}[before]
		if made, err := j.Apply([]Step{{gro, other}, {up, "down"}}); err != nil || len(made) != 2 {
			t.Errorf("%v, %v", made, err)
		}
		has(t, gro, other)
		has(t, up, "down")
		nstest.ErrSays(t, "a feature that is none", nstest.Err(m.Get(Setting{Feature, a.Name, "no-such"})), "knows no feature")
		nstest.ErrSays(t, "sysfs", nstest.Err(m.Get(Setting{NetFile, a.Name, "threaded"})), "another network namespace")
		// A thread in the namespace, so that it is found from outside.
		c := j.changes[0]
		nstest.ErrorIf(t, c.Netns == 0 || c.Ifindex != a.Index, "written down: %+v", c)
		// A namespace does not match by its inode number alone.
		nothing := func(Setting) error { return nil }
		nstest.Check(t, m.Enter(c, nothing))
		stranger := c
		if stranger.Cookie++; c.Cookie != 0 {
			nstest.WantErr(t, "another namespace", m.Enter(stranger, nothing), ErrGone)
		}
		older := c
		older.Cookie = 0
		nstest.WantErr(t, "of a list without cookies", m.Enter(older, nothing), nil)
		older.Interface = "via-other"
		nstest.WantErr(t, "of a list without cookies, another name", m.Enter(older, nothing), ErrGone)
		if done, err := j.Undo(); err != nil || len(done) != 2 || done[0].Kept+done[1].Kept != "" {
			t.Errorf("%v, %v", done, err)
		}
		has(t, gro, before)
		return nil
	})
	nstest.Must(t, err)
	// From here the namespace cannot be found: no process is in it.
	nstest.WantErr(t, "Enter",
		m.Enter(Change{Setting: gro, Netns: 1, Ifindex: 2}, func(Setting) error { return nil }), ErrGone)
}

// The loopback, whose address sysfs prints as zeros, is of this namespace as any other interface.
func TestNetPath(t *testing.T) {
	all, err := net.Interfaces()
	nstest.Must(t, err)
	for _, i := range all {
		if path, err := NetPath(i.Name, "threaded"); err != nil || path != "/sys/class/net/"+i.Name+"/threaded" {
			t.Errorf("%s: %s, %v", i.Name, path, err)
		}
	}
}

// The settings of an interface that was renamed go back.
func TestRenamedInterface(t *testing.T) {
	a, _ := nstest.Pair(t, nstest.Options{})
	dir := t.TempDir()
	var m Machine
	nstest.Must(t, a.Do(func() error {
		s := Setting{Feature, a.Name, "rx-gro"}
		before, err := m.Get(s)
		nstest.Must(t, err)
		j, err := Open(dir, "test", m)
		nstest.Must(t, err)
		defer j.Close()
		set(t, j, Step{s, map[string]string{"on": "off", "off": "on"}[before]})
		link, err := netlink.LinkByName(a.Name)
		nstest.Must(t, err)
		nstest.Must(t, netlink.LinkSetDown(link))
		s.Interface = "renamed0"
		nstest.Must(t, netlink.LinkSetName(link, s.Interface))
		done, err := j.Undo()
		nstest.ErrorIf(t, err != nil || len(done) != 1 || done[0].Kept != "", "undone: %v, %v", done, err)
		has(t, s, before)
		return nil
	}))
}

// Only what the kernel says to be gone is: while it cannot be asked, the settings stay in the list.
func TestOutOfDescriptors(t *testing.T) {
	var m Machine
	at, err := m.Where("lo")
	nstest.Must(t, err)
	here := Change{Setting: Setting{Kind: Link, Interface: "lo", Name: "state"}, Netns: at.Netns, Cookie: at.Cookie, Ifindex: at.Ifindex}
	removed, elsewhere := here, here
	removed.Interface, removed.Ifindex, elsewhere.Netns = "via-removed", 1<<30, 1
	nothing := func(Setting) error { return nil }
	for _, c := range []Change{removed, elsewhere} {
		nstest.WantErr(t, c.Interface, m.Enter(c, nothing), ErrGone)
	}

	var limit unix.Rlimit
	nstest.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	none := unix.Rlimit{Cur: 0, Max: limit.Max}
	for _, c := range []Change{here, elsewhere} {
		nstest.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &none))
		err := m.Enter(c, nothing)
		nstest.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
		nstest.WantErr(t, "without descriptors", err, unix.EMFILE)
	}
}
