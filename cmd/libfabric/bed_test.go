package libfabric

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/cprogram"
	"viaxdp/internal/lab/nstest"
)

// The provider is tested as programs meet it: libvipl and the provider are built, libfabric loads it, and programs
// run in two namespaces. Long tests run in parallel, except those of Open MPI: ranks over libfabric's tcp poll all the time, and
// beside others they take ten times as long.

// made is the directory with lib (libvipl), prov (the provider) and asan (the provider with sanitizers, and the
// suite), made once for all tests.
var made = struct {
	sync.Once
	dir string
	err error
}{}

func TestMain(m *testing.M) {
	code := m.Run()
	if made.dir != "" {
		os.RemoveAll(made.dir)
	}
	os.Exit(code)
}

const sanitizers = "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all"

// build makes everything, or ends the test if a tool is missing.
func build(t testing.TB, tools ...string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("not with -short") // a build in C takes minutes beside other tests; .ci/run has it without -short
	}
	nstest.Require(t)
	for _, tool := range append(tools, "make", "gcc", "objcopy", "fi_info", "fi_pingpong") {
		if _, err := exec.LookPath(tool); err != nil {
			nstest.Lacks(t, "needs %s: apt-get install gcc make binutils libc6-dev libfabric-dev libfabric-bin", tool)
		}
	}
	if _, err := os.Stat("/usr/include/rdma/fabric.h"); err != nil {
		nstest.Lacks(t, "needs libfabric-dev: %v", err)
	}
	made.Do(func() { made.dir, made.err = makeAll() })
	if made.err != nil {
		t.Fatal(made.err)
	}
	return made.dir
}

func makeAll() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "libfabric"); err != nil {
		return "", err
	}
	lib := filepath.Join(dir, "lib")
	suite, err := filepath.Glob("testdata/suite/*.c")
	if err != nil {
		return dir, err
	}
	rpath := "LDFLAGS=-Wl,-rpath," + lib
	compile := []string{"gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread"}
	for _, c := range [][]string{
		{"make", "-C", "../libvipl", "lib", "OUT=" + lib},
		{"make", "lib", "OUT=" + dir + "/prov", "LIBVIPL=" + lib, rpath, "WARNINGS=-Wall -Wextra -Wpedantic -Werror"},
		{"make", "lib", "OUT=" + dir + "/asan", "LIBVIPL=" + lib, rpath, "CFLAGS=" + sanitizers},
		slices.Concat(compile, []string{"-O2", "-o", dir + "/suite"}, suite, []string{"-lfabric"}),
		slices.Concat(compile, strings.Fields(sanitizers), []string{"-o", dir + "/suite-asan"}, suite, []string{"-lfabric"}),
	} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			return dir, fmt.Errorf("%q: %w\n%s", c, err, out)
		}
	}
	return dir, os.Chmod(dir, 0o755) // for programs of other users
}

// command is the path of via-xdp, which it builds once for all tests, after build.
var command = sync.OnceValues(func() (string, error) {
	path := filepath.Join(made.dir, "via-xdp")
	if out, err := exec.Command("go", "build", "-o", path, "../via-xdp").CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})

// newBed is a bed whose programs find the provider.
func newBed(t testing.TB, o nstest.Options, env ...string) *cprogram.Bed {
	t.Helper()
	return cprogram.New(t, o, append([]string{"FI_PROVIDER_PATH=" + made.dir + "/prov"}, env...)...)
}

// gcc compiles a program, or what its arguments say, and returns its path.
func gcc(t testing.TB, name string, args ...string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), name)
	args = append([]string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o", to}, args...)
	out, err := exec.Command("gcc", args...).CombinedOutput()
	nstest.FatalIf(t, err != nil, "gcc %q: %v\n%s", args, err, out)
	return to
}

// preloaded is the environment of a program in which a library of testdata/hostile replaces functions.
func preloaded(t testing.TB, dir, name string) string {
	t.Helper()
	return "LD_PRELOAD=" + gcc(t, name+".so", "-shared", "-fPIC", "-I"+dir+"/lib", "testdata/hostile/"+name+".c")
}

// two runs a server and a client, and returns what they printed.
func two(t testing.TB, a *cprogram.Bed, server []string, b *cprogram.Bed, client []string) (string, string) {
	t.Helper()
	s := a.Start(t, a.A, server...)
	c := b.Start(t, b.B, client...)
	out := c.Finish(t)
	if t.Failed() {
		s.Process.Kill()
	}
	return s.Finish(t), out
}

// suite runs the suite of a directory's program over a provider.
func suite(t testing.TB, a, b *cprogram.Bed, program, provider, address string, tests ...string) {
	t.Helper()
	args := func(side string) []string {
		return append([]string{program, side, provider, address, "7117"}, tests...)
	}
	s, c := two(t, a, args("server"), b, args("client"))
	nstest.ErrorIf(t, !strings.Contains(s, "checks\n") || !strings.Contains(c, "checks\n"),
		"the server said %q, the client %q", s, c)
}

// agents is Bed.Agents with the via-xdp that command builds.
func agents(t *testing.T, b *cprogram.Bed, most time.Duration) (here, there *cprogram.Bed) {
	t.Helper()
	program, err := command()
	nstest.Must(t, err)
	return b.Agents(t, program, most)
}

// listens waits until a socket of a namespace listens at a TCP port. A connection that has ended may still have the port.
func listens(t testing.TB, n *nstest.NS, port int) {
	t.Helper()
	const listening = "0A" // TCP_LISTEN
	socket := regexp.MustCompile(fmt.Sprintf(`:%04X 0+:0000 %s `, port, listening))
	await.Until(t, fmt.Sprint("a socket listens at port ", port), func() (found bool) {
		_ = n.Do(func() error {
			for _, name := range []string{"tcp", "tcp6"} {
				b, _ := os.ReadFile("/proc/thread-self/net/" + name)
				found = found || socket.Match(b)
			}
			return nil
		})
		return found
	})
}
