package peers

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/testbed"
)

// chainLimit is for servers and load generators, which need more time to start than plain
// benchmarks, on a shared machine.
const chainLimit = 2 * time.Minute

// A Way is how a client reaches its server on another host.
type Way int

// The ways.
const (
	Direct     Way = iota // by the kernel's TCP
	ThroughTCP            // through two proxies, with the kernel's TCP between them
	ThroughVIA            // through the same, with VIA between them
)

// ChainConfig says where and how a service is offered.
type ChainConfig struct {
	ProxyArgs []string // with which this program becomes a proxy: via-xdp proxy
	MTU       int      // of the pair

	// Lossy joins the two by a hub that loses a share of the frames of both directions, each by
	// itself, instead of a pair; all offloads are off then. A Loss of 0 uses the same hub without
	// losses.
	Lossy bool
	Loss  float64
}

// A Chain is two namespaces on a pair of their own, a service in one of them, and the
// way to it from the other.
//
//	+- CPU 0 -----------------+      +- CPU 1 -------------+
//	| client --TCP--> [proxy] | ==== | [proxy] -TCP-> server |
//	+-------------------------+      +---------------------+
//
// It belongs to one goroutine.
type Chain struct {
	bed       *Bed
	offer     offer
	processes []*process
	ends      []os.Signal // of each
}

// StartChain starts the service. On an error nothing is left of it.
func StartChain(ctx context.Context, cfg ChainConfig, way Way, service Service) (_ *Chain, err error) {
	c := &Chain{}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	defer fail.Catch(&err)
	if way != Direct && len(cfg.ProxyArgs) == 0 {
		fail.With("no arguments with which this program becomes a proxy")
	}
	c.bed = fail.Must(start(cfg.MTU, cfg.Lossy, cfg.Loss))
	c.offer.dir = fail.Must(os.MkdirTemp("", "via-xdp-served-"))
	own, host := netip.MustParseAddr("127.0.0.1"), c.bed.star.Ends[1].IPv4.Addr()
	c.offer.beside, c.offer.at = netip.AddrPortFrom(own, service.port()), netip.AddrPortFrom(host, service.port())
	server, signal := serveRedis, os.Signal(syscall.SIGTERM)
	if service == PostgreSQL {
		fail.If(cluster(ctx, c.offer.dir))
		server, signal = servePostgres, syscall.SIGQUIT // SIGTERM waits for clients
	}
	at := socket{tcp, int(service.port())}
	fail.During(string(service), func() {
		c.start(ctx, 1, server(&c.offer), signal, at.String(), func(p *process) (bool, error) {
			if service == PostgreSQL && !p.says("ready to accept connections") { // it listens before that
				return false, nil
			}
			return at.listening(p)
		})
	})
	if way == Direct {
		return c, nil
	}
	beside, between := "tcp:"+c.offer.beside.String(), "tcp:"+netip.AddrPortFrom(host, service.port()+1).String()
	var device []string
	if way == ThroughVIA {
		between = "via:" + c.offer.at.String()
		device = []string{"-i", testbed.StarInterface}
	}
	proxy := func(side int, listen, to string) {
		words := slices.Concat([]string{"/proc/self/exe"}, cfg.ProxyArgs, device, []string{"--listen", listen, "--to", to})
		forwards := func(p *process) (bool, error) { return p.says("forwarding "), nil }
		fail.During("proxy", func() { c.start(ctx, side, argv(words...), syscall.SIGTERM, listen, forwards) })
	}
	proxy(1, between, beside)
	c.offer.at = c.offer.beside
	proxy(0, beside, between)
	return c, nil
}

// says looks for something on its standard error.
func (p *process) says(what string) bool { return strings.Contains(p.stderr.String(), what) }

// start starts a process on a side, and waits until it is ready.
func (c *Chain) start(ctx context.Context, side int, what command, end os.Signal, at string, ready func(*process) (bool, error)) {
	p := fail.Must(c.bed.serve(ctx, side, what, at, ready, chainLimit))
	c.processes, c.ends = append(c.processes, p), append(c.ends, end)
}

// Measure has a load generator ask for about a duration.
func (c *Chain) Measure(ctx context.Context, l Load, d time.Duration) (f Figures, err error) {
	defer fail.Catch(&err)
	fail.During(l.Name, func() {
		fail.During("before it", func() { fail.Must(c.run(ctx, 1, l.prepare(&c.offer), d)) })
		out, err := c.run(ctx, 0, l.client(&c.offer, d), d)
		if err != nil {
			fail.With("%w%s", err, c.complaints())
		}
		f = fail.Must(l.parse(out, d))
	})
	return f, nil
}

// Counts are the frames that a lossy hub has taken so far, and those of them that it has lost.
func (c *Chain) Counts() (taken, lost uint64, err error) { return c.bed.star.Counts() }

// complaints are what the server, and the proxies if there are any, have said last.
func (c *Chain) complaints() (all string) {
	for i, p := range c.processes {
		if last := lastLine(p.stderr.String()); last != "" {
			all += fmt.Sprintf("; %s: %s", []string{"server", "its proxy", "the client's proxy"}[i], last)
		}
	}
	return all
}

// run runs a program on a side to its end, and gives what it has printed.
func (c *Chain) run(ctx context.Context, side int, what command, d time.Duration) (string, error) {
	o, err := c.bed.run(ctx, side, what, chainLimit+waitParts*d)
	if err != nil {
		return "", err
	}
	return o.Stdout, o.failure()
}

// Close ends all processes, the last one first, and releases the namespaces.
func (c *Chain) Close() error {
	for i, p := range slices.Backward(c.processes) {
		p.end(c.ends[i])
	}
	if c.bed != nil {
		c.bed.Close()
	}
	if c.offer.dir == "" {
		return nil
	}
	return os.RemoveAll(c.offer.dir)
}
