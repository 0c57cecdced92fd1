package peers

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/testbed"
)

// aptHere makes a PATH of one directory, with an apt-get that writes its
// arguments to the file that it returns and then runs script.
func aptHere(t *testing.T, script string) (dir, calls string) {
	t.Helper()
	dir = t.TempDir()
	calls = filepath.Join(dir, "calls")
	t.Setenv("PATH", dir)
	program(t, dir, "apt-get", "echo \"$DEBIAN_FRONTEND $*\" >>"+calls+"\n"+script)
	return dir, calls
}

// program puts a shell script into a directory.
func program(t *testing.T, dir, name, script string) {
	t.Helper()
	nstest.Must(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
}

// Where nothing is missing, nothing is done.
func TestInstallNothing(t *testing.T) {
	dir, calls := aptHere(t, "")
	for _, p := range Programs() {
		program(t, dir, p.Name, "")
	}
	nstest.Check(t, Install(context.Background(), io.Discard))
	nstest.ErrorIf(t, nstest.Err(os.Stat(calls)) == nil, "apt-get was called")
}

// On a machine without the programs, apt-get fetches just those.
func TestInstallMissing(t *testing.T) {
	nstest.Require(t)
	dir, calls := aptHere(t, `test $1 = update || for p in iperf3 fi_pingpong ucx_perftest; do
	echo '#!/bin/sh' >"${0%/*}/$p" && chmod 755 "${0%/*}/$p"
done
echo said by apt-get`)
	program(t, dir, "sockperf", ":")
	t.Setenv("PATH", dir+":"+toolsOnly(t, "chmod"))
	nstest.Equal(t, "missing", names(Missing()), "iperf3, fi_pingpong, ucx_perftest")
	var out strings.Builder
	nstest.Must(t, Install(context.Background(), &out))
	b, err := os.ReadFile(calls)
	want := "noninteractive update\nnoninteractive install --yes --no-install-recommends iperf3 libfabric-bin ucx-utils\n"
	if err != nil || string(b) != want {
		t.Errorf("calls: %q, %v", b, err)
	}
	nstest.Equal(t, "out", out.String(), "said by apt-get\nsaid by apt-get\n")
	if m := Missing(); len(m) > 0 {
		t.Errorf("still missing: %v", m)
	}
}

// toolsOnly is a directory with links to some programs of this machine.
func toolsOnly(t *testing.T, tools ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range tools {
		nstest.Must(t, os.Symlink("/bin/"+name, filepath.Join(dir, name)))
	}
	return dir
}

func TestInstallFails(t *testing.T) {
	nstest.Require(t)
	aptHere(t, "echo E: Unable to locate package sockperf >&2; exit 100")
	err := Install(context.Background(), io.Discard)
	nstest.ErrSays(t, "without the package", err, "apt-get update: exit status 100: E: Unable to locate package sockperf")
	aptHere(t, "exit 0")
	nstest.ErrSays(t, "without the program", Install(context.Background(), io.Discard), "not on PATH")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	nstest.WantErr(t, "interrupted", Install(ctx, io.Discard), context.Canceled)
}

// A user who may not install gets the command to run. The test runs itself again as
// user nobody.
func TestInstallNeeds(t *testing.T) {
	if os.Geteuid() == 0 {
		out, err := nstest.AsNobody(t, "TestInstallNeeds").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: TestInstallNeeds") {
			t.Errorf("as nobody: %v\n%s", err, out)
		}
		return
	}
	_, calls := aptHere(t, "")
	err := Install(context.Background(), io.Discard)
	var missing *testbed.MissingError
	want := "run as root: apt-get update && apt-get install --yes --no-install-recommends sockperf iperf3 libfabric-bin ucx-utils"
	if !errors.As(err, &missing) || missing.Remedy != want {
		t.Errorf("got %v", err)
	}
	nstest.ErrorIf(t, nstest.Err(os.Stat(calls)) == nil, "apt-get was called")
	t.Setenv("PATH", t.TempDir())
	if err = Install(context.Background(), io.Discard); !errors.As(err, &missing) || !strings.Contains(missing.Remedy, "by hand") {
		t.Errorf("without apt-get: %v", err)
	}
}

func TestVersion(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	for _, test := range []struct{ says, want string }{
		{"sockperf, version 3.7-no.git", "3.7"},
		{"iperf 3.12 (cJSON 1.7.15)", "3.12"},
		{"fi_info: 1.17.0", "1.17.0"},
		{"# Version 1.13.1", "1.13.1"},
		{"none", "?"},
	} {
		program(t, dir, "teller", "echo '"+test.says+"'")
		nstest.Equal(t, test.says, (Program{version: []string{"teller"}}).Version(context.Background()), test.want)
	}
	nstest.Equal(t, "absent", (Program{version: []string{"absent"}}).Version(context.Background()), "?")
}
