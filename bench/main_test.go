package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaxdp/internal/agent/agentd"
	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/testbed"
)

// The test program is its own worker, guard, demonstration and agent in these parts.
const (
	asWorker = "bench-worker"
	asGuard  = "bench-guard"
	asDemo   = "bench-demo"
	asAgent  = "bench-agent"
)

func TestMain(m *testing.M) {
	nstest.Main(m, map[string]func() error{
		asWorker: WorkerMain, asGuard: testbed.GuardMain, asDemo: demoMain, asAgent: agentMain,
	})
}

// agentMain is an agent at the socket of its last argument, until SIGTERM; one that
// is to fail does.
func agentMain() error {
	if slices.Contains(os.Args, "fail") {
		return errors.New("as it was told")
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	return (&agentd.Daemon{Socket: os.Args[len(os.Args)-1]}).Run(ctx)
}

// demoMain runs a demonstration until it is killed and prints a line when it
// measures.
func demoMain() error {
	cfg := demoConfig(os.Args[2], Names()[:1])
	cfg.Plan.Duration = time.Minute
	cfg.Plan.Progress = func(Step) { fmt.Println("measuring") }
	_, err := Demo(context.Background(), cfg)
	return err
}

// demoConfig is a short demonstration; token marks its processes.
func demoConfig(token string, names []string) DemoConfig {
	return DemoConfig{
		Plan: Plan{
			Rows: RowsOf(names), Sizes: []int{64, 4096}, Turns: 1, Duration: 4 * time.Millisecond,
			Latency: true, Bandwidth: true, Check: true,
		},
		BedConfig: BedConfig{
			Mode: "generic", Hugepages: true, WorkerArgs: []string{asWorker, token}, GuardArgs: []string{asGuard, token}, Stderr: os.Stderr,
		},
	}
}

// side is one side of a connection under test: a place to run endpoints in.
type side struct {
	params Params
	do     func(func() error) error
	ctx    context.Context
	stop   func()
}

// pair are two sides joined by a veth pair.
func pair(t *testing.T, mtu int, v6 bool, mode string) (client, server side) {
	t.Helper()
	a, b := nstest.Pair(t, nstest.Options{MTU: mtu})
	at := func(n *nstest.NS, server bool) side {
		p := Params{Place: Place{Interface: n.Name, Mode: mode}, Server: server, Local: n.IPv4, MaxBytes: 1 << 16}
		if v6 {
			p.Local = n.IPv6
		}
		ctx, stop := stopping(t)
		return side{p, n.Do, ctx, stop}
	}
	return at(a, false), at(b, true)
}

// stopping is the context of a worker, which stop ends.
func stopping(t *testing.T) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(t.Context())
	return ctx, func() { cancel(ErrStopped) }
}

// together runs both sides at the same time and joins their errors.
func together(client, server func() error) error {
	errs := make(chan error, 2)
	go func() { errs <- client() }()
	go func() { errs <- server() }()
	return errors.Join(<-errs, <-errs)
}

// connected opens a transport on both sides and hands the two endpoints to f,
// which runs on a thread in the place of each.
func connected(name string, client, server side, f func(client bool, e endpoint) error) error {
	hello := [2]chan Hello{make(chan Hello, 1), make(chan Hello, 1)}
	run := func(s side, own, other chan Hello) error {
		return s.do(func() (err error) {
			defer close(own)
			e, err := openEndpoint(s.ctx, name, s.params)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, e.Close()) }()
			own <- e.Hello()
			peer, ok := <-other
			if !ok {
				return errors.New("the other side has failed")
			}
			if err := fail.Try(func() { e.Connect(peer) }); err != nil {
				return fmt.Errorf("connect: %w", err)
			}
			own <- Hello{} // both are connected before the first frame
			if _, ok := <-other; !ok {
				return errors.New("the other side has failed")
			}
			err = fail.Try(func() { fail.If(f(!s.params.Server, e)) })
			// Neither leaves before the other one is done.
			own <- Hello{}
			<-other
			return err
		})
	}
	return together(
		func() error { return run(client, hello[0], hello[1]) },
		func() error { return run(server, hello[1], hello[0]) })
}
