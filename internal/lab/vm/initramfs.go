package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/u-root/u-root/pkg/cpio"

	"viaxdp/internal/lab/fail"
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
func build(ctx context.Context, dir string) {
	for _, b := range binaries {
		args := []string{"build"}
		if b.test {
			args = []string{"test", "-c"}
		}
		args = append(args, "-buildvcs=false", "-ldflags=-s -w", "-o", filepath.Join(dir, b.name), b.pkg)
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
		if out, err := cmd.CombinedOutput(); err != nil {
			fail.With("go %s %s: %w\n%s", args[0], b.pkg, err, bytes.TrimSpace(out))
		}
	}
}

// initramfs writes the guest's file system.
func initramfs(w io.Writer, programs string, modules []module, p plan.Plan) {
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
		add(b.name, fail.Must(os.ReadFile(filepath.Join(programs, b.name))))
	}
	for _, m := range modules {
		path := "/modules/" + m.name + ".ko"
		add(path, m.data)
		p.Modules = append(p.Modules, path)
	}
	add(plan.Path, fail.Must(json.Marshal(p)))
	a := cpio.Newc.Writer(w)
	fail.If(cpio.WriteRecordsAndDirs(a, records))
	fail.If(cpio.WriteTrailer(a))
}
