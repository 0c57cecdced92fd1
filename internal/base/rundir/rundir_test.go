package rundir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"viaxdp/internal/base/thread"
	"viaxdp/internal/lab/nstest"
)

// What others can change is refused.
func TestOwn(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	nstest.Must(t, errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(file, nil, 0o600), os.Symlink("file", link)))
	nstest.Check(t, errors.Join(Own(dir), Own(file)))
	nstest.WantErr(t, "nothing", Own(filepath.Join(dir, "none")), fs.ErrNotExist)
	refused := func(path, why string) {
		t.Helper()
		if err := Own(path); err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), path) {
			t.Errorf("%v, want %q", err, why)
		}
	}
	refused(link, "neither")
	nstest.Must(t, errors.Join(os.Chmod(dir, 0o775), os.Chmod(file, 0o602)))
	refused(dir, "others may write")
	refused(file, "others may write")
	if os.Geteuid() != 0 {
		nstest.WantErr(t, "root's", Own("/usr"), fs.ErrPermission)
		return
	}
	nstest.Must(t, os.Chown(dir, 60001, -1))
	refused(dir, "belongs to user 60001")
}

// What Make has made goes when it is empty, and nothing else: not what was there, nor what is kept.
func TestUnmake(t *testing.T) {
	is := func(what, path string, want bool) {
		t.Helper()
		if _, err := os.Lstat(path); (err == nil) != want {
			t.Errorf("%s: %v, want it to be there: %v", what, err, want)
		}
	}
	top := t.TempDir()
	state := filepath.Join(top, "above", "via-xdp")
	proc := filepath.Join(state, "proc")
	for range 2 {
		nstest.Must(t, Make(proc))
		nstest.Check(t, errors.Join(Own(state), Own(proc)))
	}
	file := filepath.Join(proc, "7.sock")
	nstest.Must(t, os.WriteFile(file, nil, 0o600))
	Unmake(proc)
	is("in use", file, true)
	os.Remove(file)
	Unmake(proc)
	is("not in use", state, false)
	is("above what is made", filepath.Dir(state), true)

	// One that was there before, as a container's volume is.
	nstest.Must(t, os.Mkdir(state, 0o755))
	nstest.Must(t, Make(proc))
	Unmake(proc)
	is("made", proc, false)
	is("there before", state, true)
	Unmake(state)
	is("there before", state, true)

	// One that an agent has served in.
	os.Remove(state)
	nstest.Must(t, errors.Join(Make(proc), Keep(state), Keep(state)))
	Unmake(proc)
	is("kept", state, true)
	if st, err := os.Stat(state); err != nil || st.Mode() != fs.ModeDir|0o755 {
		t.Errorf("kept: %v, %v", st.Mode(), err)
	}

	// The mark of a directory in which others may write is none: it is /tmp's.
	for _, mode := range []fs.FileMode{0o777, 0o775} {
		nstest.Must(t, os.Chmod(state, fs.ModeSticky|mode))
		Unmake(state)
		is("others may write", state, true)
		nstest.Check(t, Keep(state))
		if st, err := os.Stat(state); err != nil || st.Mode()&fs.ModeSticky == 0 {
			t.Errorf("the sticky bit of a directory of all is gone: %v, %v", st.Mode(), err)
		}
	}
}

// Programs that begin and end at once have their directory while they need it, and leave none.
func TestMakeBesideUnmake(t *testing.T) {
	proc := filepath.Join(t.TempDir(), "via-xdp", "proc")
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			for range 200 {
				path := filepath.Join(proc, strconv.Itoa(n))
				var err error
				for tries := 0; tries < 100; tries++ {
					if err = Make(proc); err == nil {
						err = os.WriteFile(path, nil, 0o600)
					}
					if !errors.Is(err, fs.ErrNotExist) {
						break
					}
				}
				nstest.Check(t, err)
				nstest.Check(t, os.Remove(path))
				Unmake(proc)
			}
		})
	}
	all.Wait()
	if left, err := os.ReadDir(filepath.Dir(filepath.Dir(proc))); len(left) > 0 || err != nil {
		t.Errorf("left: %v, %v", left, err)
	}
}

