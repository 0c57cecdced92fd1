package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"viaxdp/internal/lab/nstest"
	"viaxdp/internal/ops/inspect"
	"viaxdp/internal/ops/support"
)

// untar reads the names and the text of an archive.
func untar(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	zip, err := gzip.NewReader(r)
	nstest.Must(t, err)
	files := make(map[string]string)
	for tr := tar.NewReader(zip); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		nstest.Must(t, err)
		b, err := io.ReadAll(tr)
		nstest.Must(t, err)
		files[h.Name] = string(b)
	}
}

func TestReportCommand(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("VIA_RUNTIME_DIR", filepath.Join(dir, "proc"))
	result := filepath.Join(dir, "pingpong.json")
	nstest.Must(t, os.WriteFile(result, []byte(`{"peer":"192.0.2.17"}`), 0o600))
	var out, log bytes.Buffer
	env := environment{stdout: &out, stderr: &log, actions: actions{
		inspect: func(name string, try bool) (inspect.Interface, error) {
			nstest.ErrorIf(t, try, "a report tried modes, which resets links")
			return inspect.Interface{Name: name, MAC: "52:54:00:12:34:56"}, nil
		},
	}}
	file := filepath.Join(dir, "r.tar.gz")
	env.args = []string{"report", "lo", "-o", file, "--result", result}
	if status := run(t.Context(), env); status != exitFine {
		t.Fatalf("status %d: %s", status, &log)
	}
	f, err := os.Open(file)
	nstest.Must(t, err)
	defer f.Close()
	files := untar(t, f)
	all := ""
	for _, name := range []string{"version", "host/proc/version", "nic/lo/sysfs", "nic/lo/info.json", "programs.json", "results/pingpong.json"} {
		text := files["via-xdp-report/"+name]
		nstest.ErrorIf(t, text == "", "no %s", name)
		all += text
	}
	for _, secret := range []string{"192.0.2.17", "52:54:00:12:34:56"} {
		nstest.ErrorIf(t, strings.Contains(all, secret), "the report has %s", secret)
	}
	if i, _ := f.Stat(); i.Mode().Perm() != 0o600 {
		t.Errorf("the report has mode %v", i.Mode())
	}

	// What is not a file, or a link to one, is refused, and read no further than an archive
	// takes; an interface that cannot be inspected is reported.
	link, pipe, long := filepath.Join(dir, "link"), filepath.Join(dir, "pipe"), filepath.Join(dir, "long")
	if err := errors.Join(os.Symlink(result, link), unix.Mkfifo(pipe, 0o600), os.WriteFile(long, nil, 0o600),
		os.Truncate(long, 1<<40)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{link, pipe, dir, "/dev/zero"} {
		env.args = []string{"report", "lo", "-o", file + "2", "--result", name}
		if status := run(t.Context(), env); status == exitFine || !strings.Contains(log.String(), name) {
			t.Errorf("a report with %s: status %d, %s", name, status, &log)
		}
	}
	whole := env.actions.inspect
	env.actions.inspect = func(string, bool) (inspect.Interface, error) { return inspect.Interface{}, errors.New("no answer") }
	env.args = []string{"report", "lo", "-o", "-", "--result", long}
	if status := run(t.Context(), env); status != exitFine {
		t.Errorf("of an interface that does not answer: status %d, %s", status, &log)
	}
	env.actions.inspect = whole
	files = untar(t, &out)
	nstest.Equal(t, "info.json", files["via-xdp-report/nic/lo/info.json"], "(no answer)\n")
	if got := len(files["via-xdp-report/results/long"]); got < support.MaxFile || got > support.MaxFile+100 {
		t.Errorf("%d bytes of a long file", got)
	}

	// An existing file is not overwritten, a missing interface is an error, and a failed
	// report leaves no partial file.
	out.Reset()
	env.args = []string{"report", "lo", "-o", file}
	if status := run(t.Context(), env); status == exitFine {
		t.Error("a report was overwritten")
	}
	env.args = []string{"report", "no-such-nic", "-o", file + "2"}
	if status := run(t.Context(), env); status == exitFine {
		t.Error("a report of no interface")
	}
	if _, err := os.Stat(file + "2"); err == nil {
		t.Error("half a report is there")
	}
	other := filepath.Join(t.TempDir(), filepath.Base(result))
	nstest.Must(t, os.WriteFile(other, []byte("another one"), 0o600))
	env.args = []string{"report", "lo", "-o", "-", "--result", result, "--result", other}
	nstest.Equal(t, "to standard output: status", run(t.Context(), env), exitFine)
	files = untar(t, &out)
	if len(files) < 10 || files["via-xdp-report/results/pingpong.json"] == "" || files["via-xdp-report/results/2-pingpong.json"] != "another one" {
		t.Errorf("two results of one name: %d files, %q", len(files), files["via-xdp-report/results/2-pingpong.json"])
	}
}

// A report of another network namespace has nothing of the interface that has the same name where sysfs was mounted.
func TestReportOfNamespace(t *testing.T) {
	var name string
	seen, _ := os.ReadDir("/sys/class/net")
	for _, e := range seen {
		if e.Name() != "lo" {
			name = e.Name()
		}
	}
	if name == "" {
		nstest.Lacks(t, "sysfs shows no interface but lo")
	}
	t.Setenv("VIA_RUNTIME_DIR", filepath.Join(t.TempDir(), "proc"))
	t.Setenv("VIA_AGENT", "none")
	a, _ := nstest.Pair(t, nstest.Options{})
	nstest.Must(t, a.Netlink().LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "peer"}))
	status, out, errs := produceIn(t, a, "report", name, "-o", "-")
	nstest.ErrorIf(t, status != exitFine, "status %d: %s", status, errs)
	files := untar(t, strings.NewReader(out))
	if s := files["via-xdp-report/nic/"+name+"/sysfs"]; !strings.Contains(s, "another network namespace") || strings.Contains(s, "mtu") {
		t.Errorf("sysfs: %s", s)
	}
	nstest.ErrorIf(t, files["via-xdp-report/nic/"+name+"/settings"] == "", "no settings by ethtool")
}
