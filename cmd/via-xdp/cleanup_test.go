package main

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"viaxdp/internal/lab/nstest"
)

// leave makes what crashed programs leave: a socket, a half-written file, and a
// list of settings.
func leave(t *testing.T) (socket, half, settings string) {
	t.Helper()
	state, programs := filepath.Join(t.TempDir(), "state"), filepath.Join(t.TempDir(), "proc")
	t.Setenv("VIA_STATE_DIR", state)
	t.Setenv("VIA_RUNTIME_DIR", programs)
	for _, dir := range []string{state, programs} {
		nstest.Must(t, os.Mkdir(dir, 0o755))
	}
	socket = filepath.Join(programs, "4194000.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	nstest.Must(t, err)
	ln.SetUnlinkOnClose(false)
	ln.Close()
	half, settings = filepath.Join(state, "tune.json.new"), filepath.Join(state, "doctor.json")
	gone := `[{"kind": "file", "name": "/sys/devices/system/cpu/cpu99999/cpufreq/scaling_governor", "before": "0", "after": "1"}]`
	for path, text := range map[string]string{half: "[", settings: gone, filepath.Join(state, "notes.json.new"): "mine"} {
		nstest.Must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	old := time.Now().Add(-time.Hour)
	for _, path := range []string{half, socket} {
		nstest.Must(t, os.Chtimes(path, old, old))
	}
	return socket, half, settings
}

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func TestCleanup(t *testing.T) {
	socket, half, settings := leave(t)
	r := &recorder{} // it reports that a test bed is up
	status, out, errs := call(r, "cleanup", "--dry-run")
	if status != 0 || !there(socket) || !there(half) || !there(settings) || strings.Count(out, "would remove") != 2 {
		t.Errorf("--dry-run: status %d, %q, %q", status, out, errs)
	}
	r.calls = nil
	if status, out, errs = call(r, "cleanup"); status != 0 || there(socket) || there(half) || !there(settings) {
		t.Errorf("status %d, %q, %q", status, out, errs)
	}
	if slices.Contains(r.calls, "down") {
		t.Error("a bed that is up was taken down")
	}
	if status, out, errs = call(r, "cleanup", "--all"); status != 0 || there(settings) || !slices.Contains(r.calls, "down") {
		t.Errorf("--all: status %d, %q, %q, called %v", status, out, errs, r.calls)
	}
	if !there(filepath.Join(filepath.Dir(half), "notes.json.new")) {
		t.Error("a file that is not ours was removed")
	}
}

// A program may still be writing a half-written file.
func TestCleanupLeavesYoungFiles(t *testing.T) {
	_, half, _ := leave(t)
	nstest.Must(t, os.Chtimes(half, time.Now(), time.Now()))
	if call(&recorder{}, "cleanup"); !there(half) {
		t.Error("it was removed")
	}
}

// A directory that others may change can name any user's socket: cleanup, which may run
// as root, leaves it.
func TestCleanupLeavesOthersSockets(t *testing.T) {
	socket, _, _ := leave(t)
	link := filepath.Join(t.TempDir(), "proc")
	nstest.Must(t, os.Symlink(filepath.Dir(socket), link))
	t.Setenv("VIA_RUNTIME_DIR", link)
	if status, _, errs := call(&recorder{}, "cleanup"); status != 0 || !there(socket) {
		t.Errorf("by a link: status %d, %q, socket there: %v", status, errs, there(socket))
	}
	t.Setenv("VIA_RUNTIME_DIR", filepath.Dir(socket))
	nstest.Must(t, os.Chmod(filepath.Dir(socket), 0o777))
	if status, _, errs := call(&recorder{}, "cleanup"); status != 0 || !there(socket) {
		t.Errorf("of everybody: status %d, %q, socket there: %v", status, errs, there(socket))
	}
}
