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

	"github.com/u-root/u-root/pkg/cpio"

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
	var records []cpio.Record
	for _, dir := range []string{"dev", "proc", "sys", "tmp", "run"} {
		records = append(records, cpio.Directory(dir, 0o755))
	}
	// So that the kernel has somewhere to write before /dev is mounted.
	records = append(records, cpio.CharDev("dev/console", 0o600, 5, 1))
	add := func(name string, data []byte) {
		records = append(records, cpio.StaticFile(name, string(data), 0o755))
	}
	for _, b := range binaries {
		data, err := os.ReadFile(filepath.Join(programs, b.name))
		if err != nil {
			return err
		}
		add(b.name, data)
	}
	for _, m := range modules {
		path := "/modules/" + m.name + ".ko"
		add(path, m.data)
		p.Modules = append(p.Modules, path)
	}
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	add(plan.Path, data)
	a := cpio.Newc.Writer(w)
	if err := cpio.WriteRecordsAndDirs(a, records); err != nil {
		return err
	}
	return cpio.WriteTrailer(a)
}
