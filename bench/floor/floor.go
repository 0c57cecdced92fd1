// Package floor has the C form of package bench's transport raw-afxdp: a program of its
// own, c/floor.c, that takes the same steps on AF_XDP rings by the kernel's headers and
// libc alone. The difference from raw-afxdp is the cost of Go and of package xdpnic.
// The other transports are compared with raw-afxdp, so the difference should be small.
//
//	package bench                       c/floor.c
//	namespaces, XDP program  --fd 3-->  AF_XDP socket: UMEM, rings, bind
//	memory on hugepages      --fd 4-->  UMEM, samples
//	"ping 7 64 5000 16 0"    -------->  round trips
//	                         <--------  "ok 10400000 10390000 2100"
//
// The functions may be called from anywhere, at the same time. They need no privilege.
package floor

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

//go:embed c/floor.c
var source []byte

// ErrNoCompiler says why the program cannot be built.
var ErrNoCompiler = errors.New("no C compiler is installed (cc, gcc or clang; Debian's packages gcc and libc6-dev)")

// Flags are those that the program is compiled with.
var Flags = []string{"-std=gnu11", "-O2", "-Wall", "-Wextra"}

// Program is Build, once in a process. All callers share the file and must not close
// it.
var Program = sync.OnceValues(Build)

// Runs returns why the program cannot be built or started, or nil. It tries once in a process.
var Runs = sync.OnceValue(func() error {
	program, err := Program()
	if err != nil {
		return err
	}
	return try(program)
})

// try starts a program without input, with which it ends.
func try(program *os.File) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/fd/3")
	cmd.ExtraFiles = []*os.File{program}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("the program in C, which is compiled in %s, cannot be started: %w%s", os.TempDir(), err, bytes.TrimSpace(out))
	}
	return nil
}

// Build compiles the program with the first compiler that is found, and returns it open
// for reading, to be started by descriptor. The file is already unlinked, so that
// nothing stays behind.
func Build() (_ *os.File, err error) {
	compiler, err := find()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "via-xdp-floor")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	from, path := filepath.Join(dir, "floor.c"), filepath.Join(dir, "floor")
	if err := os.WriteFile(from, source, 0o600); err != nil {
		return nil, err
	}
	cmd := exec.Command(compiler, append(Flags[:len(Flags):len(Flags)], "-o", path, "floor.c")...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		first, _, _ := bytes.Cut(bytes.TrimSpace(out), []byte("\n"))
		return nil, fmt.Errorf("%s: %w: %s", compiler, err, first)
	}
	return os.Open(path)
}

// CompiledWith is the compiler's version line and the flags; empty without a compiler.
func CompiledWith() string {
	compiler, err := find()
	if err != nil {
		return ""
	}
	out, err := exec.Command(compiler, "--version").Output()
	if err != nil {
		out = []byte(compiler)
	}
	version, _, _ := strings.Cut(string(out), "\n")
	return strings.Join(append([]string{version}, Flags...), " ")
}

// find is the compiler.
func find() (string, error) {
	for _, name := range []string{"cc", "gcc", "clang"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", ErrNoCompiler
}
