package floor

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"viaxdp/internal/lab/nstest"
)

// run starts the program as package bench does, by a descriptor.
func run(t *testing.T, program *os.File, input string) (output string, err error) {
	t.Helper()
	cmd := &exec.Cmd{Path: "/proc/self/fd/3", Args: []string{"floor"}, Stdin: strings.NewReader(input), ExtraFiles: []*os.File{program}}
	out, err := cmd.Output()
	return string(out), err
}

// The program is built, is unlinked, ends with its input, and reports errors.
func TestBuild(t *testing.T) {
	if _, err := find(); err != nil {
		nstest.Lacks(t, "%v", err)
	}
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	program, err := Build()
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	if left, err := os.ReadDir(dir); len(left) > 0 || err != nil {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if out, err := run(t, program, ""); out != "" || err != nil {
		t.Errorf("without input: %q, %v", out, err)
	}
	for input, want := range map[string]string{
		"dance 1 2":                            "error no such command: dance 1 2\n",
		"\n":                                   "error an empty line\n",
		"open 1":                               "error cannot read: open 1\n",
		"connect 1 2 00":                       "error cannot read: connect 1 2 00\n",
		"ping 1 64 10 0 0":                     "error cannot do: ping 1 64 10 0 0\n", // nothing is open
		"echo 1":                               "error cannot read: echo 1\n",
		"open 1 0 2048 512 1 1 42 0 1 1 1 1 1": "error map memory: ",
	} {
		out, err := run(t, program, input+"\n")
		var status *exec.ExitError
		if !strings.HasPrefix(out, want) || !errors.As(err, &status) || status.ExitCode() != 1 {
			t.Errorf("%q: %q, %v; want %q", input, out, err, want)
		}
	}
}

// A program that cannot be started is detected before anything depends on it.
func TestRuns(t *testing.T) {
	if _, err := find(); err == nil {
		if err := Runs(); err != nil {
			t.Error(err)
		}
	}
	script := filepath.Join(t.TempDir(), "program")
	for mode, want := range map[os.FileMode]string{0o600: "permission denied", 0o700: "exit status 1"} {
		if err := errors.Join(os.WriteFile(script, []byte("#!/bin/false\n"), mode), os.Chmod(script, mode)); err != nil {
			t.Fatal(err)
		}
		program, err := os.Open(script)
		if err != nil {
			t.Fatal(err)
		}
		defer program.Close()
		if err := try(program); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("mode %o: %v, want %s", mode, err, want)
		}
	}
}

// No compiler warns about the program.
func TestWarnings(t *testing.T) {
	tried := 0
	for _, compiler := range []string{"gcc", "clang"} {
		if _, err := exec.LookPath(compiler); err != nil {
			continue
		}
		tried++
		args := append(Flags[:len(Flags):len(Flags)], "-Werror", "-Wshadow", "-o", filepath.Join(t.TempDir(), "floor"), "c/floor.c")
		if out, err := exec.Command(compiler, args...).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", compiler, err, out)
		}
	}
	if tried == 0 {
		nstest.Lacks(t, "%v", ErrNoCompiler)
	}
}

func TestNoCompiler(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := Build(); !errors.Is(err, ErrNoCompiler) {
		t.Errorf("got %v", err)
	}
}

// The error of a failed compiler names it, with the first line of its output.
func TestBrokenCompiler(t *testing.T) {
	bin, dir := t.TempDir(), t.TempDir()
	script := "#!/bin/sh\necho 'floor.c:20: no such header'\necho more\nexit 4\n"
	if err := os.WriteFile(filepath.Join(bin, "cc"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	t.Setenv("TMPDIR", dir)
	if _, err := Build(); err == nil || !strings.HasSuffix(err.Error(), "/cc: exit status 4: floor.c:20: no such header") {
		t.Errorf("got %v", err)
	}
	if left, err := os.ReadDir(dir); len(left) > 0 || err != nil {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
