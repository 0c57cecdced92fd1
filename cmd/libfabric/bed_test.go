package libfabric

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"viaxdp/internal/agent/agentclient"
	"viaxdp/internal/lab/await"
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

// silence is the time after which a peer is taken for dead. It is long, as a test machine may be busy.
const silence = 30 * time.Second

// bed is two namespaces and what programs in them find.
type bed struct {
	a, b *nstest.NS
	env  []string
	as   *syscall.Credential // whose programs they are; nil: this user's
}

// newBed makes a bed. Programs have arenas of 16 MB: the usual 64 MB take each of them a tenth of a second of a processor to open,
// without huge pages.
func newBed(t testing.TB, o nstest.Options, env ...string) *bed {
	t.Helper()
	a, b := nstest.Pair(t, o)
	return (&bed{a: a, b: b}).with(append([]string{
		"FI_PROVIDER_PATH=" + made.dir + "/prov", "VIA_HUGEPAGES=avoid", "VIA_ARENA=16777216", fmt.Sprintf("VIA_SILENCE=%d", silence.Milliseconds()),
	}, env...)...)
}

// with is the same with more environment.
func (b *bed) with(env ...string) *bed {
	c := *b
	if c.env == nil {
		c.env = os.Environ()
	}
	c.env = append(slices.Clone(c.env), env...)
	return &c
}

// process runs in a namespace; it is killed when the test takes too long.
type process struct {
	*exec.Cmd
	out bytes.Buffer
}

const programTime = 4 * time.Minute

func (b *bed) start(t testing.TB, n *nstest.NS, args ...string) *process {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), programTime)
	t.Cleanup(cancel)
	p := &process{Cmd: exec.CommandContext(ctx, args[0], args[1:]...)}
	p.Env, p.Stdout, p.Stderr = b.env, &p.out, &p.out
	if b.as != nil {
		p.Dir, p.SysProcAttr = "/", &syscall.SysProcAttr{Credential: b.as}
	}
	nstest.Must(t, n.Do(p.Start))
	return p
}

// finish waits for it; it must end well. It returns what it printed.
func (p *process) finish(t testing.TB) string {
	t.Helper()
	if err := p.Wait(); err != nil {
		t.Errorf("%s: %v\n%s", strings.Join(p.Args, " "), err, &p.out)
	}
	return p.out.String()
}

// two runs a server and a client, and returns what they printed.
func two(t testing.TB, a *bed, server []string, b *bed, client []string) (string, string) {
	t.Helper()
	s := a.start(t, a.a, server...)
	c := b.start(t, b.b, client...)
	out := c.finish(t)
	if t.Failed() {
		s.Process.Kill()
	}
	return s.finish(t), out
}

// suite runs the suite of a directory's program over a provider.
func suite(t testing.TB, a, b *bed, program, provider, address string, tests ...string) {
	t.Helper()
	args := func(side string) []string {
		return append([]string{program, side, provider, address, "7117"}, tests...)
	}
	s, c := two(t, a, args("server"), b, args("client"))
	if !strings.Contains(s, "checks\n") || !strings.Contains(c, "checks\n") {
		t.Errorf("the server said %q, the client %q", s, c)
	}
}

// agents is the bed for users without privilege: each namespace has an agent, for at most a time.
func agents(t *testing.T, b *bed, most time.Duration) (here, there *bed) {
	dir, err := os.MkdirTemp("", "libfabric-agent") // t.TempDir is root's alone
	if err == nil {
		t.Cleanup(func() { os.RemoveAll(dir) })
		err = os.Chmod(dir, 0o755)
	}
	nstest.Must(t, err)
	program, err := command()
	nstest.Must(t, err)
	settings := filepath.Join(dir, "agent.toml")
	nstest.Must(t, os.WriteFile(settings, []byte("mode = \"0666\"\nlinger = \"0s\"\n[interface.via0]\n"), 0o644))
	agent := func(n *nstest.NS, name string) *bed {
		socket := filepath.Join(dir, name, "agent.sock")
		// t.Context ends before it is stopped.
		ctx, cancel := context.WithTimeout(context.Background(), most)
		t.Cleanup(cancel)
		p := &process{Cmd: exec.CommandContext(ctx, program, "agent", "--config", settings, "--socket", socket, "--no-fdstored")}
		p.Stdout, p.Stderr = &p.out, &p.out
		nstest.Must(t, n.Do(p.Start))
		t.Cleanup(func() {
			p.Process.Signal(syscall.SIGTERM)
			p.finish(t)
		})
		var err error
		if !await.Comes(func() bool { _, err = agentclient.Probe(socket); return err == nil }) {
			t.Fatalf("%v\n%s", err, &p.out)
		}
		users := b.with("VIA_AGENT="+socket, "VIA_RUNTIME_DIR=none", "VIA_VERBOSE=1")
		const nobody = 65534
		users.as = &syscall.Credential{Uid: nobody, Gid: nobody}
		return users
	}
	return agent(b.a, "here"), agent(b.b, "there")
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
