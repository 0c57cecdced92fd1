package agentd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
)

// No connect to the socket succeeds before it has its final permissions, whatever the umask.
func TestListenAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sock")
	old := unix.Umask(0)
	l, err := listenAlone(path)
	unix.Umask(old)
	nstest.Must(t, err)
	defer l.Close()
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0 {
		t.Errorf("%v, %v, want no rights", st.Mode(), err)
	}
}

// A wrong path does not remove a file.
func TestListenLeavesFilesAlone(t *testing.T) {
	for _, suffix := range []string{"", ".new"} {
		path := filepath.Join(t.TempDir(), "agent.toml")
		nstest.Must(t, os.WriteFile(path+suffix, []byte("mine"), 0o600))
		d := &Daemon{Socket: path}
		if l, err := d.listen(); err == nil {
			l.Close()
			t.Error("it listens")
		} else if !strings.Contains(err.Error(), path+suffix+" is there and is no socket") {
			t.Error(err)
		}
		if b, err := os.ReadFile(path + suffix); string(b) != "mine" {
			t.Errorf("%q, %v", b, err)
		}
	}
}
