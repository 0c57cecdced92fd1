package main

import (
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/cprogram"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/testsize"
)

// The library is tested as programs meet it: it is built, C programs are compiled
// against it (testdata), and run in two namespaces.

// built is the directory with library and header, made once for all tests.
var built = struct {
	sync.Once
	dir string
	err error
}{}

func TestMain(m *testing.M) {
	flag.Set("test.parallel", "3") // on few CPUs, too: each program waits for its peer most of the time
	code := m.Run()
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// library builds the library, or ends the test if a tool is missing. make builds it and
// its programs, which run as separate processes. So build flags of go test, such as
// -race, do not affect them.
func library(t testing.TB, tools ...string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("not with -short") // a build in C takes minutes beside other tests; .ci/run has them without -short
	}
	nstest.Require(t)
	for _, tool := range append(tools, "make", "gcc", "objcopy") {
		if _, err := exec.LookPath(tool); err != nil {
			nstest.Lacks(t, "needs %s: apt-get install gcc g++ clang make binutils libc6-dev", tool)
		}
	}
	built.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "libvipl"); built.err != nil {
			return
		}
		var out []byte
		if out, built.err = exec.Command("make", "lib", "OUT="+built.dir).CombinedOutput(); built.err != nil {
			built.err = fmt.Errorf("make: %w\n%s", built.err, out)
			return
		}
		built.err = os.Chmod(built.dir, 0o755) // for programs of other users
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.dir
}

// compiler and its flags.
type compiler struct{ name, flags string }

func (c compiler) String() string { return strings.ReplaceAll(c.name+" "+c.flags, " ", "") }

// strict are the flags for programs in C and in C++.
const (
	strictC   = "-ansi -pedantic -Wall -Wextra -Wdeclaration-after-statement -Werror"
	gnuC      = "-std=gnu89 -Wall -Wextra -Wdeclaration-after-statement -Werror" // as many a Makefile of the time has it
	strictCpp = "-x c++ -std=c++98 -Wall -Wextra -Werror"
)

var compilers = []compiler{
	{"gcc", "-O2 " + strictC}, {"clang++", "-O0 " + strictCpp},
	{"gcc", "-O0 " + strictC}, {"g++", "-O0 " + strictCpp}, {"g++", "-O2 " + strictCpp},
	{"gcc", "-O2 " + gnuC}, {"clang", "-O0 " + strictC}, {"clang", "-O2 " + strictC}, {"clang++", "-O2 " + strictCpp},
}

// compile makes a program of testdata and returns its path.
func (c compiler) compile(t testing.TB, lib, program string) string {
	t.Helper()
	if _, err := exec.LookPath(c.name); err != nil {
		nstest.Lacks(t, "needs %s: %v", c.name, err)
	}
	to := filepath.Join(t.TempDir(), program)
	args := append(strings.Fields(c.flags), "-I"+lib, "testdata/"+program+".c", "-o", to, "-rdynamic",
		"-L"+lib, "-lvipl", "-pthread")
	if !strings.Contains(c.flags, "-static-pie") { // which crashes with a path, whatever the program
		args = append(args, "-Wl,-rpath,"+lib)
	}
	if out, err := exec.Command(c.name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", c.name, strings.Join(args, " "), err, out)
	}
	return to
}

// namesFile has addresses that a program has no room for, except for their hosts.
const namesFile = `fd00::9 node2
10.1.2.7 node2 disc="a service"
10.1.2.8 node2 disc="another"
`

func newBed(t testing.TB, mtu int, env ...string) *cprogram.Bed {
	t.Helper()
	return newBedOf(t, nstest.Options{MTU: mtu}, env...)
}

func newBedOf(t testing.TB, o nstest.Options, env ...string) *cprogram.Bed {
	t.Helper()
	hosts, names := filepath.Join(t.TempDir(), "hosts"), filepath.Join(t.TempDir(), "names")
	b := cprogram.New(t, o, append([]string{"VIA_NAMES=" + names, "VIA_HOSTS=" + hosts, "VIA_DNS=0"}, env...)...)
	nstest.Must(t, os.WriteFile(hosts, fmt.Appendf(nil, "%v node1\n", b.A.IPv4), 0o666))
	nstest.Must(t, os.WriteFile(names, []byte(namesFile), 0o666))
	return b
}

