package libfabric

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"viaxdp/internal/lab/nstest"
)

// newest is a libfabric that newest.sh has unpacked.
type newest struct{ root, libs, loader string }

func newestLibfabric(t *testing.T) newest {
	t.Helper()
	build(t)
	const variable = "VIA_LIBFABRIC"
	n := newest{root: os.Getenv(variable)}
	if n.root == "" {
		nstest.Lacks(t, "needs $%s: make newest, make check", variable)
	}
	found, _ := filepath.Glob(n.root + "/usr/lib/*/ld-linux*.so.*")
	nstest.FatalIf(t, len(found) != 1, "$%s=%s has no C library", variable, n.root)
	n.loader, n.libs = found[0], filepath.Dir(found[0])
	return n
}

// program is a script that starts a program with that libfabric, and its C library.
func (n newest) program(t *testing.T, path string) string {
	t.Helper()
	script := filepath.Join(t.TempDir(), filepath.Base(path))
	nstest.Must(t, os.WriteFile(script, fmt.Appendf(nil, "#!/bin/sh\nexec %s --library-path %s %s \"$@\"\n", n.loader, n.libs, path), 0o755))
	return script
}

// newestMade is the directory of what compileOnce has made.
var newestMade struct {
	sync.Once
	dir string
	err error
}

// compileOnce compiles the suite and the provider with that libfabric's headers, once for all tests.
func (n newest) compileOnce(t *testing.T) (dir string) {
	t.Helper()
	newestMade.Do(func() { newestMade.dir, newestMade.err = n.compile(made.dir+"/newest", made.dir+"/lib") })
	nstest.Must(t, newestMade.err)
	return newestMade.dir
}

func (n newest) compile(dir, lib string) (string, error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	include := "-I" + n.root + "/usr/include"
	files, _ := filepath.Glob("testdata/suite/*.c")
	for _, c := range [][]string{
		append([]string{"gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread", "-O2", include, "-o", dir + "/suite"},
			append(files, "-L"+n.libs, "-lfabric", "-Wl,--allow-shlib-undefined")...),
		{"make", "lib", "OUT=" + dir, "LIBVIPL=" + lib, "LDFLAGS=-Wl,-rpath," + lib, "CFLAGS=-O2 " + include,
			"WARNINGS=-Wall -Wextra -Wpedantic -Werror"},
	} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%q: %w\n%s", c, err, out)
		}
	}
	return dir, nil
}

// A later libfabric loads the provider that was built with this one's headers, which also compiles with the later one's.
func TestNewest(t *testing.T) {
	n := newestLibfabric(t)
	own := n.compileOnce(t)
	b := newBed(t, nstest.Options{MTU: 1500})
	out := b.Start(t, b.A, n.program(t, n.root+"/usr/bin/fi_info"), "--version").Finish(t)
	t.Log(strings.ReplaceAll(strings.TrimSpace(out), "\n", ", "))
	nstest.ErrorIf(t, !strings.Contains(out, "libfabric: 2."), "fi_info --version said %q", out)
	if out = b.Start(t, b.A, n.program(t, n.root+"/usr/bin/fi_info"), "-p", "viaxdp").Finish(t); !strings.Contains(out, "provider: viaxdp;ofi_rxm\n") {
		t.Errorf("fi_info said %q", out)
	}
	b = b.With("FI_PROVIDER_PATH=" + own)
	for _, kind := range pingpongKinds {
		t.Run(kind, func(t *testing.T) { runPingpong(t, n.program(t, n.root+"/usr/bin/fi_pingpong"), b, b, kind) })
	}
}

// With a later libfabric, and a provider that was compiled with its headers, completions are those of a program that was compiled with
// this one's: entries grow with versions.
func TestNewestProvider(t *testing.T) {
	t.Parallel()
	n := newestLibfabric(t)
	b := newBed(t, nstest.Options{MTU: 1500}, "FI_PROVIDER_PATH="+n.compileOnce(t))
	suite(t, b, b, n.program(t, made.dir+"/suite"), "viaxdp", b.A.IPv4.String(), "completions")
}

// With a later libfabric, and compiled with its headers, the suite passes over the provider that was compiled with this one's, and over
// tcp.
func TestNewestSuite(t *testing.T) {
	t.Parallel()
	n := newestLibfabric(t)
	own := n.compileOnce(t)
	for _, provider := range []string{"viaxdp", "tcp"} {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, nstest.Options{MTU: 1500})
			suite(t, b, b, n.program(t, own+"/suite"), provider, b.A.IPv4.String())
		})
	}
}
