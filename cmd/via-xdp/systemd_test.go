package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"viaxdp/internal/lab/nstest"
)

// mostExposure is the highest score that systemd-analyze security may give the agent's
// service, in tenths; docs/agent.md explains the rest.
const mostExposure = "22"

// The units are good, and the service has no more than it needs, as systemd sees it.
func TestSystemdUnits(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		nstest.Lacks(t, "needs systemd-analyze (Debian: systemd): %v", err)
	}
	self, err := os.Executable()
	nstest.Must(t, err)
	dir := t.TempDir()
	args := []string{"verify", "--man=no"}
	for _, name := range []string{"via-xdp-agent.service", "via-xdp-agent.socket"} {
		text, err := os.ReadFile("../../contrib/systemd/" + name)
		nstest.Must(t, err)
		// It must be there.
		unit := strings.ReplaceAll(string(text), "/usr/bin/via-xdp", self)
		nstest.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(unit), 0o644))
		args = append(args, filepath.Join(dir, name))
	}
	if out, err := exec.Command(analyze, args...).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("verify: %v\n%s", err, out)
	}
	// systemd older than 250 has no --offline.
	service := filepath.Join(dir, "via-xdp-agent.service")
	if out, err := exec.Command(analyze, "security", "--no-pager", "--offline=true", "--threshold="+mostExposure, service).CombinedOutput(); err != nil {
		t.Errorf("security: %v\n%s", err, out)
	}
}

// The units work with systemd as process 1; see contrib/systemd/try.
func TestSystemdService(t *testing.T) {
	if testing.Short() {
		t.Skip("boots systemd")
	}
	nstest.Require(t)
	self, err := os.Executable() // as via-xdp it is via-xdp: TestMain
	nstest.Must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "../../contrib/systemd/try", self)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it tidies up
	cmd.WaitDelay = time.Minute
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == exitCannotRun {
		nstest.Lacks(t, "%s", out)
	}
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
