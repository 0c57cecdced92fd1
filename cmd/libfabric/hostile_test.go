package libfabric

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
)

// hello compiles testdata/hostile/hello.c.
func hello(t *testing.T, dir string, flags ...string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "hello")
	out, err := exec.Command("gcc", append(flags, "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I"+dir+"/lib", "testdata/hostile/hello.c", "-o", program,
		"-L"+dir+"/lib", "-lvipl", "-lfabric", "-Wl,-rpath,"+dir+"/lib")...).CombinedOutput()
	if err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return program
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
				{b.a.IPv4.String(), b.b.IPv4.String(), "10.99.0.77"}, {b.a.IPv6.String(), b.b.IPv6.String(), "fd77::77"},
			} {
				s := b.start(t, b.a, server, "server", c.server)
				client := append([]string{server, "client", c.server}, kind.client...)
				await.Until(t, "the server is there", func() bool { return b.start(t, b.b, client...).Wait() == nil })
				for name, want := range map[string]string{c.host: "accepted\n", c.other: "refused\n"} {
					if got := b.start(t, b.b, hello, "via0", c.host, c.server, name).finish(t); got != want {
						t.Errorf("%s as %s is %q, want %q", c.host, name, got, want)
					}
				}
				nstest.Must(t, s.Process.Signal(syscall.SIGTERM))
				s.finish(t)
			}
		})
	}
}

// A peer whose message there is no memory for loses its connection, so that it does not take the message for delivered. So does one that
// goes on to send data although it was asked not to.
func TestUnexpected(t *testing.T) {
	t.Parallel()
	dir := build(t)
	server, hello, nomemory := survivor(t, "rdm"), hello(t, dir), filepath.Join(t.TempDir(), "nomemory.so")
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "testdata/hostile/nomemory.c", "-o", nomemory).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	b := newBed(t, nstest.Options{MTU: 1500}, "VIA_SILENCE=3000")
	s := b.with("LD_PRELOAD="+nomemory).start(t, b.a, server, "server", b.a.IPv4.String())
	await.Until(t, "the server is there", func() bool { return b.start(t, b.b, server, "client", b.a.IPv4.String(), "once").Wait() == nil })
	for _, c := range []struct{ messages, bytes, want string }{
		{"100", "12000", "acknowledged"}, {"1", "12345", "closed"}, {"1", "10", "acknowledged"},
		{"6000", "17920", "closed"}, {"100", "17920", "closed"}, // the second time there still is no room
	} {
		if got := b.start(t, b.b, hello, "via0", b.b.IPv4.String(), b.a.IPv4.String(), b.b.IPv4.String(), c.messages, c.bytes).finish(t); got != "accepted\n"+c.want+"\n" {
			t.Errorf("%s messages of %s bytes: %q, want %q", c.messages, c.bytes, got, c.want)
		}
	}
	nstest.Must(t, s.Process.Signal(syscall.SIGTERM))
	s.finish(t)
}

// A program that says that it is the endpoint that it connects with is a peer like others: a receive that gets its message ends with it.
func TestHostileInstance(t *testing.T) {
	t.Parallel()
	dir := build(t)
	server, hello := survivor(t, "rdm"), hello(t, dir)
	b := newBed(t, nstest.Options{MTU: 1500})
	s := b.start(t, b.a, server, "server", b.a.IPv4.String())
	client := func() bool { return b.start(t, b.b, server, "client", b.a.IPv4.String(), "once").Wait() == nil }
	await.Until(t, "the server is there", client)
	const there = "2" // the tag
	if got, want := b.start(t, b.b, hello, "via0", b.b.IPv4.String(), b.a.IPv4.String(), b.b.IPv4.String(), there).finish(t), "accepted\naccepted\n"; got != want {
		t.Errorf("it said %q, want %q", got, want)
	}
	nstest.ErrorIf(t, !client(), "the server does not answer") // after the end of the other connection, as it reads both
	nstest.Must(t, s.Process.Signal(syscall.SIGTERM))
	if out := s.finish(t); !strings.Contains(out, " 1 messages cut") {
		t.Errorf("the server said %q, want one message cut", out)
	}
}

// The sender of a long message hears that its receiver has no memory to read it with.
func TestUnread(t *testing.T) {
	t.Parallel()
	dir := build(t)
	program, nooperation := survivor(t, "rdm"), filepath.Join(t.TempDir(), "nooperation.so")
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-I"+dir+"/lib", "testdata/hostile/nooperation.c", "-o", nooperation).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	b := newBed(t, nstest.Options{MTU: 1500})
	s := b.with("LD_PRELOAD="+nooperation).start(t, b.a, program, "server", b.a.IPv4.String())
	var c *process
	await.Until(t, "the server is there, and does not read a message", func() bool {
		c = b.start(t, b.b, program, "client", b.a.IPv4.String(), "once")
		return c.Wait() == nil || strings.Contains(c.out.String(), "connected")
	})
	if want := fmt.Sprintf("the server is gone: %d\n", syscall.EIO); !strings.HasSuffix(c.out.String(), want) {
		t.Errorf("the client said %q, want %q", &c.out, want)
	}
	nstest.Must(t, s.Process.Signal(syscall.SIGTERM))
	s.finish(t)
}

// What a peer sends before it has accepted the connection is dropped, and leaks nothing.
func TestEarlyPiece(t *testing.T) {
	t.Parallel()
	dir := build(t)
	client, hello := survivor(t, "rdm", strings.Fields(sanitizers)...), hello(t, dir)
	b := newBed(t, nstest.Options{MTU: 1500}, "FI_PROVIDER_PATH="+dir+"/asan", "ASAN_OPTIONS=detect_leaks=1", "VIA_SILENCE=3000")
	s := b.start(t, b.a, hello, "via0", b.a.IPv4.String())
	ended := make(chan error, 1)
	go func() { ended <- s.Wait() }()
	for { // until the server has got its hello
		c := b.start(t, b.b, client, "client", b.a.IPv4.String(), "once")
		if err := c.Wait(); err == nil || !strings.Contains(c.out.String(), "the server is gone") || strings.Contains(c.out.String(), "Sanitizer") {
			t.Errorf("the client: %v\n%s", err, &c.out)
		}
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("the server: %v\n%s", err, &s.out)
			}
			return
		default:
		}
	}
}
