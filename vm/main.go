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
	"syscall"
	"time"
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
	f.BoolVar(&o.short, "short", false, "without the conformance suite, and one ping-pong only")
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

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) { // which parse has printed
		return nil
	}
	if err != nil {
		return err
	}
	form, err := findForm(o.nic)
	if err != nil {
		return err
	}
	if o.cache, err = filepath.Abs(o.cache); err != nil {
		return err
	}
	dir := o.keep
	if dir == "" {
		if dir, err = os.MkdirTemp("", "via-vm-"); err != nil {
			return err
		}
		defer os.RemoveAll(dir)
	} else if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	l := &lane{options: o, form: form, dir: dir, stdout: stdout, start: time.Now()}
	// The compiler waits for the processor, apt for the network.
	building, stop := context.WithCancel(ctx)
	defer stop()
	built := make(chan error, 1)
	go func() { built <- build(building, dir) }()
	l.say("QEMU, kernel %s, programs for the guest", o.series)
	if err := l.fetch(ctx); err != nil {
		stop() // on a busy machine it takes minutes, and nobody needs it now
		<-built
		return err
	}
	if err := <-built; err != nil {
		return err
	}
	var runs []*kernelRun
	var failed []error
	for _, k := range l.kernels {
		r, err := l.run(ctx, k)
		if err != nil {
			failed = append(failed, fmt.Errorf("kernel %s: %w", k.release, err))
			continue
		}
		runs = append(runs, r)
	}
	if len(failed) > 0 {
		return errors.Join(failed...)
	}
	if o.doc != "" {
		return writeDoc(o.doc, o, form, runs)
	}
	return nil
}
