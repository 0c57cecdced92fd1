package libfabric

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/cprogram"
	"viaxdp/internal/lab/nstest"
)

// hello compiles testdata/hostile/hello.c.
func hello(t *testing.T, dir string, flags ...string) string {
	t.Helper()
	lib := dir + "/lib"
	return gcc(t, "hello", append(flags, "-I"+lib, "testdata/hostile/hello.c", "-L"+lib, "-lvipl", "-lfabric", "-Wl,-rpath,"+lib)...)
}

// serve starts a server of testdata/survivor at an address, in the first namespace of a. It returns when a client of b with
// these last arguments has ended well.
func serve(t *testing.T, a, b *cprogram.Bed, program, address string, client ...string) *cprogram.Process {
	t.Helper()
	s := a.Start(t, a.A, program, "server", address)
	args := append([]string{program, "client", address}, client...)
	await.Until(t, "the server is there", func() bool { return b.Start(t, b.B, args...).Wait() == nil })
	return s
}

// A program cannot take the place of another host's: a request that names another host than the one it comes from is refused.
func TestHostileName(t *testing.T) {
	t.Parallel()
	dir := build(t)
	for _, kind := range []struct {
		server string
		client []string // its last arguments
		flags  []string // of hello
	}{{"rdm", []string{"once"}, nil}, {"survivor", []string{"0", "1"}, []string{"-DMSG"}}} {
		t.Run(kind.server, func(t *testing.T) {
			t.Parallel()
			server, hello := survivor(t, kind.server), hello(t, dir, kind.flags...)
			b := newBed(t, nstest.Options{MTU: 1500})
			for _, c := range []struct{ server, host, other string }{
				{b.A.IPv4.String(), b.B.IPv4.String(), "10.99.0.77"}, {b.A.IPv6.String(), b.B.IPv6.String(), "fd77::77"},
			} {
				s := serve(t, b, b, server, c.server, kind.client...)
				for name, want := range map[string]string{c.host: "accepted\n", c.other: "refused\n"} {
					if got := b.Start(t, b.B, hello, "via0", c.host, c.server, name).Finish(t); got != want {
						t.Errorf("%s as %s is %q, want %q", c.host, name, got, want)
					}
				}
				s.End(t)
			}
		})
	}
}

// A peer whose message there is no memory for loses its connection, so that it does not take the message for delivered. So does one that
// goes on to send data although it was asked not to.
func TestUnexpected(t *testing.T) {
	t.Parallel()
	dir := build(t)
	server, hello := survivor(t, "rdm"), hello(t, dir)
	b := newBed(t, nstest.Options{MTU: 1500}, "VIA_SILENCE=3000")
	s := serve(t, b.With(preloaded(t, dir, "nomemory")), b, server, b.A.IPv4.String(), "once")
	for _, c := range []struct{ messages, bytes, want string }{
		{"100", "12000", "acknowledged"}, {"1", "12345", "closed"}, {"1", "10", "acknowledged"},
		{"6000", "17920", "closed"}, {"100", "17920", "closed"}, // the second time there still is no room
	} {
		if got := b.Start(t, b.B, hello, "via0", b.B.IPv4.String(), b.A.IPv4.String(), b.B.IPv4.String(), c.messages, c.bytes).Finish(t); got != "accepted\n"+c.want+"\n" {
			t.Errorf("%s messages of %s bytes: %q, want %q", c.messages, c.bytes, got, c.want)
		}
	}
	s.End(t)
}

// A program that says that it is the endpoint that it connects with is a peer like others: a receive that gets its message ends with it.
func TestHostileInstance(t *testing.T) {
	t.Parallel()
	dir := build(t)
	server, hello := survivor(t, "rdm"), hello(t, dir)
	b := newBed(t, nstest.Options{MTU: 1500})
	s := serve(t, b, b, server, b.A.IPv4.String(), "once")
	const there = "2" // the tag
	if got, want := b.Start(t, b.B, hello, "via0", b.B.IPv4.String(), b.A.IPv4.String(), b.B.IPv4.String(), there).Finish(t), "accepted\naccepted\n"; got != want {
		t.Errorf("it said %q, want %q", got, want)
	}
	b.Start(t, b.B, server, "client", b.A.IPv4.String(), "once").Finish(t) // after the end of the other connection, as it reads both
	if out := s.End(t); !strings.Contains(out, " 1 messages cut") {
		t.Errorf("the server said %q, want one message cut", out)
	}
}

// The sender of a long message hears that its receiver has no memory to read it with.
func TestUnread(t *testing.T) {
	t.Parallel()
	dir := build(t)
	program := survivor(t, "rdm")
	b := newBed(t, nstest.Options{MTU: 1500})
	s := b.With(preloaded(t, dir, "nooperation")).Start(t, b.A, program, "server", b.A.IPv4.String())
	var c *cprogram.Process
	await.Until(t, "the server is there, and does not read a message", func() bool {
		c = b.Start(t, b.B, program, "client", b.A.IPv4.String(), "once")
		return c.Wait() == nil || strings.Contains(c.Out.String(), "connected")
	})
	if want := fmt.Sprintf("the server is gone: %d\n", syscall.EIO); !strings.HasSuffix(c.Out.String(), want) {
		t.Errorf("the client said %q, want %q", &c.Out, want)
	}
	s.End(t)
}

// What a peer sends before it has accepted the connection is dropped, and leaks nothing.
func TestEarlyPiece(t *testing.T) {
	t.Parallel()
	dir := build(t)
	client, hello := survivor(t, "rdm", strings.Fields(sanitizers)...), hello(t, dir)
	b := newBed(t, nstest.Options{MTU: 1500}, "FI_PROVIDER_PATH="+dir+"/asan", "ASAN_OPTIONS=detect_leaks=1", "VIA_SILENCE=3000")
	s := b.Start(t, b.A, hello, "via0", b.A.IPv4.String())
	ended := make(chan error, 1)
	go func() { ended <- s.Wait() }()
	for { // until the server has got its hello
		c := b.Start(t, b.B, client, "client", b.A.IPv4.String(), "once")
		if err := c.Wait(); err == nil || !strings.Contains(c.Out.String(), "the server is gone") || strings.Contains(c.Out.String(), "Sanitizer") {
			t.Errorf("the client: %v\n%s", err, &c.Out)
		}
		select {
		case err := <-ended:
			nstest.ErrorIf(t, err != nil, "the server: %v\n%s", err, &s.Out)
			return
		default:
		}
	}
}