// No other user can connect, from the first moment on.
func TestListen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	for _, network := range []string{"unix", "unixpacket"} {
		l, err := Listen(network, path)
		nstest.Must(t, err)
		if st, err := os.Lstat(path); err != nil || st.Mode() != fs.ModeSocket|0o600 {
			t.Errorf("%s: %v, %v", network, st.Mode(), err)
		}
		l.Close()
	}
}

func TestDirectories(t *testing.T) {
	t.Setenv("VIA_STATE_DIR", "/a")
	t.Setenv("VIA_RUNTIME_DIR", "/b")
	if d, err := State(); d != "/a" || err != nil {
		t.Errorf("State: %q, %v", d, err)
	}
	if d, err := Programs(); d != "/b" || err != nil {
		t.Errorf("Programs: %q, %v", d, err)
	}
	if got := AllPrograms(); !slices.Equal(got, []string{"/b"}) {
		t.Errorf("AllPrograms: %q", got)
	}
	t.Setenv("VIA_STATE_DIR", "")
	t.Setenv("VIA_RUNTIME_DIR", "")
	t.Setenv("XDG_RUNTIME_DIR", "/x")
	state, programs := "/x/via-xdp", "/x/via-xdp/proc"
	if os.Geteuid() == 0 {
		state, programs = "/run/via-xdp", "/run/via-xdp/proc"
	}
	if d, err := State(); d != state || err != nil {
		t.Errorf("State: %q, %v", d, err)
	}
	if d, err := Programs(); d != programs || err != nil {
		t.Errorf("Programs: %q, %v", d, err)
	}
	if got := AllPrograms(); !slices.Contains(got, "/run/via-xdp/proc") || got[0] != programs {
		t.Errorf("AllPrograms: %q", got)
	}
}

// A user's own directory is listed once, although XDG_RUNTIME_DIR names it by a link, as /var/run/user/UID does.
func TestOwnDirectoryOnce(t *testing.T) {
	const home = users + "/65534" // nobody's
	if os.Getenv("XDG_RUNTIME_DIR") == t.Name() {
		link := filepath.Join(t.TempDir(), "link")
		nstest.Must(t, os.Symlink(home, link))
		t.Setenv("XDG_RUNTIME_DIR", link)
		if got, want := AllPrograms(), []string{home + "/via-xdp/proc", system + "/proc"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		return
	}
	cmd := nstest.AsNobody(t, t.Name())
	cmd.Env = append(os.Environ(), "VIA_RUNTIME_DIR=", "XDG_RUNTIME_DIR="+t.Name())
	var out []byte
	var err error
	thread.Run(func() { // which has its own /run
		err = errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		if err == nil {
			err = errors.Join(unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"), os.MkdirAll(home+"/via-xdp/proc", 0o755))
		}
		if err == nil {
			out, err = cmd.CombinedOutput()
		}
	})
	nstest.FatalIf(t, err != nil || !strings.Contains(string(out), "PASS: "+t.Name()), "%v\n%s", err, out)
}

// State that cannot be written, as on a full disk, leaves what there was, and no half of a file.
func TestSaveOnFullDisk(t *testing.T) {
	nstest.Require(t)
	dir, page := t.TempDir(), os.Getpagesize()
	path := filepath.Join(dir, "state")
	thread.Run(func() { // which sees the file system
		nstest.Check(t, errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprint("size=", page)), Save(path, "before")))
		nstest.WantErr(t, "Save", Save(path, "after"), unix.ENOSPC)
		entries, err := os.ReadDir(dir)
		text, rerr := os.ReadFile(path)
		nstest.ErrorIf(t, errors.Join(err, rerr) != nil || len(entries) != 1 || string(text) != "\"before\"\n", "%v, %q, %v, %v", entries, text, err, rerr)
	})
}
