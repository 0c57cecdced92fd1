package rundir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What others can change is refused.
func TestOwn(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(file, nil, 0o600), os.Symlink("file", link)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(Own(dir), Own(file)); err != nil {
		t.Error(err)
	}
	if err := Own(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing: %v", err)
	}
	refused := func(path, why string) {
		t.Helper()
		if err := Own(path); err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), path) {
			t.Errorf("%v, want %q", err, why)
		}
	}
	refused(link, "neither")
	if err := errors.Join(os.Chmod(dir, 0o775), os.Chmod(file, 0o602)); err != nil {
		t.Fatal(err)
	}
	refused(dir, "others may write")
	refused(file, "others may write")
	if os.Geteuid() != 0 {
		if err := Own("/usr"); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("root's: %v", err)
		}
		return
	}
	if err := os.Chown(dir, 60001, -1); err != nil {
		t.Fatal(err)
	}
	refused(dir, "belongs to user 60001")
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