// one runs a program of one process.
func one(t testing.TB, b *cprogram.Bed, args ...string) string {
	t.Helper()
	return b.Start(t, b.A, args...).Finish(t)
}

// two runs both sides of a program and returns what the client printed.
func two(t testing.TB, b *cprogram.Bed, program, device string, args ...string) string {
	t.Helper()
	server, client := []string{program, "server", device}, []string{program, "client", device}
	switch filepath.Base(program) {
	case "sixbytes": // by name
		server, client = append(server, "node2"), append(client, "node1")
		b = b.With("VIA_ADDRESS_LEN=6")
	case "nodepair", "notifier":
		server = append(server, b.B.IPv4.String())
		fallthrough
	default:
		client = append(client, b.A.IPv4.String())
	}
	s := b.Start(t, b.A, append(server, args...)...)
	c := b.Start(t, b.B, append(client, args...)...)
	out := c.Finish(t)
	if t.Failed() {
		s.Process.Kill()
	}
	s.Finish(t)
	return out
}

// pairs are the programs of two sides, with arguments that keep them short, and the
// client's last output.
var pairs = []struct {
	program, device string
	args            []string
	says            string
}{
	{"pingpong", "/dev/via_via0", []string{"300"}, "32768"},
	{"window", "VINIC0", []string{"1000"}, "16384"},
	{"rdmapoll", "via0", []string{"200"}, "200 round trips"},
	{"unreliable", "nic0", []string{"2000"}, "none lost"},
	{"mtserver", "/dev/via_eth0", []string{"100"}, "by each of 4 threads"},
	{"nodepair", "/dev/clanvi0", []string{"1500"}, "1500 messages each way"},
	{"remotemem", "via0", []string{"40"}, "both halves as on one node"},
	{"mailbox", "/dev/via_eth0", []string{"300"}, "300 records each way"},
	{"tagged", "VINIC0", []string{"20"}, "20 rounds of 9 messages"},
	{"crowd", "/dev/clanvi0", []string{"300"}, "6 clients of 300 messages"},
	{"notifier", "VINIC0", []string{"300"}, "600 messages by handlers"},
	{"sixbytes", "nic0", []string{"200"}, "200 messages each way"},
	{"rpc", "/dev/via_via0", []string{"60"}, "60 calls of each of 11 clients"},
	{"putget", "via0", []string{"5"}, "5 transpositions and relays"},
	{"xfer", "/dev/clanvi0", []string{"60"}, "60 blocks"},
	{"cause", "via0", nil, "cause: the peer broke the connection"},
	{"listen", "via0", nil, "listen: 3 requests waited"},
	{"unanswered", "via0", []string{"close"}, "8 rejected"},
	{"unanswered", "via0", []string{"exit"}, "8 rejected"},
}

// TestPrograms runs every program as each compiler makes it: in CI as all do, elsewhere as one for C and one for C++ do.
func TestPrograms(t *testing.T) {
	t.Parallel()
	lib := library(t)
	some := compilers
	if !testsize.Every() {
		some = compilers[:2]
	}
	for _, c := range some {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			programs(t, c, lib, newBed(t, 1500))
		})
	}
}

func programs(t *testing.T, c compiler, lib string, b *cprogram.Bed) {
	for _, name := range []string{"abi", "wrong", "dialects"} {
		t.Run(name, func(t *testing.T) {
			if out := one(t, b, c.compile(t, lib, name), "server", "/dev/via_via0"); !strings.Contains(out, name+":") {
				t.Errorf("it said %q", out)
			}
		})
	}
	for _, p := range pairs {
		t.Run(p.program, func(t *testing.T) {
			if out := two(t, b, c.compile(t, lib, p.program), p.device, p.args...); !strings.Contains(out, p.says) {
				t.Errorf("it said %q", out)
			}
		})
	}
}

