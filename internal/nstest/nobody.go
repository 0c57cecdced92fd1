package nstest

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// nobody is the user and group without any rights.
const nobody = 65534

// AsNobody is a command that runs this test binary again, one test of it, as
// a user without privilege. It calls Require first.
func AsNobody(t testing.TB, test string) *exec.Cmd {
	t.Helper()
	Require(t)
	exe, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "nobody") // t.TempDir is root's alone
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(dir+"/test", exe, 0o755)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(dir+"/test", "-test.v", "-test.run=^"+test+"$")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	return cmd
}
