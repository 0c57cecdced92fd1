package peers

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"viaxdp/internal/testbed"
)

// installCommands are the commands with which [Install] fetches programs.
func installCommands(missing []Program) [][]string {
	install := []string{"apt-get", "install", "--yes", "--no-install-recommends"}
	for _, p := range missing {
		install = append(install, p.Package)
	}
	return [][]string{{"apt-get", "update"}, install}
}

// Install fetches the programs that are missing from the distribution, by
// apt-get, and does nothing when there are none. What apt-get prints goes to
// out. A machine without apt-get, or a process without the right to install, is
// told by a *testbed.MissingError, which has the commands to run instead.
func Install(ctx context.Context, out io.Writer) error {
	missing := Missing()
	if len(missing) == 0 {
		return nil
	}
	commands := installCommands(missing)
	if _, err := exec.LookPath("apt-get"); err != nil {
		return &testbed.MissingError{
			What: names(missing), Err: err,
			Remedy: "only Debian's packages are known here (" + packages(missing) + "); install the programs by hand",
		}
	}
	if os.Geteuid() != 0 {
		return &testbed.MissingError{What: names(missing), Remedy: "run as root: " + shell(commands)}
	}
	for _, argv := range commands {
		if err := runApt(ctx, argv, out); err != nil {
			return fmt.Errorf("install %s: %w", names(missing), err)
		}
	}
	if left := Missing(); len(left) > 0 {
		return fmt.Errorf("%s: the packages %s are installed, but the programs are not on PATH", names(left), packages(left))
	}
	return nil
}

// aptGrace is how long apt-get may take to leave its database in order when it
// is interrupted.
const aptGrace = 10 * time.Second

func runApt(ctx context.Context, argv []string, out io.Writer) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	var said limited
	both := io.Writer(&said)
	if out != nil {
		both = io.MultiWriter(&said, out)
	}
	cmd.Stdout, cmd.Stderr = both, both
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = aptGrace
	err := cmd.Run()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, lastLine(said.String()))
}

func names(list []Program) string {
	var s []string
	for _, p := range list {
		s = append(s, p.Name)
	}
	return strings.Join(s, ", ")
}

func packages(list []Program) string {
	var s []string
	for _, p := range list {
		s = append(s, p.Package)
	}
	return strings.Join(s, ", ")
}

// shell is commands as one would type them.
func shell(commands [][]string) string {
	var s []string
	for _, argv := range commands {
		s = append(s, strings.Join(argv, " "))
	}
	return strings.Join(s, " && ")
}
