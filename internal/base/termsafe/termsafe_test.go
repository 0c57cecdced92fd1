package termsafe

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
)

func TestPrintable(t *testing.T) {
	for s, want := range map[string]string{
		"": "", "via-xdp bench": "via-xdp bench", "\x1b[2Jx\ny": "?[2Jx?y", "grün": "grün", "a\xffb": "a?b", "\u202e": "?",
	} {
		if got := Printable(s); got != want {
			t.Errorf("%q is %q, want %q", s, got, want)
		}
	}
}

// Of a process with a bad name one sees a harmless one, of one that is gone none.
func TestName(t *testing.T) {
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestNamed$")
	cmd.Env = append(os.Environ(), "VIA_TEST_NAMED=1")
	in, err := cmd.StdinPipe()
	nstest.Must(t, err)
	out, err := cmd.StdoutPipe()
	nstest.Must(t, err)
	nstest.Must(t, cmd.Start())
	out.Read(make([]byte, 1)) // it has its name now
	nstest.Equal(t, "Name", Name(cmd.Process.Pid), "a?[2Jb?c")
	in.Close()
	cmd.Wait()
	nstest.Equal(t, "of a process that is gone", Name(cmd.Process.Pid), "")
	want := filepath.Base(os.Args[0])
	if got := Name(os.Getpid()); got != want[:min(len(want), 15)] { // all that the kernel keeps
		t.Errorf("this one is %q, not the beginning of %q", got, want)
	}
}

// TestNamed is the process that TestName looks at.
func TestNamed(t *testing.T) {
	if os.Getenv("VIA_TEST_NAMED") == "" {
		return // an ordinary run of the tests
	}
	nstest.Must(t, os.WriteFile("/proc/self/comm", []byte("a\x1b[2Jb\nc"), 0))
	os.Stdout.Write([]byte("x"))
	unix.Read(0, make([]byte, 1))
}
