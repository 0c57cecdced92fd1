package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// lane runs guests.
type lane struct {
	options
	form    nicForm
	qemu    *qemu
	kernels []*kernel
	dir     string // for what a run makes
	stdout  io.Writer
	start   time.Time
}

func (l *lane) say(format string, args ...any) {
	fmt.Fprintf(l.stdout, "%5.1fs  %s\n", time.Since(l.start).Seconds(), fmt.Sprintf(format, args...))
}

// kernelRun is what a kernel has shown.
type kernelRun struct {
	release string
	order
	outcome *outcome
}

// fetch gets what the guests need.
func (l *lane) fetch(ctx context.Context) (err error) {
	if l.qemu, err = findQEMU(ctx, l.cache, l.form); err != nil {
		return err
	}
	for _, series := range strings.Split(l.series, ",") {
		k, err := fetchKernel(ctx, l.cache, strings.TrimSpace(series), l.form.cloud)
		if err != nil {
			return err
		}
		l.kernels = append(l.kernels, k)
	}
	return nil
}

// bootTries is how often a kernel is started that does not come up.
const bootTries = 3

// run runs a guest with a kernel, in the best mode that its driver has.
func (l *lane) run(ctx context.Context, k *kernel) (*kernelRun, error) {
	r := &kernelRun{release: k.release, order: order{
		mode: native, queues: max(l.queues, l.form.queues), short: l.short, slow: max(l.form.slow, 1) * l.slow,
	}}
	if atLeast(k.release, l.form.zeroCopySince()) {
		r.mode = zeroCopy
	}
	modules, err := k.modules(l.form.modules...)
	if err != nil {
		return nil, err
	}
	g := guest{
		form: l.form, kernel: k.image(), initrd: filepath.Join(l.dir, "initrd"),
		dir: l.dir, queues: r.queues, memory: 1024, timeout: l.limit,
	}
	if err := l.writeInitramfs(g.initrd, modules, r.order); err != nil {
		return nil, err
	}
	l.say("guest: %s, two %s NICs, %s mode", k.release, l.form.name, r.mode)
	var bootErr error
	for try := 1; try <= bootTries; try++ {
		if err := errors.Join(remove(g.console()), remove(g.results())); err != nil {
			return nil, err
		}
		bootErr = l.qemu.boot(ctx, g)
		if r.outcome, err = readOutcome(g.results(), r.order); err != nil {
			return nil, errors.Join(bootErr, err, l.consoleTail(g))
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
		return nil, errors.Join(err, l.consoleTail(g), l.wireCounts(g))
	}
	l.say("guest: up after %.1f s; %d tests passed", r.outcome.boot, r.outcome.tests)
	r.outcome.print(l.stdout)
	return r, nil
}

func (l *lane) writeInitramfs(path string, modules []module, o order) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(initramfs(f, l.dir, modules, o.plan()), f.Close())
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// consoleTail is the last that the guest's kernel said, as an error.
func (l *lane) consoleTail(g guest) error {
	b, err := os.ReadFile(g.console())
	if err != nil {
		return err
	}
	return fmt.Errorf("console:\n%s", tail(string(b), 40))
}

// wireCounts is what the taps have counted, where there are some, as an error.
func (l *lane) wireCounts(g guest) error {
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
