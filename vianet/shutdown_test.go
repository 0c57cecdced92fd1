package vianet_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"viaxdp/internal/lab/await"
	"viaxdp/vianet"
)

// shutDown begins a Shutdown. Its listeners are closed when it returns.
func shutDown(t *testing.T, ctx context.Context, s *vianet.Stack, ls ...*vianet.Listener) (ended chan error) {
	t.Helper()
	ended = make(chan error, 1)
	go func() { ended <- s.Shutdown(ctx) }()
	for _, l := range ls {
		if c, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept: %v, %v", c, err)
		}
	}
	return ended
}

// Shutdown lets what was written before a Close be delivered for as long as the peer takes, which Close of the stack
// does not. It takes no other time than that.
func TestShutdownDelivers(t *testing.T) {
	const late = 20 * time.Second
	for _, graceful := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			h := onPath(t, vianet.Options{Linger: time.Hour}, 0)
			a, b := h.pair(t)
			want := fill(t, a)
			a.Close()
			start := time.Now()
			end := h.a.Close
			if graceful {
				end = func() error { return h.a.Shutdown(t.Context()) }
			}
			ended := make(chan error, 1)
			go func() { ended <- end() }()
			time.Sleep(late)
			got, err := io.ReadAll(b)
			if (err == nil && bytes.Equal(got, want)) != graceful {
				t.Errorf("graceful: %v: %d bytes of %d were read, %v", graceful, len(got), len(want), err)
			}
			check(t, <-ended)
			if took := time.Since(start); graceful && took > late+time.Second {
				t.Errorf("it took %v", took)
			}
			b.Close()
		})
	}
}

// Until the last connection is closed the stack can be dialed from, and not to.
func TestShutdownWaits(t *testing.T) {
	h := lingering(t, vianet.Options{})
	a, b := h.pair(t)
	c, d := h.pair(t)
	l, other := h.listen(t), h.listen(t)
	waiting := h.dial(t, l.Addr())
	back, err := h.a.Listen("via", ":0")
	must(t, err)
	await.Until(t, "a connection waits for Accept", func() bool { return h.b.Stats().Accepted == 3 })
	ended := shutDown(t, t.Context(), h.b, other)
	if _, err := waiting.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection that nobody has accepted: %v", err)
	}
	if _, err := h.a.Dial("via", l.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("Dial of a listener: %v", err)
	}
	if _, err := h.b.Listen("via", ":0"); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Listen: %v", err)
	}
	_, port, _ := net.SplitHostPort(back.Addr().String())
	e, err := h.b.Dial("via", net.JoinHostPort(h.nicA.Query().Address.String(), port))
	if err != nil {
		t.Fatalf("Dial: %v", err)
	}
	exchange(t, a, b, 100_000)
	for _, c := range []net.Conn{b, d, e} {
		select {
		case err := <-ended:
			t.Fatalf("it has ended before a connection: %v", err)
		default:
		}
		check(t, c.Close())
	}
	check(t, <-ended)
	for _, c := range []*vianet.Conn{a, c} {
		if _, err := c.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("the peer of one that was closed: %v", err)
		}
	}
	if _, err := h.b.Dial("via", "10.0.0.9:1"); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Dial of a closed stack: %v", err)
	}
	if err := h.b.Shutdown(t.Context()); err != nil {
		t.Errorf("a second one: %v", err)
	}
}

// When the time that it has is over it closes what is left. What is over by then is no reason for an error.
func TestShutdownEnds(t *testing.T) {
	for _, left := range []bool{true, false} {
		h := inMemory(t, vianet.Options{})
		a, b := h.pair(t)
		ctx, cancel := context.WithCancel(t.Context())
		if !left {
			b.Close()
			await.Until(t, "it is gone", func() bool { return h.b.Stats().Conns == 0 })
			cancel()
		}
		l := h.listen(t)
		ended := shutDown(t, ctx, h.b, l)
		cancel()
		if err := <-ended; errors.Is(err, context.Canceled) != left || !left && err != nil {
			t.Errorf("connections are left: %v: %v", left, err)
		}
		if _, err := a.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("the peer: %v", err)
		}
		if _, err := b.Write([]byte{1}); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Write: %v", err)
		}
	}
}

// Close of the stack ends a Shutdown.
func TestCloseEndsShutdown(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	h.pair(t)
	ended := shutDown(t, context.Background(), h.b, h.listen(t))
	check(t, h.b.Close())
	check(t, <-ended)
}

// A server of HTTP and its stack are shut down while requests are served and a connection rests: those get their
// answers, all of them, and nobody else gets one.
func TestShutdownHTTP(t *testing.T) {
	h := inMemory(t, vianet.Options{})
	body := randomBytes(300_000, 1)
	began, answer := make(chan struct{}), make(chan struct{})
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			began <- struct{}{}
			<-answer
		}
		w.Write(body)
	})}
	l := h.listen(t)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	transport := &http.Transport{DialContext: h.a.DialContext}
	defer transport.CloseIdleConnections()
	get := func(path string) error {
		r, err := (&http.Client{Transport: transport}).Get("http://" + l.Addr().String() + path)
		if err != nil {
			return err
		}
		defer r.Body.Close()
		got, err := io.ReadAll(r.Body)
		if err == nil && !bytes.Equal(got, body) {
			err = errors.New("other bytes came")
		}
		return err
	}
	const requests = 5
	answers := make(chan error, requests)
	for range requests {
		go func() { answers <- get("/slow") }()
	}
	for range requests {
		<-began
	}
	if err := get("/"); err != nil { // whose connection rests
		t.Error(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- errors.Join(server.Shutdown(t.Context()), h.b.Shutdown(t.Context())) }()
	if err := <-served; err != http.ErrServerClosed {
		t.Errorf("Serve: %v", err)
	}
	if _, err := h.a.Dial("via", l.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("somebody else: %v", err)
	}
	close(answer)
	for range requests {
		check(t, <-answers)
	}
	check(t, <-ended)
	if s := h.b.Stats(); s.Accepted != requests+1 || s.Conns != 0 || s.Undelivered != 0 {
		t.Errorf("%+v", s)
	}
}
