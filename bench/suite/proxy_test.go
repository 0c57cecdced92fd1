package suite

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"viaxdp/bench/peers"
	"viaxdp/bench/report"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/ops/proxy"
	"viaxdp/vianet"
	"viaxdp/vipl"
)

// proxyMain imitates via-xdp proxy.
func proxyMain() error {
	f := flag.NewFlagSet(asProxy, flag.ExitOnError)
	device, listen, to := f.String("i", "", ""), f.String("listen", "", ""), f.String("to", "", "")
	f.Parse(os.Args[2:])
	p := &proxy.Proxy{}
	var errs [2]error
	p.Listen, errs[0] = proxy.ParseAddress(*listen)
	p.To, errs[1] = proxy.ParseAddress(*to)
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	if *device != "" {
		nic, err := vipl.OpenNIC(*device)
		if err != nil {
			return err
		}
		defer nic.Close()
		if p.Stack, err = vianet.New(nic, vianet.Options{}); err != nil {
			return err
		}
		defer p.Stack.Close()
	}
	if err := p.Open(); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "forwarding", p.Addr(), "to", p.To)
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	return p.Serve(ctx)
}

// throughProxies runs a group of loads of Redis by each way.
func throughProxies(t *testing.T, name string, turns int) *report.Group {
	t.Helper()
	for _, l := range peers.Loads() {
		if missing := l.Missing(); l.Service == peers.Redis && len(missing) > 0 {
			nstest.LacksProgram(t, "%s is not installed (Debian's package %s)", missing[0].Name, missing[0].Package)
		}
	}
	cfg := shortly(name)
	cfg.Turns, cfg.ProxyArgs = turns, []string{asProxy}
	g := measure(t, cfg).Group(name)
	nstest.FatalIf(t, g.Base != "TCP, no proxy" || len(g.Series) != 3 || g.Row(g.Base) == nil,
		"%d series, beside %q: %s", len(g.Series), g.Base, g.Notes)
	return g
}

// Each way to a server has its figures, and nothing is left of the servers.
func TestLayersProxy(t *testing.T) {
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	g := throughProxies(t, "layers-proxy", 2)
	for _, s := range g.Series {
		p := s.At(0)
		if p == nil || p.Label != peers.Loads()[0].Name {
			t.Errorf("%s: %+v", s.Name, p)
			continue
		}
		rate, times := p.Values[report.Rate], p.Values[report.P50]
		nstest.ErrorIf(t, !(rate.Median > 0) || len(rate.Turns) != 2 || !(times.Median > 0) || p.N == 0,
			"%s, %s: %+v", s.Name, p.Label, p)
	}
	if left, err := os.ReadDir(temporary); len(left) > 0 || err != nil {
		t.Errorf("left: %v, %v", left, err)
	}
}

// Each way has its figures without a loss and with one, and frames are lost only there.
func TestLayersLossProxy(t *testing.T) {
	g := throughProxies(t, "layers-loss-proxy", 1)
	if c := g.Conditions; len(c.PinnedCPUs) != 2 {
		t.Errorf("pinned to %d", c.PinnedCPUs)
	}
	for _, s := range g.Series {
		for x, want := range []string{"lossless", "loss-1%"} {
			p := s.At(float64(x))
			if p == nil || !strings.HasSuffix(p.Label, ", "+want) {
				t.Errorf("%s: %+v", s.Name, p)
				continue
			}
			rate, hit := p.Values[report.Rate], p.Values[report.FaultRatio]
			nstest.ErrorIf(t, !(rate.Median > 0) || p.N == 0 || len(hit.Turns) != 1 || hit.Median > []float64{0, 0.1}[x],
				"%s, %s: %+v", s.Name, p.Label, p)
		}
	}
}

// Missing programs are reported, with the package that has them. A program that fails
// by itself is reported, too, and does not stop the group.
func TestLayersProxyWithoutPrograms(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	cfg := shortly("layers-proxy")
	cfg.ProxyArgs = []string{asProxy}
	notes := func() string {
		t.Helper()
		return strings.Join(measure(t, cfg).Group("layers-proxy").Notes, "\n")
	}
	cfg.Turns = 5
	got := notes()
	cfg.Turns = 1
	for _, want := range []string{
		"This group has 3 turns: ",
		"No figures of redis: redis-server is not installed (Debian's package redis-server).",
		"No figures of redis: redis-benchmark is not installed (Debian's package redis-tools).",
	} {
		nstest.ErrorIf(t, strings.Count(got, want) != 1, "not once among the notes: %s\n%s", want, got)
	}
	for _, name := range []string{"redis-server", "redis-benchmark"} {
		nstest.Must(t, os.WriteFile(dir+"/"+name, []byte("#!/bin/sh\necho broken >&2; exit 3\n"), 0o755))
	}
	if got := notes(); !strings.Contains(got, "No figures of redis: ") || !strings.Contains(got, "broken") {
		t.Errorf("the notes are\n%s", got)
	}
}
