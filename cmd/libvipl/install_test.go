package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Programs that are linked statically, with libvipl.a and all else, or with everything
// but the library, run as others do.
func TestStatic(t *testing.T) {
	lib := library(t)
	b := newBed(t, 1500)
	for _, flags := range []string{"-static", "-static-pie -fPIE", "-static-libgcc -Wl,-Bstatic -lm -Wl,-Bdynamic"} {
		t.Run(strings.ReplaceAll(flags, " ", ""), func(t *testing.T) {
			c := compiler{"gcc", "-O2 " + flags}
			if out := b.one(t, c.compile(t, lib, "abi"), "server", "via0"); !strings.Contains(out, "abi:") {
				t.Errorf("it said %q", out)
			}
			program := c.compile(t, lib, "process")
			for _, part := range []string{"signals", "fork", "threads"} {
				b.one(t, program, part, "via0")
			}
		})
	}
}

// The Debian package has library, header, pkg-config file and manual pages where
// programs and people look for them, and a program compiles against it.
func TestDebianPackage(t *testing.T) {
	library(t, "dpkg-deb", "gzip")
	out, root := t.TempDir(), t.TempDir()
	if b, err := exec.Command("make", "deb", "OUT="+out).CombinedOutput(); err != nil {
		t.Fatalf("make deb: %v\n%s", err, b)
	}
	debs, _ := filepath.Glob(out + "/*.deb")
	if len(debs) != 1 {
		t.Fatalf("packages: %q", debs)
	}
	if b, err := exec.Command("dpkg-deb", "-x", debs[0], root).CombinedOutput(); err != nil {
		t.Fatalf("dpkg-deb: %v\n%s", err, b)
	}
	libs, _ := filepath.Glob(root + "/usr/lib/*/libvipl.so")
	if len(libs) != 1 {
		t.Fatalf("libraries: %q", libs)
	}
	lib := filepath.Dir(libs[0])
	for _, name := range []string{
		lib + "/libvipl.so.1", lib + "/libvipl.so.1.0.0", lib + "/libvipl.a", root + "/usr/include/vipl.h",
		root + "/usr/share/man/man3/VipPostSend.3.gz", root + "/usr/share/man/man3/VipxPoll.3.gz",
		root + "/usr/share/man/man7/vipl.7.gz",
	} {
		if _, err := os.Stat(name); err != nil {
			t.Error(err)
		}
	}
	pc, err := os.ReadFile(lib + "/pkgconfig/vipl.pc")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"includedir=/usr/include", "libdir=" + strings.TrimPrefix(lib, root), "-lvipl", "Libs.private: -pthread"} {
		if !strings.Contains(string(pc), want) {
			t.Errorf("vipl.pc has no %q:\n%s", want, pc)
		}
	}
	program := filepath.Join(out, "wrong")
	if b, err := exec.Command("gcc", "-I"+root+"/usr/include", "testdata/wrong.c", "-o", program,
		"-L"+lib, "-lvipl", "-Wl,-rpath,"+lib).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, b)
	}
	newBed(t, 1500).one(t, program, "server", "via0")
}
