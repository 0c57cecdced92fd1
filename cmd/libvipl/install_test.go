package main

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/testsize"
)

// Programs linked statically, with libvipl.a or with everything but the library, run
// like others.
func TestStatic(t *testing.T) {
	t.Parallel()
	lib := library(t)
	b := newBed(t, 1500)
	for _, flags := range []string{"-static", "-static-pie -fPIE", "-static-libgcc -Wl,-Bstatic -lm -Wl,-Bdynamic"} {
		t.Run(strings.ReplaceAll(flags, " ", ""), func(t *testing.T) {
			c := compiler{"gcc", "-O2 " + flags}
			if out := one(t, b, c.compile(t, lib, "abi"), "server", "via0"); !strings.Contains(out, "abi:") {
				t.Errorf("it said %q", out)
			}
			program := c.compile(t, lib, "process")
			for _, part := range []string{"signals", "fork", "threads"} {
				one(t, b, program, part, "via0")
			}
		})
	}
}

// Under a prefix outside of the default search paths, the installed example is built by the commands of vipl(7), and
// runs. It refers to the library by its soname and the version of its symbols.
func TestInstall(t *testing.T) {
	made := library(t, "pkg-config", "readelf", "sh", "man")
	prefix, out := t.TempDir(), t.TempDir()
	nstest.Must(t, os.Chmod(filepath.Dir(prefix), 0o755))
	if b, err := exec.Command("make", "install", "KEEP=1", "OUT="+made, "PREFIX="+prefix).CombinedOutput(); err != nil {
		t.Fatalf("make install: %v\n%s", err, b)
	}
	guide, err := os.ReadFile("../../docs/libvipl.md")
	nstest.Must(t, err)
	_, commands, _ := strings.Cut(string(guide), "\n## Compile and link\n")
	_, commands, _ = strings.Cut(commands, "```sh\n")
	commands, _, found := strings.Cut(commands, "```")
	nstest.FatalIf(t, !found || strings.Count(commands, "/opt/via") != 2, "commands of the guide:\n%s", commands)
	commands = strings.ReplaceAll(strings.ReplaceAll(commands, "/opt/via", prefix), "program", "hello")
	source, err := os.ReadFile(prefix + "/share/doc/libvipl/examples/hello.c")
	if err == nil {
		err = os.WriteFile(out+"/hello.c", source, 0o666)
	}
	nstest.Must(t, err)
	cmd := exec.Command("sh", "-e", "-c", commands+"pkg-config --modversion vipl\nreadelf -W -d -V hello\n")
	cmd.Dir = out
	b, err := cmd.CombinedOutput()
	nstest.FatalIf(t, err != nil, "%v\n%s\n%s", err, commands, b)
	for _, want := range []string{"VipPostSend - post a send", "\n1.0.0\n", "[libvipl.so.1]", "VIPL_1.0"} {
		nstest.ErrorIf(t, !strings.Contains(string(b), want), "no %q in\n%s", want, b)
	}
	for _, name := range []string{
		"lib/libvipl.so.1.0.0", "lib/libvipl.a", "share/man/man3/VIP_DESCRIPTOR.3",
		"share/man/man3/VipxQueryCause.3", "share/man/man7/vipl.7",
	} {
		nstest.Check(t, nstest.Err(os.Stat(filepath.Join(prefix, name))))
	}
	bed := newBed(t, 1500)
	s := bed.Start(t, bed.A, out+"/hello", "server", "via0")
	if got := bed.Start(t, bed.B, out+"/hello", "client", "via0", bed.A.IPv4.String()).Finish(t); got != "hello, client\n" {
		t.Errorf("the client got %q", got)
	}
	if got := s.Finish(t); got != "hello, server\n" {
		t.Errorf("the server got %q", got)
	}
}

