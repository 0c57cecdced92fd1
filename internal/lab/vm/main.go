package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"viaxdp/internal/lab/fail"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
		os.Exit(1)
	}
}

// options are the command line's.
type options struct {
	nic, series, cache, keep, doc string
	queues                        int
	short                         bool
	slow                          int
	limit                         time.Duration
}

func parse(args []string, stderr io.Writer) (o options, err error) {
	f := flag.NewFlagSet("vm", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.nic, "nic", "virtio", "the NICs: virtio or igb")
	f.StringVar(&o.series, "kernel", "6.18", "series of Debian's kernels, as 6.12, or newest; several with commas")
	f.IntVar(&o.queues, "queues", 0, "queue pairs of each NIC (virtio; needs root)")
	f.BoolVar(&o.short, "short", false, "without the conformance suite, one ping-pong only, and at most four programs that share a queue")
	f.DurationVar(&o.limit, "limit", 15*time.Minute, "time that a guest may take; --slow makes the default longer")
	f.IntVar(&o.slow, "slow", 1, "how much more time than usual each step in a guest may take, on a busy machine")
	f.StringVar(&o.cache, "cache", defaultCache(), "directory for kernels and QEMU")
	f.StringVar(&o.keep, "keep", "", "directory for console and results (default: shown when something fails)")
	f.StringVar(&o.doc, "doc", "", "write what the kernels can do to this file")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("what is %q?", f.Arg(0))
	}
	if o.slow < 1 {
		return o, fmt.Errorf("--slow %d: 1 or more", o.slow)
	}
	limited := false
	f.Visit(func(g *flag.Flag) { limited = limited || g.Name == "limit" })
	if !limited {
		o.limit *= time.Duration(o.slow)
	}
	return o, nil
}

func defaultCache() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = os.TempDir()
	}
	return filepath.Join(dir, "via-xdp-vm")
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	defer fail.Catch(&err)
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) { // which parse has printed
		return nil
	}
	fail.If(err)
	form := fail.Must(findForm(o.nic))
	o.cache = fail.Must(filepath.Abs(o.cache))
	dir := o.keep
	if dir == "" {
		dir = fail.Must(os.MkdirTemp("", "via-vm-"))
		defer os.RemoveAll(dir)
	}
	fail.If(os.MkdirAll(dir, 0o755))
	l := &vmRun{options: o, form: form, dir: dir, stdout: stdout, start: time.Now()}
	// The compiler is bound by the processor and apt by the network, so they run at the
	// same time.
	building, stop := context.WithCancel(ctx)
	defer stop()
	built := make(chan error, 1)
	go func() { built <- fail.Try(func() { build(building, dir) }) }()
	l.say("QEMU, kernel %s, programs for the guest", o.series)
	if err := fail.Try(func() { l.fetch(ctx) }); err != nil {
		stop() // on a busy machine it takes minutes, and it is not needed now
		<-built
		return err
	}
	fail.If(<-built)
	var runs []*kernelRun
	var failed []error
	for _, k := range l.kernels {
		err := fail.Try(func() { runs = append(runs, l.run(ctx, k)) })
		if err != nil {
			failed = append(failed, fmt.Errorf("kernel %s: %w", k.release, err))
		}
	}
	fail.If(errors.Join(failed...))
	if o.doc != "" {
		return os.WriteFile(o.doc, matrix(o, form, runs), 0o644)
	}
	return nil
}

// vmRun runs guests.
type vmRun struct {
	options
	form    nicForm
	qemu    *qemu
	kernels []*kernel
	dir     string // for what a run makes
	stdout  io.Writer
	start   time.Time
}

func (l *vmRun) say(format string, args ...any) {
	fmt.Fprintf(l.stdout, "%5.1fs  %s\n", time.Since(l.start).Seconds(), fmt.Sprintf(format, args...))
}

// kernelRun is what a kernel has shown.
type kernelRun struct {
	release string
	task
	outcome *outcome
}

// fetch gets what the guests need.
func (l *vmRun) fetch(ctx context.Context) {
	l.qemu = findQEMU(ctx, l.cache, l.form)
	for series := range strings.SplitSeq(l.series, ",") {
		l.kernels = append(l.kernels, fetchKernel(ctx, l.cache, strings.TrimSpace(series), l.form.cloud))
	}
}

// bootTries is how often to try a kernel that does not come up.
const bootTries = 3

// run runs a guest with a kernel, in the best mode that its driver has.
func (l *vmRun) run(ctx context.Context, k *kernel) *kernelRun {
	r := &kernelRun{release: k.release, task: task{
		mode: native, queues: max(l.queues, l.form.queues), short: l.short, slow: max(l.form.slow, 1) * l.slow,
	}}
	if atLeast(k.release, l.form.zeroCopySince()) {
		r.mode = zeroCopy
	}
	g := guest{
		form: l.form, kernel: k.image(), initrd: filepath.Join(l.dir, "initrd"),
		dir: l.dir, queues: r.queues, timeout: l.limit,
		memory: 2048, // 32 programs that share queues, with 24 MB or more each
	}
	f := fail.Must(os.Create(g.initrd))
	err := fail.Try(func() { initramfs(f, l.dir, k.modules(l.form.modules...), r.plan()) })
	fail.If(errors.Join(err, f.Close()))
	l.say("guest: %s, two %s NICs, %s mode", k.release, l.form.name, r.mode)
	var bootErr error
	for try := 1; try <= bootTries; try++ {
		fail.If(errors.Join(os.RemoveAll(g.console()), os.RemoveAll(g.results())))
		bootErr = l.qemu.boot(ctx, g)
		if r.outcome, err = readOutcome(g.results(), r.task); err != nil {
			fail.If(errors.Join(bootErr, err, l.consoleTail(g)))
		}
		if bootErr != nil || r.outcome.events > 0 {
			break
		}
		// QEMU's emulation of several processors tore the registers of a kernel that
		// was starting: at cmpxchg16b, and at the iretq of do_sync_core while another
		// one patched the kernel's text; the busier the host, the more often. Nothing of
		// ours has run by then.
		l.say("guest: the kernel did not come up, try %d of %d; %v", try, bootTries, l.consoleTail(g))
	}
	if err := errors.Join(bootErr, r.outcome.err(), errors.Join(missing(k.release, l.form.needs(), r.outcome.facts)...)); err != nil {
		fail.If(errors.Join(err, l.consoleTail(g), l.wireCounts(g)))
	}
	l.say("guest: up after %.1f s; %d tests passed", r.outcome.boot, r.outcome.tests)
	r.outcome.print(l.stdout)
	return r
}

// consoleTail is the last that the guest's kernel said, as an error.
func (l *vmRun) consoleTail(g guest) error {
	b, err := os.ReadFile(g.console())
	if err != nil {
		return err
	}
	return fmt.Errorf("console:\n%s", tail(string(b), 40))
}

// wireCounts is what the taps have counted, where there are some, as an error.
func (l *vmRun) wireCounts(g guest) error {
	if !g.taps() {
		return nil
	}
	b, err := os.ReadFile(g.wire())
	if err != nil {
		return err
	}
	return fmt.Errorf("taps of the host:\n%s", b)
}

// atLeast reports whether a kernel's release is of a version or later.
func atLeast(release string, version [2]int) bool {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return false
	}
	return major > version[0] || major == version[0] && minor >= version[1]
}