// The header compiles under every standard without a warning of its own, and the example as C89 and as C++.
func TestHeader(t *testing.T) {
	library(t, "gcc", "g++", "clang")
	const warnings = "-fsyntax-only -Wall -Wextra -pedantic -Wshadow -Wconversion -Wstrict-aliasing=1 -Werror"
	const c = warnings + " -Wstrict-prototypes -Wdeclaration-after-statement -Wc++-compat"
	for compiler, standards := range map[string]string{
		"gcc -x c " + c:          "c89 gnu89 iso9899:199409 c99 gnu99 c11 c17 gnu17 c2x",
		"clang -x c " + c:        "c89 gnu89 c99 c11 c17 c2x",
		"g++ -x c++ " + warnings: "c++98 gnu++98 c++11 c++17 c++20",
	} {
		for standard := range strings.FieldsSeq(standards) {
			args := append(strings.Fields(compiler)[1:], "-std="+standard, "-O2", "-")
			cmd := exec.Command(strings.Fields(compiler)[0], args...)
			cmd.Stdin = strings.NewReader("#include \"vipl.h\"\n#include \"vipl.h\"\nint main(void) { return 0; }\n")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s -std=%s: %v\n%s", compiler, standard, err, out)
			}
		}
	}
	for _, command := range []string{"gcc " + strictC, "g++ " + strictCpp} {
		args := append(strings.Fields(command), "-fsyntax-only", "-I.", "examples/hello.c")
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", command, err, out)
		}
	}
}

// The rules hold between queues of an interface as well.
func TestQueues(t *testing.T) {
	t.Parallel()
	lib := library(t)
	b := newBedOf(t, nstest.Options{MTU: 1500, Queues: 2}, "VIA_MODE=native")
	one(t, b, compilers[0].compile(t, lib, "abi"), "server", "via0", "queues")
}

// While a program polls, no thread of the library wakes up more often than some hundred times a second: each time may cost
// the program its CPU.
func TestQuietThreads(t *testing.T) {
	t.Parallel()
	lib := library(t)
	b := newBed(t, 1500)
	program := compilers[0].compile(t, lib, "pingpong")
	s := b.Start(t, b.A, program, "server", "via0", "2000000", "64")
	c := b.Start(t, b.B, program, "client", "via0", b.A.IPv4.String(), "2000000", "64")
	defer func() {
		for _, p := range []*cprogram.Process{s, c} {
			p.Process.Kill()
			p.Wait()
		}
	}()
	slack := fmt.Sprintf("/proc/%d/task/*", c.Process.Pid)
	relaxed := 0
	if !await.Comes(func() bool {
		relaxed = 0
		threads, _ := filepath.Glob(slack)
		for _, task := range threads {
			text, _ := os.ReadFile("/proc/" + filepath.Base(task) + "/timerslack_ns")
			if strings.TrimSpace(string(text)) == "10000000" {
				relaxed++
			}
		}
		return relaxed > 0
	}) || relaxed != 1 {
		t.Fatalf("%d threads have the monitor's timer slack", relaxed)
	}
	wakeups := func() map[string]int {
		counts := map[string]int{}
		threads, _ := filepath.Glob(slack)
		for _, task := range threads {
			text, _ := os.ReadFile(task + "/status")
			_, after, _ := strings.Cut(string(text), "\nvoluntary_ctxt_switches:")
			var n int
			fmt.Sscan(after, &n)
			counts[task] = n
		}
		return counts
	}
	before, began := wakeups(), time.Now()
	time.Sleep(time.Second)
	for task, n := range wakeups() {
		if rate := float64(n-before[task]) / time.Since(began).Seconds(); rate > 500 {
			t.Errorf("%s wakes up %.0f times a second", task, rate)
		}
	}
}

// Programs with the same key are connected with each other, by sealed frames; one with
// none and one whose file has too few bytes are not.
func TestKey(t *testing.T) {
	t.Parallel()
	lib := library(t)
	b := newBed(t, 1500, "VIA_VERBOSE=1")
	program := compilers[0].compile(t, lib, "pingpong")
	file := func(name, key string) string {
		name = filepath.Join(t.TempDir(), name)
		nstest.Must(t, os.WriteFile(name, []byte(key), 0o600))
		return "VIA_PSK=" + name
	}
	key := file("key", "32 bytes, and random where it is no test")
	if out := two(t, b.With(key), program, "via0", "100", "4096"); !strings.Contains(out, "4096") {
		t.Errorf("with a key it said %q", out)
	}
	p := b.With(file("short", "not 32 bytes")).Start(t, b.A, program, "server", "via0")
	if err := p.Wait(); err == nil || !strings.Contains(p.Out.String(), "VipOpenNic: $VIA_PSK") {
		t.Errorf("a key that is too short: %v\n%s", err, &p.Out)
	}
	s := b.With(key).Start(t, b.A, program, "server", "via0", "100", "64")
	c := b.Start(t, b.B, program, "client", "via0", b.A.IPv4.String(), "100", "64")
	if err := c.Wait(); err == nil || !strings.Contains(c.Out.String(), "pre-shared key") {
		t.Errorf("without the key of the server: %v\n%s", err, &c.Out)
	}
	s.Process.Kill() // it waits for another one, or has failed, too
	s.Wait()
}

