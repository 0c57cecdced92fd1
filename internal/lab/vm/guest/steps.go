//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"viaxdp/internal/base/thread"
	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/schedlat"
	"viaxdp/internal/lab/vm/plan"
)

// runSteps runs the steps one after the other, and stops at the end what
// serves. A server that has ended before is reported with how it ended.
func runSteps(p plan.Plan, out *results) {
	meter := schedlat.Start()
	defer meter.Close()
	l := &diagnosis{meter}
	var servers []func()
	for _, s := range p.Steps {
		ctx, cancel := context.WithTimeout(context.Background(), s.Limit)
		if !s.Serve {
			out.send(l.runStep(ctx, s, nil))
			cancel()
			continue
		}
		wrote := &firstWrite{done: make(chan struct{})}
		done := make(chan plan.Event, 1)
		go func() { done <- l.runStep(ctx, s, wrote) }()
		servers = append(servers, func() {
			select {
			case e := <-done:
				out.send(e)
			default:
				cancel()
				e := <-done
				e.Status, e.Error = 0, ""
				out.send(e)
			}
		})
		select {
		case <-wrote.done:
		case e := <-done:
			done <- e
		}
	}
	for _, stop := range servers {
		stop()
	}
}

// runStep runs a program to its end. If it hangs, its state is recorded before it is killed
// or ends itself.
func (l *diagnosis) runStep(ctx context.Context, s plan.Step, wrote *firstWrite) plan.Event {
	e := plan.Event{Step: s.Name}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, s.Argv[0], s.Argv[1:]...)
	cmd.Env = append(os.Environ(), "PATH=/", "HOME=/tmp", "CI=true")
	cmd.Env = append(cmd.Env, s.Env...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if wrote != nil {
		cmd.Stdout, cmd.Stderr = io.MultiWriter(&stdout, wrote), io.MultiWriter(&stderr, wrote)
	}
	cmd.WaitDelay = time.Second
	start := l.meter.Mark()
	early := make(chan string, 1)
	soon := time.AfterFunc(s.Limit*4/5, func() { early <- l.text(start) })
	err := inPeer(s.Peer, cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	e.Seconds = time.Since(start.At).Seconds()
	hung := !soon.Stop()
	switch {
	case err == nil, errors.Is(ctx.Err(), context.Canceled): // a server that is stopped
	case hung:
		e.Diagnosis = <-early
	default:
		e.Diagnosis = l.text(start)
	}
	e.Stdout, e.Stderr = stdout.String(), stderr.String()
	var exit *exec.ExitError
	switch {
	case err == nil:
	case ctx.Err() != nil:
		e.Status, e.Error = -1, fmt.Sprintf("killed after %v", s.Limit)
	case errors.As(err, &exit) && exit.Exited():
		e.Status = exit.ExitCode()
	default:
		e.Status, e.Error = -1, err.Error()
	}
	return e
}

// inPeer calls f, in the peer's namespace if asked to.
func inPeer(peer bool, f func() error) error {
	if !peer {
		return f()
	}
	h, err := netns.GetFromPath(plan.Peer)
	if err != nil {
		return err
	}
	defer h.Close()
	return thread.In(int(h), f)
}

// firstWrite closes done at the first byte.
type firstWrite struct {
	once sync.Once
	done chan struct{}
}

func (w *firstWrite) Write(b []byte) (int, error) {
	w.once.Do(func() { close(w.done) })
	return len(b), nil
}

// diagnosis describes the possible reason why a step failed or is about to be killed: the
// NIC's driver, the demux program, the socket or the engine has counted the missing frame, or
// the guest had no processor.
type diagnosis struct{ meter *schedlat.Meter }

// text is about a step that began at since.
func (l *diagnosis) text(since schedlat.Mark) string {
	return fmt.Sprintf("late by %v in %v, %v of it in one second\n%s%s",
		since.Allow(0).Round(time.Millisecond), time.Since(since.At).Round(time.Millisecond),
		schedlat.Worst(l.meter.Spells(), since.At), countNICs(), programs())
}

// programs is the status of the programs with open NICs.
func programs() string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "/via-xdp", "res", "--json").CombinedOutput()
	var short bytes.Buffer
	if err != nil || json.Compact(&short, out) != nil {
		return fmt.Sprintf("programs: %v %s\n", err, out)
	}
	return fmt.Sprintf("programs: %s\n", &short)
}

// countNICs is what kernel and drivers have counted of the NICs.
func countNICs() string {
	var b strings.Builder
	for i := range plan.NICs {
		name, line := plan.NIC(i), ""
		if err := inPeer(i == 1, func() error { return fail.Try(func() { line = countNIC(name) }) }); err != nil {
			line = err.Error()
		}
		fmt.Fprintf(&b, "%s: %s\n", name, line)
	}
	return b.String()
}

// countNIC has the counters of a NIC of the thread's namespace that are not 0.
func countNIC(name string) string {
	l := fail.Must(netlink.LinkByName(name))
	e := fail.Must(ethtool.NewEthtool())
	defer e.Close()
	driver, err := e.Stats(name)
	counts := map[string]any{"flags": l.Attrs().RawFlags, "link": l.Attrs().Statistics}
	if err != nil {
		counts["driver"] = err.Error()
	}
	for name, v := range driver {
		if v != 0 {
			counts[name] = v
		}
	}
	return string(fail.Must(json.Marshal(counts)))
}
