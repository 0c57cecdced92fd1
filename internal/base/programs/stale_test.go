package programs

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

// private is a directory that only this user can change, whatever the umask.
func private(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "proc")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func old(t *testing.T, dir, name string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	dead(t, path)
	age(t, path)
	return path
}

// keeps checks that nobody removes a socket on which nobody answers.
func keeps(t *testing.T, what, dir, path string) {
	t.Helper()
	if got := Stale(dir); len(got) != 0 {
		t.Errorf("%s: stale: %v", what, got)
	}
	List([]string{dir})
	if err := Remove(filepath.Join(dir, filepath.Base(path))); err == nil {
		t.Errorf("%s: removed without an error", what)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

// What another user could make root remove stays: a socket elsewhere, to which the
// directory is a link, in which a part of the path is, or in a directory that
// others may change.
func TestOthersSocketsStay(t *testing.T) {
	victims := private(t)
	path := old(t, victims, "4194000.sock")

	links := t.TempDir()
	dir := filepath.Join(links, "proc")
	if err := os.Symlink(victims, dir); err != nil {
		t.Fatal(err)
	}
	keeps(t, "a link for the directory", dir, path)

	above := filepath.Join(links, "above")
	if err := os.Symlink(filepath.Dir(victims), above); err != nil {
		t.Fatal(err)
	}
	keeps(t, "a link in the path", filepath.Join(above, filepath.Base(victims)), path)

	for _, mode := range []os.FileMode{0o775, 0o757, os.ModeSticky | 0o777} {
		if err := os.Chmod(victims, mode); err != nil {
			t.Fatal(err)
		}
		keeps(t, mode.String(), victims, path)
	}
	if err := os.Chmod(victims, 0o755); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(victims, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		keeps(t, "another user's directory", victims, path)
		if err := os.Chown(victims, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	if got := Stale(victims); len(got) != 1 { // nothing else kept it
		t.Errorf("stale: %v", got)
	}
}

// In its own directory only dead sockets of programs go: no link, no file, no
// socket with another name; and a link is not followed to whom it names.
func TestOnlySocketsGo(t *testing.T) {
	dir, other := private(t), private(t)
	target := old(t, other, "4194000.sock")
	link, file := filepath.Join(dir, "4194001.sock"), filepath.Join(dir, "4194002.sock")
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	age(t, file)
	ln, err := net.Listen("unix", filepath.Join(other, "4194003.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if err := os.Symlink(ln.Addr().String(), filepath.Join(dir, "4194003.sock")); err != nil {
		t.Fatal(err)
	}
	named := old(t, dir, "docker.sock")
	if got := Stale(dir); len(got) != 0 {
		t.Errorf("stale: %v", got)
	}
	if found, _ := List([]string{dir}); len(found) != 0 {
		t.Errorf("found by a link: %+v", found)
	}
	for _, path := range []string{link, file} {
		if Remove(path) == nil {
			t.Errorf("%s removed", path)
		}
	}
	for _, path := range []string{link, file, named, target} {
		if _, err := os.Lstat(path); err != nil {
			t.Error(err)
		}
	}
}
