package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/u-root/u-root/pkg/cpio"

	"viaxdp/internal/lab/fail"
	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/lab/vm/plan"
)

var must = nstest.Must

func TestFindRelease(t *testing.T) {
	packages := []string{
		"linux-image-6.1.0-47-amd64", "linux-image-6.1.0-50-amd64", "linux-image-6.1.0-50-cloud-amd64", "linux-image-6.1.0-9-amd64",
		"linux-image-6.12.95+deb12-amd64", "linux-image-6.12.107+deb13-amd64", "linux-image-6.12.107+deb13-rt-amd64",
		"linux-image-6.18.9+deb13-cloud-amd64", "linux-image-6.18.15+deb13-cloud-amd64", "linux-image-6.18.5+deb13-cloud-amd64",
		"linux-image-7.2.12+deb13-cloud-amd64", "linux-image-7.2.9+deb13-cloud-amd64",
		"linux-binary-7.2.12+deb13-cloud-amd64", "linux-modules-7.3.4+deb13-cloud-amd64", // no kernel yet
		"linux-image-amd64",
	}
	for _, tc := range []struct {
		series string
		cloud  bool
		want   string
	}{
		{"6.1", false, "6.1.0-50-amd64"}, // and not 6.12, nor -9
		{"6.1", true, "6.1.0-50-cloud-amd64"},
		{"6.12", false, "6.12.107+deb13-amd64"},
		{"6.18", true, "6.18.15+deb13-cloud-amd64"},
		{newest, true, "7.2.12+deb13-cloud-amd64"},
		{newest, false, "6.12.107+deb13-amd64"},
		{"5.10", true, ""},
		{"6.18", false, ""},
	} {
		got, err := findRelease(packages, tc.series, tc.cloud)
		nstest.ErrorIf(t, got != tc.want || (err == nil) != (tc.want != ""), "%s, cloud %v: %q, %v; want %q", tc.series, tc.cloud, got, err, tc.want)
	}
}

func TestAtLeast(t *testing.T) {
	for release, want := range map[string]bool{
		"6.16.3+deb13-cloud-amd64": true, "6.15.99": false, "6.18.0": true, "7.0.1": true, "5.19.0": false, "what": false,
	} {
		if got := atLeast(release, [2]int{6, 16}); got != want {
			t.Errorf("%s: %v", release, got)
		}
	}
}

// The emulator's arguments name the NICs, and always select TCG, not hardware virtualization.
func TestGuestArgs(t *testing.T) {
	for _, f := range forms {
		g := guest{form: f, dir: "/run", memory: 512}
		args := strings.Join(g.args(), " ")
		for _, want := range []string{"-accel tcg", "hubid=1", "file:/run/results.json", f.device + ",netdev=n0", f.device + ",netdev=n1"} {
			nstest.ErrorIf(t, !strings.Contains(args, want), "%s: no %q in %s", f.name, want, args)
		}
		if got := strings.Contains(args, "bus=rp1"); got != f.rootPort {
			t.Errorf("%s: root port %v, want %v", f.name, got, f.rootPort)
		}
	}
}

// The guest's file system has the plan, the modules that the plan names, and the directories of both.
func TestInitramfs(t *testing.T) {
	programs := t.TempDir()
	for _, b := range binaries {
		must(t, os.WriteFile(filepath.Join(programs, b.name), []byte(b.pkg), 0o644))
	}
	var b bytes.Buffer
	must(t, fail.Try(func() {
		initramfs(&b, programs, []module{{"veth", []byte("v")}, {"igb", []byte("ig")}}, plan.Plan{Queues: 2})
	}))
	records, err := cpio.ReadAllRecords(cpio.EOFReader{RecordReader: cpio.Newc.Reader(bytes.NewReader(b.Bytes()))})
	must(t, err)
	files := cpio.ArchiveFromRecords(records)
	text := func(name string) string {
		r, ok := files.Get(name)
		nstest.FatalIf(t, !ok || r.Mode != cpio.S_IFREG|0o755, "%s: %v, there: %v", name, r, ok)
		data := make([]byte, r.FileSize)
		_, err := r.ReadAt(data, 0)
		must(t, err)
		return string(data)
	}
	for _, x := range binaries {
		if got := text(x.name); got != x.pkg {
			t.Errorf("%s: %q", x.name, got)
		}
	}
	var p plan.Plan
	must(t, json.Unmarshal([]byte(text(plan.Path)), &p))
	if want := (plan.Plan{Queues: 2, Modules: []string{"/modules/veth.ko", "/modules/igb.ko"}}); !reflect.DeepEqual(p, want) {
		t.Errorf("the plan is %+v, want %+v", p, want)
	}
	nstest.ErrorIf(t, text(p.Modules[0]) != "v" || text(p.Modules[1]) != "ig", "other modules: %v", files)
	there := make(map[string]bool)
	for _, r := range records {
		if dir := path.Dir(r.Name); dir != "." && !there[dir] {
			t.Errorf("%s precedes its directory", r.Name)
		}
		there[r.Name] = r.Mode&cpio.S_IFMT == cpio.S_IFDIR
	}
	if r, _ := files.Get("dev/console"); r.Mode != cpio.S_IFCHR|0o600 || r.Rmajor != 5 || r.Rminor != 1 {
		t.Errorf("console: %v", r)
	}
	err = fail.Try(func() { initramfs(fullDisk{}, programs, nil, plan.Plan{}) })
	nstest.ErrorIf(t, err == nil, "an archive that could not be written has no error")
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, io.ErrShortWrite }
