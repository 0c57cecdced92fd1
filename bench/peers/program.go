package peers

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"viaxdp/internal/lab/testbed"
)

// A Program is one of other people's programs.
type Program struct {
	Name    string // of the executable
	Package string // that has it in Debian and its descendants

	version []string // a command of the same package that prints its version
	places  string   // where it may be beside PATH, with *; the last one is taken
}

var programs = []Program{
	{Name: "sockperf", Package: "sockperf", version: []string{"sockperf", "--version"}},
	{Name: "iperf3", Package: "iperf3", version: []string{"iperf3", "--version"}},
	{Name: "fi_pingpong", Package: "libfabric-bin", version: []string{"fi_info", "--version"}},
	{Name: "ucx_perftest", Package: "ucx-utils", version: []string{"ucx_info", "-v"}},
}

// Programs lists all of them.
func Programs() []Program { return slices.Clone(programs) }

// find finds the program where it may be beside PATH, and on PATH.
func (p Program) find() (path string, ok bool) {
	if p.places != "" {
		if found, _ := filepath.Glob(filepath.Join(p.places, p.Name)); len(found) > 0 { // the pattern is a good one
			return found[len(found)-1], true
		}
	}
	path, err := exec.LookPath(p.Name)
	return path, err == nil
}

// path is where the program is, or its name.
func (p Program) path() string {
	if path, ok := p.find(); ok {
		return path
	}
	return p.Name
}

// Installed reports whether the program is found.
func (p Program) Installed() bool {
	_, ok := p.find()
	return ok
}

// Missing lists the programs that are not installed.
func Missing() []Program {
	return slices.DeleteFunc(Programs(), Program.Installed)
}

var versionNumber = regexp.MustCompile(`\d+(\.\d+)+`)

// Version is the number of the installed version, or "?" if the program does not print
// one.
func (p Program) Version(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, p.version[0], p.version[1:]...).Output()
	if err != nil {
		return "?"
	}
	if v := versionNumber.Find(out); v != nil {
		return string(v)
	}
	return "?"
}

// programOf returns the program of a name that is in the table.
func programOf(name string) Program {
	return programs[slices.IndexFunc(programs, func(p Program) bool { return p.Name == name })]
}

// A Row is one way to use a program, as it appears in a report.
type Row struct {
	Name    string
	Program Program
	Summary string // one line

	// Latency reports whether the row has latencies, Bandwidth whether it has the
	// rate of a stream. A row has one of the two.
	Latency, Bandwidth bool

	// Quantiles reports whether the program prints the median latency; otherwise it prints
	// only the mean.
	Quantiles bool

	minBytes, maxBytes int  // of a message; maxBytes 0: any
	polls              bool // client and server never sleep

	await  string // what the server listens on before the client starts
	server func(job) command
	client func(job) command
	read   func(out string, bytes int) Figures // fails by package fail
}

// job is one measurement of a row.
type job struct {
	bytes    int
	duration time.Duration
	device   string     // the interface, of the same name at both sides
	addr     netip.Addr // the server's
	port     int        // the server's; each job has another one
}

// command is how a process is started: argv, and the environment beside what
// every process gets.
type command struct {
	argv, env []string
}

func argv(words ...string) command { return command{argv: words} }

// seconds is the duration for programs that count whole seconds and leave out a part at
// both ends.
func (j job) seconds(leftOut time.Duration) string {
	return strconv.Itoa(int(math.Ceil(max(j.duration+leftOut, time.Second).Seconds())))
}

func (j job) portArg() string { return strconv.Itoa(j.port) }

// count is for programs that take a number of messages: about as many as fit into the
// duration on a current machine.
func (j job) count() int {
	one := 4*time.Microsecond + time.Duration(j.bytes)*time.Nanosecond/2
	return max(int(j.duration/one), minCount)
}

// minCount is the least number of messages to measure, whatever the duration:
// more than ucx_perftest takes its median of.
const minCount = 3000

// Rows lists all rows, in the order of a report.
func Rows() []Row {
	return slices.Concat(sockperfRows(), iperf3Rows(), pingpongRows(), ucxRows())
}

// check refuses a message that the program cannot send.
func (r Row) check(bytes int) error {
	switch {
	case bytes < r.minBytes:
		return fmt.Errorf("messages have at least %d bytes", r.minBytes)
	case r.maxBytes > 0 && bytes > r.maxBytes:
		return fmt.Errorf("messages have at most %d bytes", r.maxBytes)
	}
	return nil
}

// Install fetches the programs that are missing from the distribution, by apt-get, and
// does nothing when there are none. What apt-get prints goes to out. Without apt-get,
// or without the right to install, the error is a *testbed.MissingError, which has the
// commands to run instead.
func Install(ctx context.Context, out io.Writer) error {
	missing := Missing()
	if len(missing) == 0 {
		return nil
	}
	packages := ""
	for _, p := range missing {
		packages += " " + p.Package
	}
	const update, install = "apt-get update", "apt-get install --yes --no-install-recommends"
	if _, err := exec.LookPath("apt-get"); err != nil {
		remedy := "only Debian's packages are known here (" + strings.TrimSpace(packages) + "); install the programs by hand"
		return &testbed.MissingError{What: names(missing), Err: err, Remedy: remedy}
	}
	if os.Geteuid() != 0 {
		return &testbed.MissingError{What: names(missing), Remedy: "run as root: " + update + " && " + install + packages}
	}
	for _, command := range []string{update, install + packages} {
		if err := runApt(ctx, strings.Fields(command), out); err != nil {
			return fmt.Errorf("install %s: %w", names(missing), err)
		}
	}
	if left := Missing(); len(left) > 0 {
		return fmt.Errorf("%s: the packages are installed, but the programs are not on PATH", names(left))
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
	cmd.Stdout = io.MultiWriter(&said, out)
	cmd.Stderr = cmd.Stdout
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
