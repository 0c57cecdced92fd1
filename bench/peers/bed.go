package peers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"viaxdp/internal/testbed"
)

// Config of a bed.
type Config struct {
	WorkerArgs []string  // with which this program becomes a worker: WorkerMain
	MTU        int       // of the pair; 0: 1500
	Stderr     io.Writer // of the workers, not of what they run
}

// device is the name of the pair's interface in both namespaces.
const device = "tcp0"

// firstPort is the port of the first server. Each one gets another, so that
// none is in the way of connections that the kernel still remembers.
const (
	firstPort = 20001
	lastPort  = 29999
)

// A Bed is a veth pair between two namespaces and a worker in each, pinned to
// a CPU of its own where there are two. It belongs to one goroutine.
type Bed struct {
	bed            *testbed.Bed
	client, server *worker
	port           int
}

// Start makes a bed. Without the privilege for it the error is a
// *testbed.MissingError. On an error nothing is left behind.
func Start(cfg Config) (*Bed, error) {
	if err := testbed.Require(testbed.Namespaces); err != nil {
		return nil, err
	}
	cpus, err := testbed.AllowedCPUs()
	if err != nil {
		return nil, err
	}
	if len(cpus) == 0 {
		return nil, errors.New("this process may use no CPU")
	}
	b := &Bed{port: firstPort}
	b.bed, err = testbed.Start(testbed.Config{
		Args: cfg.WorkerArgs, Stderr: cfg.Stderr,
		CPUs: [2]int{cpus[0], cpus[min(1, len(cpus)-1)]},
		Pairs: []testbed.Pair{{
			Names: [2]string{device, device}, MTU: cfg.MTU,
			Net4: testbed.KernelNet4, Net6: testbed.KernelNet6,
		}},
	})
	if err != nil {
		return nil, err
	}
	b.client, b.server = newWorker("client", b.bed.Side(0).Control), newWorker("server", b.bed.Side(1).Control)
	return b, nil
}

// Close ends the workers, with them whatever they run, and takes the pair down.
func (b *Bed) Close() error { return b.bed.Close() }

// A RowError says why there are no figures of a row: the program is not
// installed, cannot run here, or has failed. The bed is fine, and other rows
// may well have figures.
type RowError struct {
	Row string
	Err error
}

// Error is one line.
func (e *RowError) Error() string { return e.Row + ": " + e.Err.Error() }

// Unwrap returns the reason.
func (e *RowError) Unwrap() error { return e.Err }

// Time that a program may take beside its measurement: to start, to connect,
// to warm up, and on a machine that others use, too.
const (
	patience      = 20 * time.Second
	patienceParts = 20 // of the duration
)

// Measure runs the server and the client of a row with messages of some bytes,
// for about a duration or for what is the least that the program can do, and
// returns what it has found; a program that says it has found nothing runs again,
// up to three times in all. An error that is no [*RowError], as when ctx ends,
// leaves a bed of no use.
func (b *Bed) Measure(ctx context.Context, row Row, bytes int, duration time.Duration) (Figures, error) {
	client, server, err := b.run(ctx, row, bytes, duration)
	if err != nil {
		return Figures{}, err
	}
	f, err := row.parse(client.Stdout, bytes)
	if err != nil {
		return Figures{}, &RowError{row.Name, err}
	}
	if row.polls {
		f.Disturbed = disturbances(client, server)
	}
	return f, nil
}

// A program that polls has a CPU for itself. Its measurement is disturbed when
// it had to leave it more than switchRate times in a second of its CPU time,
// beyond switchSlip that it may have to all the same. How long it waited, which
// package bench looks at, a process that has ended does not tell.
const (
	switchRate = 500
	switchSlip = 10
)

// disturbances says why a measurement of programs that poll is doubtful.
func disturbances(client, server *output) []string {
	var reasons []string
	for _, side := range []struct {
		name string
		*output
	}{{"client", client}, {"server", server}} {
		if n := side.Switches; n > switchSlip && float64(n) > switchRate*side.CPU.Seconds() {
			reasons = append(reasons, fmt.Sprintf("the %s was put off its CPU more than %d times a second", side.name, switchRate))
		}
	}
	return reasons
}

// attempts is how often a measurement is tried when the program says that it has
// found nothing: on a machine that others use its time may be over before enough
// messages were back.
const attempts = 3

// run is Measure without the reading of what the client has printed.
func (b *Bed) run(ctx context.Context, row Row, bytes int, duration time.Duration) (client, server *output, err error) {
	if !row.Program.Installed() {
		return nil, nil, &RowError{row.Name, fmt.Errorf("%s is not installed (Debian's package %s)", row.Program.Name, row.Program.Package)}
	}
	if err := row.check(bytes); err != nil {
		return nil, nil, &RowError{row.Name, err}
	}
	j := job{bytes: bytes, duration: duration, device: device, addr: b.bed.Side(1).Ends[0].IPv4.Addr()}
	stop := context.AfterFunc(ctx, b.bed.Kill)
	defer stop()
	for n := 1; ; n++ {
		j.port = b.nextPort()
		client, server, err = b.converse(row, j)
		if n == attempts || !client.foundNothing() {
			break
		}
	}
	var process processError
	switch {
	case err == nil:
		return client, server, nil
	case ctx.Err() != nil:
		return nil, nil, context.Cause(ctx)
	case errors.As(err, &process):
		return nil, nil, &RowError{row.Name, err}
	}
	return nil, nil, fmt.Errorf("%s: %w", row.Name, err)
}

// nextPort is the port of one more server.
func (b *Bed) nextPort() int {
	port := b.port
	if b.port++; b.port > lastPort {
		b.port = firstPort
	}
	return port
}

// converse starts the server, runs the client and stops the server. On an error
// there is the client's output all the same if it has ended by itself.
func (b *Bed) converse(row Row, j job) (client, server *output, err error) {
	timeout := patience + patienceParts*j.duration
	s, c := row.server(j), row.client(j)
	_, err = b.server.call(request{
		Op: opStart, Argv: s.argv, Env: s.env, Timeout: timeout,
		Listen: &socket{row.await, j.port},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("server: %w", err)
	}
	client, err = b.client.call(request{Op: opRun, Argv: c.argv, Env: c.env, Timeout: timeout})
	if err == nil && client.failure() != nil {
		err = processError(client.failure().Error())
	}
	// The server is stopped in any case. How it ends is not of interest, but
	// for what it says when the client has failed.
	server, stopErr := b.server.call(request{Op: opStop})
	switch {
	case stopErr != nil:
		return nil, nil, fmt.Errorf("server: %w", stopErr)
	case err == nil:
		return client, server, nil
	case server.complaint() != "":
		return client, nil, fmt.Errorf("client: %w; server: %s", err, server.complaint())
	}
	return client, nil, fmt.Errorf("client: %w", err)
}
