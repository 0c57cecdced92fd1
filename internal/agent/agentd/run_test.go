package agentd_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/agentd"
	"viaxdp/internal/lab/nstest"
)

// A user that locks a readable file in the socket's directory does not keep the agent from starting. A running
// agent does, and leaves its lock to the next one.
func TestLock(t *testing.T) {
	ns, _ := nstest.Pair(t, nstest.Options{})
	g := startAgent(t, ns, agentConfig{})
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
