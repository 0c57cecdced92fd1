package agentd

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// The socket lets nobody in before it has its final rights, whatever the umask.
func TestListenAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sock")
	old := unix.Umask(0)
	l, err := listenAlone(path)
	unix.Umask(old)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0 {
		t.Errorf("%v, %v, want no rights", st.Mode(), err)
	}
}
