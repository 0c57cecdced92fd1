package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"

	"viaxdp/internal/lab/vm/plan"
)

// binary is a program for the guest, linked statically.
type binary struct {
	name string // in the guest, at "/"
	pkg  string
	test bool // the package's tests
}

var binaries = []binary{
	{name: "init", pkg: "./internal/lab/vm/guest"},
	{name: "via-xdp", pkg: "./cmd/via-xdp"},
	{name: "xdpnic.test", pkg: "./xdpnic", test: true},
	{name: "vipltest.test", pkg: "./vipl/vipltest", test: true},
	{name: "agentd.test", pkg: "./internal/agent/agentd", test: true},
}

// build compiles the guest's programs into dir. It runs in the module's root.
func build(ctx context.Context, dir string) error {
	for _, b := range binaries {
		args := []string{"build"}
		if b.test {
			args = []string{"test", "-c"}
		}
		args = append(args, "-buildvcs=false", "-ldflags=-s -w", "-o", filepath.Join(dir, b.name), b.pkg)
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go %s %s: %w\n%s", args[0], b.pkg, err, bytes.TrimSpace(out))
		}
	}
	return nil
}

// initramfs writes the guest's file system.
func initramfs(w io.Writer, programs string, modules []module, p plan.Plan) error {
	a := &archive{w: w}
	for _, dir := range []string{"/dev", "/proc", "/sys", "/tmp", "/run"} {
		a.parents(dir)
	}
	// So that the kernel has somewhere to write before /dev is mounted.
	a.device("/dev/console", 5, 1)
	for _, b := range binaries {
		data, err := os.ReadFile(filepath.Join(programs, b.name))
		if err != nil {
			return err
		}
		a.add("/"+b.name, data)
	}
	for _, m := range modules {
		path := "/modules/" + m.name + ".ko"
		a.add(path, m.data)
		p.Modules = append(p.Modules, path)
	}
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	a.add(plan.Path, data)
	return a.close()
}

// archive writes an initramfs: a cpio archive in the form "newc", as the kernel
// wants it (Documentation/driver-api/early-userspace/buffer-format.rst).
type archive struct {
	w       io.Writer
	written int64
	inode   int
	dirs    []string
	err     error
}

const (
	modeDir  = 0o040755
	modeFile = 0o100755
	modeChar = 0o020600
)

// add writes a file with the directories above it. name is absolute.
func (a *archive) add(name string, data []byte) {
	a.parents(path.Dir(name))
	a.entry(name, modeFile, 0, 0, data)
}

// device writes a character device.
func (a *archive) device(name string, major, minor int) {
	a.parents(path.Dir(name))
	a.entry(name, modeChar, major, minor, nil)
}

func (a *archive) parents(dir string) {
	if dir == "/" || slices.Contains(a.dirs, dir) {
		return
	}
	a.parents(path.Dir(dir))
	a.dirs = append(a.dirs, dir)
	a.entry(dir, modeDir, 0, 0, nil)
}

func (a *archive) entry(name string, mode, major, minor int, data []byte) {
	name = name[1:]
	a.inode++
	const links = 1
	a.printf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		a.inode, mode, 0, 0, links, 0, len(data), 0, 0, major, minor, len(name)+1, 0)
	a.printf("%s\x00", name)
	a.pad()
	a.write(data)
	a.pad()
}

// close writes the end mark.
func (a *archive) close() error {
	a.inode = -1 // the mark's is 0
	a.entry("/TRAILER!!!", 0, 0, 0, nil)
	return a.err
}

func (a *archive) printf(format string, args ...any) { a.write(fmt.Appendf(nil, format, args...)) }

func (a *archive) pad() { a.write(make([]byte, -a.written&3)) }

func (a *archive) write(b []byte) {
	if a.err != nil {
		return
	}
	n, err := a.w.Write(b)
	a.written += int64(n)
	a.err = err
}
