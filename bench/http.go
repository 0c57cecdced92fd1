package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"viaxdp/internal/lab/fail"
)

// HTTPLoad is requests that a client of net/http makes of a server of net/http,
// over package vianet or the kernel's TCP. Both are used unchanged.
type HTTPLoad struct {
	Vianet      bool
	Bytes       int           // of an answer, 1 to MaxMessage
	Connections int           // each with one request under way, 1 to 1024
	Duration    time.Duration // at most MaxTime
}

// HTTPResult is what they took.
type HTTPResult struct {
	Requests  int64
	PerSecond float64
	Disturbed []string // why the figures are doubtful; empty: they are not

	Conditions Conditions
}

// httpInput is what both tasks get. Server is where the server is.
type httpInput struct {
	HTTPLoad
	Server netip.Addr
}

// httpOutput is what the client has found.
type httpOutput struct {
	Requests int64
	Span     Span
	Facts    Facts
}

// httpPort is the server's, of either network.
const httpPort = 8080

// httpEnd is the path that ends the server.
const httpEnd = "/end"

func (l HTTPLoad) validate() error {
	switch {
	case l.Bytes < 1 || l.Bytes > MaxMessage:
		return fmt.Errorf("answers of %d bytes: 1 to %d", l.Bytes, MaxMessage)
	case l.Connections < 1 || l.Connections > 1024:
		return fmt.Errorf("%d connections: 1 to 1024", l.Connections)
	case l.Duration <= 0 || l.Duration > MaxTime:
		return fmt.Errorf("%v: more than nothing, at most a minute", l.Duration)
	}
	return nil
}

// HTTP measures requests a second, after a warm-up.
func (b *Bed) HTTP(ctx context.Context, l HTTPLoad) (_ *HTTPResult, err error) {
	defer fail.Catch(&err)
	fail.If(l.validate())
	replies := b.apart(ctx, l.Vianet, "http-get", "http-serve", httpInput{l, b.server.at(l.Vianet).Local})
	out, server := outputOf[httpOutput](replies[0]), outputOf[Facts](replies[1])
	return &HTTPResult{
		Requests: out.Requests, PerSecond: float64(out.Requests) / out.Span.Wall.Seconds(),
		Disturbed:  disturbances(out.Span, Span{}, false),
		Conditions: conditionsOf("wait", out.Facts, server), // both networks sleep
	}, nil
}

// serveHTTP is a task: the server, until the client ends it.
func serveHTTP(j *job, in httpInput) (_ Facts, err error) {
	fail.If(in.validate())
	n := fail.Must(openNetwork(j.params, in.Vianet))
	defer fail.Closing(&err, n.close)
	l := fail.Must(n.listen("tcp", netip.AddrPortFrom(in.Server, httpPort).String()))
	content := make([]byte, in.Bytes)
	over := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { w.Write(content) })
	mux.HandleFunc(httpEnd, func(http.ResponseWriter, *http.Request) { close(over) })
	s := &http.Server{Handler: mux}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	limit := time.NewTimer(in.Duration + httpLimit)
	defer limit.Stop()
	select {
	case <-over:
	case <-limit.C:
		err = errors.Join(errors.New("the client has not ended it"), s.Close())
	case err := <-served:
		fail.If(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	return factsOf(n.nic), errors.Join(err, s.Shutdown(ctx))
}

// httpLimit is what opening, warming up and closing may take.
const httpLimit = 30 * time.Second

// getHTTP is a task: the client.
func getHTTP(j *job, in httpInput) (out httpOutput, err error) {
	fail.If(in.validate())
	n := fail.Must(openNetwork(j.params, in.Vianet))
	defer fail.Closing(&err, n.close)
	at := netip.AddrPortFrom(in.Server, httpPort)
	// Without a bound to them it dials for every request that finds all in use, and
	// closes what is too many: the first moments would measure connecting.
	transport := &http.Transport{
		DialContext: n.dial, DisableCompression: true,
		MaxIdleConnsPerHost: in.Connections, MaxConnsPerHost: in.Connections,
	}
	c := &getter{
		client: http.Client{Transport: transport, Timeout: in.Duration + httpLimit},
		url:    "http://" + at.String(), bytes: int64(in.Bytes),
	}
	defer transport.CloseIdleConnections()
	fail.If(n.reach(j.ctx, at, waitLimit).Close()) // it may not listen yet
	c.load(in.Connections, in.Duration/warmPart)
	clock := startStopwatch()
	out.Requests = c.load(in.Connections, in.Duration)
	out.Span = clock.span()
	out.Facts = factsOf(n.nic)
	return out, c.get(httpEnd, 0)
}

// getter makes requests.
type getter struct {
	client http.Client
	url    string
	bytes  int64
}

// load makes requests on a number of connections for a time.
func (g *getter) load(connections int, d time.Duration) int64 {
	var count atomic.Int64
	var wait sync.WaitGroup
	errs := make([]error, connections)
	end := time.Now().Add(d)
	for i := range connections {
		wait.Go(func() {
			for time.Now().Before(end) && errs[i] == nil {
				errs[i] = g.get("/", g.bytes)
				count.Add(1)
			}
		})
	}
	wait.Wait()
	fail.If(errors.Join(errs...))
	return count.Load()
}

// get makes a request and checks the length of the answer.
func (g *getter) get(path string, want int64) (err error) {
	defer fail.Catch(&err)
	r := fail.Must(g.client.Get(g.url + path))
	defer r.Body.Close()
	n, err := io.Copy(io.Discard, r.Body)
	if err == nil && n != want {
		err = fmt.Errorf("an answer of %d bytes, not %d", n, want)
	}
	return err
}