// With VIA_VERBOSE a program that has a handler of its own for errors writes all of them
// with their causes, and the notes of its NIC; without it, none.
func TestVerboseErrors(t *testing.T) {
	t.Parallel()
	lib := library(t)
	program := compilers[0].compile(t, lib, "cause")
	for _, verbose := range []string{"0", "1"} {
		b := newBed(t, 1500, "VIA_VERBOSE="+verbose, "VIA_RUNTIME_DIR=/dev/null/proc")
		s := b.Start(t, b.A, program, "server", "via0")
		b.Start(t, b.B, program, "client", "via0", b.A.IPv4.String()).Finish(t)
		out := s.Finish(t)
		if note := "via0: via-xdp res, stat, top and capture do not find this program"; strings.Contains(out, note) != (verbose == "1") {
			t.Errorf("VIA_VERBOSE=%s, a directory that cannot be made:\n%s", verbose, out)
		}
		for _, cause := range []string{"the peer disconnected", "a message arrived and no receive was posted"} {
			if line := `error="connection lost"`; strings.Contains(out, line) != (verbose == "1") ||
				strings.Contains(out, `cause="`+cause+`"`) != (verbose == "1") {
				t.Errorf("VIA_VERBOSE=%s, %s:\n%s", verbose, cause, out)
			}
		}
	}
}

// A program with room for hosts of six bytes gets no NIC whose hosts take sixteen.
func TestSixBytesAreIPv4(t *testing.T) {
	t.Parallel()
	lib := library(t)
	b := newBed(t, 1500, "VIA_ADDRESS_LEN=6", "VIA_VERBOSE=1")
	link := b.A.Link(t)
	address := &netlink.Addr{IPNet: &net.IPNet{IP: b.A.IPv4.AsSlice(), Mask: net.CIDRMask(24, 32)}}
	nstest.Must(t, b.A.Netlink().AddrDel(link, address))
	p := b.Start(t, b.A, compilers[0].compile(t, lib, "wrong"), "server", "via0")
	if err := p.Wait(); err == nil || !strings.Contains(p.Out.String(), "VipOpenNic: via0 has no IPv4 address") {
		t.Errorf("%v\n%s", err, &p.Out)
	}
}

// TestProcess runs what programs do beside calling the library.
func TestProcess(t *testing.T) {
	t.Parallel()
	lib := library(t)
	c := compiler{"gcc", "-O2 -Wall -Wextra -Werror"}
	program := c.compile(t, lib, "process")
	b := newBed(t, 1500)
	for name, want := range map[string]string{
		"signals": "exit status 0", "fork": "exit status 0", "interrupt": "exit status 0", "threads": "exit status 0",
		"dispositions": "signal: broken pipe", "exit": "exit status 7", "handler": "exit status 5", "atexit": "exit status 0", "masks": "exit status 0", "closed": "exit status 0",
		"starting": "exit status 0", "destroyed": "exit status 0", "unanswered": "exit status 0",
		"unread": "exit status 0", "reentered": "exit status 0", "cancelled": "exit status 0", "handles": "exit status 0",
		"slack": "exit status 0",
	} {
		t.Run(name, func(t *testing.T) {
			status := t.TempDir()
			b := b.With("VIA_RUNTIME_DIR=" + status)
			p := b.Start(t, b.A, program, name, "via0")
			p.Wait()
			// Those that return from main, with a NIC open.
			if left, err := os.ReadDir(status); (name == "fork" || name == "threads") && (len(left) > 0 || err != nil) {
				t.Errorf("in the directory of programs it left %v, %v", left, err)
			}
			if got := p.ProcessState.String(); got != want {
				t.Errorf("%s, want %s\n%s", got, want, &p.Out)
			}
		})
	}
}

// A thread is descheduled in a poll, and resumes safely after the NIC was closed, its
// memory was collected, and many other handles were freed.
func TestPreemptedPoll(t *testing.T) {
	t.Parallel()
	lib := library(t)
	program := compiler{"gcc", "-O2 -Wall -Wextra -Werror"}.compile(t, lib, "preempted")
	if out := one(t, newBed(t, 1500, "GOGC=1"), program, "server", "via0"); !strings.Contains(out, "preempted: 12 polls") {
		t.Errorf("it said %q", out)
	}
}

