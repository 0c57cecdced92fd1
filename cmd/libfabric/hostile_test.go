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
	s := b.start(t, b.a, server, "server", b.a.IPv4.String())
	await.Until(t, "the server is there", func() bool { return b.start(t, b.b, server, "client", b.a.IPv4.String(), "once").Wait() == nil })
	for name, want := range map[string]string{b.b.IPv4.String(): "accepted\n", "10.99.0.77": "refused\n"} {
		if got := b.start(t, b.b, hello, "via0", b.b.IPv4.String(), b.a.IPv4.String(), name).finish(t); got != want {
			t.Errorf("%v as %s is %q, want %q", b.b.IPv4, name, got, want)
		}
	}
	nstest.Must(t, s.Process.Signal(syscall.SIGTERM))
	s.finish(t)
}
