package libfabric

import (
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"viaxdp/internal/lab/await"
	"viaxdp/internal/lab/nstest"
)

// A program cannot take the place of another host's: a request that names another host than the one it comes from is refused.
func TestHostileName(t *testing.T) {
	t.Parallel()
	dir := build(t)
	server, hello := survivor(t, "rdm"), filepath.Join(t.TempDir(), "hello")
	out, err := exec.Command("gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I"+dir+"/lib", "testdata/hostile/hello.c", "-o", hello,
		"-L"+dir+"/lib", "-lvipl", "-lfabric", "-Wl,-rpath,"+dir+"/lib").CombinedOutput()
	if err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	b := newBed(t, nstest.Options{MTU: 1500})
	for _, c := range []struct{ server, host, other string }{
		{b.a.IPv4.String(), b.b.IPv4.String(), "10.99.0.77"}, {b.a.IPv6.String(), b.b.IPv6.String(), "fd77::77"},
	} {
		s := b.start(t, b.a, server, "server", c.server)
		await.Until(t, "the server is there", func() bool { return b.start(t, b.b, server, "client", c.server, "once").Wait() == nil })
		for name, want := range map[string]string{c.host: "accepted\n", c.other: "refused\n"} {
			if got := b.start(t, b.b, hello, "via0", c.host, c.server, name).finish(t); got != want {
				t.Errorf("%s as %s is %q, want %q", c.host, name, got, want)
			}
		}
		nstest.Must(t, s.Process.Signal(syscall.SIGTERM))
		s.finish(t)
	}
}
