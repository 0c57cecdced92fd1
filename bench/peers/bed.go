package peers

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/testbed"
)

// firstPort is the port of the first server. Each server gets a new port, to avoid
// connections that the kernel still remembers.
const (
	firstPort = 20001
	lastPort  = 29999
)

// A Bed is a veth pair between two namespaces, in which the programs run, pinned to
// a CPU each where there are two. It belongs to one goroutine.
type Bed struct {
	star *testbed.Star
	cpus [2]int
	port int
}

// Start makes a bed whose pair has an MTU. Without the privilege for it the error is a
// *testbed.MissingError. On an error nothing is left behind.
func Start(mtu int) (*Bed, error) { return start(mtu, false, 0) }

// start joins the two by a pair without an XDP program, or where lossy by a hub that
// loses a share of the frames of both directions.
func start(mtu int, lossy bool, loss float64) (_ *Bed, err error) {
	defer fail.Catch(&err)
	cpus := fail.Must(testbed.AllowedCPUs())
	b := &Bed{cpus: [2]int{cpus[0], cpus[min(1, len(cpus)-1)]}, port: firstPort}
	if lossy {
		b.star = fail.Must(testbed.NewLossyStar(2, mtu, loss))
	} else {
		b.star = fail.Must(testbed.NewStar(2, mtu))
	}
	return b, nil
}

// Close ends the processes and takes the pair down.
func (b *Bed) Close() { b.star.Close() }

// Time that a program may take beside its measurement: to start, to connect and to warm
// up, on a shared machine.
const (
	waitLimit = 20 * time.Second
	waitParts = 20 // of the duration
)

// Measure runs the server and the client of a row with messages of some bytes, for about
// a duration, or for the program's minimum, and returns the figures. A program that
// reports no result runs again, up to three times in all. After an error the bed remains
// usable for other rows.
func (b *Bed) Measure(ctx context.Context, row Row, bytes int, duration time.Duration) (Figures, error) {
	client, server, err := b.exchange(ctx, row, bytes, duration)
	if err != nil {
		return Figures{}, err
	}
	f, err := row.parse(client.Stdout, bytes)
	if err != nil {
		return Figures{}, err
	}
	if row.polls {
		f.Disturbed = disturbances(client, server)
	}
	return f, nil
}

// A program that polls has a CPU for itself. Its measurement is disturbed when it lost
// the CPU more than switchRate times per second of its CPU time, after an allowance of
// switchSlip. Package bench uses the time that a thread waited, but a process that has
// ended does not report it.
const (
	switchRate = 500
	switchSlip = 10
)

// disturbances says why a measurement of programs that poll is doubtful.
func disturbances(client, server *output) []string {
	var reasons []string
	for i, o := range []*output{client, server} {
		if n := o.Switches; n > switchSlip && float64(n) > switchRate*o.CPU.Seconds() {
			side := []string{"client", "server"}[i]
			reasons = append(reasons, fmt.Sprintf("the %s was put off its CPU more than %d times a second", side, switchRate))
		}
	}
	return reasons
}

// attempts is how often a measurement is tried when the program reports no result: on a
// shared machine its time may be over before enough messages are back.
const attempts = 3

// exchange is Measure without parsing the client's output.
func (b *Bed) exchange(ctx context.Context, row Row, bytes int, duration time.Duration) (client, server *output, err error) {
	if !row.Program.Installed() {
		return nil, nil, fmt.Errorf("%s is not installed (Debian's package %s)", row.Program.Name, row.Program.Package)
	}
	if err := row.check(bytes); err != nil {
		return nil, nil, err
	}
	j := job{bytes: bytes, duration: duration, device: testbed.StarInterface, addr: b.star.Ends[1].IPv4.Addr()}
	for n := 1; ; n++ {
		j.port = b.port
		if b.port++; b.port > lastPort {
			b.port = firstPort
		}
		client, server, err = b.converse(ctx, row, j)
		if n == attempts || !client.foundNothing() {
			break
		}
	}
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	return client, server, err
}

// converse starts the server, runs the client and stops the server. The client's output
// is returned even with an error, if the client has ended by itself.
func (b *Bed) converse(ctx context.Context, row Row, j job) (client, server *output, err error) {
	timeout := waitLimit + waitParts*j.duration
	at := socket{row.await, j.port}
	s, err := b.serve(ctx, 1, row.server(j), at.String(), at.listening, timeout)
	if err != nil {
		return nil, nil, fmt.Errorf("server: %w", err)
	}
	client, err = b.run(ctx, 0, row.client(j), timeout)
	if err == nil {
		err = client.failure()
	}
	// The server is stopped in any case. Its end matters only for its output when the
	// client has failed.
	s.end(syscall.SIGTERM)
	server, stopErr := s.output()
	switch {
	case stopErr != nil:
		return nil, nil, fmt.Errorf("server: %w", errors.Join(stopErr, err))
	case err == nil:
		return client, server, nil
	case server.complaint() != "":
		return client, nil, fmt.Errorf("client: %w; server: %s", err, server.complaint())
	}
	return client, nil, fmt.Errorf("client: %w", err)
}