// A program that loads the library late, after it has started its threads, and unloads
// it again, finds all 41 operations and can use them.
func TestLoaded(t *testing.T) {
	t.Parallel()
	lib := library(t)
	program := compiler{"gcc", "-O2 -Wall -Wextra -Werror -Wl,--as-needed"}.compile(t, lib, "loaded")
	if out := one(t, newBed(t, 1500), program, "server", "via0"); !strings.Contains(out, "loaded: 3 times") {
		t.Errorf("it said %q", out)
	}
}

// A request that cannot be accepted, here because the MTU leaves no room for data, can
// be rejected, so that the other side need not wait for an answer.
func TestNarrow(t *testing.T) {
	t.Parallel()
	lib := library(t)
	b := newBed(t, 1500)
	nstest.Must(t, b.A.Netlink().LinkSetMTU(b.A.Link(t), 300))
	one(t, b, compiler{"gcc", "-O2 -Wall -Wextra -Werror"}.compile(t, lib, "process"), "narrow", "via0")
}

// A program that is linked with the library or preloads it, and does not call it, has no
// thread or signal handler of the library.
func TestPreload(t *testing.T) {
	lib := library(t)
	status := func(env ...string) (lines []string) {
		p := exec.Command("cat", "/proc/self/status")
		p.Env = append(os.Environ(), env...)
		out, err := p.Output()
		nstest.Must(t, err)
		for line := range strings.Lines(string(out)) {
			// SigQ counts the signals of all processes of the user.
			name, _, _ := strings.Cut(line, ":")
			if name == "Threads" || strings.HasPrefix(name, "Sig") && name != "SigQ" {
				lines = append(lines, line)
			}
		}
		return lines
	}
	with, without := status("LD_PRELOAD="+filepath.Join(lib, "libvipl.so.1")), status()
	nstest.ErrorIf(t, !slices.Equal(with, without) || len(with) < 4, "%q, without the library %q", with, without)
}

// The library has VIPL's names and no others, with their version.
func TestSymbols(t *testing.T) {
	lib := library(t, "nm")
	out, err := exec.Command("nm", "-D", "--defined-only", filepath.Join(lib, "libvipl.so.1")).Output()
	nstest.Must(t, err)
	count := 0
	for line := range strings.Lines(string(out)) {
		name := strings.Fields(line)[2]
		if name == "VIPL_1.0" {
			continue
		}
		nstest.ErrorIf(t, !strings.HasPrefix(name, "Vip") || !strings.HasSuffix(name, "@@VIPL_1.0"), "%s is exported", name)
		count++
	}
	const operations, extensions = 41, 8
	nstest.ErrorIf(t, count != operations+extensions, "%d functions, want %d", count, operations+extensions)
}

// TestSanitizers runs the programs with AddressSanitizer and UndefinedBehaviorSanitizer:
// the library writes only where it may.
func TestSanitizers(t *testing.T) {
	t.Parallel()
	lib := library(t)
	c := compiler{"gcc", "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -Wno-maybe-uninitialized"}
	// Leak detection is off, because the sanitizer does not search Go's memory for
	// pointers.
	b := newBed(t, 1500, "ASAN_OPTIONS=detect_leaks=0:halt_on_error=1", "UBSAN_OPTIONS=print_stacktrace=1")
	programs(t, c, lib, b)
}

// Plain go build gives a library that works, too; it starts Go when it is loaded.
// With -trimpath it uses most packages as make lib has compiled them.
func TestPlainBuild(t *testing.T) {
	t.Parallel()
	library(t) // has what it takes
	dir := t.TempDir()
	out, err := exec.Command("go", "build", "-trimpath", "-buildmode=c-shared", "-o", filepath.Join(dir, "libvipl.so"), ".").CombinedOutput()
	nstest.FatalIf(t, err != nil, "go build: %v\n%s", err, out)
	header, err := os.ReadFile("vipl.h")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "vipl.h"), header, 0o666)
	}
	nstest.Must(t, err)
	b := newBed(t, 9000, "VIA_ARENA=0") // the usual one
	c := compilers[0]
	two(t, b, c.compile(t, dir, "pingpong"), "via0", "100")
	one(t, b, c.compile(t, dir, "abi"), "server", "via0")
}
