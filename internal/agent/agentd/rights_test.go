package agentd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"viaxdp/internal/base/rundir"
	"viaxdp/internal/lab/nstest"
)

// In another user's directory the agent sets permissions only of the socket that it has made, and not of a file
// that has replaced it.
func TestRightsOfTheSocket(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	path, moved, victim := filepath.Join(dir, "agent.sock.new"), filepath.Join(dir, "moved"), filepath.Join(dir, "victim")
	nstest.Must(t, os.WriteFile(victim, nil, 0o600))
	l, err := listenAlone(path)
	nstest.Must(t, err)
	defer l.Close()
	nstest.Must(t, errors.Join(os.Rename(path, moved), os.Symlink(victim, path)))
	nstest.Must(t, setRights(l, 0o660, 60100))
	for name, want := range map[string]rights{victim: {0o600, 0}, moved: {0o660, 60100}} {
		if got := rightsOf(t, name); got != want {
			t.Errorf("%s: %+v, want %+v", filepath.Base(name), got, want)
		}
	}
}

type rights struct {
	mode os.FileMode
	gid  uint32
}

func rightsOf(t *testing.T, path string) rights {
	t.Helper()
	st, err := os.Stat(path)
	nstest.Must(t, err)
	return rights{st.Mode().Perm(), st.Sys().(*syscall.Stat_t).Gid}
}

// An agent's directory stays when programs that made it end: containers may have it mounted.
func TestDirectoryStays(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := filepath.Join(t.TempDir(), "via-xdp")
	nstest.Must(t, rundir.Make(filepath.Join(dir, "proc")))
	ctx, stop := context.WithCancel(t.Context())
	d := Daemon{Socket: filepath.Join(dir, "agent.sock"), Ready: func(*Server) { stop() }}
	nstest.Must(t, d.Run(ctx))
	rundir.Unmake(filepath.Join(dir, "proc"))
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("the agent's directory: %v, %v; want it, and nothing in it", left, err)
	}
}
