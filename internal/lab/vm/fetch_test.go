package main

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"viaxdp/internal/lab/nstest"
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
		if got != tc.want || (err == nil) != (tc.want != "") {
			t.Errorf("%s, cloud %v: %q, %v; want %q", tc.series, tc.cloud, got, err, tc.want)
		}
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
			if !strings.Contains(args, want) {
				t.Errorf("%s: no %q in %s", f.name, want, args)
			}
		}
		if got := strings.Contains(args, "bus=rp1"); got != f.rootPort {
			t.Errorf("%s: root port %v, want %v", f.name, got, f.rootPort)
		}
	}
}

// entry is what a reader of the format finds.
type entry struct {
	Mode, Links, Major, Minor uint64
	Name, Data                string
}

// readArchive reads the form "newc" as its description says, knowing nothing of
// the writer.
func readArchive(t *testing.T, b []byte) (entries []entry) {
	t.Helper()
	r := bytes.NewReader(b)
	take := func(n uint64) string {
		buf := make([]byte, n)
		if _, err := io.ReadFull(r, buf); err != nil {
			t.Fatal(err)
		}
		return string(buf)
	}
	align := func() {
		for (r.Size()-int64(r.Len()))%4 != 0 {
			if take(1) != "\x00" {
				t.Fatal("padding is not zero")
			}
		}
	}
	inodes := make(map[uint64]bool)
	for {
		if magic := take(6); magic != "070701" {
			t.Fatalf("magic %q", magic)
		}
		var f [13]uint64
		for i := range f {
			n, err := strconv.ParseUint(take(8), 16, 32)
			must(t, err)
			f[i] = n
		}
		name := take(f[11])
		align()
		data := take(f[6])
		align()
		if !strings.HasSuffix(name, "\x00") {
			t.Fatalf("name %q does not end", name)
		}
		name = name[:len(name)-1]
		if name == "TRAILER!!!" {
			if r.Len() != 0 {
				t.Errorf("%d bytes after the end", r.Len())
			}
			return entries
		}
		if inodes[f[0]] {
			t.Errorf("%s: inode %d twice: the kernel takes it for a link", name, f[0])
		}
		inodes[f[0]] = true
		entries = append(entries, entry{f[1], f[4], f[9], f[10], name, data})
	}
}

func TestArchive(t *testing.T) {
	var b bytes.Buffer
	a := &archive{w: &b}
	a.parents("/proc")
	a.device("/dev/console", 5, 1)
	for n := range 5 { // every alignment of the data
		a.add(fmt.Sprintf("/modules/%d/x", n%2)+strings.Repeat("y", n), bytes.Repeat([]byte{'z'}, n))
	}
	must(t, a.close())
	dir := func(name string) entry { return entry{Mode: 0o40755, Links: 1, Name: name} }
	file := func(name, data string) entry { return entry{Mode: 0o100755, Links: 1, Name: name, Data: data} }
	want := []entry{
		dir("proc"), dir("dev"), {Mode: 0o20600, Links: 1, Major: 5, Minor: 1, Name: "dev/console"},
		dir("modules"), dir("modules/0"), file("modules/0/x", ""),
		dir("modules/1"), file("modules/1/xy", "z"),
		file("modules/0/xyy", "zz"), file("modules/1/xyyy", "zzz"), file("modules/0/xyyyy", "zzzz"),
	}
	if d := cmp.Diff(want, readArchive(t, b.Bytes())); d != "" {
		t.Error(d)
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

func TestArchiveFails(t *testing.T) {
	a := &archive{w: fullDisk{}}
	a.add("/init", []byte("x"))
	if a.close() == nil {
		t.Error("an archive that could not be written closed without an error")
	}
}
