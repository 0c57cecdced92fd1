package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"viaxdp/vm/plan"
)

// binary is a program for the guest, linked statically.
type binary struct {
	name string // in the guest, at "/"
	pkg  string
	test bool // the package's tests
}

var binaries = []binary{
	{name: "init", pkg: "./vm/guest"},
	{name: "via-xdp", pkg: "./cmd/via-xdp"},
	{name: "xdpnic.test", pkg: "./xdpnic", test: true},
	{name: "vipltest.test", pkg: "./vipl/vipltest", test: true},
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