// The Debian package has library, header, pkg-config file and manual pages in the usual
// places, and a program compiles against it.
func TestDebianPackage(t *testing.T) {
	made := library(t, "dpkg-deb", "gzip")
	out, root := t.TempDir(), t.TempDir()
	// The usual compression takes longer than everything else.
	if b, err := exec.Command("make", "deb", "KEEP=1", "OUT="+made, "DEBFLAGS=-z1").CombinedOutput(); err != nil {
		t.Fatalf("make deb: %v\n%s", err, b)
	}
	debs, _ := filepath.Glob(made + "/*.deb")
	nstest.FatalIf(t, len(debs) != 1, "packages: %q", debs)
	if b, err := exec.Command("dpkg-deb", "-x", debs[0], root).CombinedOutput(); err != nil {
		t.Fatalf("dpkg-deb: %v\n%s", err, b)
	}
	libs, _ := filepath.Glob(root + "/usr/lib/*/libvipl.so")
	nstest.FatalIf(t, len(libs) != 1, "libraries: %q", libs)
	lib := filepath.Dir(libs[0])
	for _, name := range []string{
		lib + "/libvipl.so.1", lib + "/libvipl.so.1.0.0", lib + "/libvipl.a", root + "/usr/include/vipl.h",
		root + "/usr/share/man/man3/VipPostSend.3.gz", root + "/usr/share/man/man3/VipxPoll.3.gz",
		root + "/usr/share/man/man7/vipl.7.gz", root + "/usr/share/doc/libvipl/examples/hello.c",
	} {
		if _, err := os.Stat(name); err != nil {
			t.Error(err)
		}
	}
	pc, err := os.ReadFile(lib + "/pkgconfig/vipl.pc")
	nstest.Must(t, err)
	depends, err := exec.Command("dpkg-deb", "-f", debs[0], "Depends").CombinedOutput()
	if newest := newestLibc(t, lib+"/libvipl.so.1"); err != nil || string(depends) != "libc6 (>= "+newest+")\n" {
		t.Errorf("it depends on %q, %v, and calls functions of %s", depends, err, newest)
	}
	for _, want := range []string{"includedir=/usr/include", "libdir=" + strings.TrimPrefix(lib, root), "-lvipl", "Libs.private: -pthread"} {
		nstest.ErrorIf(t, !strings.Contains(string(pc), want), "vipl.pc has no %q:\n%s", want, pc)
	}
	program := filepath.Join(out, "wrong")
	if b, err := exec.Command("gcc", "-I"+root+"/usr/include", "testdata/wrong.c", "-o", program,
		"-L"+lib, "-lvipl", "-Wl,-rpath,"+lib).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, b)
	}
	one(t, newBed(t, 1500), program, "server", "via0")
}

// newestLibc is the newest version of the C library that a library asks for.
func newestLibc(t *testing.T, file string) (newest string) {
	f, err := elf.Open(file)
	nstest.Must(t, err)
	defer f.Close()
	symbols, err := f.ImportedSymbols()
	nstest.Must(t, err)
	var most [3]int
	for _, s := range symbols {
		text, ok := strings.CutPrefix(s.Version, "GLIBC_")
		if !ok {
			continue
		}
		var v [3]int
		fmt.Sscanf(text, "%d.%d.%d", &v[0], &v[1], &v[2])
		if slices.Compare(v[:], most[:]) > 0 {
			most, newest = v, text
		}
	}
	return newest
}

// bad matches how Memcheck reports wrong accesses of the process, rather than arguments
// of system calls: those lie on Go's stacks, which valgrind does not know.
var bad = regexp.MustCompile(`==\d+== (Invalid|Mismatched|Source and destination|Jump|Process terminating|Argument)`)

// TestValgrind runs programs in Memcheck: the library, its Go half included, reads and
// writes only valid memory of theirs. Go's own memory is anywhere in 2^46 bytes, and is ignored (valgrind warns that the
// range is large): the program has its memory below 8 GB, and its stack in the 256 MB below 128 GB. Undefined values are not
// checked: each goroutine's stack looks undefined to it.
func TestValgrind(t *testing.T) {
	t.Parallel()
	lib := library(t, "valgrind")
	c := compiler{"gcc", "-O1 -g -Wno-maybe-uninitialized"}
	b := newBed(t, 1500)
	in := func(program string, args ...string) []string {
		return append([]string{
			"valgrind", "-q", "--fair-sched=yes", "--undef-value-errors=no",
			"--ignore-ranges=0x200000000-0x1ff0000000,0x2000000000-0x7fffffffffff", "--suppressions=testdata/valgrind.supp", program,
		}, args...)
	}
	clean := func(t *testing.T, out, says string) {
		nstest.ErrorIf(t, bad.MatchString(out) || !strings.Contains(out, says), "it said:\n%s", out)
	}
	programs := []string{"abi", "wrong", "dialects"}
	if !testsize.Every() { // TestSanitizers runs the others
		programs = programs[:1]
	}
	for _, name := range programs {
		t.Run(name, func(t *testing.T) {
			clean(t, one(t, b, in(c.compile(t, lib, name), "server", "via0")...), name+":")
		})
	}
	t.Run("pingpong", func(t *testing.T) {
		program := c.compile(t, lib, "pingpong")
		s := b.Start(t, b.A, in(program, "server", "via0", "5")...)
		clean(t, b.Start(t, b.B, in(program, "client", "via0", b.A.IPv4.String(), "5")...).Finish(t), "32768")
		clean(t, s.Finish(t), "")
	})
}
